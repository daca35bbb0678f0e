// matvec: the GPU cut of linear for few activation rows (1 to 8): y[r][i] = sum over k of W[i][k] * x[r][k].
//
// Epilogues: include/epilogue.glsl. With NORM (and one row of x) x is first normed: x / sqrt(mean(x^2) + eps) * gain; the
// products are taken of x * gain and the factor is multiplied to the sums. The row is logit_rows[0] then with GATHER.
//
// W: [n][k] in resident tiles (include/weights.glsl). x: float32 [rows][x_stride]. y: float32 [rows][y_stride].
// A team of 32 invocations reads 512 contiguous bytes at a time, 16 each: one tile of f16, bf16 or q8 (two invocations a
// row), two neighbouring tiles of q4 (one a row). f32 takes half a tile. A workgroup is TEAMS teams that take every
// TEAMS-th step of K, each for TILES row tiles; their sums are added in fixed order at the end. The order of additions of
// an element depends on TEAMS and k alone.
// Grid: x = groups of TILES row tiles / REPEAT, y = activation rows in groups of COLS.
//
// variant f32: -DWEIGHT_F32
// variant f16: -DWEIGHT_F16
// variant bf16: -DWEIGHT_BF16
// variant q8: -DWEIGHT_Q8
// variant q4: -DWEIGHT_Q4
// variant q4m: -DWEIGHT_Q4 -DWEIGHT_MIN
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_basic : require
#include "buffers.glsl"
#include "epilogue.glsl"
#include "weights.glsl"

layout(constant_id = 0) const uint COLS = 1;
layout(constant_id = 1) const uint TILES = 2;
layout(constant_id = 2) const uint TEAMS = 4;
layout(constant_id = 3) const uint NORM_WIDTH = 0;  // k, with NORM; else 0
layout(constant_id = 4) const uint UNROLL = 2;   // steps of K whose loads are in flight at once
layout(constant_id = 5) const bool TAIL = false;  // k is not a multiple of TEAMS * UNROLL steps
layout(constant_id = 6) const bool PIPE = false;  // load the next steps before the last are multiplied
layout(constant_id = 7) const bool GATHER = false;
layout(constant_id = 8) const uint REPEAT = 1;    // groups of tiles a workgroup takes, one after the other
layout(constant_id = 9) const uint LOCAL = 128;   // 32 * TEAMS
layout(local_size_x_id = 9, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
    Words4 w;
    Words scales;
    Floats4 x;
    Floats y;
    uint rows;
    uint n;
    uint k;
    uint x_stride;
    uint y_stride;
    EPILOGUE_PUSH
    Floats4 gain;
    Words logit_rows;
    float eps;
};

#if defined(WEIGHT_Q4)
const uint EACH = 32, STEP = 64;  // elements an invocation has of a row; elements of K a team takes in a step
#elif defined(WEIGHT_Q8)
const uint EACH = 16, STEP = 32;
#elif defined(WEIGHT_F32)
const uint EACH = 4, STEP = 8;
#else
const uint EACH = 8, STEP = 16;
#endif
const uint PER_TILE = BLOCK / EACH;  // invocations on a row of a tile
const bool NORM = NORM_WIDTH > 0;
shared float parts[TEAMS * 32 * TILES * COLS];
shared float squares_of[NORM ? LOCAL : 1];  // a subgroup
shared vec4 normed[NORM ? NORM_WIDTH / 4 : 1];

// Four elements (from 4 * i) of an invocation's 16 bytes, as codes.
vec4 four(uvec4 q, uint i) {
#if defined(WEIGHT_Q4)
    const uint word = q[i / 2] >> (16 * (i % 2));
    return vec4(word & 15u, (word >> 4) & 15u, (word >> 8) & 15u, (word >> 12) & 15u);
#elif defined(WEIGHT_Q8)
    const int word = int(q[i]);
    return vec4((word << 24) >> 24, (word << 16) >> 24, (word << 8) >> 24, word >> 24);
#elif defined(WEIGHT_F16)
    return vec4(unpackHalf2x16(q[2 * i]), unpackHalf2x16(q[2 * i + 1]));
#elif defined(WEIGHT_BF16)
    return uintBitsToFloat(uvec4(q[2 * i] << 16, q[2 * i] & 0xFFFF0000u, q[2 * i + 1] << 16, q[2 * i + 1] & 0xFFFF0000u));
#else
    return uintBitsToFloat(q);
#endif
}

// The first blocks of the tiles of a group; a tile behind the last repeats the last.
#define BASE(group) \
    [[unroll]] for (uint t = 0; t < TILES; t++) base[t] = min((group) * TILES + t, last_tile) * blocks;

const bool EARLY = NORM || REPEAT > 1;  // a group's first weights are loaded before it is its turn

