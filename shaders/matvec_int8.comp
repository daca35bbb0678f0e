// matvec_int8: matvec with activations in int8 blocks (quantize_q8.comp) and integer dot products of 4 bytes.
//
//   y[r][i] = sum over blocks of dw * dx * (sum of qw * qx) + mw * (dx * sum of qx)
//
// W: 8-bit or 4-bit codes in resident tiles (include/weights.glsl). codes, scales: of quantize_q8, ORDER 1 for 4-bit
// weights. With SOURCE_WIDTH (and one row of x) the workgroup rounds x itself, the same way, from float32 activations at
// `x_float`; with NORM too of x * gain, the factor of matvec.comp's NORM being multiplied to the sums. Epilogues
// (include/epilogue.glsl), teams and grid as in matvec.comp; 4-bit weights take two blocks a step, 8-bit ones half a block an
// invocation.
//
// variant q8: -DWEIGHT_Q8
// variant q4: -DWEIGHT_Q4
// variant q4m: -DWEIGHT_Q4 -DWEIGHT_MIN
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_integer_dot_product : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "buffers.glsl"
#include "epilogue.glsl"
#include "weights.glsl"

layout(constant_id = 0) const uint COLS = 1;
layout(constant_id = 1) const uint TILES = 2;
layout(constant_id = 2) const uint TEAMS = 4;
layout(constant_id = 3) const uint SOURCE_WIDTH = 0;  // k rounded up to 32, where x is rounded here; else 0
layout(constant_id = 4) const uint UNROLL = 2;
layout(constant_id = 5) const bool TAIL = false;  // the blocks are not a multiple of STEP * TEAMS * UNROLL
layout(constant_id = 6) const bool PIPE = false;  // load the next steps before the last are multiplied
layout(constant_id = 7) const bool NORM = false;
layout(constant_id = 8) const bool GATHER = false;
layout(constant_id = 10) const uint REPEAT = 1;   // groups of tiles a workgroup takes, one after the other
layout(constant_id = 11) const uint OUT = 0;     // 1 + the order of int8 codes that SWIGLU leaves; 0: float32
layout(constant_id = 12) const uint LOCAL = 128;  // 32 * TEAMS
layout(local_size_x_id = 12, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
    Words4 w;
    Words scales;
    Words4 x;
    Floats2 x_scales;
    Floats y;
    uint rows;
    uint n;
    uint k;
    uint y_stride;
    EPILOGUE_PUSH
    Floats4 gain;
    Words logit_rows;
    uint x_stride;     // of float32 x, with GATHER
    float eps;
};

#if defined(WEIGHT_Q4)
const uint ROW_ORDER = 1;
const uint STEP = 2;  // blocks a team takes in a step
#else
const uint ROW_ORDER = 0;
const uint STEP = 1;
#endif
shared float parts[TEAMS * 32 * TILES * COLS];
#include "prepare_row.glsl"

// The first blocks of the tiles of a group; a tile behind the last repeats the last.
#define BASE(group) \
    [[unroll]] for (uint t = 0; t < TILES; t++) base[t] = min((group) * TILES + t, last_tile) * blocks;

const bool EARLY = HERE || REPEAT > 1;  // a group's first weights are loaded before it is its turn

// UNROLL steps of blocks from `first`, for each tile; a block behind the end repeats the last (its scale counts as zero).
#define LOAD(first)                                                                       \
    {                                                                                     \
        [[unroll]] for (uint i = 0; i < UNROLL * TILES; i++) {                            \
            uint block = ((first) + i / TILES * TEAMS) * STEP + ahead;                    \
            if (TAIL) block = min(block, blocks - 1);                                     \
            q[i] = w.v[((base[i % TILES] + block) * TILE + row) * (3 - STEP) + piece];    \
            s[i] = load_scale(scales, base[i % TILES] + block, row);                      \
        }                                                                                 \
    }

