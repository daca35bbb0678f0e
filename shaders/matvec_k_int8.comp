// matvec_k_int8: matvec over K-quants, with activations in int8 blocks (quantize_q8.comp) and integer dot products.
//
//   q4k, q5k:  y[r][i] = sum over super-blocks of d * (sum over blocks of dx * scale * (sum of qw * qx))
//                                            - d_min * (sum over blocks of minimum * (dx * sum of qx))
//   q6k:       y[r][i] = sum over super-blocks of d * (sum over blocks of dx * (scale * sum over 16 + scale' * the others))
//
// Epilogues: include/epilogue.glsl. With SOURCE_WIDTH (and one row of x) the workgroup rounds x itself: prepare_row.glsl.
//
// W: [n][k] in resident tiles (include/weights_k.glsl). x, x_scales: of quantize_q8, ORDER 1. y: float32 [rows][y_stride].
// A team of 32 invocations takes a super-block of a row tile: four times 512 contiguous bytes of codes, 16 an invocation,
// the first 16 for the even blocks of 32 and the others for the odd ones, with the super-block's scales loaded once. A
// workgroup is TEAMS teams that take every TEAMS-th super-block, each for TILES row tiles; their sums are added in fixed
// order at the end. The order of additions of an element depends on TEAMS and k alone.
// Grid: x = groups of TILES row tiles / REPEAT, y = activation rows in groups of COLS.
//
// variant q4k: -DWEIGHT_Q4K
// variant q5k: -DWEIGHT_Q5K
// variant q6k: -DWEIGHT_Q6K
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
#include "weights_k.glsl"

layout(constant_id = 0) const uint COLS = 1;
layout(constant_id = 1) const uint TILES = 2;
layout(constant_id = 2) const uint TEAMS = 4;
layout(constant_id = 3) const uint SOURCE_WIDTH = 0;  // k, where x is rounded here; else 0
layout(constant_id = 4) const uint UNROLL = 1;    // super-blocks whose loads are in flight at once
layout(constant_id = 5) const bool TAIL = false;  // the super-blocks are not a multiple of TEAMS * UNROLL
layout(constant_id = 6) const bool PIPE = false;  // load the next super-blocks before the last are multiplied
layout(constant_id = 7) const bool NORM = false;
layout(constant_id = 8) const bool GATHER = false;
layout(constant_id = 9) const uint REPEAT = 1;    // groups of tiles a workgroup takes, one after the other
layout(constant_id = 10) const uint OUT = 0;     // 1 + the order of int8 codes that SWIGLU leaves; 0: float32
layout(constant_id = 11) const uint LOCAL = 128;  // 32 * TEAMS
layout(local_size_x_id = 11, local_size_y = 1, local_size_z = 1) in;

layout(buffer_reference, std430, buffer_reference_align = 8) buffer Words2 { uvec2 v[]; };

