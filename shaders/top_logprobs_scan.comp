// top_logprobs_scan: for each chunk of CHUNK logits: m = max, its id (ties to the lowest), s = sum of exp(logit - m).
//
// logits: float32 [L][stride]; logit_rows: uint32 [L], a line whose entry is NONE is skipped.
// partials: uint32 [L][chunks][4] (include/logits.glsl).
// Grid: x = chunk, y = line of logits. Each invocation keeps QUADS vec4 in registers and reduces them alone; the
// invocations are then combined in two levels of fixed order.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#include "buffers.glsl"
#include "logits.glsl"

layout(constant_id = 0) const uint LOCAL = 64;
layout(constant_id = 1) const uint QUADS = 4;  // vec4 an invocation: CHUNK = LOCAL * QUADS * 4
layout(constant_id = 2) const uint FAN = 8;    // invocations combined in the first level; divides LOCAL
layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
    Floats4 logits;
    Words logit_rows;
    Words4 partials;
    uint vocab;
    uint stride;  // in floats, multiple of 4
};

shared float greatest[LOCAL], sum[LOCAL];
shared uint at[LOCAL], odd[LOCAL];

// Combines count entries, step apart from first, into (m, id, s, nan).
void combine(uint first, uint step, uint count, out float m, out uint id, out float s, out uint nan) {
    m = NEGATIVE_INFINITY, id = NONE, s = 0.0, nan = 0;
    for (uint i = 0; i < count; i++) {
        const uint j = first + i * step;
        if (before(greatest[j], at[j], m, id)) m = greatest[j], id = at[j];
        nan |= odd[j];
    }
    const float base = m == NEGATIVE_INFINITY ? 0.0 : m;
    for (uint i = 0; i < count; i++) {
        const uint j = first + i * step;
        s += sum[j] * exp(greatest[j] - base);
    }
}

void main() {
    const uint line = gl_WorkGroupID.y, lane = gl_LocalInvocationIndex;
    if (logit_rows.v[line] == NONE) return;
    const uint start = gl_WorkGroupID.x * LOCAL * QUADS * 4 + lane * 4;
    vec4 x[QUADS];
    float m = NEGATIVE_INFINITY;
    uint id = start < vocab ? start : NONE, largest_bits = 0;
    for (uint q = 0; q < QUADS; q++) {
        const uint i = start + q * LOCAL * 4;
        const vec4 loaded = logits.v[(line * stride + min(i, stride - 4)) / 4];
        for (uint e = 0; e < 4; e++) {
            const float v = i + e < vocab ? loaded[e] : NEGATIVE_INFINITY;
            if (v > m) m = v, id = i + e;
            largest_bits = max(largest_bits, floatBitsToUint(v) & 0x7FFFFFFFu);
            x[q][e] = v;
        }
    }
    const float base = m == NEGATIVE_INFINITY ? 0.0 : m;
    float s = 0.0;
    for (uint q = 0; q < QUADS; q++) {
        const vec4 w = exp(x[q] - base);
        s += (w.x + w.y) + (w.z + w.w);
    }
    greatest[lane] = m;
    at[lane] = id;
    sum[lane] = s;
    odd[lane] = largest_bits > 0x7F800000u ? 1 : 0;
    uint nan;
    barrier();
    const uint groups = LOCAL / FAN;
    if (lane < groups) combine(lane, groups, FAN, m, id, s, nan);
    barrier();
    if (lane < groups) greatest[lane] = m, at[lane] = id, sum[lane] = s, odd[lane] = nan;
    barrier();
    if (lane != 0) return;
    combine(0, 1, groups, m, id, s, nan);
    partials.v[line * gl_NumWorkGroups.x + gl_WorkGroupID.x] = uvec4(floatBitsToUint(m), id, floatBitsToUint(s), nan);
}
