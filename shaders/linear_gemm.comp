// linear_gemm: linear for many activation rows: y[r][i] = sum over k of W[i][k] * x[r][k], float16 products, float32 sums.
//
//   EPILOGUE 0 STORE, 1 ADD (residual, in place), 2 SWIGLU (rows of W interleave gate and up), as in linear.comp
//
// W: [n][k] in resident tiles (include/weights.glsl, weights_k.glsl). x: float16 in tiles [rows / 16][k / 16][16][16]
// (tile_f16.comp, with the order of elements that the weights unpack to). y: OUT 0 float32 [rows][y_stride]; OUT 1 + ORDER
// float16 in tiles [rows / 16][width / 16][16][16] with the order of elements of tile_f16.comp, zeros behind rows and width.
// A workgroup owns BM = SR * FR * CM rows of W and BN = SC * FC * CN rows of x, a subgroup FR * CM by FC * CN of them. BK
// columns of both lie in shared memory at a time, all as float16 (bf16 clamped to +-65504); the next are on their way in
// registers meanwhile. BUFFERS 2: what comes next is put beside what is multiplied, and one barrier parts them.
// Grid: x = tiles of y, in panels of GROUP tiles of W by all tiles of x, W fastest: neighbours share what they read.
//
// variant f16: -DWEIGHT_F16
// variant bf16: -DWEIGHT_BF16
// variant q8: -DWEIGHT_Q8
// variant q4: -DWEIGHT_Q4
// variant q4m: -DWEIGHT_Q4 -DWEIGHT_MIN
// variant q4k: -DWEIGHT_K -DWEIGHT_Q4K
// variant q5k: -DWEIGHT_K -DWEIGHT_Q5K
// variant q6k: -DWEIGHT_K -DWEIGHT_Q6K
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#include "buffers.glsl"
#if defined(WEIGHT_K) || defined(WEIGHT_BF16)
#include "unpack_f16.glsl"
#else
#include "weights.glsl"
#endif

layout(constant_id = 0) const uint CM = 16;
layout(constant_id = 1) const uint CN = 16;
layout(constant_id = 2) const uint CK = 16;
layout(constant_id = 3) const uint FR = 4;
layout(constant_id = 4) const uint FC = 4;
layout(constant_id = 5) const uint SR = 2;
layout(constant_id = 6) const uint SC = 2;
layout(constant_id = 7) const uint BK = 32;        // a multiple of 16, and of 32 for quantised weights
layout(constant_id = 8) const uint BUFFERS = 1;
layout(constant_id = 9) const bool AHEAD = false;  // load the next fragments before the last are multiplied
layout(constant_id = 10) const uint PUT_AT = 0;    // BUFFERS 2: put the next columns 0 before the steps, 1 among, 2 behind them
layout(constant_id = 11) const bool SPREAD = false; // invocations go down a tile's rows first: banks differ, cache lines too
layout(constant_id = 12) const uint GROUP = 8;
layout(constant_id = 13) const uint EPILOGUE = 0;
layout(constant_id = 14) const uint OUT = 0;
layout(constant_id = 15) const bool DIRECT = false; // OUT 0, no SWIGLU, n and rows multiples of CM and CN
layout(constant_id = 16) const bool WIDE = false;  // y can be written 16 bytes at a time
layout(constant_id = 17) const bool TAIL = true;   // k is not a multiple of BK
layout(constant_id = 18) const uint A_OF = 0x3120; // FRAGMENTS: 4 bits a pair of components: row half * 2 + column half
layout(constant_id = 19) const uint B_OF = 0x3210;
layout(constant_id = 20) const uint SUBGROUP = 32;
layout(constant_id = 21) const uint LOCAL = 128;   // SR * SC * SUBGROUP
layout(local_size_x_id = 21, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
    Words4 w;
    Words scales;
    Words4 x;
    Floats y;
    uint rows;
    uint n;
    uint k;
    uint y_stride;  // OUT 0: in floats
};

