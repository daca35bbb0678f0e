// linear_fragments: linear on cooperative matrices that are built in registers: y[r][i] = sum over k of W[i][k] * x[r][k],
// float16 products (a code times its scale rounded to float16), float32 sums.
//
// Epilogues: include/epilogue.glsl; a norm between two products: include/carried_norm.glsl.
//
// W: [n][k] in resident tiles (include/weights.glsl), k a multiple of 32. x: float16 in tiles [rows / 16][k / 16][16][16]
// (tile_f16.comp, with the order of elements that the weights unpack to). y: float32 [rows][y_stride].
// Nothing passes through shared memory but the sums: an invocation loads codes, unpacks them and has its components of A;
// loads x and has those of B (include/fragments.glsl says which). The order along K is free as long as A and B share it,
// so that the four lanes of a row take a block of 32 each, whole: a unit is four blocks, multiplied in four steps of eight
// elements a lane, two products each. PAIRED: a lane's two rows are neighbours, their scales one word.
// A subgroup owns FR * 16 rows of W and FC * 8 rows of x. A workgroup is SR * SC of these side by side, each SK times
// over: SK subgroups take turns along K and their sums are added in fixed order.
// Grid: x = rows of W in groups of SR * FR * 16, y = rows of x in groups of SC * FC * 8.
//
// variant f16: -DWEIGHT_F16
// variant q8: -DWEIGHT_Q8
// variant q4: -DWEIGHT_Q4
// variant q4m: -DWEIGHT_Q4 -DWEIGHT_MIN
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#include "buffers.glsl"
#include "epilogue.glsl"
#include "weights.glsl"

layout(constant_id = 0) const uint FR = 1;
layout(constant_id = 1) const uint FC = 1;
layout(constant_id = 2) const uint SR = 1;
layout(constant_id = 3) const uint SC = 1;
layout(constant_id = 4) const uint SK = 1;
layout(constant_id = 5) const uint TILED = 0;     // SWIGLU: 1 + the ORDER of the float16 tiles that y is; 0: y is float32
layout(constant_id = 6) const bool PIPE = true;   // the next unit's codes are on their way while one is multiplied
layout(constant_id = 7) const bool PIPE_X = true; // the next step's x likewise
layout(constant_id = 8) const bool PAIRED = false;
layout(constant_id = 9) const uint A_OF = 0x3210;
layout(constant_id = 10) const uint B_OF = 0x10;
layout(constant_id = 11) const bool TAIL = true;  // the blocks are no multiple of 4 * SK
layout(constant_id = 12) const uint LOCAL = 32;   // SR * SC * SK * 32
layout(local_size_x_id = 12, local_size_y = 1, local_size_z = 1) in;
#include "fragments.glsl"
const uint CM = 16, CN = 8;

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
const uint STAGED = SR * SC * SK * FC * CM * CN;
#include "carried_norm.glsl"
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Pairs { f16vec2 v[]; };

#if defined(WEIGHT_F16)
const uint VECS = 2, STEPS = 2;
#elif defined(WEIGHT_Q4)
const uint VECS = 1, STEPS = 4;  // uvec4s of a row that a lane has of a unit; steps that multiply it
#else
const uint VECS = 2, STEPS = 4;
#endif
// The lane's r-th row of a tile, and where in the sums of a fragment those of row `at % CM` of W are.
#define ROW(r) (PAIRED ? 2 * g + (r) : g + 8 * (r))
#define AT(at) (PAIRED ? (at) / CM * CM + (at) % CM / 2 + (at) % 2 * 8 : (at))

#if defined(WEIGHT_F16)
#define LOAD(unit)                                                                                                  \
    [[unroll]] for (uint v = 0; v < VECS; v++) {                                                                    \
        const uint block = (unit) * 4 + v * 2 + t / 2;                                                              \
        [[unroll]] for (uint i = 0; i < FR; i++)                                                                    \
            [[unroll]] for (uint r = 0; r < 2; r++) {                                                               \
                const uint tile = min(first_tile + i, last_tile) * blocks + min(block, blocks - 1);                 \
                next[(i * 2 + r) * VECS + v] = w.v[(tile * 16 + ROW(r)) * 2 + t % 2];                               \
                if (TAIL && block >= blocks) next[(i * 2 + r) * VECS + v] = uvec4(0);                               \
            }                                                                                                       \
    }
