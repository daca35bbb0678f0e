// linear: y[r][i] = sum over k of W[i][k] * x[r][k], then an epilogue.
//
//   EPILOGUE 0 STORE    y[r][i] = sum
//   EPILOGUE 1 ADD      y[r][i] = y[r][i] + sum                            (residual, in place)
//   EPILOGUE 2 SWIGLU   y[r][i / 2] = silu(sum of row i) * (sum of row i + 1)   (W's rows interleave gate and up)
//
// W: [n][k] in resident tiles (include/weights.glsl, weights_k.glsl). x: float32 [rows][x_stride].
// y: float32 [rows][y_stride].
// Grid: x = weight rows in groups of LANES * RPL, y = activation rows in groups of COLS.
// A workgroup is KSPLIT parts of K, each LANES invocations that own RPL neighbouring weight rows; the parts are summed
// in fixed order. The order of additions of an element depends on KSPLIT and k alone, never on COLS or on other rows.
// XSHARE: the 8 invocations of a subgroup load 8 elements of x and hand them round (for drivers on the CPU, where a
// load that is uniform in a loop costs as much as 8); otherwise each invocation loads what it needs.
//
// variant f32: -DWEIGHT_F32
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
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_clustered : require
#include "buffers.glsl"
#if defined(WEIGHT_K)
#include "weights_k.glsl"
#else
#include "weights.glsl"
#endif

layout(constant_id = 0) const uint COLS = 1;
layout(constant_id = 1) const uint RPL = 2;
layout(constant_id = 2) const uint KSPLIT = 1;
layout(constant_id = 3) const uint EPILOGUE = 0;
layout(constant_id = 4) const uint LANES = 8;
layout(constant_id = 5) const bool XSHARE = false;
layout(constant_id = 6) const bool TAIL = false;  // k is not a multiple of BLOCK
layout(constant_id = 7) const uint LOCAL = 8;     // KSPLIT * LANES
layout(local_size_x_id = 7, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
    Words w;
    Words scales;
    Floats4 x;
    Floats y;
    uint rows;
    uint n;         // weight rows
    uint k;         // row length, multiple of 4
    uint x_stride;  // in floats, multiple of 4
    uint y_stride;  // in floats
};

#if defined(WEIGHT_Q4) || defined(WEIGHT_K)
const bool SCALED = true, OFFSET = true, NIBBLES = true;
#elif defined(WEIGHT_Q8)
const bool SCALED = true, OFFSET = false, NIBBLES = false;
#else
const bool SCALED = false, OFFSET = false, NIBBLES = false;
#endif
const uint GROUP = LANES * RPL;
shared float parts[KSPLIT > 1 ? KSPLIT * GROUP * COLS : 1];

