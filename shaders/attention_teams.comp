// attention_teams: SPAN pages of causal attention for one row and QPACK q heads that share a KV head, for GPUs
//
//   s[t] = q . k[t] * scale for the page's positions t up to the row's own;  m = max s;  p[t] = exp(s[t] - m)
//   partial[d] = sum over t of p[t] v[t][d];  state = (m, sum over t of p[t])
//
// With WINDOW only the last WINDOW positions up to the row's own are seen; a span before them leaves m as low as can be
// and zeros. With DIRECT (one span of pages is all there is) the output itself: partial / sum. Else the workgroup that is done last of those
// of a row and its heads (it draws the last ticket) joins the pages in their order: with w = exp(m - max m),
//   y = sum over pages of w partial / sum over pages of w state.sum
// qkv: float32 [R][qkv_stride], q heads first. rows: uint32 [R][8]. cache_k, cache_v: include/kv_cache.glsl, read 8
// elements at a time. partial: float32 [R][heads][splits][HEAD_DIM]. state: float32 [R][heads][splits][2].
// y: float32 [R][y_stride], or float16 or int8 tiles (include/tiles.glsl) for the product behind it. Rows that are not ACTIVE (zeros with DIRECT) and pages behind a row's position end at once.
// Grid: x = packs of q heads, y = span of the slot's pages (split), z = row.
// A team of TEAM neighbouring invocations takes RUN positions at a time: it reads a key and a value whole, 8 dimensions an
// invocation, and keeps maximum, sum and output of its own positions; the teams are joined in order at the end, behind the
// only barrier. Keys are on their way all at once, with AHEAD values too. A team lies in a subgroup, of whatever size.
//
// variant f16: -DKV_F16
// variant f32: -DKV_F32
// variant f16_int8: -DKV_F16 -DINT8_TILES
// variant f32_int8: -DKV_F32 -DINT8_TILES
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "buffers.glsl"
#include "rows.glsl"
#if defined(INT8_TILES)
#extension GL_EXT_shader_16bit_storage : require
#include "int8_tiles.glsl"
#endif
#include "tiles.glsl"

layout(constant_id = 0) const uint HEAD_DIM = 64;  // a multiple of 4
layout(constant_id = 1) const uint KV_HEADS = 1;
layout(constant_id = 2) const uint GROUP = 1;      // q heads a KV head serves
layout(constant_id = 3) const uint QPACK = 1;      // q heads a workgroup serves; packs do not cross KV heads
layout(constant_id = 4) const uint PAGE = 128;
layout(constant_id = 5) const uint TEAM = 8;       // a power of two from 4 on, no more than a subgroup
layout(constant_id = 6) const bool AHEAD = true;
layout(constant_id = 7) const bool DIRECT = false;
layout(constant_id = 8) const uint TILED = 0;      // 1 + the ORDER (0 or 1) of the tiles that y is; 0: float32
layout(constant_id = 9) const uint SPAN = 1;       // pages a workgroup takes, one after the other
layout(constant_id = 10) const bool SUMS = false;  // of int8 tiles
layout(constant_id = 11) const uint LOCAL = 128;   // a multiple of TEAM
layout(constant_id = 12) const uint WINDOW = 0;    // positions a row sees, its own included; 0: all
layout(local_size_x_id = 11, local_size_y = 1, local_size_z = 1) in;

