// attention: one page of causal attention for one row, and QPACK q heads that share a KV head, for drivers on the CPU
//
//   s[t] = q . k[t] * scale for the page's positions t up to the row's own;  m = max s;  p[t] = exp(s[t] - m)
//   partial[d] = sum over t of p[t] v[t][d];  state = (m, sum over t of p[t])
//
// With WINDOW only the last WINDOW positions up to the row's own are seen; a page before them leaves m as low as can be
// and zeros. With DIRECT (one page is all there is) the output itself: partial / sum. attention_merge.comp joins the pages.
// qkv: float32 [R][qkv_stride], q heads first. rows: uint32 [R][8]. cache_k, cache_v: include/kv_cache.glsl.
// partial: float32 [R][heads][splits][HEAD_DIM]. state: float32 [R][heads][splits][2]. y: float32 [R][y_stride].
// Rows that are not ACTIVE (zeros with DIRECT) and pages behind a row's position end at once.
// Grid: x = packs of q heads, y = page of the slot (split), z = row.
// A load uniform in a loop costs as much as 8 there: a workgroup is one subgroup of 8, whose invocations own dimensions
// throughout, 4 at a time, and hand sums round. WIDE: two words of the cache a load, as each invocation's has its own price.
// GPUs have attention_teams.comp.
//
// variant f16: -DKV_F16
// variant f32: -DKV_F32
// variant f16_wide: -DKV_F16 -DWIDE
// variant f32_wide: -DKV_F32 -DWIDE
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "buffers.glsl"
#include "rows.glsl"
#include "kv_cache.glsl"

layout(constant_id = 0) const uint HEAD_DIM = 64;
layout(constant_id = 1) const uint KV_HEADS = 1;
layout(constant_id = 2) const uint GROUP = 1;      // q heads a KV head serves
layout(constant_id = 3) const uint QPACK = 1;      // q heads a workgroup serves; packs do not cross KV heads
layout(constant_id = 4) const uint PAGE = 128;
layout(constant_id = 5) const bool DIRECT = false;
layout(constant_id = 6) const uint WINDOW = 0;     // positions a row sees, its own included; 0: all
layout(local_size_x = 8, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
    Floats4 qkv;
    Words4 rows;
    Cache cache_k;
    Cache cache_v;
    Words page_table;
    Floats4 partial;
    Floats state;
    Floats4 y;
    uint qkv_stride;
    uint y_stride;
    uint splits;
    uint pages_per_slot;
    float scale;
};

const uint LANES = 8, QUADS = HEAD_DIM / 4, DPER = (QUADS + LANES - 1) / LANES;
const float LOWEST = -3.4028235e38;
shared float scores[QPACK * PAGE];

// Over the 8 invocations of a subgroup, in order.
#define FOLD(f, x)                                                                                             \
    f(f(f(subgroupBroadcast(x, 0), subgroupBroadcast(x, 1)), f(subgroupBroadcast(x, 2), subgroupBroadcast(x, 3))), \
      f(f(subgroupBroadcast(x, 4), subgroupBroadcast(x, 5)), f(subgroupBroadcast(x, 6), subgroupBroadcast(x, 7))))
float plus(float a, float b) { return a + b; }
float highest_of_8(float x) { return FOLD(max, x); }
float sum_of_8(float x) { return FOLD(plus, x); }

// The sum over the 8 invocations i of own[l] of invocation i, where l is the invocation that gets it.
float total_of_own(float own[8]) {
    const uint lane = gl_LocalInvocationIndex;
    [[unroll]] for (uint step = 4; step > 0; step /= 2)
        [[unroll]] for (uint i = 0; i < step; i++) {
            const bool upper = (lane & step) != 0;
            const float keep = upper ? own[i + step] : own[i], give = upper ? own[i] : own[i + step];
            own[i] = keep + subgroupShuffleXor(give, step);
        }
    return own[0];
}

