// fma_rate: a loop of fused multiply-adds in registers, to find how fast a device without matrix units can multiply.
//
// Each invocation has CHAINS independent vec4s and does v = v * scale + step, `rounds` times. With scale 1 a chain ends at
// its start plus rounds * step, exactly while that stays below 2^24; `scale` is pushed, so no compiler can know it.
// y: float32 [invocations], the sum of all elements of an invocation's chains. Grid: x = workgroups.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#include "buffers.glsl"

layout(constant_id = 0) const uint LOCAL = 256;
layout(constant_id = 1) const uint CHAINS = 4;
layout(constant_id = 2) const bool FUSED = true;  // as fma(), else as a product and a sum that a driver may fuse
layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
    Floats y;
    float scale;
    float step;
    uint rounds;
};

void main() {
    vec4 v[CHAINS];
    [[unroll]] for (uint c = 0; c < CHAINS; c++) v[c] = vec4(4 * c, 4 * c + 1, 4 * c + 2, 4 * c + 3);
    for (uint t = 0; t < rounds; t++)
        [[unroll]] for (uint c = 0; c < CHAINS; c++) v[c] = FUSED ? fma(v[c], vec4(scale), vec4(step)) : v[c] * scale + step;
    vec4 sum = vec4(0.0);
    [[unroll]] for (uint c = 0; c < CHAINS; c++) sum += v[c];
    y.v[gl_GlobalInvocationID.x] = sum.x + sum.y + sum.z + sum.w;
}
