// The key/value cache of one layer: [pages][kv_heads][PAGE][head_dim], float16 (KV_F16) or float32. Position p of a
// slot lies in page page_table[slot][p / PAGE], at p % PAGE. head_dim is a multiple of 4: elements are read 4 at a time and written 2 at a time.
// WIDE reads 64-bit words (shaderInt64).
#if defined(WIDE)
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Cache { uint64_t v[]; };
#elif defined(KV_F16)
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Cache { uvec2 v[]; };
#else
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Cache { vec4 v[]; };
#endif

// Elements 4 * quad to 4 * quad + 3.
vec4 load4(Cache cache, uint quad) {
#if defined(KV_F16) && defined(WIDE)
    const uvec2 q = unpackUint2x32(cache.v[quad]);
    return vec4(unpackHalf2x16(q.x), unpackHalf2x16(q.y));
#elif defined(KV_F16)
    const uvec2 q = cache.v[quad];
    return vec4(unpackHalf2x16(q.x), unpackHalf2x16(q.y));
#elif defined(WIDE)
    return uintBitsToFloat(uvec4(unpackUint2x32(cache.v[quad * 2]), unpackUint2x32(cache.v[quad * 2 + 1])));
#else
    return cache.v[quad];
#endif
}

// Elements 2 * pair and 2 * pair + 1, for those who write.
#if defined(KV_F16)
layout(buffer_reference, std430, buffer_reference_align = 4) buffer CacheOut { uint v[]; };
void store2(CacheOut cache, uint pair, vec2 x) { cache.v[pair] = packHalf2x16(x); }
#else
layout(buffer_reference, std430, buffer_reference_align = 8) buffer CacheOut { vec2 v[]; };
void store2(CacheOut cache, uint pair, vec2 x) { cache.v[pair] = x; }
#endif
