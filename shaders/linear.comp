// linear: y[r][n] = sum over k of W[n][k] * x[r][k], then an epilogue.
//
//   epilogue STORE      y[r][n] = sum
//   epilogue ADD        y[r][n] = y[r][n] + sum                     (residual, in place)
//   epilogue SWIGLU     y[r][n / 2] = silu(sum of row n) * (sum of row n + 1), rows interleaved gate, up
//
// W: resident tiles of 16 rows (see include/weights.glsl). x: float32 [rows][x_stride], y: float32 [rows][y_stride].
// Grid: x = weight row tiles (16 rows each), y = activation rows in groups of COLS.
// A workgroup: KSPLIT parts of K, each 16 / RPL invocations that own RPL weight rows; parts are summed in fixed order.
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
#include "buffers.glsl"
#include "weights.glsl"

layout(constant_id = 0) const uint COLS = 1;      // activation rows a workgroup takes at once
layout(constant_id = 1) const uint RPL = 2;       // weight rows an invocation owns: 1 or 2
layout(constant_id = 2) const uint KSPLIT = 1;    // parts of K summed at the end
layout(constant_id = 3) const uint EPILOGUE = 0;  // 0 STORE, 1 ADD, 2 SWIGLU (RPL 2 only)
layout(local_size_x_id = 4, local_size_y = 1, local_size_z = 1) in;  // LOCAL = KSPLIT * 16 / RPL
layout(constant_id = 4) const uint LOCAL = 8;

layout(push_constant, std430) uniform Push {
    Words w;
    Words scales;
    Floats4 x;
    Floats y;
    uint rows;      // activation rows
    uint n;         // weight rows
    uint k;         // row length of W
    uint x_stride;  // floats, multiple of 4
    uint y_stride;  // floats
};

const uint LANES = TILE / RPL;
shared float parts[KSPLIT > 1 ? KSPLIT * TILE * COLS : 1];

void main() {
    const uint lane = gl_LocalInvocationIndex % LANES;
    const uint part = KSPLIT == 1 ? 0 : gl_LocalInvocationIndex / LANES;
    const uint tile = gl_WorkGroupID.x;
    const uint first = gl_WorkGroupID.y * COLS;
    const uint blocks = (k + BLOCK - 1) / BLOCK;
    float sum[RPL][COLS];
    for (uint j = 0; j < RPL; j++)
        for (uint c = 0; c < COLS; c++) sum[j][c] = 0.0;
    for (uint b = part; b < blocks; b += KSPLIT) {
        const uint at = tile * blocks + b;
        Scale scale[RPL];
        for (uint j = 0; j < RPL; j++) scale[j] = load_scale(scales, at, lane * RPL + j);
        for (uint piece = 0; piece < PIECES; piece++) {  // 8 elements of K each
            vec4 lo[RPL], hi[RPL];
            for (uint j = 0; j < RPL; j++) load8(w, at, lane * RPL + j, piece, scale[j], lo[j], hi[j]);
            const uint k4 = (b * BLOCK + piece * 8) / 4;
            for (uint c = 0; c < COLS; c++) {
                const uint row = min(first + c, rows - 1) * (x_stride / 4);
                const vec4 a = x.v[row + k4], e = x.v[row + k4 + 1];
                for (uint j = 0; j < RPL; j++) {
                    sum[j][c] = fma(lo[j].x, a.x, sum[j][c]);
                    sum[j][c] = fma(lo[j].y, a.y, sum[j][c]);
                    sum[j][c] = fma(lo[j].z, a.z, sum[j][c]);
                    sum[j][c] = fma(lo[j].w, a.w, sum[j][c]);
                    sum[j][c] = fma(hi[j].x, e.x, sum[j][c]);
                    sum[j][c] = fma(hi[j].y, e.y, sum[j][c]);
                    sum[j][c] = fma(hi[j].z, e.z, sum[j][c]);
                    sum[j][c] = fma(hi[j].w, e.w, sum[j][c]);
                }
            }
        }
    }
    if (KSPLIT > 1) {
        for (uint j = 0; j < RPL; j++)
            for (uint c = 0; c < COLS; c++) parts[(part * COLS + c) * TILE + lane * RPL + j] = sum[j][c];
        barrier();
        if (part != 0) return;
        for (uint j = 0; j < RPL; j++)
            for (uint c = 0; c < COLS; c++)
                for (uint p = 1; p < KSPLIT; p++) sum[j][c] += parts[(p * COLS + c) * TILE + lane * RPL + j];
    }
    for (uint c = 0; c < COLS; c++) {
        if (first + c >= rows) break;
        const uint out_row = (first + c) * y_stride;
        if (EPILOGUE == 2) {
            const uint i = (tile * TILE + lane * RPL) / 2;
            if (i < n / 2) {
                const float g = sum[0][c];
                y.v[out_row + i] = g / (1.0 + exp(-g)) * sum[RPL - 1][c];
            }
        } else {
            for (uint j = 0; j < RPL; j++) {
                const uint i = tile * TILE + lane * RPL + j;
                if (i < n) y.v[out_row + i] = EPILOGUE == 1 ? y.v[out_row + i] + sum[j][c] : sum[j][c];
            }
        }
    }
}
