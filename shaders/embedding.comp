// embedding: x[r] = W[token of row r] * SCALE, a pure dequantisation of the resident tiles that a tied LM head reads too.
//
// W: [n][k] in resident tiles (include/weights.glsl, weights_k.glsl). rows: uint32 [R][8] (include/rows.glsl).
// x: float32 [R][x_stride].
// A token that is not below n (a row marked as failed) reads the last row.
// Grid: x = groups of LOCAL pieces of 8 elements, y = row.
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
#include "buffers.glsl"
#if defined(WEIGHT_K)
#include "weights_k.glsl"
#else
#include "weights.glsl"
#endif
#include "rows.glsl"

layout(constant_id = 0) const uint LOCAL = 32;
layout(constant_id = 1) const float SCALE = 1.0;
layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
    Words w;
    Words scales;
    Words4 rows;
    Floats4 x;
    uint n;
    uint k;         // row length, multiple of 4
    uint x_stride;  // in floats, multiple of 4
};

void main() {
    const uint piece = gl_GlobalInvocationID.x, r = gl_WorkGroupID.y;
    if (piece * 8 >= k) return;
    const uint token = min(load_row(rows, r).x, n - 1), blocks = (k + BLOCK - 1) / BLOCK;
    const uint at = token / TILE * blocks + piece / PIECES, own = token % TILE;
    vec4 lo, hi;
    load8(w, at, own, piece % PIECES, load_scale(scales, at, own), lo, hi);
    const uint to = (r * x_stride + piece * 8) / 4;
    x.v[to] = lo * SCALE;
    if (piece * 8 + 4 < k) x.v[to + 1] = hi * SCALE;
}