layout(buffer_reference, std430, buffer_reference_align = 16) coherent buffer Partials { vec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) coherent buffer States { vec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer Tickets { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Words2 { uvec2 v[]; };
layout(push_constant, std430) uniform Push {
    Floats4 qkv;
    Words4 rows;
    Words4 cache_k;
    Words4 cache_v;
    Words page_table;
    Partials partial;
    States state;
    Tickets tickets;
    Floats4 y;
    uint qkv_stride;
    uint y_stride;
    uint splits;
    uint pages_per_slot;
    float scale;
#if defined(INT8_TILES)
    Halves y_scales;
    Halves y_sums;
#endif
};

// Four elements of the result.
#if defined(INT8_TILES)
#define STORE(quad, a) store_int8(Words(y), y_scales, y_sums, SUMS, r, quad, y_stride, TILED - 1, a)
#else
#define STORE(quad, a) store_quad(y, r, quad, y_stride, TILED, a)
#endif

const uint QUADS = HEAD_DIM / 4, EIGHTS = (HEAD_DIM + 7) / 8, OWN = (EIGHTS + TEAM - 1) / TEAM;
const uint TEAMS = LOCAL / TEAM, RUN = TEAM < 8 ? TEAM : 8, TURNS = (PAGE + TEAMS * RUN - 1) / (TEAMS * RUN);
const float LOWEST = -3.4028235e38;
shared vec4 parts[TEAMS * QPACK * QUADS];
const uint BATCH = 8;  // pages on their way at once when they are joined
shared bool last;
shared float tops[TEAMS * QPACK];
shared float sums[TEAMS * QPACK];

// Eight elements of the cache as it holds them.
#if defined(KV_F16)
struct Eight { uvec4 a; };
#define NOTHING Eight(uvec4(0))
#else
struct Eight { uvec4 a, b; };
#define NOTHING Eight(uvec4(0), uvec4(0))
#endif

// Elements 8 * eighth on of the line `line` of HEAD_DIM elements; zeros behind its end.
Eight fetch(Words4 cache, uint line, uint eighth) {
#if defined(KV_F16)
    if (HEAD_DIM % 8 == 0) return Eight(cache.v[line * EIGHTS + eighth]);
    const uvec2 low = Words2(cache).v[line * QUADS + eighth * 2];
    uvec2 high = uvec2(0);
    if (eighth * 2 + 1 < QUADS) high = Words2(cache).v[line * QUADS + eighth * 2 + 1];
    return Eight(uvec4(low, high));
#else
    Eight found = Eight(cache.v[line * QUADS + eighth * 2], uvec4(0));
    if (HEAD_DIM % 8 == 0 || eighth * 2 + 1 < QUADS) found.b = cache.v[line * QUADS + eighth * 2 + 1];
    return found;
#endif
}

vec4 low_half(Eight x) {
#if defined(KV_F16)
    return vec4(unpackHalf2x16(x.a.x), unpackHalf2x16(x.a.y));
#else
    return uintBitsToFloat(x.a);
#endif
}

vec4 high_half(Eight x) {
#if defined(KV_F16)
    return vec4(unpackHalf2x16(x.a.z), unpackHalf2x16(x.a.w));
#else
    return uintBitsToFloat(x.b);
#endif
}

float multiply_add(vec4 a, vec4 b, float sum) { return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum)))); }

