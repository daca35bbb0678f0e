// rope_kv_heads: rope_kv.comp behind a bias on q, k and v, and an RMS norm of each head of q and k (Qwen2, Qwen3)
//
//   x = x + bias;  of q and k with NORM: x = x / sqrt(mean over the head of x^2 + eps) * gain;  then
//   (a, b) -> (a cos - b sin, a sin + b cos) for each pair of the first ROPE_DIM dimensions of a head of q and k; a pair is
//   (2i, 2i + 1) with INTERLEAVED, else (i, i + ROPE_DIM / 2). cos and sin come from table[position][i].
//
// qkv: float32 [R][qkv_stride]: HEADS q heads (changed in place), KV_HEADS k heads and v heads (left as they are).
// bias, with BIAS: float32 [HEADS + 2 KV_HEADS][HEAD_DIM]. gain, with NORM: float32 [2][HEAD_DIM], of q and of k.
// rows: uint32 [R][8]. table: float32 [context][ROPE_DIM / 2][2]. cache_k, cache_v: include/kv_cache.glsl.
// ROPE_DIM is a multiple of 4. A row that is not ACTIVE touches nothing.
// Grid: x = head of q, then k, then v, y = row. An invocation takes items lane, lane + LOCAL, ...: 4 elements of the head,
// those of two pairs that are neighbours, or 4 behind ROPE_DIM. Squares are added as a tree: a fixed order.
//
// variant f16: -DKV_F16
// variant f32: -DKV_F32
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#include "buffers.glsl"
#include "rows.glsl"
#include "kv_cache.glsl"

layout(constant_id = 0) const uint HEADS = 1;
layout(constant_id = 1) const uint KV_HEADS = 1;
layout(constant_id = 2) const uint HEAD_DIM = 64;
layout(constant_id = 3) const uint ROPE_DIM = 64;
layout(constant_id = 4) const bool INTERLEAVED = false;
layout(constant_id = 5) const uint PAGE = 128;
layout(constant_id = 6) const bool BIAS = false;
layout(constant_id = 7) const bool NORM = false;
layout(constant_id = 8) const uint LOCAL = 32;  // a power of two
layout(local_size_x_id = 8, local_size_y = 1, local_size_z = 1) in;

layout(buffer_reference, std430, buffer_reference_align = 8) buffer Floats2 { vec2 v[]; };

layout(push_constant, std430) uniform Push {
    Floats2 qkv;
    Floats2 bias;
    Floats2 gain;
    Words4 rows;
    Floats4 table;
    CacheOut cache_k;
    CacheOut cache_v;
    Words page_table;
    uint qkv_stride;
    uint pages_per_slot;
    float eps;
};

const uint QUADS = HEAD_DIM / 4, TURNING = ROPE_DIM / 4, TURNS = (QUADS + LOCAL - 1) / LOCAL;
shared float sums[LOCAL];

void main() {
    const uvec4 row = load_row(rows, gl_WorkGroupID.y);
    if ((row.w & ACTIVE) == 0) return;
    const uint lane = gl_LocalInvocationIndex, head = gl_WorkGroupID.x;
    const bool is_query = head < HEADS, is_value = head >= HEADS + KV_HEADS;
    const uint slot = row.y, position = row.z, from = (gl_WorkGroupID.y * qkv_stride + head * HEAD_DIM) / 2;
    // Item i: two elements each, in units of two elements.
#define ITEM(t) ((t) * LOCAL + lane)
#define APART(i) (!INTERLEAVED && (i) < TURNING)
#define FIRST(i) (APART(i) ? (i) : 2 * (i))
#define SECOND(i) (APART(i) ? (i) + TURNING : 2 * (i) + 1)
    vec2 a[TURNS], b[TURNS];
    float part = 0.0;
    [[unroll]] for (uint t = 0; t < TURNS; t++) {
        const uint i = ITEM(t);
        a[t] = b[t] = vec2(0.0);
        if (i < QUADS) {
            a[t] = qkv.v[from + FIRST(i)];
            b[t] = qkv.v[from + SECOND(i)];
            if (BIAS) {
                a[t] += bias.v[head * (HEAD_DIM / 2) + FIRST(i)];
                b[t] += bias.v[head * (HEAD_DIM / 2) + SECOND(i)];
            }
        }
        part = fma(a[t].x, a[t].x, fma(a[t].y, a[t].y, fma(b[t].x, b[t].x, fma(b[t].y, b[t].y, part))));
    }
    float factor = 1.0;
    if (NORM && !is_value) {
        sums[lane] = part;
        for (uint step = LOCAL / 2; step > 0; step /= 2) {
            barrier();
            if (lane < step) sums[lane] += sums[lane + step];
        }
        barrier();
        factor = 1.0 / sqrt(sums[0] / float(HEAD_DIM) + eps);
    }
    const uint page = page_table.v[slot * pages_per_slot + position / PAGE];
    const uint kv_head = is_query ? 0 : (head - HEADS) % KV_HEADS;
    const uint to = ((page * KV_HEADS + kv_head) * PAGE + position % PAGE) * (HEAD_DIM / 2);
    [[unroll]] for (uint t = 0; t < TURNS; t++) {
        const uint i = ITEM(t), first = FIRST(i), second = SECOND(i);
        if (i >= QUADS) break;
        vec2 x = a[t], y = b[t];
        if (NORM && !is_value) {
            const uint own = is_query ? 0 : HEAD_DIM / 2;
            x = x * factor * gain.v[own + first];
            y = y * factor * gain.v[own + second];
        }
        if (!is_value && i < TURNING) {
            const vec4 angle = table.v[position * TURNING + i];  // cos, sin of the first pair and of the second
            if (INTERLEAVED) {
                x = vec2(x.x * angle.x - x.y * angle.y, x.x * angle.y + x.y * angle.x);
                y = vec2(y.x * angle.z - y.y * angle.w, y.x * angle.w + y.y * angle.z);
            } else {
                const vec2 c = x;
                x = c * angle.xz - y * angle.yw;
                y = c * angle.yw + y * angle.xz;
            }
        }
        if (is_query) {
            qkv.v[from + first] = x;
            qkv.v[from + second] = y;
        } else if (is_value) {
            store2(cache_v, to + first, x);
            store2(cache_v, to + second, y);
        } else {
            store2(cache_k, to + first, x);
            store2(cache_k, to + second, y);
        }
    }
}
