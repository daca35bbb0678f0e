// magic_bias: the conversion of include/magic_bias.glsl over a range of whole numbers, for a test of all of it.
//
//   y[i] = float(first + step * i), i < count
//
// y: float32. Grid: x = groups of LOCAL values.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#include "buffers.glsl"
#include "magic_bias.glsl"

layout(constant_id = 0) const uint LOCAL = 64;
layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
    Floats y;
    int first;
    int step_;
    uint count;
};

void main() {
    const uint i = gl_GlobalInvocationID.x;
    if (i < count) y.v[i] = from_magic(MAGIC_BIAS + (first + step_ * int(i)));
}
