// linear_int8: linear on cooperative matrices of int8: quantised weights times activations in int8, sums of a block exact.
//
//   y[r][i] = sum over blocks b of dw[i][b] * dx[r][b] * (sum of qw * qx) + mw[i][b] * (dx[r][b] * sum of qx)
//   EPILOGUE 0 STORE, 1 ADD (residual, in place), 2 SWIGLU (rows of W interleave gate and up), as in linear.comp
//
// W: codes and scales in resident tiles (include/weights.glsl). x, x_scales, x_sums: include/int8_tiles.glsl, ORDER 1 for
// 4-bit codes; x_sums is read where W has a minimum. y: float32 [rows][y_stride]; with OUT 1 + ORDER (SWIGLU, SR * FR * CM a
// multiple of 64) the result as int8 tiles of y_stride elements a row instead: y_codes, y_scales, y_sums (with SUMS).
//
// No element's place in a matrix need be known. The scales of CKF blocks are an operand [CM][CKF] and those of x one
// [CKF][CN], in float16; with all rows of the latter but a block's zeroed, their product is dw (x) dx of the block in the
// layout of its sums, which meet it component by component. The minimum is a product more for a unit of blocks. 8-bit codes
// are loaded from their tiles; 4-bit ones are spread to bytes in a subgroup's own shared memory: without a minimum as
// 16 (code - 8), which costs nothing, since that is the high half of a byte with its top bit flipped.
// A subgroup owns FR * CM rows of W and FC * CN rows of x. A workgroup is SR * SC of these side by side, each SK times
// over: SK subgroups take turns along K, a unit of G blocks at a time, and their sums are added in fixed order.
// There are at least CKF blocks. Grid: x = rows of W in groups of SR * FR * CM, y = rows of x in groups of SC * FC * CN.
//
// variant q8: -DWEIGHT_Q8
// variant q4: -DWEIGHT_Q4
// variant q4m: -DWEIGHT_Q4 -DWEIGHT_MIN
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#include "buffers.glsl"
#include "int8_tiles.glsl"
#include "magic_bias.glsl"

layout(constant_id = 0) const uint CM = 16;
layout(constant_id = 1) const uint CN = 16;
layout(constant_id = 2) const uint CK = 32;        // divides 32
layout(constant_id = 3) const uint CKF = 16;       // K of a float16 product of CM x CN
layout(constant_id = 4) const uint FR = 1;
layout(constant_id = 5) const uint FC = 1;
layout(constant_id = 6) const uint SR = 1;
layout(constant_id = 7) const uint SC = 1;
layout(constant_id = 8) const uint SK = 1;
layout(constant_id = 9) const uint G = 8;          // at most CKF
layout(constant_id = 10) const uint AHEAD = 2;     // blocks of W whose loads are in flight at once: divides G; even for 4-bit codes
layout(constant_id = 11) const uint AHEAD_X = 0;   // blocks of x: divides AHEAD, or 0
layout(constant_id = 12) const bool PREFETCH = true;  // scales of the next unit are loaded while one is multiplied
layout(constant_id = 13) const uint BUFFERS = 1;   // of spread codes: 1, or 2 that take turns
layout(constant_id = 14) const bool MAGIC = true;  // int32 to float32 by include/magic_bias.glsl
layout(constant_id = 15) const bool PIPE = true;   // blocks of W are on their way while those before are multiplied
layout(constant_id = 16) const uint EPILOGUE = 0;
layout(constant_id = 17) const uint OUT = 0;
layout(constant_id = 18) const bool SUMS = false;
layout(constant_id = 19) const uint SUBGROUP = 32;
layout(constant_id = 20) const uint LOCAL = 32;    // SR * SC * SK * SUBGROUP
layout(local_size_x_id = 20, local_size_y = 1, local_size_z = 1) in;

layout(buffer_reference, std430, buffer_reference_align = 8) buffer Words2 { uvec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 2) buffer Halves { uint16_t v[]; };

layout(push_constant, std430) uniform Push {
    Words4 w;
    Words4 scales;
    Words4 x;
    Words4 x_scales;
    Words4 x_sums;
    Floats y;
    Words2 y_codes;
    Halves y_scales;
    Halves y_sums;
    uint rows;
    uint n;
    uint k;
    uint y_stride;
};