const uint ROWS = FR * CM, COLS = FC * CN, BM = SR * ROWS, BN = SC * COLS;
#if defined(FRAGMENTS)
const uint PAD = BK / 8;
#define PLACE(row, unit) ((row) * PAD + ((unit) ^ (((row) >> 1 & 1) * 2 + ((row) >> 2 & 1) + (BK == 32 ? 0 : ((row) & 1) * 4))))
#else
const uint PAD = BK / 8 + 1;  // uvec4s a staged row takes: banks differ row by row
#define PLACE(row, unit) ((row) * PAD + (unit))
#endif
const uint OWN = (BM + BN) * PAD;
const uint LINE = ROWS / 4 + 1, STAGE = DIRECT ? 0 : SR * SC * CN * LINE;  // sums on their way out: a column of fragments
shared uvec4 staged[BUFFERS * OWN > STAGE ? BUFFERS * OWN : STAGE];

// Pieces of 16 bytes. Piece h of an invocation is piece P(h) of the workgroup's BK columns.
#define P(h) ((h) * LOCAL + lane)
const uint KT = BK / 16;
const uint X_PIECES = BN * BK / 8, X_HELD = (X_PIECES + LOCAL - 1) / LOCAL;
#define X_TILE(h) (P(h) / 32 / KT)
#define X_BLOCK(h) (P(h) / 32 % KT)
#define ROW32(h) (SPREAD ? P(h) % 16 : P(h) % 32 / 2)
#define PART32(h) (SPREAD ? P(h) / 16 % 2 : P(h) % 2)
#define X_HAS(h) (X_PIECES % LOCAL == 0 || P(h) < X_PIECES)
#if defined(WEIGHT_K)
const uint COLUMNS = 32;  // of a block of weights: a run of unpack_f16.glsl
#else
const uint COLUMNS = BLOCK;
#endif
const uint KB = BK / COLUMNS > 0 ? BK / COLUMNS : 1;  // blocks of weights
#if defined(WEIGHT_Q4) || defined(WEIGHT_K)
const uint UNITS = 16;  // pieces of a block of 16 rows
#define W_ROW(h) (P(h) % 16)
#define W_PART(h) 0
#else
const uint UNITS = 32;
#define W_ROW(h) ROW32(h)
#define W_PART(h) PART32(h)
#endif
const uint W_PIECES = BM / 16 * KB * UNITS, W_HELD = (W_PIECES + LOCAL - 1) / LOCAL;
#define W_TILE(h) (P(h) / UNITS / KB)
#define W_BLOCK(h) (P(h) / UNITS % KB)
#define W_HAS(h) (W_PIECES % LOCAL == 0 || P(h) < W_PIECES)
#define LAST_STEP (PUT_AT == 1 && STEPS > 1 ? STEPS - 1 : 1)
#define PART_OF(h, held) ((h) * LAST_STEP / (held))  // the step in which a piece is put, PUT_AT 1

#if defined(WEIGHT_Q4) || defined(WEIGHT_Q8)
#define FETCH_W(h, turn)                                                                       \
    {                                                                                          \
        q[h] = w.v[w_at[h] + (turn) * KB * UNITS];                                             \
        const uint scale = w_at[h] / UNITS * 16 + W_ROW(h) + (turn) * KB * 16;                 \
        if (MIN) s[h] = scales.v[scale];                                                       \
        else s[h] = scales.v[scale / 2] >> (W_ROW(h) % 2 * 16);                                \
    }
#define CLEAR_W(h) s[h] = 0
#define PUT_W(h, to) put_unpacked((to) + W_TILE(h) * 16 + W_ROW(h), (W_BLOCK(h) * 2 + W_PART(h)) * 2, q[h], s[h]);
#if defined(WEIGHT_MIN)
const bool MIN = true;
#else
const bool MIN = false;
#endif
#elif defined(WEIGHT_K)
#define FETCH_W(h, turn) q[h] = fetch32(w, scales, w_at[h], W_ROW(h), (turn) * KB + W_BLOCK(h), k);
#define CLEAR_W(h) q[h] = zeros32()
#define PUT_W(h, to) put_unpacked((to) + W_TILE(h) * 16 + W_ROW(h), W_BLOCK(h) * 4, q[h], W_ROW(h));
#else
#define FETCH_W(h, turn) q[h] = w.v[w_at[h] + (turn) * KB * UNITS];
#define CLEAR_W(h) q[h] = uvec4(0)
#if defined(WEIGHT_BF16)
#define HALVES(q) bf16_halves(q)
#else
#define HALVES(q) q
#endif
#define PUT_W(h, to) staged[PLACE((to) + W_TILE(h) * 16 + W_ROW(h), W_BLOCK(h) * 2 + W_PART(h))] = HALVES(q[h]);
#endif