#define PIECE(unit, j) (min((unit) * 4 + (j) * 2 + t / 2, blocks - 1) * 2 + t % 2)
#define UPPER(i, j) q[(i) * 2 * VECS + (j)]
#define LOWER(i, j) q[(i) * 2 * VECS + VECS + (j)]
#else
// Elements 8j to 8j + 7 of a row of a block, of codes q0 and q1, in the order of x.
uvec4 unpacked(uvec4 q0, uvec4 q1, uint j, f16vec2 d, f16vec2 m) {
    uvec4 made;
#if defined(WEIGHT_Q4)
    [[unroll]] for (uint e = 0; e < 4; e++) {
        const uint w = e < 2 ? q0[j] : q0[j] >> 8;
        f16vec2 code = unpackFloat2x16((w & (e % 2 == 0 ? 0x000F000Fu : 0x00F000F0u)) | 0x64006400u);  // 1024 + code, or + 16 code
#if defined(WEIGHT_MIN)
        code = e % 2 == 0 ? code - f16vec2(1024.0hf) : fma(code, f16vec2(0.0625hf), f16vec2(-64.0hf));
        made[e] = packFloat2x16(fma(code, d, m));
#else
        code = e % 2 == 0 ? code - f16vec2(1032.0hf) : fma(code, f16vec2(0.0625hf), f16vec2(-72.0hf));
        made[e] = packFloat2x16(code * d);
#endif
    }
#else
    [[unroll]] for (uint e = 0; e < 4; e++) {
        const uint w = (j < 2 ? q0 : q1)[j % 2 * 2 + e / 2] >> (8 * (e % 2));
        const f16vec2 code = unpackFloat2x16((w & 0x00FF00FFu) ^ 0x64806480u) - f16vec2(1152.0hf);  // of 1024 + 128 + code
        made[e] = packFloat2x16(code * d);
    }
#endif
    return made;
}

// Scales of the lane's rows in fragment i of W.
#if defined(WEIGHT_MIN)
#define LOAD_SCALES(i, tile)                                                                                        \
    {                                                                                                               \
        const f16vec2 a = Pairs(scales).v[(tile) * 16 + ROW(0)], b = Pairs(scales).v[(tile) * 16 + ROW(1)];         \
        d[i] = f16vec2(a.x, b.x);                                                                                   \
        m[i] = f16vec2(a.y, b.y);                                                                                   \
    }
#else
#define LOAD_SCALES(i, tile)                                                                                        \
    if (PAIRED) d[i] = Pairs(scales).v[(tile) * 8 + g];                                                             \
    else d[i] = f16vec2(Halves(scales).v[(tile) * 16 + g], Halves(scales).v[(tile) * 16 + g + 8]);
#endif
// The lane's block of a unit: codes and scales of its rows in every fragment; nothing, behind the end.
#define LOAD(unit)                                                                                                  \
    {                                                                                                               \
        const uint block = min((unit) * 4 + t, blocks - 1);                                                         \
        [[unroll]] for (uint i = 0; i < FR; i++) {                                                                  \
            const uint tile = min(first_tile + i, last_tile) * blocks + block;                                      \
            [[unroll]] for (uint r = 0; r < 2; r++)                                                                 \
                [[unroll]] for (uint v = 0; v < VECS; v++)                                                          \
                    next[(i * 2 + r) * VECS + v] = w.v[(tile * 16 + ROW(r)) * VECS + v];                            \
            LOAD_SCALES(i, tile)                                                                                    \
            if (TAIL && (unit) * 4 + t >= blocks) d[i] = f16vec2(0.0hf), m[i] = f16vec2(0.0hf);                     \
        }                                                                                                           \
    }
#define PIECE(unit, j) (min((unit) * 4 + t, blocks - 1) * 4 + (j))
#define UPPER(i, j) unpacked(q[(i) * 2 * VECS], q[(i) * 2 * VECS + VECS - 1], j, dq[i].xx, mq[i].xx)
#define LOWER(i, j) unpacked(q[(i) * 2 * VECS + VECS], q[(i) * 2 * VECS + 2 * VECS - 1], j, dq[i].yy, mq[i].yy)
#endif
// Eight elements of x, of step j of a unit, a fragment.
#define LOAD_X(slot, unit, j)                                                                                       \
    [[unroll]] for (uint c = 0; c < FC; c++) {                                                                      \
        const uint col = min(col0 + c * CN, last_col), piece = PIECE(unit, j);                                      \
        ring[(slot) * FC + c] = x.v[((col / 16) * ktiles + piece / 2) * 32 + (col % 16 + g) * 2 + piece % 2];       \
    }

