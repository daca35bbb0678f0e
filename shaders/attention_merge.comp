// attention_merge: the output of attention from its pages: with w[s] = exp(m[s] - max m) over the pages a row has seen,
//
//   y[d] = sum over s of w[s] partial[s][d] / sum over s of w[s] l[s]
//
// partial: float32 [R][heads][splits][HEAD_DIM]. state: float32 [R][heads][splits][2] = (m, l). rows: uint32 [R][8].
// y: float32 [R][y_stride], heads side by side; zeros for a row that is not ACTIVE.
// The pages are added in order, and only those up to the row's position: `splits` does not change the result.
// Grid: x = groups of LOCAL quads of the row, y = row.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#include "buffers.glsl"
#include "rows.glsl"

layout(constant_id = 0) const uint HEAD_DIM = 64;
layout(constant_id = 1) const uint PAGE = 128;
layout(constant_id = 2) const uint LOCAL = 32;
layout(local_size_x_id = 2, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
    Floats4 partial;
    Floats state;
    Words4 rows;
    Floats4 y;
    uint y_stride;
    uint splits;
    uint heads;
};

void main() {
    const uint quads = HEAD_DIM / 4, item = gl_GlobalInvocationID.x, r = gl_WorkGroupID.y;
    if (item >= heads * quads) return;
    const uvec4 row = load_row(rows, r);
    const uint to = r * (y_stride / 4) + item;
    if ((row.w & ACTIVE) == 0) {
        y.v[to] = vec4(0.0);
        return;
    }
    const uint pages = min(row.z / PAGE + 1, splits);
    const uint at = (r * heads + item / quads) * splits;
    float top = state.v[at * 2];
    for (uint s = 1; s < pages; s++) top = max(top, state.v[(at + s) * 2]);
    vec4 acc = vec4(0.0);
    float total = 0.0;
    for (uint s = 0; s < pages; s++) {
        const float w = exp(state.v[(at + s) * 2] - top);
        acc = fma(vec4(w), partial.v[(at + s) * quads + item % quads], acc);
        total = fma(w, state.v[(at + s) * 2 + 1], total);
    }
    y.v[to] = acc / total;
}
