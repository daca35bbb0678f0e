// matvec_int8: matvec with activations in int8 blocks (quantize_q8.comp) and integer dot products of 4 bytes.
//
//   y[r][i] = sum over blocks of dw * dx * (sum of qw * qx) + mw * (dx * sum of qx)
//
// W: 8-bit or 4-bit codes in resident tiles (include/weights.glsl). codes, scales: of quantize_q8, ORDER 1 for 4-bit
// weights. Epilogues, teams and grid as in matvec.comp; 4-bit weights take two blocks a step, 8-bit ones half a block an
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
#include "buffers.glsl"
#include "weights.glsl"

layout(constant_id = 0) const uint COLS = 1;
layout(constant_id = 1) const uint TILES = 2;
layout(constant_id = 2) const uint TEAMS = 4;
layout(constant_id = 3) const uint EPILOGUE = 0;
layout(constant_id = 4) const uint UNROLL = 2;
layout(constant_id = 5) const uint LOCAL = 128;  // 32 * TEAMS
layout(local_size_x_id = 5, local_size_y = 1, local_size_z = 1) in;

layout(buffer_reference, std430, buffer_reference_align = 8) buffer Pairs { vec2 v[]; };

layout(push_constant, std430) uniform Push {
    Words4 w;
    Words scales;
    Words4 x;
    Pairs x_scales;
    Floats y;
    uint rows;
    uint n;
    uint k;
    uint y_stride;
};

#if defined(WEIGHT_Q4)
const uint STEP = 2;  // blocks a team takes in a step
#else
const uint STEP = 1;
#endif
shared float parts[TEAMS * 32 * TILES * COLS];

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
    for (uint t = 0; t < TILES; t++) base[t] = min(gl_WorkGroupID.x * TILES + t, last_tile) * blocks;
    float sum[TILES][COLS];
    for (uint t = 0; t < TILES; t++)
        for (uint c = 0; c < COLS; c++) sum[t][c] = 0.0;
    for (uint step = team; step < steps; step += TEAMS * UNROLL) {
        uvec4 q[UNROLL][TILES];
        Scale s[UNROLL][TILES];
        [[unroll]] for (uint u = 0; u < UNROLL; u++) {
            const uint block = min((step + u * TEAMS) * STEP + ahead, blocks - 1);
            [[unroll]] for (uint t = 0; t < TILES; t++) {
                q[u][t] = w.v[((base[t] + block) * TILE + row) * (3 - STEP) + piece];
                s[u][t] = load_scale(scales, base[t] + block, row);
            }
        }
        [[unroll]] for (uint u = 0; u < UNROLL; u++) {
            const uint block = (step + u * TEAMS) * STEP + ahead;
            if (block >= blocks) continue;
            [[unroll]] for (uint c = 0; c < COLS; c++) {
                const uint at = min(first_col + c, rows - 1) * blocks + block;
                const vec2 dx = x_scales.v[at];
#if defined(WEIGHT_Q4)
                const uvec4 a = x.v[at * 2], b = x.v[at * 2 + 1];
                [[unroll]] for (uint t = 0; t < TILES; t++) {
                    int dot = 0;
                    [[unroll]] for (uint i = 0; i < 4; i++) {
                        const uint even = i < 2 ? a[2 * i] : b[2 * i - 4], odd = i < 2 ? a[2 * i + 1] : b[2 * i - 3];
                        dot = dotPacked4x8AccSatEXT(int(q[u][t][i] & 0x0F0F0F0Fu), int(even), dot);
                        dot = dotPacked4x8AccSatEXT(int((q[u][t][i] >> 4) & 0x0F0F0F0Fu), int(odd), dot);
                    }
                    sum[t][c] = fma(s[u][t].d * dx.x, float(dot), fma(s[u][t].m, dx.y, sum[t][c]));
                }
#else
                const uvec4 a = x.v[at * 2 + piece];
                [[unroll]] for (uint t = 0; t < TILES; t++) {
                    int dot = 0;
                    [[unroll]] for (uint i = 0; i < 4; i++) dot = dotPacked4x8AccSatEXT(int(q[u][t][i]), int(a[i]), dot);
                    sum[t][c] = fma(s[u][t].d * dx.x, float(dot), sum[t][c]);
                }
#endif
            }
        }
    }
    [[unroll]] for (uint t = 0; t < TILES; t++)
        [[unroll]] for (uint c = 0; c < COLS; c++) parts[((team * 32 + lane) * TILES + t) * COLS + c] = sum[t][c];
    barrier();
    const uint each = EPILOGUE == 2 ? 2 : 1, results = TILE * TILES * COLS / each;
    for (uint item = gl_LocalInvocationIndex; item < results; item += LOCAL) {
        const uint c = item % COLS, first = item / COLS * each, t = first / TILE, own = first % TILE;
        float total[2] = float[2](0.0, 0.0);
        for (uint j = 0; j < each; j++)
            for (uint g = 0; g < TEAMS; g++) {
#if defined(WEIGHT_Q4)
                const uint a = own + j, b = a + 16;
#else
                const uint a = 2 * (own + j), b = a + 1;
#endif
                total[j] += parts[((g * 32 + a) * TILES + t) * COLS + c] + parts[((g * 32 + b) * TILES + t) * COLS + c];
            }
        const uint r = first_col + c, i = (gl_WorkGroupID.x * TILES + t) * TILE + own;
        if (r >= rows || i >= n) continue;
        if (EPILOGUE == 2) y.v[r * y_stride + i / 2] = total[0] / (1.0 + exp(-total[0])) * total[1];
        else if (EPILOGUE == 1) y.v[r * y_stride + i] += total[0];
        else y.v[r * y_stride + i] = total[0];
    }
}
