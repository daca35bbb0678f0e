// read_stream: read a buffer once, 16 bytes at a time, and keep a checksum so that no load can be left out.
//
// x: uint32 [4 * count]. sums: uint32 [groups]. Grid: x = workgroups; each invocation strides over the whole buffer, so
// that neighbours read neighbouring 16 bytes. sums[g] = sum (mod 2^32) of all words that workgroup g read.
// UNROLL loads are in flight at once.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#include "buffers.glsl"

layout(constant_id = 0) const uint LOCAL = 256;
layout(constant_id = 1) const uint UNROLL = 4;
layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
    Words4 x;
    Words sums;
    uint count;  // pieces of 16 bytes, a multiple of UNROLL * invocations
};

shared uint partial[LOCAL];

void main() {
    const uint stride = gl_NumWorkGroups.x * LOCAL;
    uvec4 total = uvec4(0);
    for (uint i = gl_GlobalInvocationID.x; i < count; i += stride * UNROLL) {
        uvec4 held[UNROLL];
        [[unroll]] for (uint u = 0; u < UNROLL; u++) held[u] = x.v[i + u * stride];
        [[unroll]] for (uint u = 0; u < UNROLL; u++) total += held[u];
    }
    partial[gl_LocalInvocationIndex] = total.x + total.y + total.z + total.w;
    barrier();
    if (gl_LocalInvocationIndex == 0) {
        uint sum = 0;
        for (uint i = 0; i < LOCAL; i++) sum += partial[i];
        sums.v[gl_WorkGroupID.x] = sum;
    }
}
