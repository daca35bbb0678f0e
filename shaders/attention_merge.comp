// attention_merge: the output of attention from its pages: with w[s] = exp(m[s] - max m) over the pages a row has seen,
//
//   y[d] = sum over s of w[s] partial[s][d] / sum over s of w[s] l[s]
//
// partial: float32 [R][heads][splits][HEAD_DIM]. state: float32 [R][heads][splits][2] = (m, l). rows: uint32 [R][8].
// y: float32 [R][y_stride], heads side by side; zeros for a row that is not ACTIVE.
// Only pages up to the row's position count, and `splits` does not change the result. PARTS invocations share 4 dimensions
// and take turns at the pages, BATCH of which are on their way at once; each adds in order, and so are the parts added.
// Grid: x = groups of LOCAL / PARTS quads of the row, y = row.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#include "buffers.glsl"
#include "rows.glsl"

layout(constant_id = 0) const uint HEAD_DIM = 64;
layout(constant_id = 1) const uint PAGE = 128;
layout(constant_id = 2) const uint PARTS = 1;
layout(constant_id = 3) const uint BATCH = 1;
layout(constant_id = 4) const uint LOCAL = 32;
layout(local_size_x_id = 4, local_size_y = 1, local_size_z = 1) in;

layout(buffer_reference, std430, buffer_reference_align = 8) buffer Pairs { vec2 v[]; };
layout(push_constant, std430) uniform Push {
    Floats4 partial;
    Pairs state;
    Words4 rows;
    Floats4 y;
    uint y_stride;
    uint splits;
    uint heads;
};

const uint WIDE = LOCAL / PARTS;
const float LOWEST = -3.4028235e38;
shared vec4 parts[PARTS > 1 ? LOCAL : 1];
shared vec2 states[PARTS > 1 ? LOCAL : 1];

// Pages `from`, `from` + PARTS, ...: their sums and states; behind the last seen, what weighs nothing.
#define LOAD(from)                                                                    \
    [[unroll]] for (uint b = 0; b < BATCH; b++) {                                     \
        const uint s = (from) + b * PARTS;                                            \
        x[b] = vec4(0.0);                                                             \
        held[b] = vec2(LOWEST, 0.0);                                                  \
        if (s < pages) {                                                              \
            x[b] = partial.v[(at + s) * quads + item % quads];                        \
            held[b] = state.v[at + s];                                                \
        }                                                                             \
    }

void main() {
    const uint quads = HEAD_DIM / 4, lane = gl_LocalInvocationIndex, part = lane / WIDE, r = gl_WorkGroupID.y;
    const uint item = min(gl_WorkGroupID.x * WIDE + lane % WIDE, heads * quads - 1);  // the last group may repeat the last
    const uvec4 row = load_row(rows, r);
    const uint to = r * (y_stride / 4) + item;
    if ((row.w & ACTIVE) == 0) {
        y.v[to] = vec4(0.0);
        return;
    }
    const uint pages = min(row.z / PAGE + 1, splits), at = (r * heads + item / quads) * splits;
    vec4 x[BATCH];
    vec2 held[BATCH];
    LOAD(part)
    float top = LOWEST;
    [[unroll]] for (uint b = 0; b < BATCH; b++) top = max(top, held[b].x);
    for (uint s = part + BATCH * PARTS; s < pages; s += PARTS) top = max(top, state.v[at + s].x);
    vec4 acc = vec4(0.0);
    float total = 0.0;
    for (uint from = part; from < pages; from += BATCH * PARTS) {
        [[unroll]] for (uint b = 0; b < BATCH; b++) {
            const float w = exp(held[b].x - top);
            acc = fma(vec4(w), x[b], acc);
            total = fma(w, held[b].y, total);
        }
        LOAD(from + BATCH * PARTS)
    }
    if (PARTS > 1) {
        parts[lane] = acc;
        states[lane] = vec2(top, total);
        barrier();
        if (part != 0) return;
        for (uint p = 1; p < PARTS; p++) top = max(top, states[p * WIDE + lane].x);
        acc = vec4(0.0);
        total = 0.0;
        [[unroll]] for (uint p = 0; p < PARTS; p++) {
            const float w = exp(states[p * WIDE + lane].x - top);
            acc = fma(vec4(w), parts[p * WIDE + lane], acc);
            total = fma(w, states[p * WIDE + lane].y, total);
        }
    }
    y.v[to] = acc / total;
}
