// flash_attention: causal attention of blocks of rows of one slot each, on cooperative matrices (arXiv:2205.14135).
//
//   s[t] = q . k[t] * scale for t = 0 .. the row's position;  y = sum over t of exp(s[t] - m) v[t] / sum of exp(s[t] - m)
//
// With WINDOW, t begins WINDOW - 1 before the row's position. q, k, v and the p = exp(s - m) that meet v are rounded to float16; sums are float32. m is the running maximum, moved (and
// what was summed rescaled) only where it would rise by more than a factor of 2^8; p carries 2^7, away from subnormals.
// qkv: float32 [R][qkv_stride], q heads first. cache_k, cache_v: include/kv_cache.glsl, read 8 elements at a time.
// blocks: uint32 [blocks][4] = (first row, rows, slot, first position); no rows: the block ends at once.
// y: OUT 0 float32 [R][y_stride], heads side by side; OUT 1 + ORDER float16 in tiles [R / 16][y_stride / 16][16][16] with
// the order of elements of tile_f16.comp. Rows of no block are not touched.
// A workgroup serves PACK q heads of a KV head and a block of SUBGROUPS * FR * SIZE / PACK rows; a subgroup owns FR tiles
// of SIZE rows. BC positions of K and V at a time lie in shared memory; the next are on their way in registers meanwhile.
// Grid: x = packs of q heads, y = block. Blocks that see most come first in the table, so that none is left for last.
// Each invocation knows which elements of an accumulator it holds (coopmat_layout.comp, and the constants from ROWS on),
// so maxima, sums and rescaling stay in registers, and with DIRECT p as well, whose components are those of a product's
// operand. TRANSPOSED computes s and y as k q^T and v^T p^T, for devices where that is so only the other way round.
//
// variant f16: -DKV_F16
// variant f32: -DKV_F32
// variant f16_transposed: -DKV_F16 -DTRANSPOSED
// variant f32_transposed: -DKV_F32 -DTRANSPOSED
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "buffers.glsl"

layout(constant_id = 0) const uint HEAD_DIM = 64;  // multiple of 16
layout(constant_id = 1) const uint KV_HEADS = 1;
layout(constant_id = 2) const uint GROUP = 1;      // q heads a KV head serves
layout(constant_id = 3) const uint PACK = 1;       // q heads a workgroup serves
layout(constant_id = 4) const uint PAGE = 128;
layout(constant_id = 5) const uint SIZE = 16;      // rows, columns and depth of a cooperative matrix
layout(constant_id = 6) const uint SUBGROUPS = 4;
layout(constant_id = 7) const uint FR = 1;
layout(constant_id = 8) const uint BC = 32;        // a multiple of SIZE that divides PAGE
layout(constant_id = 9) const uint HELD = 4;       // of the HEAD_DIM / SIZE pieces of q, those held in registers
layout(constant_id = 10) const uint OUT = 0;
layout(constant_id = 11) const uint ROWS = 2;      // different rows of q that an invocation has in an accumulator
layout(constant_id = 12) const uint ROW_OF = 0x11001100;  // 4 bits a component: which of them it belongs to
layout(constant_id = 13) const uint SHARED_BY = 3; // bits in which the invocations differ that share a row
layout(constant_id = 14) const bool DIRECT = true;
layout(constant_id = 15) const uint ORDER = 0x76543210;   // 4 bits a component of an operand: the accumulator's that it is
layout(constant_id = 16) const uint SUBGROUP = 32;
layout(constant_id = 17) const uint LOCAL = 128;   // SUBGROUPS * SUBGROUP
layout(constant_id = 18) const uint WINDOW = 0;    // positions a row sees, its own included; 0: all
layout(local_size_x_id = 17, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
    Floats4 qkv;
    Words4 blocks;
    Words4 cache_k;
    Words4 cache_v;
    Words page_table;
    Words4 y;
    uint qkv_stride;
    uint y_stride;
    uint pages_per_slot;
    float scale;  // of q . k, times the logarithm of e to base 2
};

