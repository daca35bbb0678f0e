// rms_norm_rounded: rms_norm (rms_norm.comp) whose result is rounded at once for a matrix unit: one dispatch, not two.
//
// float16: as tile_f16.comp of the normed row: t[r / 16][k / 16][r % 16][order(k % 16)]; rows from `rows` on zeros.
// int8: as quantize_q8.comp of the normed row: codes [r][k / 32][8], scales [r][k / 32][2].
//
// int8_tiles: as quantize_tiles.comp of the normed row (include/int8_tiles.glsl), with sums where SUMS; width is whole blocks.
//
// x: float32 [*][x_stride]. weight: float32 [width]. logit_rows: uint32 [rows], read with GATHER. Grid: x = row.
// An invocation's first pieces of x and weight stay in registers, so that a row of up to 16 * LOCAL is read once.
//
// variant float16: -DFLOAT16
// variant int8: -DINT8
// variant int8_tiles: -DINT8_TILES
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_basic : require
#include "buffers.glsl"
#if defined(INT8_TILES)
#extension GL_EXT_shader_16bit_storage : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "int8_tiles.glsl"
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Words2 { uvec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 2) buffer Halves { uint16_t v[]; };
#endif

layout(constant_id = 0) const bool GATHER = false;
layout(constant_id = 1) const uint ORDER = 0;   // of the elements, as in tile_f16.comp and quantize_q8.comp
layout(constant_id = 2) const bool SUMS = false;
layout(constant_id = 3) const uint LOCAL = 64;  // a power of two, at least 8
layout(constant_id = 4) const bool FACTORS = false;
layout(local_size_x_id = 3, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
    Floats4 x;
    Floats4 weight;
    Words logit_rows;
    Words4 t;       // float16 tiles, or int8 codes
    Floats scales;  // of int8 codes
    Floats sums_of;  // of int8 tiles, with SUMS
    Floats factors;  // [rows], left with FACTORS: what each row was divided by, inverted
    uint rows;
    uint width;     // multiple of 4
    uint x_stride;
    float eps;
};

shared float sums[LOCAL];
#if defined(INT8)
shared int words[LOCAL];
int byte4(ivec4 q) { return (q.x & 255) | ((q.y & 255) << 8) | ((q.z & 255) << 16) | (q.w << 24); }
#endif

