// quantize_q8: activations rounded to int8 in blocks of 32, once for all matrices that read them.
//
//   d = max |x| / 127 of the block;  q = round(x / d);  codes: 8 words a block;  scales: (d, d * sum q)
//
// ORDER 0: byte j of word w is element 4w + j. ORDER 1 (4-bit weights): of each 8 elements the even ones, then the odd.
// x: float32 [rows][x_stride]. codes: uint32 [rows][blocks][8]. scales: float32 [rows][blocks][2]. Elements from `width`
// on count as zeros. Grid: x = groups of LOCAL / 8 blocks of a row, y = row. 8 invocations share a block.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#include "buffers.glsl"

layout(constant_id = 0) const uint ORDER = 0;
layout(constant_id = 1) const uint LOCAL = 64;
layout(local_size_x_id = 1, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
    Floats4 x;
    Words codes;
    Floats scales;
    uint width;     // multiple of 4
    uint blocks;
    uint x_stride;  // in floats, multiple of 4
};

shared float tops[LOCAL];
shared int sums[LOCAL];

int byte4(ivec4 q) { return (q.x & 255) | ((q.y & 255) << 8) | ((q.z & 255) << 16) | (q.w << 24); }

void main() {
    const uint lane = gl_LocalInvocationIndex, part = lane % 8;
    const uint block = gl_WorkGroupID.x * (LOCAL / 8) + lane / 8, r = gl_WorkGroupID.y;
    const uint k = block * 32 + part * 4;
    const bool inside = block < blocks && k < width;
    const vec4 a = inside ? x.v[(r * x_stride + k) / 4] : vec4(0.0);
    tops[lane] = max(max(abs(a.x), abs(a.y)), max(abs(a.z), abs(a.w)));
    barrier();
    float top = 0.0;
    for (uint i = 0; i < 8; i++) top = max(top, tops[lane - part + i]);
    const float d = top / 127.0;
    const ivec4 q = ivec4(roundEven(top > 0.0 ? a / d : vec4(0.0)));
    sums[lane] = q.x + q.y + q.z + q.w;
    barrier();
    int total = 0;
    for (uint i = 0; i < 8; i++) total += sums[lane - part + i];
    const int own = byte4(q);
    if (ORDER == 1) {
        // words of a pair: (0 2 4 6) and (1 3 5 7); the neighbour holds the other four elements
        barrier();
        sums[lane] = own;
        barrier();
        const int low = sums[lane & ~1u], high = sums[lane | 1u];
        const int word = (part & 1) == 0
            ? (low & 255) | ((low >> 8) & 0xFF00) | ((high & 255) << 16) | (((high >> 16) & 255) << 24)
            : ((low >> 8) & 255) | ((low >> 16) & 0xFF00) | (((high >> 8) & 255) << 16) | (((high >> 24) & 255) << 24);
        if (block < blocks) codes.v[(r * blocks + block) * 8 + part] = uint(word);
    } else if (block < blocks) {
        codes.v[(r * blocks + block) * 8 + part] = uint(own);
    }
    if (part == 0 && block < blocks) {
        scales.v[(r * blocks + block) * 2] = d;
        scales.v[(r * blocks + block) * 2 + 1] = d * float(total);
    }
}