#define NEXT_W(h, turn)                                                            \
    if (W_HAS(h)) {                                                                \
        if (TAIL && (turn) * KB + W_BLOCK(h) >= blocks) CLEAR_W(h);                \
        else FETCH_W(h, turn)                                                      \
    }
#define NEXT_X(h, turn)                                                            \
    if (X_HAS(h)) {                                                                \
        if (TAIL && (turn) * KT + X_BLOCK(h) >= ktiles) p[h] = uvec4(0);           \
        else p[h] = x.v[x_at[h] + (turn) * KT * 32];                               \
    }
#define PUT_X(h, to) staged[PLACE((to) + BM + X_TILE(h) * 16 + ROW32(h), X_BLOCK(h) * 2 + PART32(h))] = p[h];
#define NEXT(turn)                                                                 \
    {                                                                              \
        [[unroll]] for (uint h = 0; h < W_HELD; h++) NEXT_W(h, turn)               \
        [[unroll]] for (uint h = 0; h < X_HELD; h++) NEXT_X(h, turn)               \
    }
#define PUT(to)                                                                    \
    {                                                                              \
        [[unroll]] for (uint h = 0; h < W_HELD; h++) if (W_HAS(h)) PUT_W(h, to)    \
        [[unroll]] for (uint h = 0; h < X_HELD; h++) if (X_HAS(h)) PUT_X(h, to)    \
    }
// What of the next columns is put in step s, and then what of those behind them is asked for.
#define EXCHANGE(s, to, turn)                                                      \
    if (PUT_AT == 2) {                                                             \
        if ((s) == STEPS - 1) PUT(to)                                              \
    } else {                                                                       \
        [[unroll]] for (uint h = 0; h < W_HELD; h++)                               \
            if (PART_OF(h, W_HELD) == (s)) {                                       \
                if (W_HAS(h)) PUT_W(h, to)                                         \
                NEXT_W(h, turn)                                                    \
            }                                                                      \
        [[unroll]] for (uint h = 0; h < X_HELD; h++)                               \
            if (PART_OF(h, X_HELD) == (s)) {                                       \
                if (X_HAS(h)) PUT_X(h, to)                                         \
                NEXT_X(h, turn)                                                    \
            }                                                                      \
    }

#if defined(WEIGHT_K)
// A run of a row, unpacked to float16 from `unit` of it on.
void put_unpacked(uint to, uint unit, Run r, uint row) {
    const RunScale s = scale32(r, row);
    [[unroll]] for (uint i = 0; i < 4; i++) staged[PLACE(to, unit + i)] = unpack8(r, s, i);
}
#elif defined(WEIGHT_Q4) || defined(WEIGHT_Q8)
// A piece of codes of a row, unpacked to float16 from `unit` of it on; the order of elements is the one cheapest to make.
void put_unpacked(uint row, uint unit, uvec4 q, uint s) {
    const f16vec2 scale = unpackFloat2x16(s), d = f16vec2(scale.x);
#if defined(WEIGHT_Q4)
    [[unroll]] for (uint j = 0; j < 4; j++) {
        uvec4 made;
        [[unroll]] for (uint e = 0; e < 4; e++) {
            const f16vec2 code = unpackFloat2x16(((q[j] >> (4 * e)) & 0x000F000Fu) | 0x64006400u);  // 1024 + code
#if defined(WEIGHT_MIN)
            made[e] = packFloat2x16((code - f16vec2(1024.0hf)) * d + f16vec2(scale.y));
#else
            made[e] = packFloat2x16((code - f16vec2(1032.0hf)) * d);
#endif
        }
        staged[PLACE(row, unit + j)] = made;
    }
#else
    [[unroll]] for (uint j = 0; j < 2; j++) {
        uvec4 made;
        [[unroll]] for (uint e = 0; e < 4; e++) {
            const uint word = q[2 * j + e / 2] ^ 0x80808080u;
            const f16vec2 code = unpackFloat2x16(((word >> (8 * (e % 2))) & 0x00FF00FFu) | 0x64006400u);  // 1152 + code
            made[e] = packFloat2x16((code - f16vec2(1152.0hf)) * d);
        }
        staged[PLACE(row, unit + j)] = made;
    }
#endif
}
#endif