void main() {
    const uint lane = gl_LocalInvocationIndex, quads = width / 4, r = gl_WorkGroupID.x;
    uint from = r;
    bool real = r < rows;
    if (GATHER && real) {
        from = logit_rows.v[r];
        real = from != 0xFFFFFFFFu;
    }
    from = real ? from * (x_stride / 4) : 0;
    const uint pieces = (width + 7) / 8, KEPT = 2;
    vec4 kept[KEPT * 2], gain[KEPT * 2], part = vec4(0.0);
    [[unroll]] for (uint j = 0; j < KEPT * 2; j++) {
        const uint i = min((lane + j / 2 * LOCAL) * 2 + j % 2, quads - 1);
        kept[j] = x.v[from + i];
        gain[j] = weight.v[i];
    }
    [[unroll]] for (uint j = 0; j < KEPT * 2; j++)
        if ((lane + j / 2 * LOCAL) * 2 + j % 2 < quads) part = fma(kept[j], kept[j], part);
    for (uint piece = lane + KEPT * LOCAL; piece < pieces; piece += LOCAL)
        for (uint i = piece * 2; i < min(piece * 2 + 2, quads); i++) {
            const vec4 a = x.v[from + i];
            part = fma(a, a, part);
        }
    const float own_sum = subgroupAdd((part.x + part.y) + (part.z + part.w));
    if (subgroupElect()) sums[gl_SubgroupID] = own_sum;
    barrier();
    float total_sum = 0.0;
    for (uint i = 0; i < gl_NumSubgroups; i++) total_sum += sums[i];
    const float factor = real ? 1.0 / sqrt(total_sum / float(width) + eps) : 0.0;
    if (FACTORS && lane == 0 && r < rows) factors.v[r] = factor;
#if defined(FLOAT16)
#define PUT(piece, a, b)                                                                                               \
    {                                                                                                                  \
        uvec4 packed;                                                                                                  \
        if (ORDER == 1)                                                                                                \
            packed = uvec4(packHalf2x16(a.xz), packHalf2x16(a.yw), packHalf2x16(b.xz), packHalf2x16(b.yw));            \
        else if (ORDER == 2)                                                                                           \
            packed = uvec4(packHalf2x16(vec2(a.x, b.x)), packHalf2x16(vec2(a.y, b.y)), packHalf2x16(vec2(a.z, b.z)),   \
                           packHalf2x16(vec2(a.w, b.w)));                                                              \
        else                                                                                                           \
            packed = uvec4(packHalf2x16(a.xy), packHalf2x16(a.zw), packHalf2x16(b.xy), packHalf2x16(b.zw));            \
        t.v[((r / 16) * ktiles + (piece) / 2) * 32 + (r % 16) * 2 + (piece) % 2] = packed;                             \
    }
    const uint ktiles = (width + 15) / 16;
    [[unroll]] for (uint j = 0; j < KEPT; j++) {
        const uint piece = lane + j * LOCAL;
        const vec4 a = real && piece * 2 < quads ? kept[2 * j] * factor * gain[2 * j] : vec4(0.0);
        const vec4 b = real && piece * 2 + 1 < quads ? kept[2 * j + 1] * factor * gain[2 * j + 1] : vec4(0.0);
        if (piece < ktiles * 2) PUT(piece, a, b)
    }
    for (uint piece = lane + KEPT * LOCAL; piece < ktiles * 2; piece += LOCAL) {
        const uint i = piece * 2;
        const vec4 a = real && i < quads ? x.v[from + i] * factor * weight.v[i] : vec4(0.0);
        const vec4 b = real && i + 1 < quads ? x.v[from + i + 1] * factor * weight.v[i + 1] : vec4(0.0);
        PUT(piece, a, b)
    }
#elif defined(INT8_TILES)
    const uint blocks = width / 32;
#define PUT(piece, a, b)                                                                       \
    {                                                                                          \
        uint top = max(magnitude(a), magnitude(b));                                            \
        top = max(top, subgroupShuffleXor(top, 1u));                                           \
        top = max(top, subgroupShuffleXor(top, 2u));                                           \
        const uint h = scale_bits(top), at = r / 16 * blocks + (piece) / 4;                    \
        int sum;                                                                               \
        const uvec2 codes = codes8(a, b, h, ORDER, sum);                                       \
        sum += subgroupShuffleXor(sum, 1u);                                                    \
        sum += subgroupShuffleXor(sum, 2u);                                                    \
        if ((piece) < pieces) {                                                                \
            Words2(t).v[at * 64 + (r % 16) * 4 + (piece) % 4] = codes;                         \
            if ((piece) % 4 == 0) {                                                            \
                Halves(scales).v[at * 16 + r % 16] = uint16_t(h);                              \
                if (SUMS) {                                                                    \
                    const uvec2 halves = sum_bits(h, sum);                                     \
                    Halves(sums_of).v[at * 32 + r % 16] = uint16_t(halves.x);                  \
                    Halves(sums_of).v[at * 32 + 16 + r % 16] = uint16_t(halves.y);             \
                }                                                                              \
            }                                                                                  \
        }                                                                                      \
    }
    [[unroll]] for (uint j = 0; j < KEPT; j++) {
        const uint piece = lane + j * LOCAL;
        const bool own = real && piece < pieces;
        const vec4 a = own ? kept[2 * j] * factor * gain[2 * j] : vec4(0.0);
        const vec4 b = own ? kept[2 * j + 1] * factor * gain[2 * j + 1] : vec4(0.0);
        PUT(piece, a, b)
    }
    for (uint first = KEPT * LOCAL; first < pieces; first += LOCAL) {  // whole subgroups: neighbours share a block
        const uint piece = first + lane, i = piece * 2;
        const bool own = real && piece < pieces;
        const vec4 a = own ? x.v[from + i] * factor * weight.v[i] : vec4(0.0);
        const vec4 b = own ? x.v[from + i + 1] * factor * weight.v[i + 1] : vec4(0.0);
        PUT(piece, a, b)
    }
#else
    const uint blocks = (width + 31) / 32;
    barrier();
    for (uint first = 0; first < blocks * 8; first += LOCAL) {  // 8 invocations share a block
        const uint i = first + lane, block = i / 8, own = i % 8, base = lane - own;
        const vec4 a = real && i < quads ? x.v[from + i] * factor * weight.v[i] : vec4(0.0);
        sums[lane] = max(max(abs(a.x), abs(a.y)), max(abs(a.z), abs(a.w)));
        barrier();
        float top = 0.0;
        for (uint j = 0; j < 8; j++) top = max(top, sums[base + j]);
        const float d = top / 127.0;
        const ivec4 q = ivec4(roundEven(top > 0.0 ? a / d : vec4(0.0)));
        words[lane] = q.x + q.y + q.z + q.w;
        barrier();
        int total = 0;
        for (uint j = 0; j < 8; j++) total += words[base + j];
        int word = byte4(q);
        if (ORDER == 1) {
            barrier();
            words[lane] = word;
            barrier();
            const int low = words[lane & ~1u], high = words[lane | 1u];
            word = (own & 1) == 0
                ? (low & 255) | ((low >> 8) & 0xFF00) | ((high & 255) << 16) | (((high >> 16) & 255) << 24)
                : ((low >> 8) & 255) | ((low >> 16) & 0xFF00) | (((high >> 8) & 255) << 16) | (((high >> 24) & 255) << 24);
        }
        if (block < blocks) {
            Words(t).v[(r * blocks + block) * 8 + own] = uint(word);
            if (own == 0) {
                scales.v[(r * blocks + block) * 2] = d;
                scales.v[(r * blocks + block) * 2 + 1] = d * float(total);
            }
        }
        barrier();
    }
#endif
}
