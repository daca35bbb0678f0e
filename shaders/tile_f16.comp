// tile_f16: activations rounded to float16 in the tiles that linear_coopmat reads.
//
//   t[c / 16][k / 16][c % 16][p(k % 16)] = half(x[c][k]); zeros for c >= rows and k >= width
//
// p permutes neighbours as the codes of quantised weights unpack: ORDER 0 none; 1 (q8) 0 2 1 3 in fours; 2 (q4)
// 0 4 1 5 2 6 3 7 in eights: half-word j of the tile holds element order[j].
// x: float32 [rows][x_stride]. t: float16, read as uvec4: 8 elements each.
// Grid: x = groups of LOCAL pieces of 8 elements of a row, y = row of the padded height (a multiple of 16).
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#include "buffers.glsl"

layout(constant_id = 0) const uint ORDER = 0;
layout(constant_id = 1) const uint LOCAL = 64;
layout(local_size_x_id = 1, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
    Floats4 x;
    Words4 t;
    uint rows;
    uint width;     // multiple of 4
    uint x_stride;  // in floats, multiple of 4
    uint pieces;    // pieces of 8 a padded row has
};

void main() {
    const uint piece = gl_GlobalInvocationID.x, c = gl_WorkGroupID.y;
    if (piece >= pieces) return;
    const uint k = piece * 8, from = (c * x_stride + k) / 4;
    const vec4 a = c < rows && k < width ? x.v[from] : vec4(0.0);
    const vec4 b = c < rows && k + 4 < width ? x.v[from + 1] : vec4(0.0);
    uvec4 packed;
    if (ORDER == 1)
        packed = uvec4(packHalf2x16(a.xz), packHalf2x16(a.yw), packHalf2x16(b.xz), packHalf2x16(b.yw));
    else if (ORDER == 2)
        packed = uvec4(packHalf2x16(vec2(a.x, b.x)), packHalf2x16(vec2(a.y, b.y)), packHalf2x16(vec2(a.z, b.z)),
                       packHalf2x16(vec2(a.w, b.w)));
    else
        packed = uvec4(packHalf2x16(a.xy), packHalf2x16(a.zw), packHalf2x16(b.xy), packHalf2x16(b.zw));
    t.v[((c / 16) * (pieces / 2) + piece / 2) * 32 + (c % 16) * 2 + piece % 2] = packed;
}