#define LEFT coopmat<float16_t, gl_ScopeSubgroup, CM, CK, gl_MatrixUseA>
#define RIGHT coopmat<float16_t, gl_ScopeSubgroup, CK, CN, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, CM, CN, gl_MatrixUseAccumulator>
#if defined(FRAGMENTS)
// Fragments made by hand: lanes g * 4 + l own rows g and g + 8 (columns of x likewise) and 8 columns of K, from 8 l on. A
// step is 32 columns, two fragments deep. Both operands take the columns of K in the same order, so any order will do.
const uint STEPS = BK / 32;
#define UNPACK(to, of, upper, lower, deep)                                                                           \
    [[unroll]] for (uint c = 0; c < 4; c++) {                                                                        \
        const uint half_ = ((of) >> (4 * c)) & 3u;                                                                   \
        const f16vec2 pair = unpackFloat2x16(half_ < 2 ? upper[2 * (deep) + half_ % 2] : lower[2 * (deep) + half_ % 2]); \
        to[2 * c] = pair.x;                                                                                          \
        to[2 * c + 1] = pair.y;                                                                                      \
    }
#define MULTIPLY(at, s)                                                                            \
    {                                                                                              \
        RIGHT e[2 * FC];                                                                           \
        [[unroll]] for (uint j = 0; j < FC; j++) {                                                 \
            const uvec4 upper = staged[(at) * PAD + right + j * 16 * PAD + (lane_unit ^ ((s) * 4))]; \
            const uvec4 lower = staged[(at) * PAD + right + (j * 16 + 8) * PAD + (lane_unit ^ ((s) * 4))]; \
            UNPACK(e[j], B_OF, upper, lower, 0)                                                    \
            UNPACK(e[FC + j], B_OF, upper, lower, 1)                                               \
        }                                                                                          \
        [[unroll]] for (uint i = 0; i < FR; i++) {                                                 \
            const uvec4 upper = staged[(at) * PAD + left + i * 16 * PAD + (lane_unit ^ ((s) * 4))]; \
            const uvec4 lower = staged[(at) * PAD + left + (i * 16 + 8) * PAD + (lane_unit ^ ((s) * 4))]; \
            LEFT a, b;                                                                             \
            UNPACK(a, A_OF, upper, lower, 0)                                                       \
            UNPACK(b, A_OF, upper, lower, 1)                                                       \
            [[unroll]] for (uint j = 0; j < FC; j++) acc[i * FC + j] = coopMatMulAdd(a, e[j], acc[i * FC + j]); \
            [[unroll]] for (uint j = 0; j < FC; j++) acc[i * FC + j] = coopMatMulAdd(b, e[FC + j], acc[i * FC + j]); \
        }                                                                                          \
    }
#else
const uint STEPS = BK / CK;
// The fragments of step s of the columns at row `at` of the staged ones, into set `to` of the two there are.
#define LOAD(to, at, s)                                                                                         \
    {                                                                                                           \
        [[unroll]] for (uint j = 0; j < FC; j++)                                                                \
            coopMatLoad(e[(to) * FC + j], staged, ((at) + right + j * CN) * PAD + (s) * CK / 8, PAD,            \
                        gl_CooperativeMatrixLayoutColumnMajor);                                                 \
        [[unroll]] for (uint i = 0; i < FR; i++)                                                                \
            coopMatLoad(a[(to) * FR + i], staged, ((at) + left + i * CM) * PAD + (s) * CK / 8, PAD,             \
                        gl_CooperativeMatrixLayoutRowMajor);                                                    \
    }
#define MULTIPLY(from)                                                                                          \
    [[unroll]] for (uint i = 0; i < FR; i++)                                                                    \
        [[unroll]] for (uint j = 0; j < FC; j++)                                                                \
            acc[i * FC + j] = coopMatMulAdd(a[(from) * FR + i], e[(from) * FC + j], acc[i * FC + j]);
#endif

float sum_at(uint own, uint column, uint row) { return uintBitsToFloat(staged[own + column * LINE + row / 4][row % 4]); }

