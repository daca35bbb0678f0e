// The key/value cache of one layer: [pages][kv_heads][PAGE][head_dim], float16 (KV_F16) or float32. Position p of a
// slot lies in page page_table[slot][p / PAGE], at p % PAGE. head_dim is a multiple of 4: elements move 4 at a time.
#if defined(KV_F16)
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Cache { uvec2 v[]; };
vec4 load4(Cache cache, uint quad) {
    const uvec2 q = cache.v[quad];
    return vec4(unpackHalf2x16(q.x), unpackHalf2x16(q.y));
}
void store4(Cache cache, uint quad, vec4 x) { cache.v[quad] = uvec2(packHalf2x16(x.xy), packHalf2x16(x.zw)); }
#else
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Cache { vec4 v[]; };
vec4 load4(Cache cache, uint quad) { return cache.v[quad]; }
void store4(Cache cache, uint quad, vec4 x) { cache.v[quad] = x; }
#endif
