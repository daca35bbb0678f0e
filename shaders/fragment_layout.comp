// fragment_layout: which element of the operands of a 16x8x16 float16 product each component of each invocation holds.
//
//   found[use][lane][i] = r * 16 + c for component i: use 0 A [16][16], 1 B [16][8]; NONE behind the last component
//
// As coopmat_layout.comp, of one shape. found: uint32 [2][32][HELD]. Grid: one workgroup, one subgroup of 32.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#include "buffers.glsl"

layout(local_size_x = 32, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push { Words found; };

const uint NONE = 0xFFFFFFFF, HELD = 16;
shared float16_t numbers[256];  // exact up to 2048

void main() {
    const uint lane = gl_SubgroupInvocationID;
    for (uint i = lane; i < 256; i += 32) numbers[i] = float16_t(i);
    barrier();
    coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> a;
    coopmat<float16_t, gl_ScopeSubgroup, 16, 8, gl_MatrixUseB> b;
    coopMatLoad(a, numbers, 0, 16, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(b, numbers, 0, 16, gl_CooperativeMatrixLayoutRowMajor);
    [[unroll]] for (uint i = 0; i < HELD; i++) {
        found.v[lane * HELD + i] = i < a.length() ? uint(a[i]) : NONE;
        found.v[(32 + lane) * HELD + i] = i < b.length() ? uint(b[i]) : NONE;
    }
}