void main() {
    const uint lane = gl_LocalInvocationIndex, sg = gl_SubgroupID, sr = sg / SC, sc = sg % SC;
    const uint across = (n + BM - 1) / BM, down = (rows + BN - 1) / BN;
    const uint panel = gl_WorkGroupID.x / (GROUP * down), inside = gl_WorkGroupID.x % (GROUP * down);
    const uint height = min(across - panel * GROUP, GROUP);
    const uint row0 = (panel * GROUP + inside % height) * BM, col0 = inside / height * BN;
    const uint blocks = (k + COLUMNS - 1) / COLUMNS, ktiles = (k + 15) / 16, turns = (k + BK - 1) / BK;
    const uint last_row = (n + 15) / 16 - 1, last_col = (rows + 15) / 16 - 1;  // tiles; what lies behind is read as these

    uvec4 p[X_HELD];
    uint w_at[W_HELD], x_at[X_HELD];
#if defined(WEIGHT_K)
    Run q[W_HELD];
    [[unroll]] for (uint h = 0; h < W_HELD; h++) w_at[h] = min(row0 / 16 + W_TILE(h), last_row);
#else
    uvec4 q[W_HELD];
    [[unroll]] for (uint h = 0; h < W_HELD; h++)
        w_at[h] = (min(row0 / 16 + W_TILE(h), last_row) * blocks + W_BLOCK(h)) * UNITS + W_ROW(h) * (UNITS / 16) + W_PART(h);
#endif
    [[unroll]] for (uint h = 0; h < X_HELD; h++)
        x_at[h] = (min(col0 / 16 + X_TILE(h), last_col) * ktiles + X_BLOCK(h)) * 32 + ROW32(h) * 2 + PART32(h);
#if defined(WEIGHT_Q4) || defined(WEIGHT_Q8)
    uint s[W_HELD];
#endif
    SUMS acc[FR * FC];
    [[unroll]] for (uint f = 0; f < FR * FC; f++) acc[f] = SUMS(0.0);
#if defined(FRAGMENTS)
    const uint g = gl_SubgroupInvocationID / 4;
    const uint left = (sr * ROWS + g) * PAD, right = (BM + sc * COLS + g) * PAD;
    const uint lane_unit = PLACE(g, gl_SubgroupInvocationID % 4) - g * PAD;
#else
    const uint left = sr * ROWS, right = BM + sc * COLS;
    LEFT a[AHEAD ? 2 * FR : FR];
    RIGHT e[AHEAD ? 2 * FC : FC];
#endif

    NEXT(0)
    if (BUFFERS == 2) {
        PUT(0)
        if (PUT_AT != 2) NEXT(min(1, turns - 1))
        barrier();
        uint at = 0;
#if !defined(FRAGMENTS)
        if (AHEAD) LOAD(0, 0, 0)
#endif
        for (uint turn = 0; turn < turns; turn++) {
            const uint other = BM + BN - at, next = min(turn + 2, turns - 1);
            if (PUT_AT == 2) NEXT(min(turn + 1, turns - 1))
#if defined(FRAGMENTS)
            [[unroll]] for (uint step = 0; step < STEPS; step++) {
                if (PUT_AT != 2) EXCHANGE(step, other, next)
                MULTIPLY(at, step)
                if (PUT_AT == 2) EXCHANGE(step, other, next)
            }
            barrier();
#else
            [[unroll]] for (uint step = 0; step + 1 < STEPS; step++) {
                if (AHEAD) LOAD((step + 1) % 2, at, step + 1)
                else LOAD(0, at, step)
                EXCHANGE(step, other, next)
                MULTIPLY(AHEAD ? step % 2 : 0)
            }
            if (AHEAD) {
                EXCHANGE(STEPS - 1, other, next)
                barrier();
                LOAD(STEPS % 2, other, 0)
                MULTIPLY((STEPS - 1) % 2)
                if (STEPS % 2 == 1) {
                    [[unroll]] for (uint i = 0; i < FR; i++) a[i] = a[FR + i];
                    [[unroll]] for (uint j = 0; j < FC; j++) e[j] = e[FC + j];
                }
            } else {
                LOAD(0, at, STEPS - 1)
                EXCHANGE(STEPS - 1, other, next)
                MULTIPLY(0)
                barrier();
            }
#endif
            at = other;
        }
    } else {
        for (uint turn = 0; turn < turns; turn++) {
            barrier();
            PUT(0)
            barrier();
            NEXT(min(turn + 1, turns - 1))
#if defined(FRAGMENTS)
            [[unroll]] for (uint step = 0; step < STEPS; step++) MULTIPLY(0, step)
#else
            if (AHEAD) LOAD(0, 0, 0)
            [[unroll]] for (uint step = 0; step < STEPS; step++) {
                if (!AHEAD) LOAD(0, 0, step)
                else if (step + 1 < STEPS) LOAD((step + 1) % 2, 0, step + 1)
                MULTIPLY(AHEAD ? step % 2 : 0)
            }
#endif
        }
    }

    const uint first_row = row0 + sr * ROWS, first_col = col0 + sc * COLS;
    if (DIRECT) {
        [[unroll]] for (uint i = 0; i < FR; i++)
            [[unroll]] for (uint j = 0; j < FC; j++) {
                const uint row = first_row + i * CM, col = first_col + j * CN;
                if (row < n && col < rows) {
                    if (EPILOGUE == 1) {
                        SUMS old;
                        coopMatLoad(old, y.v, col * y_stride + row, y_stride, gl_CooperativeMatrixLayoutColumnMajor);
                        acc[i * FC + j] += old;
                    }
                    coopMatStore(acc[i * FC + j], y.v, col * y_stride + row, y_stride, gl_CooperativeMatrixLayoutColumnMajor);
                }
            }
        return;
    }
    // Straight-line rounds, one a column of fragments: a loop with a barrier in it would be kept, and the sums with it in
    // memory. An item is GIVES neighbouring outputs of a row of x.
    const uint STEP = EPILOGUE == 2 ? 2 : 1, GIVES = OUT > 0 ? 8 : WIDE ? 4 : 1, TAKES = GIVES * STEP, LINES = ROWS / TAKES;
    const uint own = sg * CN * LINE, width = n / STEP, tiles = (width + 15) / 16;
#define ROUND(j)                                                                                                    \
    if (j < FC) {                                                                                                   \
        [[unroll]] for (uint i = 0; i < FR; i++)                                                                    \
            coopMatStore(acc[i * FC + j], staged, own + i * CM / 4, LINE, gl_CooperativeMatrixLayoutColumnMajor);   \
        subgroupMemoryBarrierShared();                                                                              \
        subgroupBarrier();                                                                                          \
        for (uint item = gl_SubgroupInvocationID; item < CN * LINES; item += SUBGROUP) {                            \
            const uint column = item / LINES, line = item % LINES * TAKES;                                          \
            const uint row = first_row + line, to = row / STEP, col = first_col + j * CN + column;                  \
            float v[GIVES];                                                                                         \
            [[unroll]] for (uint o = 0; o < GIVES; o++) {                                                           \
                v[o] = sum_at(own, column, line + o * STEP);                                                        \
                if (EPILOGUE == 2) v[o] = v[o] / (1.0 + exp(-v[o])) * sum_at(own, column, line + o * 2 + 1);        \
                if (OUT > 0 && (row + o * STEP >= n || col >= rows)) v[o] = 0.0;                                    \
            }                                                                                                       \
            if (OUT > 0) {                                                                                          \
                if (to < tiles * 16 && col < last_col * 16 + 16)                                                    \
                    Words4(y).v[((col / 16) * tiles + to / 16) * 32 + col % 16 * 2 + to % 16 / 8] =                 \
                        uvec4(PAIR(0, 1, 0, 2, 0, 4), PAIR(2, 3, 1, 3, 1, 5), PAIR(4, 5, 4, 6, 2, 6), PAIR(6, 7, 5, 7, 3, 7)); \
            } else if (row < n && col < rows) {                                                                     \
                if (WIDE) {                                                                                         \
                    vec4 made = vec4(V(0), V(1), V(2), V(3));                                                       \
                    if (EPILOGUE == 1) made += Floats4(y).v[(col * y_stride + to) / 4];                             \
                    Floats4(y).v[(col * y_stride + to) / 4] = made;                                                 \
                } else if (EPILOGUE == 1) y.v[col * y_stride + to] += v[0];                                         \
                else y.v[col * y_stride + to] = v[0];                                                               \
            }                                                                                                       \
        }                                                                                                           \
        subgroupMemoryBarrierShared();                                                                              \
        subgroupBarrier();                                                                                          \
    }
#define V(o) v[(o) % GIVES]
#define PAIR(a, b, c, d, e, f) packHalf2x16(OUT == 1 ? vec2(V(a), V(b)) : OUT == 2 ? vec2(V(c), V(d)) : vec2(V(e), V(f)))
    barrier();
    ROUND(0)
    ROUND(1)
    ROUND(2)
    ROUND(3)
    ROUND(4)
    ROUND(5)
    ROUND(6)
    ROUND(7)
}