#define INT8_A coopmat<int8_t, gl_ScopeSubgroup, CM, CK, gl_MatrixUseA>
#define INT8_B coopmat<int8_t, gl_ScopeSubgroup, CK, CN, gl_MatrixUseB>
#define INT32_C coopmat<int, gl_ScopeSubgroup, CM, CN, gl_MatrixUseAccumulator>
#define HALF_A coopmat<float16_t, gl_ScopeSubgroup, CM, CKF, gl_MatrixUseA>
#define HALF_B coopmat<float16_t, gl_ScopeSubgroup, CKF, CN, gl_MatrixUseB>
#define FLOAT_C coopmat<float, gl_ScopeSubgroup, CM, CN, gl_MatrixUseAccumulator>
#define BY_ROW gl_CooperativeMatrixLayoutRowMajor
#define BY_COLUMN gl_CooperativeMatrixLayoutColumnMajor

const uint TILE = 16, PARTS = 32 / CK, SUBGROUPS = SR * SC * SK;
const uint ROWS = FR * CM, COLS = FC * CN;  // of W and of x, a subgroup
const uint TILES = (ROWS + TILE - 1) / TILE;
const uint COMPONENTS = CM * CN / SUBGROUP, MOST = 2 * CKF * CN / SUBGROUP;  // of a sum; of an operand, twice if held twice
const uint RINGS_X = AHEAD_X > 0 ? AHEAD_X : 1;

// Shared memory, in uvec4s, used in turn: rows of an operand; spread codes and split scales; sums. Then what becomes y tiles.
#if defined(WEIGHT_Q4)
const uint LINE = CK == 8 ? 5 : 3;  // a row of spread codes: 32 bytes (each 8 in 16 where a matrix takes 8), banks differing
const uint CODES = TILES * BUFFERS * 2 * TILE * LINE;  // of a subgroup
const uint HELD = 32 / SUBGROUP;    // pieces of a pair of blocks an invocation holds
#else
const uint CODES = 0;
#endif
#if defined(WEIGHT_MIN)
const uint SPLIT = TILES * CKF * 4;  // of a subgroup
#else
const uint SPLIT = 0;
#endif
const uint STAGE = SUBGROUPS * COLS * CM / 4, UNPACK = SUBGROUPS * (CODES + SPLIT), INDEX = CKF * CN / 8;
const uint LARGER = STAGE > UNPACK ? STAGE : UNPACK, ARENA = LARGER > INDEX ? LARGER : INDEX;
const uint MADE = SR * ROWS / 2;  // outputs of a row of x, a workgroup
shared uvec4 arena[ARENA + (OUT > 0 ? (SC * COLS * (MADE + 1) + 3) / 4 : 0)];
#define WORD(at) arena[(at) / 4][(at) % 4]
#define MADE_AT(at) uintBitsToFloat(WORD(ARENA * 4 + (at)))

// Fragment i, part p of the codes of block b: straight from 8-bit tiles.
#define LOAD_CODES(to, b, i, p)                                                                                  \
    {                                                                                                            \
        const uint row = row0 + (i) * CM, at = (min(row / TILE, last_tile) * blocks + (b)) * 32 + row % TILE * 2; \
        if (CK == 8) coopMatLoad(to, Words2(w).v, at * 2 + (p), 4, BY_ROW);                                      \
        else coopMatLoad(to, w.v, at + (p) * CK / 16, 2, BY_ROW);                                                \
    }
#define LOAD_X(slot, b)                                                                                          \
    [[unroll]] for (uint j = 0; j < FC; j++)                                                                     \
        [[unroll]] for (uint p = 0; p < PARTS; p++) {                                                            \
            const uint col = min(col0 + j * CN, last_col), at = ((col / 16) * blocks + (b)) * 32 + col % 16 * 2; \
            if (CK == 8) coopMatLoad(next_x[((slot) * FC + j) * PARTS + p], Words2(x).v, at * 2 + p, 4, BY_COLUMN); \
            else coopMatLoad(next_x[((slot) * FC + j) * PARTS + p], x.v, at + p * CK / 16, 2, BY_COLUMN);        \
        }

