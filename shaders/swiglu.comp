// swiglu: y[r][i] = silu(gate[r][i]) * up[r][i], silu(g) = g / (1 + exp(-g))   (arXiv:2002.05202)
//
// With GELU gelu(gate) * up, gelu(g) = g (1 + tanh(u)) / 2 = g / (1 + exp(-2u)), u = sqrt(2 / pi) (g + 0.044715 g^3).
//
// gate, up: float32 [R][in_stride]. y: float32 [R][y_stride]. width and strides are multiples of 4.
// Grid: x = groups of LOCAL quads, y = row.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#include "buffers.glsl"

layout(constant_id = 0) const uint LOCAL = 32;
layout(constant_id = 1) const bool GELU = false;
layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
    Floats4 gate;
    Floats4 up;
    Floats4 y;
    uint width;
    uint in_stride;
    uint y_stride;
};

void main() {
    const uint i = gl_GlobalInvocationID.x, from = gl_WorkGroupID.y * (in_stride / 4) + i;
    if (i * 4 >= width) return;
    const vec4 g = gate.v[from];
    vec4 u = g;  // half of it for tanh
    if (GELU) u = 1.5957691216 * fma(0.044715 * g * g, g, g);
    y.v[gl_WorkGroupID.y * (y_stride / 4) + i] = g / (1.0 + exp(-u)) * up.v[from];
}