void main() {
    const uint sg = SUBGROUP_ID, sk = sg % SK, sr = sg / SK % SR, sc = sg / (SK * SR), g = LANE / 4, t = LANE % 4;
    const uint blocks = k / BLOCK, ktiles = k / 16, last_tile = (n + TILE - 1) / TILE - 1, units = (blocks + 3) / 4;
    const uint row0 = (gl_WorkGroupID.x * SR + sr) * FR * CM, col0 = (gl_WorkGroupID.y * SC + sc) * FC * CN;
    const uint first_tile = row0 / TILE, last_col = (rows + 15) / 16 * 16 - CN;  // x has whole tiles
    SUMS acc[FR * FC];
    [[unroll]] for (uint f = 0; f < FR * FC; f++) acc[f] = SUMS(0.0);
    uvec4 next[FR * 2 * VECS];
    f16vec2 d[FR], m[FR];
    uvec4 ring[2 * FC];
    if (PIPE || CARRIED) LOAD(sk)  // in flight while squares are gathered
    if (PIPE_X) LOAD_X(0, sk, 0)
    if (CARRIED) gather_squares(gl_WorkGroupID.y * CARRIED_COLS, k);
    [[dont_unroll]] for (uint turn = 0; turn < units; turn += SK) {  // as many turns for every subgroup
        const uint unit = turn + sk;
        if (!PIPE && !(CARRIED && turn == 0)) LOAD(unit)
        uvec4 q[FR * 2 * VECS];
        f16vec2 dq[FR], mq[FR];
        [[unroll]] for (uint f = 0; f < FR * 2 * VECS; f++) q[f] = next[f];
        [[unroll]] for (uint i = 0; i < FR; i++) {
            dq[i] = d[i];
            mq[i] = m[i];
        }
        if (PIPE) LOAD(unit + SK)
        EACH for (uint j = 0; j < STEPS; j++) {
            if (!PIPE_X) LOAD_X(0, unit, j)
            else LOAD_X((j + 1) % 2, j < STEPS - 1 ? unit : unit + SK, (j + 1) % STEPS)
            B_TYPE e[2 * FC];
            [[unroll]] for (uint c = 0; c < FC; c++) {
                const uvec4 piece = ring[(PIPE_X ? j % 2 * FC : 0) + c];
                MAKE_B(e[c], piece.xy)
                MAKE_B(e[FC + c], piece.zw)
            }
            EACH for (uint i = 0; i < FR; i++) {
                const uvec4 upper = UPPER(i, j), lower = LOWER(i, j);
                A_TYPE a, b;
                MAKE_A(a, uvec4(upper.xy, lower.xy))
                MAKE_A(b, uvec4(upper.zw, lower.zw))
                EACH for (uint c = 0; c < FC; c++) MULTIPLY(acc[i * FC + c], a, e[c])
                EACH for (uint c = 0; c < FC; c++) MULTIPLY(acc[i * FC + c], b, e[FC + c])
            }
        }
    }
    if (CARRIED) settle_factors(gl_WorkGroupID.y * CARRIED_COLS, rows, k);
    // Straight-line rounds, one a row of fragments: a loop with a barrier in it would be kept, and the sums with it in memory.
    const uint step = EACH_ROWS, own = (sg - sk) * FC * CM * CN;  // stages of the SK subgroups of these rows
#define ROUND(i)                                                                                                    \
    if (i < FR) {                                                                                                   \
        [[unroll]] for (uint j = 0; j < FC; j++) STORE_SUMS(acc[i * FC + j], stage, (sg * FC + j) * CM * CN)        \
        barrier();                                                                                                  \
        for (uint item = sk * 32 + LANE; item < FC * CM * CN / step; item += SK * 32) {                             \
            const uint at = item * step, row = row0 + i * CM + at % CM, col = col0 + at / CM;                       \
            float total = 0.0, other = 0.0;                                                                         \
            for (uint p = 0; p < SK; p++) {                                                                         \
                total += stage[own + p * FC * CM * CN + AT(at)];                                                    \
                if (EACH_ROWS == 2) other += stage[own + p * FC * CM * CN + AT(at + 1)];                            \
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
            if (CARRY > 0) stage[own + AT(at)] = square;                                                            \
        }                                                                                                           \
        if (CARRY > 0) {                                                                                            \
            barrier();                                                                                              \
            for (uint c = sk * 32 + LANE; c < FC * CN; c += SK * 32) {                                              \
                float sum = 0.0;                                                                                    \
                for (uint a = 0; a < CM; a++) sum += stage[own + AT(c * CM + a)];                                   \
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