void main() {
    const uint lane = gl_LocalInvocationIndex % 32, team = gl_LocalInvocationIndex / 32;
    const uint blocks = (k + 31) / 32, steps = (blocks + STEP - 1) / STEP;
    const uint last_tile = (n + TILE - 1) / TILE - 1;
    const uint first_col = gl_WorkGroupID.y * COLS;
#if defined(WEIGHT_Q4)
    const uint row = lane % 16, ahead = lane / 16, piece = 0;
#else
    const uint row = lane / 2, ahead = 0, piece = lane % 2;
#endif
    uint base[TILES];
    BASE(GROUP(0))
    uvec4 q[UNROLL * TILES];
    Scale s[UNROLL * TILES];
    if (PIPE || EARLY) LOAD(team)  // in flight while x is prepared
    if (HERE) prepare_row();
    for (uint turn = 0; turn < REPEAT; turn++) {
    const uint group = GROUP(turn);
    float sum[TILES][COLS];
    for (uint t = 0; t < TILES; t++)
        for (uint c = 0; c < COLS; c++) sum[t][c] = 0.0;
    for (uint step = team; step < steps; step += TEAMS * UNROLL) {
        if (!PIPE && !(EARLY && step == team)) LOAD(step)
        uvec4 held[UNROLL * TILES];
        Scale scale[UNROLL * TILES];
        [[unroll]] for (uint i = 0; i < UNROLL * TILES; i++) {
            held[i] = q[i];
            scale[i] = s[i];
        }
        if (PIPE && step + TEAMS * UNROLL < steps) LOAD(step + TEAMS * UNROLL)  // in flight while these are multiplied
        [[unroll]] for (uint u = 0; u < UNROLL; u++) {
            uint block = (step + u * TEAMS) * STEP + ahead;
            const bool real = !TAIL || block < blocks;
            if (TAIL) block = min(block, blocks - 1);
            [[unroll]] for (uint c = 0; c < COLS; c++) {
                const uint at = min(first_col + c, rows - 1) * blocks + block;
                const vec2 dx = real ? (HERE ? code_scales[at] : x_scales.v[at]) : vec2(0.0);
#if defined(WEIGHT_Q4)
                const uvec4 a = HERE ? codes[at * 2] : x.v[at * 2], b = HERE ? codes[at * 2 + 1] : x.v[at * 2 + 1];
                [[unroll]] for (uint t = 0; t < TILES; t++) {
                    int dot = 0;
                    [[unroll]] for (uint i = 0; i < 4; i++) {
                        const uint even = i < 2 ? a[2 * i] : b[2 * i - 4], odd = i < 2 ? a[2 * i + 1] : b[2 * i - 3];
                        const uint word = held[u * TILES + t][i];
                        dot = dotPacked4x8AccSatEXT(int(word & 0x0F0F0F0Fu), int(even), dot);
                        dot = dotPacked4x8AccSatEXT(int((word >> 4) & 0x0F0F0F0Fu), int(odd), dot);
                    }
                    const Scale own = scale[u * TILES + t];
                    sum[t][c] = fma(own.d * dx.x, float(dot), fma(own.m, dx.y, sum[t][c]));
                }
#else
                const uvec4 a = HERE ? codes[at * 2 + piece] : x.v[at * 2 + piece];
                [[unroll]] for (uint t = 0; t < TILES; t++) {
                    int dot = 0;
                    [[unroll]] for (uint i = 0; i < 4; i++)
                        dot = dotPacked4x8AccSatEXT(int(held[u * TILES + t][i]), int(a[i]), dot);
                    sum[t][c] = fma(scale[u * TILES + t].d * dx.x, float(dot), sum[t][c]);
                }
#endif
            }
        }
    }
    if (turn + 1 < REPEAT) {  // the next group's first weights are on their way while this one is finished
        BASE(GROUP(turn + 1))
        LOAD(team)
    }
    if (turn > 0) barrier();  // the sums of the last group are read
    [[unroll]] for (uint t = 0; t < TILES; t++)
        [[unroll]] for (uint c = 0; c < COLS; c++) parts[((team * 32 + lane) * TILES + t) * COLS + c] = sum[t][c];
    barrier();
    const float factor = NORM ? norm_factor() : 1.0;
    const uint results = TILE * TILES * COLS / EACH_ROWS;
    for (uint item = gl_LocalInvocationIndex; item < results; item += LOCAL) {
        const uint c = item % COLS, first = item / COLS * EACH_ROWS, t = first / TILE, own = first % TILE;
        float total[2] = float[2](0.0, 0.0);
        for (uint j = 0; j < EACH_ROWS; j++) {
            for (uint g = 0; g < TEAMS; g++) {
#if defined(WEIGHT_Q4)
                const uint a = own + j, b = a + 16;
#else
                const uint a = 2 * (own + j), b = a + 1;
#endif
                total[j] += parts[((g * 32 + a) * TILES + t) * COLS + c] + parts[((g * 32 + b) * TILES + t) * COLS + c];
            }
            if (NORM) total[j] *= factor;
        }
        const uint r = first_col + c, i = (group * TILES + t) * TILE + own;
        if (OUT > 0) gated[turn * GATED + first / 2] = swiglu(total[0], total[1]);
        else if (r < rows && i < n) FINISH(r, i, total[0], total[1])
    }
    }
    if (OUT > 0) finish_row(gl_WorkGroupID.x * REPEAT * GATED, n / 2);
}
