// linear_coopmat: linear on cooperative matrices: y[r][i] = sum over k of W[i][k] * x[r][k], float16 products, float32 sums.
//
// Epilogues: include/epilogue.glsl; a norm between two products: include/carried_norm.glsl.
//
// W: [n][k] in resident tiles (include/weights.glsl, weights_k.glsl). x: float16 in tiles [rows / 16][k / 16][16][16]
// (tile_f16.comp, with the order of elements that the weights unpack to). y: float32 [rows][y_stride].
// A subgroup owns FR * CM rows of W and FC * CN rows of x. A workgroup is SR * SC of these side by side, each SK times
// over: SK subgroups take turns along K and their sums are added in fixed order. float16 weights are loaded straight from
// their tiles; others become float16 in a subgroup's own shared memory (bf16 clamped to +-65504).
// Grid: x = rows of W in groups of SR * FR * CM, y = rows of x in groups of SC * FC * CN.
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
#include "epilogue.glsl"
#if defined(WEIGHT_K) || defined(WEIGHT_BF16)
#include "unpack_f16.glsl"
#else
#include "weights.glsl"
#endif

layout(constant_id = 0) const uint CM = 16;
layout(constant_id = 1) const uint CN = 16;
layout(constant_id = 2) const uint CK = 16;
layout(constant_id = 3) const uint FR = 1;
layout(constant_id = 4) const uint FC = 1;
layout(constant_id = 5) const uint SR = 1;
layout(constant_id = 6) const uint SC = 1;
layout(constant_id = 7) const uint SK = 1;
layout(constant_id = 8) const uint TILED = 0;      // SWIGLU: 1 + the ORDER of the float16 tiles that y is; 0: y is float32
layout(constant_id = 9) const uint UNROLL = 1;    // blocks (float16) or units (codes) of K whose loads are in flight at once
layout(constant_id = 10) const bool DIRECT = false;  // SK is 1, no SWIGLU, n and rows are multiples of CM and CN
layout(constant_id = 11) const bool PIPE = false;  // float16: load the next blocks of W before the last are multiplied
layout(constant_id = 12) const uint SUBGROUP = 32;
layout(constant_id = 13) const uint LOCAL = 32;    // SR * SC * SK * SUBGROUP
layout(local_size_x_id = 13, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
    Words4 w;
    Words scales;
    Words4 x;
    Floats y;
    uint rows;
    uint n;
    uint k;
    uint y_stride;
    EPILOGUE_PUSH
    Floats carried;
    uint slot;
    float eps;
};

layout(buffer_reference, std430, buffer_reference_align = 2) buffer Halves { float16_t v[]; };
const uint SUBGROUPS = SR * SC * SK;
const uint STAGED = DIRECT ? 1 : SUBGROUPS * FC * CM * CN;
#include "carried_norm.glsl"

const uint ROWS = FR * CM;                 // of W, a subgroup
const uint TILES = (ROWS + TILE - 1) / TILE;
#if !defined(WEIGHT_F16)
// A unit is 512 bytes of codes: one tile of 16 or 8 bits, or two neighbouring ones of 4 (of K-quants, the lower 4 bits of
// two runs); 16 bytes a lane of 32.
#if defined(WEIGHT_Q4) || defined(WEIGHT_K)
const uint SPAN = 2;  // blocks a unit spans
#else
const uint SPAN = 1;
#endif
#if defined(WEIGHT_K)
const uint COLUMNS = 32;  // of a block: a run of unpack_f16.glsl
#else
const uint COLUMNS = BLOCK;
#endif
const uint HELD = 32 / SUBGROUP;             // pieces of a unit an invocation holds
const uint PAD = SPAN * COLUMNS / 8 + 1;     // uvec4s a row of an unpacked unit takes
shared uvec4 unpacked[SUBGROUPS * TILES * UNROLL * TILE * PAD];

// The row, the block ahead and the piece of a block that lane `l` of 32 has of a unit.
#if defined(WEIGHT_Q4) || defined(WEIGHT_K)
#define ROW(l) ((l) % 16)
#define AHEAD(l) ((l) / 16)
#define PIECE(l) 0
#else
#define ROW(l) ((l) / 2)
#define AHEAD(l) 0
#define PIECE(l) ((l) % 2)
#endif

// Piece i of COUNT: the lane of 32 it stands for, its unit and its row tile. A unit behind the end counts as zeros.
const uint COUNT = TILES * UNROLL * HELD;
#define L(i) ((i) % HELD * SUBGROUP + gl_SubgroupInvocationID)
#define U(i) ((i) / HELD % UNROLL)
#define T(i) ((i) / (HELD * UNROLL))
#define LOAD(turn)                                                                               \
    [[unroll]] for (uint i = 0; i < COUNT; i++)                                                  \
        q[i] = load_piece(min(first_tile + T(i), last_tile), ((turn) + sk + U(i) * SK) * SPAN + AHEAD(L(i)), blocks, L(i));