const uint COMPONENTS = SIZE * SIZE / SUBGROUP;
const uint EIGHTS = HEAD_DIM / 8, PAD = EIGHTS + 1;  // uvec4s of a row, and what a staged row takes: banks differ row by row
const uint DEPTH = HEAD_DIM / SIZE, COLUMNS = BC / SIZE, LINES = SUBGROUPS * FR * SIZE, PER_EIGHT = SIZE / 8;
const uint KEYS = BC * PAD, OWN = SIZE * PAD;        // uvec4s of a staged K (or V), and of SIZE positions of it
const uint Q_PAD = HELD * PER_EIGHT + 1, Q_OWN = SIZE * Q_PAD, Y_OWN = SIZE * SIZE / 4;
const uint TILE = Q_OWN > Y_OWN ? Q_OWN : Y_OWN;     // what a subgroup stages of its q, or of its y
const uint STAGE = 2 * KEYS > SUBGROUPS * TILE ? 2 * KEYS : SUBGROUPS * TILE;
const uint REST_PAD = (HEAD_DIM - HELD * SIZE) / 8 + 1, REST = HELD < DEPTH ? LINES * REST_PAD : 0;
const uint P_PAD = COLUMNS * PER_EIGHT + 1, P_OWN = SIZE * P_PAD, PS = DIRECT ? 0 : SUBGROUPS * P_OWN;
const uint FIRST_P = STAGE + REST, FIRST_INDEX = FIRST_P + PS;
// K, V (before the loop q by tiles, behind it y by tiles); the rest of q; p; the index of each element of a matrix.
shared uvec4 staged[FIRST_INDEX + Y_OWN];

// OPENING: what maxima begin with where a row may have nothing to see yet; far above what is hidden, below any score
const float LOWEST = -1e30, OPENING = -1e20, SHIFT = 7.0, RISE = 8.0;  // shift and rise end at 2^15, in float16's range
const float LARGEST = 65504.0;
const uint PIECES = BC * EIGHTS, TURNS = (PIECES + LOCAL - 1) / LOCAL;

#define LEFT coopmat<float16_t, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseA>
#define RIGHT coopmat<float16_t, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseAccumulator>
#if defined(TRANSPOSED)
#define QP RIGHT  // q, and p
#define KV LEFT
#define MULTIPLY(qp, kv, sums) coopMatMulAdd(kv, qp, sums)
#define BY_ROW gl_CooperativeMatrixLayoutColumnMajor  // of q, p, y and v in memory
#define BY_COLUMN gl_CooperativeMatrixLayoutRowMajor  // of k
#define ROW(index) ((index) % SIZE)
#define COLUMN(index) ((index) / SIZE)
#else
#define QP LEFT
#define KV RIGHT
#define MULTIPLY(qp, kv, sums) coopMatMulAdd(qp, kv, sums)
#define BY_ROW gl_CooperativeMatrixLayoutRowMajor
#define BY_COLUMN gl_CooperativeMatrixLayoutColumnMajor
#define ROW(index) ((index) / SIZE)
#define COLUMN(index) ((index) % SIZE)
#endif
#define OF(nibbles, e) (((nibbles) >> (4 * (e))) & 15u)

uvec4 halves(vec4 a, vec4 b) {
    a = clamp(a, -LARGEST, LARGEST);
    b = clamp(b, -LARGEST, LARGEST);
    return uvec4(packHalf2x16(a.xy), packHalf2x16(a.zw), packHalf2x16(b.xy), packHalf2x16(b.zw));
}

// Piece h of the BC positions from `begin` on: into registers, and from there to shared memory. Positions behind the
// block's last are zeros: what lies there may be anything.
#define PIECE(h) ((h) * LOCAL + lane)
#define WHOLE (PIECES % LOCAL == 0)
#if defined(KV_F16)
#define FETCH(cache, begin)                                                                   \
    [[unroll]] for (uint h = 0; h < TURNS; h++) {                                             \
        held[h] = uvec4(0);                                                                   \
        if ((WHOLE || PIECE(h) < PIECES) && (begin) + PIECE(h) / EIGHTS <= last)              \
            held[h] = cache.v[page_base + (begin) % PAGE * EIGHTS + PIECE(h)];                \
    }
#define FETCHED(h) held[h]
#else
#define FETCH(cache, begin)                                                                   \
    [[unroll]] for (uint h = 0; h < TURNS; h++) {                                             \
        held[2 * h] = held[2 * h + 1] = uvec4(0);                                             \
        if ((WHOLE || PIECE(h) < PIECES) && (begin) + PIECE(h) / EIGHTS <= last) {            \
            const uint from = (page_base + (begin) % PAGE * EIGHTS + PIECE(h)) * 2;           \
            held[2 * h] = cache.v[from];                                                      \
            held[2 * h + 1] = cache.v[from + 1];                                              \
        }                                                                                     \
    }
