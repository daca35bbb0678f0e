// rope_kv: rotate q and k by the row's position, and store k and v in the cache   (RoPE: arXiv:2104.09864)
//
//   (a, b) -> (a cos - b sin, a sin + b cos) for each pair of the first ROPE_DIM dimensions of a head; a pair is
//   (2i, 2i + 1) with INTERLEAVED, else (i, i + ROPE_DIM / 2). cos and sin come from table[position][i].
//
// qkv: float32 [R][qkv_stride]: HEADS q heads (rotated in place), KV_HEADS k heads and v heads (left as they are).
// rows: uint32 [R][8]. table: float32 [context][ROPE_DIM / 2][2]. cache_k, cache_v: include/kv_cache.glsl.
// ROPE_DIM is a multiple of 4. A row that is not ACTIVE touches nothing.
// Grid: x = groups of LOCAL work items, y = row. An item is 4 elements of a head, of q, then k, then v; of q and k two
// pairs that are neighbours, or 4 elements behind ROPE_DIM.
//
// variant f16: -DKV_F16
// variant f32: -DKV_F32
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#include "buffers.glsl"
#include "rows.glsl"
#include "kv_cache.glsl"

layout(constant_id = 0) const uint HEADS = 1;
layout(constant_id = 1) const uint KV_HEADS = 1;
layout(constant_id = 2) const uint HEAD_DIM = 64;
layout(constant_id = 3) const uint ROPE_DIM = 64;
layout(constant_id = 4) const bool INTERLEAVED = false;
layout(constant_id = 5) const uint PAGE = 128;
layout(constant_id = 6) const uint LOCAL = 32;
layout(local_size_x_id = 6, local_size_y = 1, local_size_z = 1) in;

layout(buffer_reference, std430, buffer_reference_align = 8) buffer Floats2 { vec2 v[]; };

layout(push_constant, std430) uniform Push {
    Floats2 qkv;
    Words4 rows;
    Floats4 table;
    CacheOut cache_k;
    CacheOut cache_v;
    Words page_table;
    uint qkv_stride;
    uint pages_per_slot;
};

void main() {
    const uint quads = HEAD_DIM / 4, turning = ROPE_DIM / 4;
    const uvec4 row = load_row(rows, gl_WorkGroupID.y);
    const uint item = gl_GlobalInvocationID.x, head = item / quads, i = item % quads;
    if ((row.w & ACTIVE) == 0 || head >= HEADS + 2 * KV_HEADS) return;
    const bool is_query = head < HEADS, is_value = head >= HEADS + KV_HEADS, turns = !is_value && i < turning;
    if (is_query && !turns) return;
    const uint slot = row.y, position = row.z, from = (gl_WorkGroupID.y * qkv_stride + head * HEAD_DIM) / 2;
    // two elements each, in units of two elements
    const uint first = turns && !INTERLEAVED ? i : 2 * i, second = turns && !INTERLEAVED ? i + turning : 2 * i + 1;
    vec2 a = qkv.v[from + first], b = qkv.v[from + second];
    if (turns) {
        const vec4 angle = table.v[position * turning + i];  // cos, sin of the first pair and of the second
        if (INTERLEAVED) {
            a = vec2(a.x * angle.x - a.y * angle.y, a.x * angle.y + a.y * angle.x);
            b = vec2(b.x * angle.z - b.y * angle.w, b.x * angle.w + b.y * angle.z);
        } else {
            const vec2 c = a;
            a = c * angle.xz - b * angle.yw;
            b = c * angle.yw + b * angle.xz;
        }
    }
    if (is_query) {
        qkv.v[from + first] = a;
        qkv.v[from + second] = b;
        return;
    }
    const uint page = page_table.v[slot * pages_per_slot + position / PAGE];
    const uint kv_head = (head - HEADS) % KV_HEADS;
    const uint to = ((page * KV_HEADS + kv_head) * PAGE + position % PAGE) * (HEAD_DIM / 2);
    if (is_value) {
        store2(cache_v, to + first, a);
        store2(cache_v, to + second, b);
    } else {
        store2(cache_k, to + first, a);
        store2(cache_k, to + second, b);
    }
}