#if defined(WEIGHT_K)
#define Held Run
Held load_piece(uint tile, uint block, uint blocks, uint l) {
    Held p = fetch32(w, scales, tile, ROW(l), min(block, blocks - 1), k);
    if (block >= blocks) p = zeros32();
    return p;
}

void store_unpacked(uint to, Held p, uint l) {
    const RunScale s = scale32(p, ROW(l));
    [[unroll]] for (uint j = 0; j < 4; j++) unpacked[to + AHEAD(l) * 4 + j] = unpack8(p, s, j);
}
#elif defined(WEIGHT_BF16)
#define Held uvec4
Held load_piece(uint tile, uint block, uint blocks, uint l) {
    const Held p = w.v[((tile * blocks + min(block, blocks - 1)) * TILE + ROW(l)) * 2 + PIECE(l)];
    return block >= blocks ? uvec4(0) : p;
}

void store_unpacked(uint to, Held p, uint l) { unpacked[to + PIECE(l)] = bf16_halves(p); }
#else
struct Held {
    uvec4 q;
    Scale s;
};

Held load_piece(uint tile, uint block, uint blocks, uint l) {
    const uint at = tile * blocks + min(block, blocks - 1);
    Held p;
    p.q = w.v[(at * TILE + ROW(l)) * (3 - SPAN) + PIECE(l)];
    p.s = load_scale(scales, at, ROW(l));
    if (block >= blocks) p.s = Scale(0.0, 0.0);
    return p;
}

void store_unpacked(uint to, Held p, uint l) {
    const f16vec2 d = f16vec2(float16_t(p.s.d));
#if defined(WEIGHT_Q4)
    [[unroll]] for (uint j = 0; j < 4; j++) {
        uvec4 made;
        [[unroll]] for (uint e = 0; e < 4; e++) {
            const f16vec2 code = unpackFloat2x16(((p.q[j] >> (4 * e)) & 0x000F000Fu) | 0x64006400u);  // 1024 + code
#if defined(WEIGHT_MIN)
            made[e] = packFloat2x16((code - f16vec2(1024.0hf)) * d + f16vec2(float16_t(p.s.m)));
#else
            made[e] = packFloat2x16((code - f16vec2(1032.0hf)) * d);
#endif
        }
        unpacked[to + AHEAD(l) * 4 + j] = made;
    }
#else
    [[unroll]] for (uint j = 0; j < 2; j++) {
        uvec4 made;
        [[unroll]] for (uint e = 0; e < 4; e++) {
            const uint word = p.q[2 * j + e / 2] ^ 0x80808080u;
            const f16vec2 code = unpackFloat2x16(((word >> (8 * (e % 2))) & 0x00FF00FFu) | 0x64006400u);  // 1152 + code
            made[e] = packFloat2x16((code - f16vec2(1152.0hf)) * d);
        }
        unpacked[to + PIECE(l) * 2 + j] = made;
    }
#endif
}
#endif
#endif

// Fragment i of the weights, and j of the activations, at element kk of block b.
#define LOAD_A(to, b, kk, i)                                                                                    \
    {                                                                                                           \
        const uint row = row0 + (i) * CM, tile = min(row / TILE, last_tile) * blocks + (b);                     \
        coopMatLoad(to, w.v, tile * 32 + (row % TILE) * 2 + (kk) / 8, 2, gl_CooperativeMatrixLayoutRowMajor);   \
    }
#define LOAD_B(to, b, kk, j)                                                                                    \
    {                                                                                                           \
        const uint col = min(col0 + (j) * CN, last_col);                                                        \
        coopMatLoad(to, x.v, ((col / 16) * ktiles + (b)) * 32 + (col % 16) * 2 + (kk) / 8, 2,                   \
                    gl_CooperativeMatrixLayoutColumnMajor);                                                     \
    }

