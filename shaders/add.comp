// add: y[r][i] = y[r][i] + x[r][i], the residual, in place.
//
// x: float32 [R][x_stride]. y: float32 [R][y_stride]. width and strides are multiples of 4.
// Grid: x = groups of LOCAL quads, y = row.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#include "buffers.glsl"

layout(constant_id = 0) const uint LOCAL = 32;
layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
    Floats4 x;
    Floats4 y;
    uint width;
    uint x_stride;
    uint y_stride;
};

void main() {
    const uint i = gl_GlobalInvocationID.x, to = gl_WorkGroupID.y * (y_stride / 4) + i;
    if (i * 4 < width) y.v[to] += x.v[gl_WorkGroupID.y * (x_stride / 4) + i];
}