layout(push_constant, std430) uniform Push {
    Words4 w;
    Words4 scales;
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

const uint COUNT = UNROLL * TILES;
shared float parts[TEAMS * 32 * TILES * COLS];
const uint ROW_ORDER = 1;
#include "prepare_row.glsl"
const bool EARLY = HERE || REPEAT > 1;  // a group's first weights are loaded before it is its turn

// The first super-blocks of the tiles of a group; a tile behind the last repeats the last.
#define BASE(group) \
    [[unroll]] for (uint t = 0; t < TILES; t++) base[t] = min((group) * TILES + t, last_tile) * supers;

// Word i of a block (elements 8i to 8i + 7) as bytes: the even elements 0 2 4 6, and the odd ones. `high` is the word of the
// block's further bits that goes with it. q6k: four times (code - 32).
uvec2 bytes8(uint word, uint high, uint i) {
#if defined(WEIGHT_Q6K)
    const uint even = i % 2 == 0 ? high << 6 : high << 2, odd = i % 2 == 0 ? high << 4 : high;
    return uvec2(((word << 2) & 0x3C3C3C3Cu) | (even & 0xC0C0C0C0u), ((word >> 2) & 0x3C3C3C3Cu) | (odd & 0xC0C0C0C0u));
#elif defined(WEIGHT_Q5K)
    const uint even = i < 2 ? high << (4 - 2 * i) : high >> (2 * i - 4);
    const uint odd = i < 2 ? high << (3 - 2 * i) : high >> (2 * i - 3);
    return uvec2((word & 0x0F0F0F0Fu) | (even & 0x10101010u), ((word >> 4) & 0x0F0F0F0Fu) | (odd & 0x10101010u));
#else
    return uvec2(word & 0x0F0F0F0Fu, (word >> 4) & 0x0F0F0F0Fu);
#endif
}

int dot4(uint a, uint b, int sum) { return sum + dotPacked4x8EXT(int(a), int(b)); }
int signed_byte(uint word, uint i) { return int(word << (24 - 8 * i)) >> 24; }

void main() {
    const uint lane = gl_LocalInvocationIndex % 32, team = gl_LocalInvocationIndex / 32;
    const uint supers = k / 256, last_tile = (n + TILE - 1) / TILE - 1;
    const uint first_col = gl_WorkGroupID.y * COLS;
    const uint row = lane % 16, parity = lane / 16;
    uint base[TILES];
    BASE(GROUP(0))
    // of each super-block in flight, what an invocation has: four blocks of one parity
    uvec4 low[COUNT * 4], next_low[COUNT * 4];
#if defined(WEIGHT_Q6K)
    uvec4 high[COUNT * 2], next_high[COUNT * 2];
    uvec2 scales8[COUNT], next_scales8[COUNT];
    uint halves[COUNT], next_halves[COUNT];
#define HIGH(i, j, word) high[(i) * 2 + (j) / 2][(j) % 2 * 2 + (word) / 2]
#define FETCH_REST(i, unit)                                                                                              \
    {                                                                                                                    \
        [[unroll]] for (uint h = 0; h < 2; h++) next_high[(i) * 2 + h] = w.v[(unit) * (UNIT / 4) + 128 + h * 32 + lane]; \
        next_scales8[i] = Words2(scales).v[(unit) * 36 + row * 2 + parity];                                              \
        next_halves[i] = Words(scales).v[(unit) * 72 + 64 + row / 2];                                                    \
    }
#define TAKE_REST(i)                                                                        \
    {                                                                                       \
        [[unroll]] for (uint h = 0; h < 2; h++) high[(i) * 2 + h] = next_high[(i) * 2 + h]; \
        scales8[i] = next_scales8[i];                                                       \
        halves[i] = next_halves[i];                                                         \
    }
#elif defined(WEIGHT_Q5K)
    uvec4 high[COUNT], next_high[COUNT], words[COUNT], next_words[COUNT];
#define HIGH(i, j, word) high[i][j]
#define FETCH_REST(i, unit)                                   \
    {                                                         \
        next_high[i] = w.v[(unit) * (UNIT / 4) + 128 + lane]; \
        next_words[i] = scales.v[(unit) * 16 + row];          \
    }
#define TAKE_REST(i)              \
    {                             \
        high[i] = next_high[i];   \
        words[i] = next_words[i]; \
    }
#else
    uvec4 words[COUNT], next_words[COUNT];
#define HIGH(i, j, word) 0
#define FETCH_REST(i, unit) next_words[i] = scales.v[(unit) * 16 + row];
#define TAKE_REST(i) words[i] = next_words[i];
#endif
// UNROLL super-blocks from `first`, for each tile; one behind the end repeats the last (its activations count as zeros).
#define LOAD(first)                                                                                               \
    {                                                                                                             \
        [[unroll]] for (uint i = 0; i < COUNT; i++) {                                                             \
            const uint at = (first) + i / TILES * TEAMS;                                                          \
            const uint unit = base[i % TILES] + (TAIL ? min(at, supers - 1) : at);                                \
            [[unroll]] for (uint j = 0; j < 4; j++) next_low[i * 4 + j] = w.v[unit * (UNIT / 4) + j * 32 + lane]; \
            FETCH_REST(i, unit)                                                                                   \
        }                                                                                                         \
    }
    if (PIPE || EARLY) LOAD(min(team, supers - 1))  // in flight while x is prepared
    if (HERE) prepare_row();
    for (uint turn = 0; turn < REPEAT; turn++) {
    const uint group = GROUP(turn);
    float sum[TILES][COLS];
    for (uint t = 0; t < TILES; t++)
        for (uint c = 0; c < COLS; c++) sum[t][c] = 0.0;
    for (uint first = team; first < supers; first += TEAMS * UNROLL) {
        if (!PIPE && !(EARLY && first == team)) LOAD(first)
        [[unroll]] for (uint i = 0; i < COUNT; i++) {
            [[unroll]] for (uint j = 0; j < 4; j++) low[i * 4 + j] = next_low[i * 4 + j];
            TAKE_REST(i)
        }
        if (PIPE && first + TEAMS * UNROLL < supers) LOAD(first + TEAMS * UNROLL)  // in flight while these are multiplied
        [[unroll]] for (uint u = 0; u < UNROLL; u++) {
            const uint at = first + u * TEAMS;
            const bool real = !TAIL || at < supers;
            const uint block = (TAIL ? min(at, supers - 1) : at) * 8 + parity;
            float part[TILES][COLS];
            [[unroll]] for (uint t = 0; t < TILES; t++)
                [[unroll]] for (uint c = 0; c < COLS; c++) part[t][c] = 0.0;
#if !defined(WEIGHT_Q6K)
            float least[TILES][COLS];
            uint scale[TILES], minimum[TILES];  // a byte a block
            [[unroll]] for (uint t = 0; t < TILES; t++) {
                [[unroll]] for (uint c = 0; c < COLS; c++) least[t][c] = 0.0;
                const uvec4 s = words[u * TILES + t];
                scale[t] = parity == 0 ? s.y & 0x3F3F3F3Fu : (s.w & 0x0F0F0F0Fu) | ((s.y >> 2) & 0x30303030u);
                minimum[t] = parity == 0 ? s.z & 0x3F3F3F3Fu : ((s.w >> 4) & 0x0F0F0F0Fu) | ((s.z >> 2) & 0x30303030u);
            }
#endif
            [[unroll]] for (uint j = 0; j < 4; j++) {
                uint bytes[TILES][8];
                [[unroll]] for (uint t = 0; t < TILES; t++)
                    [[unroll]] for (uint i = 0; i < 4; i++) {
                        const uint own = u * TILES + t;
                        const uvec2 pair = bytes8(low[own * 4 + j][i], HIGH(own, j, i), i);
                        bytes[t][2 * i] = pair.x;
                        bytes[t][2 * i + 1] = pair.y;
                    }
                [[unroll]] for (uint c = 0; c < COLS; c++) {
                    const uint from = min(first_col + c, rows - 1) * supers * 8 + block + 2 * j;
                    const uvec4 a = HERE ? codes[from * 2] : x.v[from * 2], b = HERE ? codes[from * 2 + 1] : x.v[from * 2 + 1];
                    const vec2 dx = real ? (HERE ? code_scales[from] : x_scales.v[from]) : vec2(0.0);
                    [[unroll]] for (uint t = 0; t < TILES; t++) {
                        int first_half = 0, second_half = 0;
                        [[unroll]] for (uint i = 0; i < 4; i++) {
                            first_half = dot4(bytes[t][i], a[i], first_half);
                            second_half = dot4(bytes[t][4 + i], b[i], second_half);
                        }
#if defined(WEIGHT_Q6K)
                        const uint pairs = scales8[u * TILES + t][j / 2];
                        const int dot = first_half * signed_byte(pairs, j % 2 * 2) + second_half * signed_byte(pairs, j % 2 * 2 + 1);
                        part[t][c] = fma(dx.x, float(dot), part[t][c]);
#else
                        const int dot = (first_half + second_half) * int((scale[t] >> (8 * j)) & 255u);
                        part[t][c] = fma(dx.x, float(dot), part[t][c]);
                        least[t][c] = fma(dx.y, float((minimum[t] >> (8 * j)) & 255u), least[t][c]);
#endif
                    }
                }
            }
            [[unroll]] for (uint t = 0; t < TILES; t++) {
#if defined(WEIGHT_Q6K)
                const vec2 pair = unpackHalf2x16(halves[u * TILES + t]);
                const float d = 0.25 * ((row & 1) == 0 ? pair.x : pair.y);
                [[unroll]] for (uint c = 0; c < COLS; c++) sum[t][c] = fma(d, part[t][c], sum[t][c]);
#else
                const vec2 d = unpackHalf2x16(words[u * TILES + t].x);
                [[unroll]] for (uint c = 0; c < COLS; c++)
                    sum[t][c] = fma(d.x, part[t][c], fma(-d.y, least[t][c], sum[t][c]));
#endif
            }
        }
    }
    if (turn + 1 < REPEAT) {  // the next group's first weights are on their way while this one is finished
        BASE(GROUP(turn + 1))
        LOAD(min(team, supers - 1))
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
                const uint a = own + j, b = a + 16;
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