// Scales of the CKF blocks from b: of W (those with a minimum come by SPLIT_SCALES), of x, and the sums of x.
#define LOAD_SCALES(to, b)                                                                                       \
    [[unroll]] for (uint i = 0; i < FR; i++) {                                                                   \
        const uint row = row0 + i * CM, at = min(row / TILE, last_tile) * blocks + (b);                          \
        coopMatLoad(to[i], scales.v, at * 2 + row % TILE / 8, 2, BY_COLUMN);                                     \
    }
#define LOAD_X_SCALES(to, b)                                                                                     \
    [[unroll]] for (uint j = 0; j < FC; j++) {                                                                   \
        const uint col = min(col0 + j * CN, last_col);                                                           \
        coopMatLoad(to[j], x_scales.v, ((col / 16) * blocks + (b)) * 2 + col % 16 / 8, 2, BY_ROW);               \
    }

#if defined(WEIGHT_Q4)
// Pair of blocks at `b`: the row, the block ahead and the tile of piece h of PIECES, for lane L(h) of 32.
const uint PIECES = TILES * HELD;
#define L(h) ((h) % HELD * SUBGROUP + gl_SubgroupInvocationID)
#define LOAD_PAIR(slot, b)                                                                                       \
    [[unroll]] for (uint h = 0; h < PIECES; h++) {                                                               \
        const uint tile = min(row0 / TILE + h / HELD, last_tile) * blocks + min((b) + L(h) / 16, last);          \
        raw[(slot) * PIECES + h] = w.v[tile * TILE + L(h) % 16];                                                 \
    }

void spread(uint to, uvec4 q) {
#if defined(WEIGHT_MIN)
    const uvec4 even = q & 0x0F0F0F0Fu, odd = (q >> 4) & 0x0F0F0F0Fu;
#else
    const uvec4 even = ((q << 4) & 0xF0F0F0F0u) ^ 0x80808080u, odd = (q & 0xF0F0F0F0u) ^ 0x80808080u;
#endif
    if (CK == 8) {
        [[unroll]] for (uint j = 0; j < 4; j++) arena[to + j] = uvec4(even[j], odd[j], 0u, 0u);
    } else {
        arena[to] = uvec4(even.x, odd.x, even.y, odd.y);
        arena[to + 1] = uvec4(even.z, odd.z, even.w, odd.w);
    }
}
#endif

vec4 made4(uint at) { return vec4(MADE_AT(at), MADE_AT(at + 1), MADE_AT(at + 2), MADE_AT(at + 3)); }

// Products of a block whose codes are `a`, whose x is in `slot`, and whose scales are row `at` of the operands.
#define MULTIPLY(slot, at)                                                                                       \
    [[unroll]] for (uint j = 0; j < FC; j++) {                                                                   \
        HALF_B only = HALF_B(0.0hf);                                                                             \
        [[unroll]] for (uint c = 0; c < MOST; c++)                                                               \
            if (c < only.length()) only[c] = row_of[c] == (at) ? dx[j][c] : 0.0hf;                               \
        [[unroll]] for (uint i = 0; i < FR; i++) {                                                               \
            INT32_C s = INT32_C(MAGIC ? MAGIC_BIAS : 0);                                                         \
            [[unroll]] for (uint p = 0; p < PARTS; p++)                                                          \
                s = coopMatMulAdd(a[i * PARTS + p], next_x[((slot) * FC + j) * PARTS + p], s);                   \
            const FLOAT_C both = coopMatMulAdd(dw[i], only, FLOAT_C(0.0));                                       \
            [[unroll]] for (uint c = 0; c < COMPONENTS; c++) {                                                   \
                const float sum = MAGIC ? from_magic(s[c]) : float(s[c]);                                        \
                acc[i * FC + j][c] = fma(sum, both[c], acc[i * FC + j][c]);                                      \
            }                                                                                                    \
        }                                                                                                        \
    }

