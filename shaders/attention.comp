// attention: one page of causal attention for one row, and QPACK q heads that share a KV head
//
//   s[t] = q . k[t] * scale for the page's positions t up to the row's own;  m = max s;  p[t] = exp(s[t] - m)
//   partial[d] = sum over t of p[t] v[t][d];  state = (m, sum over t of p[t])
//
// With DIRECT (one page is all there is) the output itself: partial / sum. attention_merge.comp joins the pages.
// qkv: float32 [R][qkv_stride], q heads first. rows: uint32 [R][8]. cache_k, cache_v: include/kv_cache.glsl.
// partial: float32 [R][heads][splits][HEAD_DIM]. state: float32 [R][heads][splits][2]. y: float32 [R][y_stride].
// Rows that are not ACTIVE (zeros with DIRECT) and pages behind a row's position end at once.
// Grid: x = packs of q heads, y = page of the slot (split), z = row.
// Scores: an invocation owns POSITIONS positions at a time. Output: DLANES invocations own the dimensions, 4 at a time,
// and LOCAL / DLANES parts of the positions are added in order. SHARE: invocations load different elements of q and p
// and hand them round in groups of CHUNK (for drivers on the CPU, where a load uniform in a loop costs as much as 8).
//
// variant f16: -DKV_F16
// variant f32: -DKV_F32
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_ballot : require
#include "buffers.glsl"
#include "rows.glsl"
#include "kv_cache.glsl"

layout(constant_id = 0) const uint HEAD_DIM = 64;
layout(constant_id = 1) const uint KV_HEADS = 1;
layout(constant_id = 2) const uint GROUP = 1;      // q heads a KV head serves
layout(constant_id = 3) const uint QPACK = 1;      // q heads a workgroup serves; packs do not cross KV heads
layout(constant_id = 4) const uint PAGE = 128;
layout(constant_id = 5) const uint POSITIONS = 1;  // LOCAL * POSITIONS divides PAGE
layout(constant_id = 6) const uint DLANES = 8;     // a power of two, at most LOCAL
layout(constant_id = 7) const bool SHARE = false;
layout(constant_id = 8) const uint CHUNK = 4;      // 8 where HEAD_DIM is a multiple of 8, else 4
layout(constant_id = 9) const bool DIRECT = false;
layout(constant_id = 10) const uint LOCAL = 8;     // a power of two
layout(local_size_x_id = 10, local_size_y = 1, local_size_z = 1) in;

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

const uint QUADS = HEAD_DIM / 4, DPER = (QUADS + DLANES - 1) / DLANES, PARTS = LOCAL / DLANES;
const float LOWEST = -3.4028235e38;
shared float scores[QPACK * PAGE];
shared float folds[QPACK * LOCAL];
shared vec4 parts[PARTS > 1 ? PARTS * QPACK * QUADS : 1];

