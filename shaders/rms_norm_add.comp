// rms_norm_add: y[r] = y[r] + x[r] / sqrt(mean(x[r]^2) + eps) * weight: the residual behind a branch's own norm (Gemma 2, 3)
//
// x: float32 [rows][x_stride]. weight: float32 [width]. y: float32 [rows][y_stride], in place. width and strides are
// multiples of 4. Grid: x = row. A workgroup sums its row in LOCAL strided parts, which are added as a tree: a fixed order.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#include "buffers.glsl"

layout(constant_id = 0) const uint LOCAL = 32;  // a power of two
layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
    Floats4 x;
    Floats4 weight;
    Floats4 y;
    uint width;
    uint x_stride;
    uint y_stride;
    float eps;
};

shared float sums[LOCAL];

void main() {
    const uint lane = gl_LocalInvocationIndex, quads = width / 4;
    const uint from = gl_WorkGroupID.x * (x_stride / 4), to = gl_WorkGroupID.x * (y_stride / 4);
    vec4 part = vec4(0.0);
    for (uint i = lane; i < quads; i += LOCAL) {
        const vec4 a = x.v[from + i];
        part = fma(a, a, part);
    }
    sums[lane] = (part.x + part.y) + (part.z + part.w);
    for (uint step = LOCAL / 2; step > 0; step /= 2) {
        barrier();
        if (lane < step) sums[lane] += sums[lane + step];
    }
    barrier();
    const float factor = 1.0 / sqrt(sums[0] / float(width) + eps);
    for (uint i = lane; i < quads; i += LOCAL) y.v[to + i] += x.v[from + i] * factor * weight.v[i];
}
