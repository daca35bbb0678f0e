// rope_kv: rotate q and k by the row's position, and store k and v in the cache   (RoPE: arXiv:2104.09864)
//
//   (a, b) -> (a cos - b sin, a sin + b cos) for each pair of the first ROPE_DIM dimensions of a head; a pair is
//   (2i, 2i + 1) with INTERLEAVED, else (i, i + ROPE_DIM / 2). cos and sin come from table[position][i].
//
// qkv: float32 [R][qkv_stride]: HEADS q heads (rotated in place), KV_HEADS k heads and v heads (left as they are).
// rows: uint32 [R][8]. table: float32 [context][ROPE_DIM / 2][2]. cache_k, cache_v: include/kv_cache.glsl.
// A row that is not ACTIVE touches nothing.
// Grid: x = groups of LOCAL work items, y = row. The items of a row: q pairs, then quads of k, then quads of v.
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

layout(push_constant, std430) uniform Push {
    Floats qkv;
    Words4 rows;
    Floats table;
    Cache cache_k;
    Cache cache_v;
    Words page_table;
    uint qkv_stride;
    uint pages_per_slot;
};

// Dimension d of the head at `base`, rotated by the angles at `angles`.
float rotated(uint base, uint d, uint angles) {
    const float own = qkv.v[base + d];
    if (d >= ROPE_DIM) return own;
    const uint half_dim = ROPE_DIM / 2;
    const bool first = INTERLEAVED ? (d & 1) == 0 : d < half_dim;
    const uint i = INTERLEAVED ? d / 2 : d % half_dim;
    const float other = qkv.v[base + (INTERLEAVED ? d ^ 1 : first ? d + half_dim : d - half_dim)];
    const float c = table.v[angles + 2 * i], s = table.v[angles + 2 * i + 1];
    return first ? own * c - other * s : own * c + other * s;
}

void main() {
    const uint q_pairs = HEADS * (ROPE_DIM / 2), quads = KV_HEADS * (HEAD_DIM / 4);
    const uvec4 row = load_row(rows, gl_WorkGroupID.y);
    if ((row.w & ACTIVE) == 0) return;
    const uint slot = row.y, position = row.z, angles = position * ROPE_DIM;
    const uint start = gl_WorkGroupID.y * qkv_stride;
    uint item = gl_GlobalInvocationID.x;
    if (item < q_pairs) {
        const uint i = item % (ROPE_DIM / 2), base = start + item / (ROPE_DIM / 2) * HEAD_DIM;
        const uint a = INTERLEAVED ? 2 * i : i, b = INTERLEAVED ? 2 * i + 1 : i + ROPE_DIM / 2;
        const float x = rotated(base, a, angles), y = rotated(base, b, angles);
        qkv.v[base + a] = x;
        qkv.v[base + b] = y;
        return;
    }
    item -= q_pairs;
    if (item >= 2 * quads) return;
    const uint page = page_table.v[slot * pages_per_slot + position / PAGE];
    const bool is_key = item < quads;
    const uint quad = is_key ? item : item - quads, head = quad / (HEAD_DIM / 4), d = quad % (HEAD_DIM / 4) * 4;
    const uint to = ((page * KV_HEADS + head) * PAGE + position % PAGE) * (HEAD_DIM / 4) + d / 4;
    if (is_key) {
        const uint base = start + (HEADS + head) * HEAD_DIM;
        store4(cache_k, to, vec4(rotated(base, d, angles), rotated(base, d + 1, angles),
                                 rotated(base, d + 2, angles), rotated(base, d + 3, angles)));
    } else {
        const uint base = start + (HEADS + KV_HEADS + head) * HEAD_DIM + d;
        store4(cache_v, to, vec4(qkv.v[base], qkv.v[base + 1], qkv.v[base + 2], qkv.v[base + 3]));
    }
}
