// top_logprobs: the TOP most likely ids of each line, their log-probabilities logit - lse, and lse = log sum exp(logits).
//
// Reads logits and what top_logprobs_scan wrote. top: uint32 [L][TOP][2] (id, log-probability), most likely first, ties
// to the lowest id. lse: float32 [L]. A line whose logits are not finite (a NaN, +inf, or nothing above -inf) gets ids
// NONE and NaNs; a skipped line (logit_rows NONE) ids NONE and log-probabilities of -inf.
// Grid: x = line. The best chunk gives its best id, then looks again for the best that comes after it.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#include "buffers.glsl"
#include "logits.glsl"

layout(constant_id = 0) const uint LOCAL = 64;
layout(constant_id = 1) const uint CHUNK = 1024;
layout(constant_id = 2) const uint MAX_CHUNKS = 64;  // of a line
layout(constant_id = 3) const uint FAN = 8;      // invocations combined in the first level; divides LOCAL
layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
    Floats logits;
    Words logit_rows;
    Words4 partials;
    Words top;
    Floats lse;
    uint vocab;
    uint stride;  // in floats
    uint count;   // TOP
    uint chunks;  // of a line, at most MAX_CHUNKS
};

shared float greatest[MAX_CHUNKS], value[LOCAL];
shared uint at[MAX_CHUNKS], which[LOCAL];
const uint GROUPS = LOCAL / FAN;

// The first of all invocations' candidates in the order of `before`, the same for every invocation.
void first_of_all(inout float v, inout uint id) {
    const uint lane = gl_LocalInvocationIndex;
    value[lane] = v;
    which[lane] = id;
    barrier();
    if (lane < GROUPS)
        for (uint i = 1; i < FAN; i++) {
            const uint j = lane + i * GROUPS;
            if (before(value[j], which[j], v, id)) v = value[j], id = which[j];
        }
    barrier();
    if (lane < GROUPS) value[lane] = v, which[lane] = id;
    barrier();
    v = value[0], id = which[0];
    for (uint j = 1; j < GROUPS; j++)
        if (before(value[j], which[j], v, id)) v = value[j], id = which[j];
    barrier();
}

float total(float s) {
    const uint lane = gl_LocalInvocationIndex;
    value[lane] = s;
    barrier();
    if (lane < GROUPS)
        for (uint i = 1; i < FAN; i++) s += value[lane + i * GROUPS];
    barrier();
    if (lane < GROUPS) value[lane] = s;
    barrier();
    s = value[0];
    for (uint j = 1; j < GROUPS; j++) s += value[j];
    barrier();
    return s;
}

void refuse(uint line, float mark) {
    for (uint i = gl_LocalInvocationIndex; i < count; i += LOCAL) {
        top.v[(line * count + i) * 2] = NONE;
        top.v[(line * count + i) * 2 + 1] = floatBitsToUint(mark);
    }
    if (gl_LocalInvocationIndex == 0) lse.v[line] = mark;
}

void main() {
    const uint line = gl_WorkGroupID.x, lane = gl_LocalInvocationIndex;
    if (logit_rows.v[line] == NONE) {
        refuse(line, NEGATIVE_INFINITY);
        return;
    }
    float m = NEGATIVE_INFINITY, nan = 0.0;
    uint id = NONE;
    for (uint c = lane; c < chunks; c += LOCAL) {
        const uvec4 part = partials.v[line * chunks + c];
        greatest[c] = uintBitsToFloat(part.x);
        at[c] = part.y;
        if (before(greatest[c], at[c], m, id)) m = greatest[c], id = at[c];
        nan += float(part.w);
    }
    first_of_all(m, id);
    if (total(nan) > 0.0 || isinf(m)) {
        refuse(line, NOT_A_NUMBER);
        return;
    }
    float s = 0.0;
    for (uint c = lane; c < chunks; c += LOCAL) s += uintBitsToFloat(partials.v[line * chunks + c].z) * exp(greatest[c] - m);
    const float norm = m + log(total(s));
    if (lane == 0) lse.v[line] = norm;
    for (uint n = 0; n < count; n++) {
        if (lane == 0) {
            top.v[(line * count + n) * 2] = id;
            top.v[(line * count + n) * 2 + 1] = floatBitsToUint(m - norm);
        }
        if (n + 1 == count) break;
        const uint chunk = id / CHUNK;
        const float last = m;
        const uint last_id = id;
        m = NEGATIVE_INFINITY, id = NONE;
        for (uint i = chunk * CHUNK + lane; i < min((chunk + 1) * CHUNK, vocab); i += LOCAL) {
            const float v = logits.v[line * stride + i];
            if (before(last, last_id, v, i) && before(v, i, m, id)) m = v, id = i;
        }
        first_of_all(m, id);
        if (lane == 0) greatest[chunk] = m, at[chunk] = id;
        barrier();
        m = NEGATIVE_INFINITY, id = NONE;
        for (uint c = lane; c < chunks; c += LOCAL)
            if (before(greatest[c], at[c], m, id)) m = greatest[c], id = at[c];
        first_of_all(m, id);
    }
}
