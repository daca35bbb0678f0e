// matrix_rate: a loop of matrix products in registers, to find how fast a device can multiply at most.
//
// Each subgroup holds FR matrices A_r [CM][CK] and FC matrices B_c [CK][CN] and adds A_r B_c to an accumulator of its own
// `rounds` times; at its end all FR * FC accumulators are summed and stored: y = rounds * sum over r, c of A_r B_c, which
// is exact while it stays below 2^24 (float32) or 2^31 (int32). Nothing but the end touches memory.
// a: [FR][CM][CK], b: [FC][CN][CK] (columns of B side by side), y: [workgroups][subgroups][CM][CN].
// Grid: x = workgroups.
//
// variant f16: -DELEMENT=float16_t -DSUM=float -DSUMS=Floats -DPACK=2
// variant s8: -DELEMENT=int8_t -DSUM=int -DSUMS=Words -DPACK=4
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#include "buffers.glsl"

layout(constant_id = 0) const uint CM = 16;
layout(constant_id = 1) const uint CN = 16;
layout(constant_id = 2) const uint CK = 16;
layout(constant_id = 3) const uint FR = 2;
layout(constant_id = 4) const uint FC = 4;
layout(constant_id = 5) const uint SUBGROUPS = 4;  // of a workgroup
layout(constant_id = 6) const uint LOCAL = 128;    // SUBGROUPS * the subgroup's size
layout(local_size_x_id = 6, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
    Words a;
    Words b;
    SUMS y;
    uint rounds;
};

void main() {
    const uint words = CK / PACK;  // of a row
    coopmat<ELEMENT, gl_ScopeSubgroup, CM, CK, gl_MatrixUseA> left[FR];
    coopmat<ELEMENT, gl_ScopeSubgroup, CK, CN, gl_MatrixUseB> right[FC];
    coopmat<SUM, gl_ScopeSubgroup, CM, CN, gl_MatrixUseAccumulator> acc[FR * FC];
    [[unroll]] for (uint i = 0; i < FR; i++)
        coopMatLoad(left[i], a.v, i * CM * words, words, gl_CooperativeMatrixLayoutRowMajor);
    [[unroll]] for (uint j = 0; j < FC; j++)
        coopMatLoad(right[j], b.v, j * CN * words, words, gl_CooperativeMatrixLayoutColumnMajor);
    [[unroll]] for (uint f = 0; f < FR * FC; f++)
        acc[f] = coopmat<SUM, gl_ScopeSubgroup, CM, CN, gl_MatrixUseAccumulator>(SUM(0));
    for (uint t = 0; t < rounds; t++)
        [[unroll]] for (uint j = 0; j < FC; j++)
            [[unroll]] for (uint i = 0; i < FR; i++) acc[i * FC + j] = coopMatMulAdd(left[i], right[j], acc[i * FC + j]);
    [[unroll]] for (uint f = 1; f < FR * FC; f++) acc[0] += acc[f];
    const uint at = (gl_WorkGroupID.x * SUBGROUPS + gl_SubgroupID) * CM * CN;
    coopMatStore(acc[0], y.v, at, CN, gl_CooperativeMatrixLayoutRowMajor);
}