// UNROLL steps of K from `first`, for each tile; a step behind the end repeats the last (its activations count as zeros).
#define LOAD(first)                                                                            \
    {                                                                                          \
        [[unroll]] for (uint i = 0; i < UNROLL * TILES; i++) {                                 \
            const uint step = (first) + i / TILES * TEAMS;                                     \
            const uint at = (TAIL ? min(step, steps - 1) : step) * STEP + within;              \
            const uint tile = base[i % TILES] + (TAIL ? min(at / BLOCK, blocks - 1) : at / BLOCK); \
            q[i] = w.v[(tile * TILE + row) * PER_TILE + (at % BLOCK) / EACH];                  \
            s[i] = load_scale(scales, tile, row);                                              \
        }                                                                                      \
    }

void main() {
    const uint lane = gl_LocalInvocationIndex % 32, team = gl_LocalInvocationIndex / 32;
    const uint blocks = (k + BLOCK - 1) / BLOCK, steps = (k + STEP - 1) / STEP;
    const uint last_tile = (n + TILE - 1) / TILE - 1;
    const uint first_col = gl_WorkGroupID.y * COLS;
#if defined(WEIGHT_Q4)
    const uint row = lane % 16, within = (lane / 16) * 32;
#elif defined(WEIGHT_F32)
    const uint row = lane / 2, within = (lane % 2) * 4;
#else
    const uint row = lane / 2, within = (lane % 2) * EACH;
#endif
    uint base[TILES];
    BASE(gl_WorkGroupID.x)
    uvec4 q[UNROLL * TILES];
    Scale s[UNROLL * TILES];
    if (PIPE || EARLY) LOAD(team)  // in flight while x is prepared
    if (NORM) {
        uint from = 0;
        bool real = true;
        if (GATHER) {
            from = logit_rows.v[0];
            real = from != 0xFFFFFFFFu;
            from = real ? from * (x_stride / 4) : 0;
        }
        vec4 squares = vec4(0.0);
        for (uint i = gl_LocalInvocationIndex; i < NORM_WIDTH / 4; i += LOCAL) {
            const vec4 a = real ? x.v[from + i] : vec4(0.0);
            squares = fma(a, a, squares);
            normed[i] = a * gain.v[i];
        }
        const float own = subgroupAdd((squares.x + squares.y) + (squares.z + squares.w));
        if (subgroupElect()) squares_of[gl_SubgroupID] = own;
        barrier();
    }
    for (uint turn = 0; turn < REPEAT; turn++) {
    const uint group = gl_WorkGroupID.x + turn * gl_NumWorkGroups.x;
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
            const uint at = (step + u * TEAMS) * STEP + within;
            [[unroll]] for (uint c = 0; c < COLS; c++) {
                const uint from = (min(first_col + c, rows - 1) * x_stride) / 4, last = k / 4 - 1;
                float part[TILES], total = 0.0;
                [[unroll]] for (uint t = 0; t < TILES; t++) part[t] = 0.0;
                [[unroll]] for (uint i = 0; i < EACH / 4; i++) {
                    const uint quad = TAIL ? min(at / 4 + i, last) : at / 4 + i;
                    vec4 a = NORM ? normed[quad] : x.v[from + quad];
                    if (TAIL && at + 4 * i >= k) a = vec4(0.0);
                    total += (a.x + a.y) + (a.z + a.w);
                    [[unroll]] for (uint t = 0; t < TILES; t++) {
                        const vec4 e = four(held[u * TILES + t], i);
                        part[t] = fma(e.x, a.x, part[t]);
                        part[t] = fma(e.y, a.y, part[t]);
                        part[t] = fma(e.z, a.z, part[t]);
                        part[t] = fma(e.w, a.w, part[t]);
                    }
                }
                [[unroll]] for (uint t = 0; t < TILES; t++) {
                    const Scale own = scale[u * TILES + t];
#if defined(WEIGHT_Q4)
                    sum[t][c] = fma(own.d, part[t], fma(own.m, total, sum[t][c]));
#elif defined(WEIGHT_Q8)
                    sum[t][c] = fma(own.d, part[t], sum[t][c]);
#else
                    sum[t][c] += part[t];
#endif
                }
            }
        }
    }
    if (turn + 1 < REPEAT) {  // the next group's first weights are on their way while this one is finished
        BASE(group + gl_NumWorkGroups.x)
        LOAD(team)
    }
    if (turn > 0) barrier();  // the sums of the last group are read
    [[unroll]] for (uint t = 0; t < TILES; t++)
        [[unroll]] for (uint c = 0; c < COLS; c++) parts[((team * 32 + lane) * TILES + t) * COLS + c] = sum[t][c];
    barrier();
    float factor = 1.0;
    if (NORM) {
        float squares = 0.0;
        for (uint i = 0; i < gl_NumSubgroups; i++) squares += squares_of[i];
        factor = 1.0 / sqrt(squares / float(NORM_WIDTH) + eps);
    }
    // each invocation now finishes some of the 16 * TILES * COLS results (pairs of rows with SWIGLU)
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
        if (r < rows && i < n) FINISH(r, i, total[0], total[1])
    }
    }
}