void main() {
    const uint lane = gl_LocalInvocationIndex, r = gl_WorkGroupID.z, split = gl_WorkGroupID.y;
    const uvec4 row = load_row(rows, r);
    const uint position = row.z, first = split * PAGE;
    if ((row.w & ACTIVE) == 0) {
        if (DIRECT && gl_WorkGroupID.x == 0)
            for (uint i = lane; i < KV_HEADS * GROUP * QUADS; i += LANES) y.v[r * (y_stride / 4) + i] = vec4(0.0);
        return;
    }
    if (first > position) return;
    const uint seen = min(PAGE, position + 1 - first);  // positions of this page
    const uint packs = (GROUP + QPACK - 1) / QPACK;
    const uint kv_head = gl_WorkGroupID.x / packs, member = gl_WorkGroupID.x % packs * QPACK;
    const uint page = page_table.v[row.y * pages_per_slot + split];
    const uint base = (page * KV_HEADS + kv_head) * PAGE * QUADS;
    uint head[QPACK];  // the last pack of a group may repeat its last head
    for (uint g = 0; g < QPACK; g++) head[g] = kv_head * GROUP + min(member + g, GROUP - 1);
    uint hidden = 0;  // positions of this page before the window
    if (WINDOW != 0 && position + 1 > WINDOW + first) hidden = position + 1 - WINDOW - first;
    if (WINDOW != 0 && hidden >= PAGE) {
        for (uint g = 0; g < QPACK && member + g < GROUP; g++) {
            const uint at = (r * KV_HEADS * GROUP + head[g]) * splits + split;
            for (uint quad = lane; quad < QUADS; quad += LANES) partial.v[at * QUADS + quad] = vec4(0.0);
            if (lane == 0) {
                state.v[at * 2] = LOWEST;
                state.v[at * 2 + 1] = 0.0;
            }
        }
        return;
    }
#define SEEN(t) ((t) < seen && (WINDOW == 0 || (t) >= hidden))
#define BEGIN (WINDOW == 0 ? 0 : hidden / 8 * 8)

    float top[QPACK];
    for (uint g = 0; g < QPACK; g++) top[g] = LOWEST;
    vec4 q[QPACK][DPER];
    for (uint g = 0; g < QPACK; g++)
        for (uint e = 0; e < DPER; e++) {
            const uint quad = e * LANES + lane;
            const vec4 loaded = qkv.v[r * (qkv_stride / 4) + head[g] * QUADS + min(quad, QUADS - 1)];
            q[g][e] = quad < QUADS ? loaded : vec4(0.0);
        }
    for (uint block = BEGIN; block < seen; block += 8) {
        float s[QPACK][8];  // of position block + i: this invocation's dimensions
        [[unroll]] for (uint i = 0; i < 8; i++) {
            const uint from = base + min(block + i, seen - 1) * QUADS;
            for (uint g = 0; g < QPACK; g++) s[g][i] = 0.0;
            for (uint e = 0; e < DPER; e++) {
                const vec4 key = load4(cache_k, from + min(e * LANES + lane, QUADS - 1));
                for (uint g = 0; g < QPACK; g++) {
                    s[g][i] = fma(q[g][e].x, key.x, s[g][i]);
                    s[g][i] = fma(q[g][e].y, key.y, s[g][i]);
                    s[g][i] = fma(q[g][e].z, key.z, s[g][i]);
                    s[g][i] = fma(q[g][e].w, key.w, s[g][i]);
                }
            }
        }
        for (uint g = 0; g < QPACK; g++) {
            const float scaled = total_of_own(s[g]) * scale;
            scores[g * PAGE + block + lane] = scaled;
            if (SEEN(block + lane)) top[g] = max(top[g], scaled);
        }
    }

    vec4 acc[QPACK][DPER];
    float sum[QPACK];
    for (uint g = 0; g < QPACK; g++) {
        sum[g] = 0.0;
        for (uint e = 0; e < DPER; e++) acc[g][e] = vec4(0.0);
    }
    // An invocation meets its own scores only: no barrier.
    for (uint g = 0; g < QPACK; g++) top[g] = highest_of_8(top[g]);
    for (uint block = BEGIN; block < seen; block += 8) {
        float p[QPACK];
        for (uint g = 0; g < QPACK; g++) {
            p[g] = SEEN(block + lane) ? exp(scores[g * PAGE + block + lane] - top[g]) : 0.0;
            sum[g] += p[g];
        }
        [[unroll]] for (uint i = 0; i < 8; i++) {
            const uint from = base + min(block + i, seen - 1) * QUADS;
            for (uint e = 0; e < DPER; e++) {
                const vec4 value = load4(cache_v, from + min(e * LANES + lane, QUADS - 1));
                for (uint g = 0; g < QPACK; g++)
                    acc[g][e] = fma(vec4(subgroupBroadcast(p[g], i)), value, acc[g][e]);
            }
        }
    }
    for (uint g = 0; g < QPACK; g++) sum[g] = sum_of_8(sum[g]);
    for (uint g = 0; g < QPACK; g++) {
        if (member + g >= GROUP) break;
        const uint at = (r * KV_HEADS * GROUP + head[g]) * splits + split;
        const uint to = DIRECT ? r * (y_stride / 4) + head[g] * QUADS : at * QUADS;
        for (uint e = 0; e < DPER; e++) {
            const uint quad = e * LANES + lane;
            if (quad >= QUADS) break;
            if (DIRECT) y.v[to + quad] = acc[g][e] / sum[g];
            else partial.v[to + quad] = acc[g][e];
        }
        if (!DIRECT && lane == 0) {
            state.v[at * 2] = top[g];
            state.v[at * 2 + 1] = sum[g];
        }
    }
}
