// coopmat_layout: which element of a cooperative matrix each component of each invocation holds.
//
//   found[use][lane][i] = r * SIZE + c for component i of a SIZE x SIZE matrix: use 0 accumulator (float32), 1 A and 2 B
//   (float16); NONE behind the last component
//
// Vulkan leaves this to the driver, and it is the same for all matrices of a type, use and shape. found: uint32
// [3][SUBGROUP][HELD]. Grid: one workgroup, one subgroup.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#include "buffers.glsl"

layout(constant_id = 0) const uint SIZE = 16;
layout(constant_id = 1) const uint HELD = 16;      // components that fit a line of `found`
layout(constant_id = 2) const uint SUBGROUP = 32;
layout(local_size_x_id = 2, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push { Words found; };

const uint NONE = 0xFFFFFFFF;
shared float wide[SIZE * SIZE];
shared float16_t narrow[SIZE * SIZE];  // exact up to 2048

void main() {
    const uint lane = gl_SubgroupInvocationID;
    for (uint i = lane; i < SIZE * SIZE; i += SUBGROUP) {
        wide[i] = float(i);
        narrow[i] = float16_t(i);
    }
    barrier();
    coopmat<float, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseAccumulator> acc;
    coopmat<float16_t, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseA> a;
    coopmat<float16_t, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseB> b;
    coopMatLoad(acc, wide, 0, SIZE, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(a, narrow, 0, SIZE, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(b, narrow, 0, SIZE, gl_CooperativeMatrixLayoutRowMajor);
    [[unroll]] for (uint i = 0; i < HELD; i++) {
        found.v[lane * HELD + i] = i < acc.length() ? uint(acc[i]) : NONE;
        found.v[(SUBGROUP + lane) * HELD + i] = i < a.length() ? uint(a[i]) : NONE;
        found.v[(2 * SUBGROUP + lane) * HELD + i] = i < b.length() ? uint(b[i]) : NONE;
    }
}
