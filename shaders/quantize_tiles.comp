// quantize_tiles: activations rounded to int8 in the tiles that linear_int8.comp reads (include/int8_tiles.glsl).
//
// x: float32 [rows][x_stride], `blocks` of 32 elements a row. codes, scales, sums (with SUMS): rows padded to a multiple
// of 16 with zeros. Grid: x = block, y = tile of 16 rows. Four invocations have 8 elements each of a row's block.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_shader_16bit_storage : require
#include "buffers.glsl"
#include "int8_tiles.glsl"

layout(constant_id = 0) const uint ORDER = 0;
layout(constant_id = 1) const bool SUMS = false;
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;

layout(buffer_reference, std430, buffer_reference_align = 8) buffer Words2 { uvec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 2) buffer Halves { uint16_t v[]; };

layout(push_constant, std430) uniform Push {
    Floats4 x;
    Words2 codes;
    Halves scales;
    Halves sums;
    uint rows;
    uint blocks;
    uint x_stride;  // in floats, multiple of 4
};

shared uint tops[64];
shared int totals[64];

void main() {
    const uint lane = gl_LocalInvocationIndex, row = lane / 4, part = lane % 4;
    const uint r = gl_WorkGroupID.y * 16 + row, block = gl_WorkGroupID.x;
    const uint from = (r * x_stride + block * 32 + part * 8) / 4, at = gl_WorkGroupID.y * blocks + block;
    vec4 a = vec4(0.0), b = vec4(0.0);
    if (r < rows) {
        a = x.v[from];
        b = x.v[from + 1];
    }
    tops[lane] = max(magnitude(a), magnitude(b));
    barrier();
    const uint first = row * 4;
    const uint h = scale_bits(max(max(tops[first], tops[first + 1]), max(tops[first + 2], tops[first + 3])));
    int sum;
    codes.v[at * 64 + lane] = codes8(a, b, h, ORDER, sum);
    if (SUMS) totals[lane] = sum;
    if (SUMS) barrier();
    if (part == 0) {
        scales.v[at * 16 + row] = uint16_t(h);
        if (SUMS) {
            const uvec2 halves = sum_bits(h, totals[first] + totals[first + 1] + totals[first + 2] + totals[first + 3]);
            sums.v[at * 32 + row] = uint16_t(halves.x);
            sums.v[at * 32 + 16 + row] = uint16_t(halves.y);
        }
    }
}