void main() {
    const uint r = gl_WorkGroupID.z, split = gl_WorkGroupID.y;
    const uint lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID, own = lane % TEAM, team = lane / TEAM;
    const uvec4 row = load_row(rows, r);
    const uint position = row.z, spans = min(position / (PAGE * SPAN) + 1, splits);
    if ((row.w & ACTIVE) == 0) {
        if (gl_WorkGroupID.x == 0 && split == 0)
            for (uint i = lane; i < KV_HEADS * GROUP * QUADS; i += LOCAL) STORE(i, vec4(0.0));
        return;
    }
    if (split >= spans) return;
    const uint packs = (GROUP + QPACK - 1) / QPACK;
    const uint kv_head = gl_WorkGroupID.x / packs, member = gl_WorkGroupID.x % packs * QPACK;
    // Position i of turn n: T(n, i). Eighth e of this invocation: E(e). The last pack of a group may repeat its last head.
#define T(n, i) (((n) * TEAMS + team) * RUN + (i))
#define E(e) ((e) * TEAM + own)
#define HEAD(g) (kv_head * GROUP + min(member + (g), GROUP - 1))
#define SEEN(t) ((t) < seen && (WINDOW == 0 || (t) >= hidden))
#define FETCH(held, cache, n)                                                                                      \
    [[unroll]] for (uint i = 0; i < RUN; i++)                                                                      \
        [[unroll]] for (uint e = 0; e < OWN; e++) {                                                                \
            held[i * OWN + e] = NOTHING;                                                                           \
            if (SEEN(T(n, i)) && (EIGHTS % TEAM == 0 || E(e) < EIGHTS)) held[i * OWN + e] = fetch(cache, line + T(n, i), E(e)); \
        }

    vec4 q[QPACK * OWN * 2];
    [[unroll]] for (uint g = 0; g < QPACK; g++)
        [[unroll]] for (uint e = 0; e < OWN * 2; e++) {
            const uint quad = E(e / 2) * 2 + e % 2;
            q[g * OWN * 2 + e] = vec4(0.0);
            if (QUADS % (2 * TEAM) == 0 || quad < QUADS)
                q[g * OWN * 2 + e] = qkv.v[r * (qkv_stride / 4) + HEAD(g) * QUADS + quad];
        }
    float top[QPACK], sum[QPACK];
    vec4 acc[QPACK * OWN * 2];
    [[unroll]] for (uint g = 0; g < QPACK; g++) {
        top[g] = LOWEST;
        sum[g] = 0.0;
    }
    [[unroll]] for (uint f = 0; f < QPACK * OWN * 2; f++) acc[f] = vec4(0.0);
    const uint leader = gl_SubgroupInvocationID - own;
    uint opens = 0;  // the first position the row sees
    if (WINDOW != 0 && position + 1 > WINDOW) opens = position + 1 - WINDOW;
    for (uint page = WINDOW == 0 ? split * SPAN : max(split * SPAN, opens / PAGE); page < min((split + 1) * SPAN, position / PAGE + 1); page++) {
    const uint seen = min(PAGE, position + 1 - page * PAGE);  // positions of this page
    const uint hidden = WINDOW != 0 && opens > page * PAGE ? opens - page * PAGE : 0;  // of them, those before the window
    const uint line = (page_table.v[row.y * pages_per_slot + page] * KV_HEADS + kv_head) * PAGE;
    Eight keys[RUN * OWN], values[RUN * OWN];
    FETCH(keys, cache_k, 0)
    if (AHEAD) FETCH(values, cache_v, 0)

    float s[TURNS * QPACK];  // of position own % RUN of each turn
    float highest[QPACK];  // of this page
    [[unroll]] for (uint g = 0; g < QPACK; g++) highest[g] = LOWEST;
    [[unroll]] for (uint n = 0; n < TURNS; n++) {
        if (n > 0) FETCH(keys, cache_k, n)
        float piece[QPACK * RUN];  // this invocation's dimensions of each position's score
        [[unroll]] for (uint i = 0; i < RUN; i++) {
            [[unroll]] for (uint g = 0; g < QPACK; g++) piece[g * RUN + i] = 0.0;
            [[unroll]] for (uint e = 0; e < OWN; e++) {
                const vec4 low = low_half(keys[i * OWN + e]), high = high_half(keys[i * OWN + e]);
                [[unroll]] for (uint g = 0; g < QPACK; g++)
                    piece[g * RUN + i] = multiply_add(q[(g * OWN + e) * 2 + 1], high,
                                                      multiply_add(q[(g * OWN + e) * 2], low, piece[g * RUN + i]));
            }
        }
        [[unroll]] for (uint g = 0; g < QPACK; g++) {
            // Halve the positions an invocation keeps while adding pairs of invocations; then add what is left.
            [[unroll]] for (uint step = RUN / 2; step > 0; step /= 2)
                [[unroll]] for (uint i = 0; i < step; i++) {
                    const bool upper = (own & step) != 0;
                    const float keep = upper ? piece[g * RUN + i + step] : piece[g * RUN + i];
                    const float give = upper ? piece[g * RUN + i] : piece[g * RUN + i + step];
                    piece[g * RUN + i] = keep + subgroupShuffleXor(give, step);
                }
            float total = piece[g * RUN];
            [[unroll]] for (uint step = RUN; step < TEAM; step *= 2) total += subgroupShuffleXor(total, step);
            s[n * QPACK + g] = total * scale;
            if (SEEN(T(n, own % RUN))) highest[g] = max(highest[g], s[n * QPACK + g]);
        }
    }
    [[unroll]] for (uint g = 0; g < QPACK; g++) {
        [[unroll]] for (uint step = 1; step < RUN; step *= 2) highest[g] = max(highest[g], subgroupShuffleXor(highest[g], step));
        highest[g] = max(highest[g], top[g]);
        const float shrink = exp(top[g] - highest[g]);  // of what earlier pages left
        top[g] = highest[g];
        float added = 0.0;
        [[unroll]] for (uint n = 0; n < TURNS; n++) {
            s[n * QPACK + g] = SEEN(T(n, own % RUN)) ? exp(s[n * QPACK + g] - top[g]) : 0.0;
            added += s[n * QPACK + g];
        }
        [[unroll]] for (uint step = 1; step < RUN; step *= 2) added += subgroupShuffleXor(added, step);
        sum[g] = fma(sum[g], shrink, added);
        [[unroll]] for (uint e = 0; e < OWN * 2; e++) acc[g * OWN * 2 + e] *= shrink;
    }

    [[unroll]] for (uint n = 0; n < TURNS; n++) {
        if (n > 0 || !AHEAD) FETCH(values, cache_v, n)
        [[unroll]] for (uint i = 0; i < RUN; i++) {
            vec4 p[QPACK];
            [[unroll]] for (uint g = 0; g < QPACK; g++) p[g] = vec4(subgroupShuffle(s[n * QPACK + g], leader + i));
            [[unroll]] for (uint e = 0; e < OWN; e++) {
                const vec4 low = low_half(values[i * OWN + e]), high = high_half(values[i * OWN + e]);
                [[unroll]] for (uint g = 0; g < QPACK; g++) {
                    acc[(g * OWN + e) * 2] = fma(p[g], low, acc[(g * OWN + e) * 2]);
                    acc[(g * OWN + e) * 2 + 1] = fma(p[g], high, acc[(g * OWN + e) * 2 + 1]);
                }
            }
        }
    }
    }

    [[unroll]] for (uint g = 0; g < QPACK; g++) {
        [[unroll]] for (uint e = 0; e < OWN * 2; e++) {
            const uint quad = E(e / 2) * 2 + e % 2;
            if (QUADS % (2 * TEAM) == 0 || quad < QUADS) parts[(team * QPACK + g) * QUADS + quad] = acc[g * OWN * 2 + e];
        }
        if (own == 0) {
            tops[team * QPACK + g] = top[g];
            sums[team * QPACK + g] = sum[g];
        }
    }
    barrier();
    for (uint item = lane; item < QPACK * QUADS; item += LOCAL) {
        const uint g = item / QUADS, quad = item % QUADS;
        if (member + g >= GROUP) break;
        float highest = LOWEST, total = 0.0;
        vec4 joined = vec4(0.0);
        [[unroll]] for (uint t = 0; t < TEAMS; t++) highest = max(highest, tops[t * QPACK + g]);
        [[unroll]] for (uint t = 0; t < TEAMS; t++) {
            const float w = exp(tops[t * QPACK + g] - highest);
            joined = fma(vec4(w), parts[(t * QPACK + g) * QUADS + quad], joined);
            total = fma(w, sums[t * QPACK + g], total);
        }
        const uint at = (r * KV_HEADS * GROUP + HEAD(g)) * splits + split;
        if (DIRECT) {
            STORE(HEAD(g) * QUADS + quad, joined / total);
        } else {
            partial.v[at * QUADS + quad] = joined;
            if (quad == 0) state.v[at] = vec2(highest, total);
        }
    }
    if (DIRECT) return;
    memoryBarrierBuffer();
    barrier();
    const uint ticket = r * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (lane == 0) last = atomicAdd(tickets.v[ticket], 1) == spans - 1;
    barrier();
    if (!last) return;
    memoryBarrierBuffer();
    if (lane == 0) tickets.v[ticket] = 0;
    for (uint item = lane; item < QPACK * QUADS; item += LOCAL) {
        const uint g = item / QUADS, quad = item % QUADS;
        if (member + g >= GROUP) break;
        const uint at = (r * KV_HEADS * GROUP + HEAD(g)) * splits;
        float highest = LOWEST, total = 0.0;
        vec4 joined = vec4(0.0);
        for (uint from = 0; from < spans; from += BATCH) {
            vec4 x[BATCH];
            vec2 held[BATCH];
            [[unroll]] for (uint b = 0; b < BATCH; b++) {
                const uint page = min(from + b, spans - 1);
                x[b] = partial.v[(at + page) * QUADS + quad];
                held[b] = state.v[at + page];
            }
            float top = highest;
            [[unroll]] for (uint b = 0; b < BATCH; b++) top = max(top, held[b].x);
            const float shrink = exp(highest - top);
            joined *= shrink;
            total *= shrink;
            highest = top;
            [[unroll]] for (uint b = 0; b < BATCH; b++) {
                const float w = from + b < spans ? exp(held[b].x - top) : 0.0;
                joined = fma(vec4(w), x[b], joined);
                total = fma(w, held[b].y, total);
            }
        }
        STORE(HEAD(g) * QUADS + quad, joined / total);
    }
}