void main() {
    const uint lane = gl_LocalInvocationIndex, r = gl_WorkGroupID.z, split = gl_WorkGroupID.y;
    const uvec4 row = load_row(rows, r);
    const uint position = row.z, first = split * PAGE;
    if ((row.w & ACTIVE) == 0) {
        if (DIRECT && gl_WorkGroupID.x == 0)
            for (uint i = lane; i < KV_HEADS * GROUP * QUADS; i += LOCAL) y.v[r * (y_stride / 4) + i] = vec4(0.0);
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

    float top[QPACK];
    for (uint g = 0; g < QPACK; g++) top[g] = LOWEST;
    for (uint block = 0; block < seen; block += LOCAL * POSITIONS) {
        float s[QPACK][POSITIONS];
        uint from[POSITIONS];
        for (uint j = 0; j < POSITIONS; j++) {
            from[j] = base + min(block + j * LOCAL + lane, seen - 1) * QUADS;
            for (uint g = 0; g < QPACK; g++) s[g][j] = 0.0;
        }
        for (uint c = 0; c < HEAD_DIM; c += CHUNK) {
            float held[QPACK];
            if (SHARE)
                for (uint g = 0; g < QPACK; g++)
                    held[g] = Floats(qkv).v[r * qkv_stride + head[g] * HEAD_DIM + c + (lane & (CHUNK - 1))];
            [[unroll]] for (uint i = 0; i < CHUNK; i += 4) {
                vec4 key[POSITIONS];
                for (uint j = 0; j < POSITIONS; j++) key[j] = load4(cache_k, from[j] + (c + i) / 4);
                for (uint g = 0; g < QPACK; g++) {
                    const vec4 q = SHARE ? vec4(subgroupBroadcast(held[g], i), subgroupBroadcast(held[g], i + 1),
                                                subgroupBroadcast(held[g], i + 2), subgroupBroadcast(held[g], i + 3))
                                         : qkv.v[(r * qkv_stride + head[g] * HEAD_DIM + c + i) / 4];
                    for (uint j = 0; j < POSITIONS; j++) {
                        s[g][j] = fma(q.x, key[j].x, s[g][j]);
                        s[g][j] = fma(q.y, key[j].y, s[g][j]);
                        s[g][j] = fma(q.z, key[j].z, s[g][j]);
                        s[g][j] = fma(q.w, key[j].w, s[g][j]);
                    }
                }
            }
        }
        for (uint j = 0; j < POSITIONS; j++) {
            const uint t = block + j * LOCAL + lane;
            for (uint g = 0; g < QPACK; g++) {
                const float scaled = s[g][j] * scale;
                scores[g * PAGE + t] = scaled;
                if (t < seen) top[g] = max(top[g], scaled);
            }
        }
    }

    for (uint g = 0; g < QPACK; g++) folds[g * LOCAL + lane] = top[g];
    for (uint step = LOCAL / 2; step > 0; step /= 2) {
        barrier();
        if (lane < step)
            for (uint g = 0; g < QPACK; g++)
                folds[g * LOCAL + lane] = max(folds[g * LOCAL + lane], folds[g * LOCAL + lane + step]);
    }
    barrier();
    float sum[QPACK];
    for (uint g = 0; g < QPACK; g++) {
        top[g] = folds[g * LOCAL];
        sum[g] = 0.0;
    }
    barrier();
    for (uint t = lane; t < PAGE; t += LOCAL)
        for (uint g = 0; g < QPACK; g++) {
            const float p = t < seen ? exp(scores[g * PAGE + t] - top[g]) : 0.0;
            scores[g * PAGE + t] = p;
            sum[g] += p;
        }
    for (uint g = 0; g < QPACK; g++) folds[g * LOCAL + lane] = sum[g];
    for (uint step = LOCAL / 2; step > 0; step /= 2) {
        barrier();
        if (lane < step)
            for (uint g = 0; g < QPACK; g++) folds[g * LOCAL + lane] += folds[g * LOCAL + lane + step];
    }
    barrier();

    vec4 acc[QPACK][DPER];
    for (uint g = 0; g < QPACK; g++)
        for (uint e = 0; e < DPER; e++) acc[g][e] = vec4(0.0);
    const uint dlane = lane % DLANES, part = lane / DLANES;
    if (SHARE) {  // PARTS is 1
        for (uint block = 0; block < seen; block += CHUNK) {
            float held[QPACK];
            for (uint g = 0; g < QPACK; g++) held[g] = scores[g * PAGE + block + (lane & (CHUNK - 1))];
            [[unroll]] for (uint i = 0; i < CHUNK; i++) {
                const uint from = base + min(block + i, seen - 1) * QUADS;
                for (uint e = 0; e < DPER; e++) {
                    const vec4 value = load4(cache_v, from + min(e * DLANES + dlane, QUADS - 1));
                    for (uint g = 0; g < QPACK; g++)
                        acc[g][e] = fma(vec4(subgroupBroadcast(held[g], i)), value, acc[g][e]);
                }
            }
        }
    } else {
        for (uint t = part; t < seen; t += PARTS)
            for (uint e = 0; e < DPER; e++) {
                const vec4 value = load4(cache_v, base + t * QUADS + min(e * DLANES + dlane, QUADS - 1));
                for (uint g = 0; g < QPACK; g++) acc[g][e] = fma(vec4(scores[g * PAGE + t]), value, acc[g][e]);
            }
    }
    if (PARTS > 1) {
        for (uint g = 0; g < QPACK; g++)
            for (uint e = 0; e < DPER; e++)
                if (e * DLANES + dlane < QUADS) parts[(part * QPACK + g) * QUADS + e * DLANES + dlane] = acc[g][e];
        barrier();
        if (part != 0) return;
        for (uint g = 0; g < QPACK; g++)
            for (uint e = 0; e < DPER; e++)
                for (uint p = 1; p < PARTS; p++)
                    acc[g][e] += parts[(p * QPACK + g) * QUADS + min(e * DLANES + dlane, QUADS - 1)];
    }
    for (uint g = 0; g < QPACK; g++) {
        if (member + g >= GROUP) break;
        const float total = folds[g * LOCAL];
        const uint at = (r * KV_HEADS * GROUP + head[g]) * splits + split;
        const uint to = DIRECT ? r * (y_stride / 4) + head[g] * QUADS : at * QUADS;
        for (uint e = 0; e < DPER; e++) {
            const uint quad = e * DLANES + dlane;
            if (quad >= QUADS) break;
            if (DIRECT) y.v[to + quad] = acc[g][e] / total;
            else partial.v[to + quad] = acc[g][e];
        }
        if (!DIRECT && lane == 0) {
            state.v[at * 2] = top[g];
            state.v[at * 2 + 1] = total;
        }
    }
}