void main() {
    const uint sg = gl_SubgroupID, sk = sg % SK, sr = sg / SK % SR, sc = sg / (SK * SR);
#if defined(WEIGHT_K)
    const uint blocks = k / COLUMNS;
#else
    const uint blocks = (k + BLOCK - 1) / BLOCK;
#endif
    const uint last_tile = (n + TILE - 1) / TILE - 1;
    const uint row0 = (gl_WorkGroupID.x * SR + sr) * ROWS, col0 = (gl_WorkGroupID.y * SC + sc) * FC * CN;
    const uint ktiles = (k + 15) / 16;
    const uint last_col = (rows + 15) / 16 * 16 - CN;  // x has whole tiles
    coopmat<float, gl_ScopeSubgroup, CM, CN, gl_MatrixUseAccumulator> acc[FR * FC];
    [[unroll]] for (uint f = 0; f < FR * FC; f++) acc[f] = coopmat<float, gl_ScopeSubgroup, CM, CN, gl_MatrixUseAccumulator>(0.0);
#if !defined(WEIGHT_F16)
    const uint units = (blocks + SPAN - 1) / SPAN, first_tile = row0 / TILE;
    Held q[COUNT];
    LOAD(0)
    if (CARRIED) gather_squares(gl_WorkGroupID.y * CARRIED_COLS, k);
    for (uint turn = 0; turn < units; turn += SK * UNROLL) {  // as many turns for every subgroup: some drivers wait for all
        [[unroll]] for (uint i = 0; i < COUNT; i++)
            store_unpacked((((sg * TILES + T(i)) * UNROLL + U(i)) * TILE + ROW(L(i))) * PAD, q[i], L(i));
        LOAD(turn + SK * UNROLL)  // in flight while the matrices multiply
        subgroupMemoryBarrierShared();
        subgroupBarrier();
        [[unroll]] for (uint u = 0; u < UNROLL; u++)
            [[unroll]] for (uint kk = 0; kk < SPAN * COLUMNS; kk += CK) {
                const uint at = min((turn + sk + u * SK) * SPAN * COLUMNS + kk, ktiles * 16 - CK);
                coopmat<float16_t, gl_ScopeSubgroup, CM, CK, gl_MatrixUseA> a[FR];
                [[unroll]] for (uint i = 0; i < FR; i++) {
                    const uint row = row0 % TILE + i * CM;
                    coopMatLoad(a[i], unpacked, (((sg * TILES + row / TILE) * UNROLL + u) * TILE + row % TILE) * PAD + kk / 8,
                                PAD, gl_CooperativeMatrixLayoutRowMajor);
                }
                [[unroll]] for (uint j = 0; j < FC; j++) {
                    const uint col = min(col0 + j * CN, last_col);
                    coopmat<float16_t, gl_ScopeSubgroup, CK, CN, gl_MatrixUseB> e;
                    coopMatLoad(e, x.v, ((col / 16) * ktiles + at / 16) * 32 + (col % 16) * 2 + (at % 16) / 8, 2,
                                gl_CooperativeMatrixLayoutColumnMajor);
                    [[unroll]] for (uint i = 0; i < FR; i++) acc[i * FC + j] = coopMatMulAdd(a[i], e, acc[i * FC + j]);
                }
            }
        subgroupBarrier();
    }
#else
    const uint PARTS = 16 / CK, whole = blocks / (SK * UNROLL) * (SK * UNROLL);
    coopmat<float16_t, gl_ScopeSubgroup, CM, CK, gl_MatrixUseA> next[UNROLL * PARTS * FR];
#define LOAD_NEXT(b)                                               \
    [[unroll]] for (uint u = 0; u < UNROLL * PARTS; u++)           \
        [[unroll]] for (uint i = 0; i < FR; i++)                   \
            LOAD_A(next[u * FR + i], (b) + u / PARTS * SK, u % PARTS * CK, i)
    if (PIPE && sk < whole) LOAD_NEXT(sk)
    for (uint b = sk; b < whole; b += SK * UNROLL) {
        if (!PIPE) LOAD_NEXT(b)
        coopmat<float16_t, gl_ScopeSubgroup, CM, CK, gl_MatrixUseA> a[UNROLL * PARTS * FR];
        coopmat<float16_t, gl_ScopeSubgroup, CK, CN, gl_MatrixUseB> e[UNROLL * PARTS * FC];
        [[unroll]] for (uint i = 0; i < UNROLL * PARTS * FR; i++) a[i] = next[i];
        [[unroll]] for (uint u = 0; u < UNROLL * PARTS; u++)
            [[unroll]] for (uint j = 0; j < FC; j++) LOAD_B(e[u * FC + j], b + u / PARTS * SK, u % PARTS * CK, j)
        if (PIPE && b + SK * UNROLL < whole) LOAD_NEXT(b + SK * UNROLL)  // in flight while these are multiplied
        [[unroll]] for (uint u = 0; u < UNROLL * PARTS; u++)
            [[unroll]] for (uint j = 0; j < FC; j++)
                [[unroll]] for (uint i = 0; i < FR; i++)
                    acc[i * FC + j] = coopMatMulAdd(a[u * FR + i], e[u * FC + j], acc[i * FC + j]);
    }
    for (uint b = whole + sk; b < blocks; b += SK)
        [[unroll]] for (uint u = 0; u < PARTS; u++) {
            coopmat<float16_t, gl_ScopeSubgroup, CM, CK, gl_MatrixUseA> a[FR];
            [[unroll]] for (uint i = 0; i < FR; i++) LOAD_A(a[i], b, u * CK, i)
            [[unroll]] for (uint j = 0; j < FC; j++) {
                coopmat<float16_t, gl_ScopeSubgroup, CK, CN, gl_MatrixUseB> e;
                LOAD_B(e, b, u * CK, j)
                [[unroll]] for (uint i = 0; i < FR; i++) acc[i * FC + j] = coopMatMulAdd(a[i], e, acc[i * FC + j]);
            }
        }
#endif
    if (DIRECT) {
        [[unroll]] for (uint i = 0; i < FR; i++)
            [[unroll]] for (uint j = 0; j < FC; j++) {
                const uint row = row0 + i * CM, col = col0 + j * CN;
                if (row < n && col < rows) {
                    if (EPILOGUE == ADD) {
                        coopmat<float, gl_ScopeSubgroup, CM, CN, gl_MatrixUseAccumulator> old;
                        coopMatLoad(old, y.v, col * y_stride + row, y_stride, gl_CooperativeMatrixLayoutColumnMajor);
                        acc[i * FC + j] += old;
                    }
                    coopMatStore(acc[i * FC + j], y.v, col * y_stride + row, y_stride, gl_CooperativeMatrixLayoutColumnMajor);
                }
            }
        return;
    }
#if defined(WEIGHT_F16)
    if (CARRIED) gather_squares(gl_WorkGroupID.y * CARRIED_COLS, k);  // here other workgroups' loads are in flight
#endif
    if (CARRIED) settle_factors(gl_WorkGroupID.y * CARRIED_COLS, rows, k);
    // Straight-line rounds, one a row of fragments: a loop with a barrier in it would be kept, and the sums with it in memory.
    const uint step = EACH_ROWS, own = (sg - sk) * FC * CM * CN;  // stages of the SK subgroups of these rows
#define ROUND(i)                                                                                                    \
    if (i < FR) {                                                                                                   \
        [[unroll]] for (uint j = 0; j < FC; j++)                                                                    \
            coopMatStore(acc[i * FC + j], stage, (sg * FC + j) * CM * CN, CM, gl_CooperativeMatrixLayoutColumnMajor); \
        barrier();                                                                                                  \
        for (uint item = sk * SUBGROUP + gl_SubgroupInvocationID; item < FC * CM * CN / step; item += SK * SUBGROUP) { \
            const uint at = item * step, row = row0 + i * CM + at % CM, col = col0 + at / CM;                       \
            float total = 0.0, other = 0.0;                                                                         \
            for (uint p = 0; p < SK; p++) {                                                                         \
                total += stage[own + p * FC * CM * CN + at];                                                        \
                if (EACH_ROWS == 2) other += stage[own + p * FC * CM * CN + at + 1];                                \
            }                                                                                                       \
            if (CARRIED) {                                                                                          \
                total *= FACTOR(sc * FC * CN + at / CM);                                                           \
                other *= FACTOR(sc * FC * CN + at / CM);                                                           \
            }                                                                                                       \
            float square = 0.0;                                                                                     \
            if (row < n && col < rows) {                                                                            \
                if (TILED > 0) Halves(y).v[tiled_at(col, row / 2, n / 2, TILED - 1)] = float16_t(swiglu(total, other)); \
                else if (CARRY > 0) CARRY_ON(col, row, total, square)                                               \
                else FINISH(col, row, total, other)                                                                 \
            }                                                                                                       \
            if (CARRY > 0) stage[own + at] = square;                                                                \
        }                                                                                                           \
        if (CARRY > 0) {                                                                                            \
            barrier();                                                                                              \
            for (uint c = sk * SUBGROUP + gl_SubgroupInvocationID; c < FC * CN; c += SK * SUBGROUP) {               \
                float sum = 0.0;                                                                                    \
                for (uint a = 0; a < CM; a++) sum += stage[own + c * CM + a];                                       \
                if (row0 + i * CM < n && col0 + c < rows)                                                           \
                    carried.v[(2 + row0 / CM + i) * CARRIED_ROWS + col0 + c] = sum;                                 \
            }                                                                                                       \
        }                                                                                                           \
        barrier();                                                                                                  \
    }
    ROUND(0)
    ROUND(1)
    ROUND(2)
    ROUND(3)
}