#define FETCHED(h) halves(uintBitsToFloat(held[2 * (h)]), uintBitsToFloat(held[2 * (h) + 1]))
#endif
#define PUT(to)                                                                               \
    [[unroll]] for (uint h = 0; h < TURNS; h++)                                               \
        if (WHOLE || PIECE(h) < PIECES)                                                       \
            staged[(to) + PIECE(h) / EIGHTS * PAD + PIECE(h) % EIGHTS] = FETCHED(h);

void main() {
    const uvec4 block = blocks.v[gl_WorkGroupID.y];
    const uint first_row = block.x, count = block.y, first = block.w;
    if (count == 0) return;
    const uint lane = gl_LocalInvocationIndex, sg = gl_SubgroupID, own_lane = gl_SubgroupInvocationID;
    const uint packs = (GROUP + PACK - 1) / PACK;
    const uint kv_head = gl_WorkGroupID.x / packs, member = gl_WorkGroupID.x % packs * PACK;
    const uint last = first + count - 1, turns = last / BC + 1;
    const uint pages = block.z * pages_per_slot;
    // Tile i of this subgroup: rows LINE(i) on of the block, of q head HEAD(i) of the group.
#define LINE(i) ((sg * FR + (i)) / PACK * SIZE)
#define HEAD(i) (member + (sg * FR + (i)) % PACK)
    // Positions that some row of this subgroup sees. All, where p goes through memory: some drivers let a subgroup's
    // barrier wait for all subgroups.
    uint sees = DIRECT ? 0 : last + 1;
    if (DIRECT) [[unroll]] for (uint i = 0; i < FR; i++)
        if (LINE(i) < count && HEAD(i) < GROUP) sees = first + min(LINE(i) + SIZE, count);

#if defined(KV_F16)
    uvec4 held[TURNS];
#else
    uvec4 held[2 * TURNS];
#endif
    uint opens = 0;  // the turn that the first row's window begins in
    if (WINDOW != 0 && first + 1 > WINDOW) opens = (first + 1 - WINDOW) / BC;
    uint page_base = (page_table.v[pages + opens * BC / PAGE] * KV_HEADS + kv_head) * PAGE * EIGHTS;
    uint page_next = page_table.v[pages + min(opens * BC / PAGE + 1, last / PAGE)];
    FETCH(cache_k, opens * BC)

    for (uint i = lane; i < Y_OWN; i += LOCAL)
        staged[FIRST_INDEX + i] = floatBitsToUint(vec4(4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3));
    QP q[FR * HELD > 0 ? FR * HELD : 1];
    [[unroll]] for (uint i = 0; i < FR; i++) {
        for (uint item = own_lane; item < SIZE * EIGHTS; item += SUBGROUP) {
            const uint line = item / EIGHTS, eighth = item % EIGHTS;
            const uint from = (first_row + LINE(i) + line) * (qkv_stride / 4)
                            + (kv_head * GROUP + HEAD(i)) * (HEAD_DIM / 4) + eighth * 2;
            uvec4 packed = uvec4(0);
            if (LINE(i) + line < count && HEAD(i) < GROUP) packed = halves(qkv.v[from], qkv.v[from + 1]);
            if (eighth < HELD * PER_EIGHT) staged[sg * Q_OWN + line * Q_PAD + eighth] = packed;
            else staged[STAGE + ((sg * FR + i) * SIZE + line) * REST_PAD + eighth - HELD * PER_EIGHT] = packed;
        }
        subgroupMemoryBarrierShared();
        subgroupBarrier();
        [[unroll]] for (uint d = 0; d < HELD; d++)
            coopMatLoad(q[i * HELD + d], staged, sg * Q_OWN + d * PER_EIGHT, Q_PAD, BY_ROW);
        subgroupMemoryBarrierShared();
        subgroupBarrier();
    }
    barrier();
    PUT(0)
    barrier();

    SUMS acc[FR * DEPTH];
    float top[FR * ROWS], sum[FR * ROWS];  // of s in powers of two; of this invocation's own elements
    [[unroll]] for (uint f = 0; f < FR * DEPTH; f++) acc[f] = SUMS(0.0);
    [[unroll]] for (uint r = 0; r < FR * ROWS; r++) {
        top[r] = WINDOW == 0 ? LOWEST : OPENING;
        sum[r] = 0.0;
    }
    for (uint turn = opens; turn < turns; turn++) {
        const uint begin = turn * BC;
        const bool seen = begin < sees;
        FETCH(cache_v, begin)
        if ((begin + BC) % PAGE == 0) {
            page_base = (page_next * KV_HEADS + kv_head) * PAGE * EIGHTS;
            page_next = page_table.v[pages + min((begin + BC) / PAGE + 1, last / PAGE)];
        }
        QP p[FR * COLUMNS];
        if (seen) {
            SUMS s[FR * COLUMNS];
            [[unroll]] for (uint f = 0; f < FR * COLUMNS; f++) s[f] = SUMS(0.0);
            [[unroll]] for (uint d = 0; d < DEPTH; d++) {
                QP rest[FR];
                if (d >= HELD)
                    [[unroll]] for (uint i = 0; i < FR; i++)
                        coopMatLoad(rest[i], staged, STAGE + (sg * FR + i) * SIZE * REST_PAD + (d - HELD) * PER_EIGHT,
                                    REST_PAD, BY_ROW);
                [[unroll]] for (uint n = 0; n < COLUMNS; n++) {
                    KV key;
                    coopMatLoad(key, staged, n * OWN + d * PER_EIGHT, PAD, BY_COLUMN);
                    [[unroll]] for (uint i = 0; i < FR; i++)
                        if (d < HELD) s[i * COLUMNS + n] = MULTIPLY(q[i * HELD + d], key, s[i * COLUMNS + n]);
                        else s[i * COLUMNS + n] = MULTIPLY(rest[i], key, s[i * COLUMNS + n]);
                }
            }
            [[unroll]] for (uint i = 0; i < FR; i++) {
                const uint lowest = first + LINE(i), highest = lowest + SIZE - 1;  // rows of the tile
                if (begin + BC - 1 > lowest || (WINDOW != 0 && begin + WINDOW <= highest)) {  // the diagonals
                    SUMS index;
                    coopMatLoad(index, staged, FIRST_INDEX, SIZE / 4, gl_CooperativeMatrixLayoutRowMajor);
                    [[unroll]] for (uint e = 0; e < COMPONENTS; e++) {
                        const uint at = uint(index[e]), row = first + LINE(i) + ROW(at);
                        [[unroll]] for (uint n = 0; n < COLUMNS; n++)
                            if (begin + n * SIZE + COLUMN(at) > row
                                || (WINDOW != 0 && begin + n * SIZE + COLUMN(at) + WINDOW <= row)) s[i * COLUMNS + n][e] = LOWEST;
                    }
                }
                float high[ROWS];
                [[unroll]] for (uint r = 0; r < ROWS; r++) high[r] = LOWEST;
                [[unroll]] for (uint n = 0; n < COLUMNS; n++)
                    [[unroll]] for (uint e = 0; e < COMPONENTS; e++)
                        high[OF(ROW_OF, e)] = max(high[OF(ROW_OF, e)], s[i * COLUMNS + n][e]);
                bool rises = false;
                [[unroll]] for (uint r = 0; r < ROWS; r++) {
                    [[unroll]] for (uint bit = 1; bit < SUBGROUP; bit *= 2)
                        if ((SHARED_BY & bit) != 0) high[r] = max(high[r], subgroupShuffleXor(high[r], bit));
                    high[r] *= scale;
                    rises = rises || high[r] > top[i * ROWS + r] + RISE;
                }
                if (subgroupAny(rises)) {
                    [[unroll]] for (uint r = 0; r < ROWS; r++) {
                        const float now = max(top[i * ROWS + r], high[r]);
                        high[r] = exp2(top[i * ROWS + r] - now);
                        sum[i * ROWS + r] *= high[r];
                        top[i * ROWS + r] = now;
                    }
                    [[unroll]] for (uint d = 0; d < DEPTH; d++)
                        [[unroll]] for (uint e = 0; e < COMPONENTS; e++) acc[i * DEPTH + d][e] *= high[OF(ROW_OF, e)];
                }
                [[unroll]] for (uint n = 0; n < COLUMNS; n++) {
                    [[unroll]] for (uint e = 0; e < COMPONENTS; e++) {
                        const uint r = i * ROWS + OF(ROW_OF, e);
                        const float power = exp2(fma(s[i * COLUMNS + n][e], scale, SHIFT - top[r]));
                        sum[r] += power;
                        s[i * COLUMNS + n][e] = power;
                    }
                    if (DIRECT)
                        [[unroll]] for (uint e = 0; e < COMPONENTS; e++)
                            p[i * COLUMNS + n][e] = float16_t(s[i * COLUMNS + n][OF(ORDER, e)]);
                    else
                        coopMatStore(coopmat<float16_t, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseAccumulator>(s[i * COLUMNS + n]),
                                     staged, FIRST_P + sg * P_OWN + n * PER_EIGHT, P_PAD, BY_ROW);
                }
                if (!DIRECT) {
                    subgroupMemoryBarrierShared();
                    subgroupBarrier();
                    [[unroll]] for (uint n = 0; n < COLUMNS; n++)
                        coopMatLoad(p[i * COLUMNS + n], staged, FIRST_P + sg * P_OWN + n * PER_EIGHT, P_PAD, BY_ROW);
                    subgroupMemoryBarrierShared();
                    subgroupBarrier();
                }
            }
        }
        PUT(KEYS)
        barrier();  // V is there, and nobody reads K any more
        FETCH(cache_k, begin + BC)
        if (seen)
            [[unroll]] for (uint n = 0; n < COLUMNS; n++)
                [[unroll]] for (uint d = 0; d < DEPTH; d++) {
                    KV value;
                    coopMatLoad(value, staged, KEYS + n * OWN + d * PER_EIGHT, PAD, BY_ROW);
                    [[unroll]] for (uint i = 0; i < FR; i++)
                        acc[i * DEPTH + d] = MULTIPLY(p[i * COLUMNS + n], value, acc[i * DEPTH + d]);
                }
        PUT(0)
        barrier();  // K is there, and nobody reads V any more
    }

    const uint own = sg * Y_OWN;  // a tile of y in shared memory
    [[unroll]] for (uint i = 0; i < FR; i++) {
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            [[unroll]] for (uint bit = 1; bit < SUBGROUP; bit *= 2)
                if ((SHARED_BY & bit) != 0) sum[i * ROWS + r] += subgroupShuffleXor(sum[i * ROWS + r], bit);
            sum[i * ROWS + r] = 1.0 / sum[i * ROWS + r];
        }
        const uint lines = HEAD(i) < GROUP && LINE(i) < count ? min(SIZE, count - LINE(i)) : 0;
        const uint row = first_row + LINE(i), head = kv_head * GROUP + HEAD(i);
        [[unroll]] for (uint d = 0; d < DEPTH; d++) {
            [[unroll]] for (uint e = 0; e < COMPONENTS; e++) acc[i * DEPTH + d][e] *= sum[i * ROWS + OF(ROW_OF, e)];
            coopMatStore(acc[i * DEPTH + d], staged, own, SIZE / 4, BY_ROW);
            subgroupMemoryBarrierShared();
            subgroupBarrier();
            for (uint item = own_lane; item < SIZE * PER_EIGHT; item += SUBGROUP) {
                const uint line = item / PER_EIGHT, r = row + line;
                const uvec4 low = staged[own + item * 2], high = staged[own + item * 2 + 1];
                const uint eighth = head * EIGHTS + d * PER_EIGHT + item % PER_EIGHT;
                if (line >= lines) continue;
                if (OUT == 0) {
                    y.v[r * (y_stride / 4) + eighth * 2] = low;
                    y.v[r * (y_stride / 4) + eighth * 2 + 1] = high;
                } else {
                    const vec4 a = uintBitsToFloat(low), b = uintBitsToFloat(high);
                    uvec4 packed;
                    if (OUT == 2)
                        packed = uvec4(packHalf2x16(a.xz), packHalf2x16(a.yw), packHalf2x16(b.xz), packHalf2x16(b.yw));
                    else if (OUT == 3)
                        packed = uvec4(packHalf2x16(vec2(a.x, b.x)), packHalf2x16(vec2(a.y, b.y)),
                                       packHalf2x16(vec2(a.z, b.z)), packHalf2x16(vec2(a.w, b.w)));
                    else
                        packed = uvec4(packHalf2x16(a.xy), packHalf2x16(a.zw), packHalf2x16(b.xy), packHalf2x16(b.zw));
                    y.v[((r / 16) * (y_stride / 16) + eighth / 2) * 32 + (r % 16) * 2 + eighth % 2] = packed;
                }
            }
            subgroupMemoryBarrierShared();
            subgroupBarrier();
        }
    }
}