void main() {
    const uint sg = gl_SubgroupID, sk = sg % SK, sr = sg / SK % SR, sc = sg / (SK * SR);
    const uint blocks = k / 32, last = blocks - 1, last_tile = (n + TILE - 1) / TILE - 1;
    const uint row0 = (gl_WorkGroupID.x * SR + sr) * ROWS, col0 = (gl_WorkGroupID.y * SC + sc) * COLS;
    const uint last_col = (rows + 15) / 16 * 16 - CN;  // x has whole tiles
    const uint units = (blocks + G - 1) / G;

    for (uint i = gl_LocalInvocationIndex; i < INDEX; i += LOCAL) {
        const uint r = i * 8 / CN;
        arena[i] = uvec4(packHalf2x16(vec2(r)));
    }
    barrier();
    HALF_B row_of;
    coopMatLoad(row_of, arena, 0, CN / 8, BY_ROW);
    barrier();

    FLOAT_C acc[FR * FC];
    [[unroll]] for (uint f = 0; f < FR * FC; f++) acc[f] = FLOAT_C(0.0);
    INT8_B next_x[RINGS_X * FC * PARTS];
    HALF_A dw[FR];
    HALF_B dx[FC];
#if defined(WEIGHT_Q4)
    const uint own = sg * (CODES + SPLIT);
    uvec4 raw[AHEAD / 2 * PIECES];
#define LOAD_W(first)                                                                                            \
    [[unroll]] for (uint u = 0; u < AHEAD; u += 2) LOAD_PAIR(u / 2, min((first) + u, last))
#else
    INT8_A next[AHEAD * FR * PARTS];
#define LOAD_W(first)                                                                                            \
    [[unroll]] for (uint u = 0; u < AHEAD; u++)                                                                  \
        [[unroll]] for (uint i = 0; i < FR; i++)                                                                 \
            [[unroll]] for (uint p = 0; p < PARTS; p++)                                                          \
                LOAD_CODES(next[(u * FR + i) * PARTS + p], min((first) + u, last), i, p)
#endif
    if (PIPE) LOAD_W(sk * G)
    [[unroll]] for (uint u = 0; u < AHEAD_X; u++) LOAD_X(u, min(sk * G + u, last))
    HALF_A next_dw[FR];
    HALF_B next_dx[FC];
    if (PREFETCH) {
#if !defined(WEIGHT_MIN)
        LOAD_SCALES(next_dw, min(sk * G, blocks - CKF))
#endif
        LOAD_X_SCALES(next_dx, min(sk * G, blocks - CKF))
    }

    for (uint turn = 0; turn < units; turn += SK) {  // as many for every subgroup: some drivers wait for all
        const uint first = (turn + sk) * G, base = min(first, blocks - CKF);
        const bool more = turn + SK < units;
        if (PREFETCH) {
            const uint next_base = more ? min(first + SK * G, blocks - CKF) : base;
#if !defined(WEIGHT_MIN)
            [[unroll]] for (uint i = 0; i < FR; i++) dw[i] = next_dw[i];
            LOAD_SCALES(next_dw, next_base)
#endif
            [[unroll]] for (uint j = 0; j < FC; j++) dx[j] = next_dx[j];
            LOAD_X_SCALES(next_dx, next_base)
        } else {
#if !defined(WEIGHT_MIN)
            LOAD_SCALES(dw, base)
#endif
            LOAD_X_SCALES(dx, base)
        }
#if defined(WEIGHT_MIN)
        // (scale, minimum) of eight rows at a time into two planes [CKF][16].
        for (uint item = gl_SubgroupInvocationID; item < TILES * CKF * 2; item += SUBGROUP) {
            const uint t = item / (CKF * 2), line = item % (CKF * 2);
            const uint from = (min(row0 / TILE + t, last_tile) * blocks + base) * 4 + line * 2;
            const uvec4 p = scales.v[from], q = scales.v[from + 1];
            const uint to = own + CODES + t * CKF * 4 + line;
            arena[to] = uvec4((p.xz & 0xFFFFu) | (p.yw << 16), (q.xz & 0xFFFFu) | (q.yw << 16));
            arena[to + CKF * 2] = uvec4((p.xz >> 16) | (p.yw & 0xFFFF0000u), (q.xz >> 16) | (q.yw & 0xFFFF0000u));
        }
        subgroupMemoryBarrierShared();
        subgroupBarrier();
        HALF_A mw[FR];
        [[unroll]] for (uint i = 0; i < FR; i++) {
            const uint row = row0 % TILE + i * CM, from = own + CODES + row / TILE * CKF * 4 + row % TILE / 8;
            coopMatLoad(dw[i], arena, from, 2, BY_COLUMN);
            coopMatLoad(mw[i], arena, from + CKF * 2, 2, BY_COLUMN);
            mw[i] *= 64.0hf;  // sums of x are in its own units, the others in 64ths
        }
        const float16_t low = float16_t(first < blocks ? first - base : CKF);
        const float16_t high = float16_t(min(first + G, blocks) - base);  // not reached where low is CKF
        [[unroll]] for (uint j = 0; j < FC; j++)
            [[unroll]] for (uint half_ = 0; half_ < 2; half_++) {
                const uint col = min(col0 + j * CN, last_col);
                HALF_B sums;
                coopMatLoad(sums, x_sums.v, ((col / 16) * blocks + base) * 4 + half_ * 2 + col % 16 / 8, 4, BY_ROW);
                [[unroll]] for (uint c = 0; c < MOST; c++)
                    if (c < sums.length()) sums[c] = row_of[c] >= low && row_of[c] < high ? sums[c] : 0.0hf;
                [[unroll]] for (uint i = 0; i < FR; i++) acc[i * FC + j] = coopMatMulAdd(mw[i], sums, acc[i * FC + j]);
            }
#endif
        [[dont_unroll]] for (uint g = 0; g < G; g += AHEAD) {
            // The block that takes a place AHEAD blocks on; behind the last unit, one that is here already.
            const uint step = g + AHEAD < G ? AHEAD : more ? AHEAD + (SK - 1) * G : 0;
            if (!PIPE) LOAD_W(first + g)
#if defined(WEIGHT_Q4)
            [[unroll]] for (uint u = 0; u < AHEAD; u += 2) {
                const uint codes = own + (BUFFERS == 2 ? (g + u) / 2 % 2 * (CODES / 2) : 0);
                [[unroll]] for (uint h = 0; h < PIECES; h++)
                    spread(codes + ((h / HELD * 2 + L(h) / 16) * TILE + L(h) % 16) * LINE, raw[u / 2 * PIECES + h]);
                if (PIPE) LOAD_PAIR(u / 2, min(first + g + u + step, last))
                subgroupMemoryBarrierShared();
                subgroupBarrier();
                [[unroll]] for (uint v = u; v < u + 2; v++) {
                    const uint block = first + g + v;
                    INT8_A a[FR * PARTS];
                    [[unroll]] for (uint i = 0; i < FR; i++)
                        [[unroll]] for (uint p = 0; p < PARTS; p++) {
                            const uint row = row0 % TILE + i * CM;
                            coopMatLoad(a[i * PARTS + p], arena,
                                        codes + ((row / TILE * 2 + v - u) * TILE + row % TILE) * LINE + p * max(CK, 16) / 16,
                                        LINE, BY_ROW);
                        }
#else
            [[unroll]] for (uint v = 0; v < AHEAD; v++) {
                const uint block = first + g + v;
                {
                    INT8_A a[FR * PARTS];
                    [[unroll]] for (uint f = 0; f < FR * PARTS; f++) a[f] = next[v * FR * PARTS + f];
                    if (PIPE)
                        [[unroll]] for (uint i = 0; i < FR; i++)
                            [[unroll]] for (uint p = 0; p < PARTS; p++)
                                LOAD_CODES(next[(v * FR + i) * PARTS + p], min(block + step, last), i, p)
#endif
                    if (AHEAD_X == 0) LOAD_X(0, min(block, last))
                    const float16_t at = float16_t(block < blocks ? block - base : CKF);
                    MULTIPLY(v % RINGS_X, at)
                    if (AHEAD_X > 0) {
                        const uint ahead = g + v + AHEAD_X < G ? AHEAD_X : more ? AHEAD_X + (SK - 1) * G : 0;
                        LOAD_X(v % RINGS_X, min(block + ahead, last))
                    }
                }
#if defined(WEIGHT_Q4)
                if (BUFFERS == 1) subgroupBarrier();
#endif
            }
        }
#if defined(WEIGHT_MIN)
        subgroupBarrier();  // nobody writes scales that others still load
#endif
    }

    // Straight-line rounds, one a row of fragments: a loop with a barrier in it would be kept, and the sums with it in memory.
#if defined(WEIGHT_Q4) && !defined(WEIGHT_MIN)
    const float unit = 1.0 / 1024.0;  // of h, and of codes
#else
    const float unit = 1.0 / 64.0;
#endif
    const uint step = EPILOGUE == 2 ? 2 : 1, part = COLS * CM, stages = (sg - sk) * part;
    barrier();
#define STAGED(at) uintBitsToFloat(WORD(at))
#define ROUND(i)                                                                                                 \
    if (i < FR) {                                                                                                \
        [[unroll]] for (uint j = 0; j < FC; j++)                                                                 \
            coopMatStore(acc[i * FC + j], arena, (sg * FC + j) * CM * CN / 4, CM / 4, BY_COLUMN);                \
        barrier();                                                                                               \
        for (uint item = sk * SUBGROUP + gl_SubgroupInvocationID; item < part / step; item += SK * SUBGROUP) {   \
            const uint at = item * step, row = row0 + i * CM + at % CM, col = col0 + at / CM;                    \
            float total = 0.0, other = 0.0;                                                                      \
            for (uint p = 0; p < SK; p++) {                                                                      \
                total += STAGED(stages + p * part + at);                                                         \
                if (EPILOGUE == 2) other += STAGED(stages + p * part + at + 1);                                  \
            }                                                                                                    \
            total *= unit;                                                                                       \
            if (EPILOGUE == 2) total = total / (1.0 + exp(-total)) * (other * unit);                             \
            const uint place = (sc * COLS + at / CM) * (MADE + 1) + (sr * ROWS + i * CM + at % CM) / 2;          \
            if (OUT > 0) WORD(ARENA * 4 + place) = floatBitsToUint(total);                                       \
            else if (row < n && col < rows) {                                                                    \
                if (EPILOGUE == 2) y.v[col * y_stride + row / 2] = total;                                        \
                else if (EPILOGUE == 1) y.v[col * y_stride + row] += total;                                      \
                else y.v[col * y_stride + row] = total;                                                          \
            }                                                                                                    \
        }                                                                                                        \
        barrier();                                                                                               \
    }
    ROUND(0)
    ROUND(1)
    ROUND(2)
    ROUND(3)
    if (OUT == 0) return;
    // Four invocations a block of 32 outputs of a row of x, 8 each.
    const uint wide = MADE / 32, items = SC * COLS * wide * 4, outs = y_stride / 32;
    for (uint item = gl_LocalInvocationIndex; item < items; item += LOCAL) {
        const uint eighth = item % 4, own_block = item / 4 % wide, line = item / (4 * wide);
        const uint col = gl_WorkGroupID.y * SC * COLS + line, block = gl_WorkGroupID.x * wide + own_block;
        if (col >= rows || block >= outs) continue;
        const uint from = line * (MADE + 1) + own_block * 32;
        uint top = 0;
        for (uint e = 0; e < 32; e++) top = max(top, magnitude(MADE_AT(from + e)));
        const uint h = scale_bits(top), at = (col / 16) * outs + block;
        int sum;
        y_codes.v[at * 64 + col % 16 * 4 + eighth] = codes8(made4(from + eighth * 8), made4(from + eighth * 8 + 4), h, OUT - 1, sum);
        if (eighth == 0) {
            y_scales.v[at * 16 + col % 16] = uint16_t(h);
            if (SUMS) {
                int total = sum;
                for (uint e = 8; e < 32; e += 8) {
                    codes8(made4(from + e), made4(from + e + 4), h, 0, sum);
                    total += sum;
                }
                const uvec2 halves = sum_bits(h, total);
                y_sums.v[at * 32 + col % 16] = uint16_t(halves.x);
                y_sums.v[at * 32 + 16 + col % 16] = uint16_t(halves.y);
            }
        }
    }
}