void main() {
    const uint lane = gl_LocalInvocationIndex % LANES;
    const uint part = KSPLIT == 1 ? 0 : gl_LocalInvocationIndex / LANES;
    const uint first_row = gl_WorkGroupID.x * GROUP + lane * RPL;
    const uint first_col = gl_WorkGroupID.y * COLS;
    const uint blocks = (k + BLOCK - 1) / BLOCK;
    const uint last_tile = (n + TILE - 1) / TILE - 1;
    const uint own = first_row % TILE;                          // RPL divides TILE: a lane's rows share a tile
    const uint base = min(first_row / TILE, last_tile) * blocks;
#if defined(WEIGHT_K)
    const float masked_scale = UNMASK(gl_LocalInvocationIndex);
#else
    const float masked_scale = exp2(-4.0 * float(gl_LocalInvocationIndex & 3));
#endif
    float sum[RPL][COLS];
    for (uint j = 0; j < RPL; j++)
        for (uint c = 0; c < COLS; c++) sum[j][c] = 0.0;
    for (uint b = part; b < blocks; b += KSPLIT) {
        float block[RPL][COLS], total[COLS];  // sums of code * x and of x over the block
        for (uint c = 0; c < COLS; c++) {
            total[c] = 0.0;
            for (uint j = 0; j < RPL; j++) block[j][c] = SCALED ? 0.0 : sum[j][c];
        }
        for (uint piece = 0; piece < PIECES; piece++) {  // 8 elements of K each
            Piece p[RPL];
            for (uint j = 0; j < RPL; j++) p[j] = fetch8(w, base + b, own + j, piece);
            const uint at = b * BLOCK + piece * 8;
            float held[COLS];
            vec4 lo[COLS], hi[COLS];
            for (uint c = 0; c < COLS; c++) {
                const uint row = min(first_col + c, rows - 1) * x_stride;
                if (XSHARE) {
                    uint mine = at + (gl_LocalInvocationIndex & 7);
                    const bool inside = !TAIL || mine < k;
                    if (TAIL) mine = min(mine, k - 1);
                    const float loaded = Floats(x).v[row + mine];
                    held[c] = inside ? loaded : 0.0;
                    if (OFFSET) total[c] += held[c];
                    if (NIBBLES) held[c] *= masked_scale;
                } else {
                    lo[c] = TAIL && at + 4 > k ? vec4(0.0) : x.v[(row + at) / 4];
                    hi[c] = TAIL && at + 8 > k ? vec4(0.0) : x.v[(row + at) / 4 + 1];
                    if (OFFSET) total[c] += ((lo[c].x + lo[c].y) + (lo[c].z + lo[c].w)) + ((hi[c].x + hi[c].y) + (hi[c].z + hi[c].w));
                }
            }
#define STEP(i, X)                                                                  \
    {                                                                               \
        float e[RPL];                                                               \
        for (uint j = 0; j < RPL; j++) e[j] = code(p[j], i, XSHARE);                \
        for (uint c = 0; c < COLS; c++) {                                           \
            const float a = XSHARE ? subgroupBroadcast(held[c], i) : X;             \
            for (uint j = 0; j < RPL; j++) block[j][c] = fma(e[j], a, block[j][c]); \
        }                                                                           \
    }
            STEP(0, lo[c].x) STEP(1, lo[c].y) STEP(2, lo[c].z) STEP(3, lo[c].w)
            STEP(4, hi[c].x) STEP(5, hi[c].y) STEP(6, hi[c].z) STEP(7, hi[c].w)
        }
        if (XSHARE && OFFSET)
            for (uint c = 0; c < COLS; c++) total[c] = subgroupClusteredAdd(total[c], 8);
        for (uint j = 0; j < RPL; j++) {
            const Scale s = load_scale(scales, base + b, own + j);
            for (uint c = 0; c < COLS; c++) {
                if (!SCALED) sum[j][c] = block[j][c];
                else if (OFFSET) sum[j][c] = fma(s.d, block[j][c], fma(s.m, total[c], sum[j][c]));
                else sum[j][c] = fma(s.d, block[j][c], sum[j][c]);
            }
        }
    }
    if (KSPLIT > 1) {
        for (uint j = 0; j < RPL; j++)
            for (uint c = 0; c < COLS; c++) parts[(part * COLS + c) * GROUP + lane * RPL + j] = sum[j][c];
        barrier();
        if (part != 0) return;
        for (uint j = 0; j < RPL; j++)
            for (uint c = 0; c < COLS; c++)
                for (uint p = 1; p < KSPLIT; p++) sum[j][c] += parts[(p * COLS + c) * GROUP + lane * RPL + j];
    }
    for (uint c = 0; c < COLS; c++) {
        if (first_col + c >= rows) break;
        const uint out_row = (first_col + c) * y_stride;
        if (EPILOGUE == 2) {
            for (uint j = 0; j + 1 < RPL; j += 2) {
                const uint i = (first_row + j) / 2;
                const float gate = sum[j][c];
                if (i < n / 2) y.v[out_row + i] = gate / (1.0 + exp(-gate)) * sum[j + 1][c];
            }
        } else {
            for (uint j = 0; j < RPL; j++) {
                const uint i = first_row + j;
                if (i < n) y.v[out_row + i] = EPILOGUE == 1 ? y.v[out_row + i] + sum[j][c] : sum[j][c];
            }
        }
    }
}
