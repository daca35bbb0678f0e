// sample_threshold: the least adjusted logit that may be drawn, for each line whose slot draws (temperature > 0).
//
//   top-k: t = the k-th greatest y; top-p: t = the greatest value with sum of w(y >= t) >= top_p * sum of w(y >= t_k),
//   w = exp((y - max) / temperature); min-p: t = max + temperature * log(min_p). The greatest t holds; ties stay in.
//
// adjusted: float32 [L][stride]; best: uint32 [L][CHUNKS][2], both from sample_adjust.
// limits: uint32 [L][2]: threshold and greatest y, as floats. Grid: x = line.
// The search halves nothing: each pass over the line counts (and weighs) what lies above 8 thresholds at once, and the
// bracket that holds the answer is cut again, until one candidate or one float is left. A weight is a sum of floats in
// a fixed tree, monotone in the threshold, so the answer does not depend on the path of the search.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#include "buffers.glsl"
#include "logits.glsl"

layout(constant_id = 0) const uint LOCAL = 64;
layout(constant_id = 1) const uint CHUNKS = 48;
layout(constant_id = 2) const uint FAN = 8;
layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
    Words rows;
    Words logit_rows;
    Words params;
    Floats4 adjusted;
    Words best;
    Words limits;
    uint vocab;
    uint stride;  // in floats, multiple of 4
};

const uint WAYS = 8, GROUPS = LOCAL / FAN, PASSES = 16;
shared uint number[WAYS * LOCAL];
shared float weight[WAYS * LOCAL];

// How many of the line's elements are at least limit[j], and their weight, for every j; the same for all invocations.
void above(uint line, float limit[WAYS], bool weighs, float m, float cold, out uint n[WAYS], out float w[WAYS]) {
    const uint lane = gl_LocalInvocationIndex;
    for (uint j = 0; j < WAYS; j++) n[j] = 0, w[j] = 0.0;
    for (uint i = lane; i < stride / 4; i += LOCAL) {
        const vec4 y = adjusted.v[line * (stride / 4) + i];
        vec4 e = vec4(0.0);
        if (weighs) e = exp((y - m) * cold);
        for (uint j = 0; j < WAYS; j++) {
            const vec4 in_set = vec4(greaterThanEqual(y, vec4(limit[j])));
            const vec4 part = e * in_set;
            n[j] += uint((in_set.x + in_set.y) + (in_set.z + in_set.w));
            w[j] += (part.x + part.y) + (part.z + part.w);
        }
    }
    barrier();
    for (uint j = 0; j < WAYS; j++) number[j * LOCAL + lane] = n[j], weight[j * LOCAL + lane] = w[j];
    barrier();
    // GROUPS sums of each way, then one: invocation i takes pairs (way, group) i, i + LOCAL, ...
    for (uint i = lane; i < WAYS * GROUPS; i += LOCAL) {
        const uint first = (i / GROUPS) * LOCAL + i % GROUPS;
        for (uint k = 1; k < FAN; k++) {
            number[first] += number[first + k * GROUPS];
            weight[first] += weight[first + k * GROUPS];
        }
    }
    barrier();
    for (uint j = 0; j < WAYS; j++) {
        n[j] = number[j * LOCAL], w[j] = weight[j * LOCAL];
        for (uint g = 1; g < GROUPS; g++) n[j] += number[j * LOCAL + g], w[j] += weight[j * LOCAL + g];
    }
}

// The greatest threshold of at least `low` whose set holds k elements (weighs: or `share` of the weight of y >= low).
float search(uint line, float low, uint k, bool weighs, float share, float m, float cold) {
    uint lo = sortable(low), hi = sortable(m) + 1;  // lo satisfies, hi does not
    uint under = vocab, over = 0;                   // elements at least lo, at least hi
    float wanted = 0.0;
    for (uint pass = 0; pass < PASSES && hi - lo > 1 && under - over > 1; pass++) {
        uint key[WAYS];
        float limit[WAYS];
        const uint step = max((hi - lo) / WAYS, 1);
        for (uint j = 0; j < WAYS; j++) {
            // at first 32, 16, ... 0.5 units of the distribution below the greatest, then equal parts of the bracket
            const float guess = m - exp2(6.0 - float(j)) / cold;
            key[j] = j == 0 ? lo : pass == 0 ? clamp(sortable(guess), lo, hi) : min(lo + step * j, hi);
            limit[j] = unsortable(key[j]);
        }
        uint n[WAYS];
        float w[WAYS];
        above(line, limit, weighs, m, cold, n, w);
        if (pass == 0) wanted = share * w[0], under = n[0];
        uint new_lo = lo, new_hi = hi;
        for (uint j = 1; j < WAYS; j++) {
            const bool holds = weighs ? w[j] >= wanted : n[j] >= k;
            if (key[j] < hi && holds) new_lo = key[j], under = n[j];
        }
        for (uint j = WAYS - 1; j > 0; j--) {
            const bool holds = weighs ? w[j] >= wanted : n[j] >= k;
            if (key[j] < hi && !holds) new_hi = key[j], over = n[j];
        }
        lo = new_lo, hi = new_hi;
    }
    return unsortable(lo);
}

void main() {
    const uint line = gl_WorkGroupID.x, lane = gl_LocalInvocationIndex;
    const uint row = logit_rows.v[line];
    if (row == NONE || (rows.v[row * ROW_WORDS + ROW_FLAGS] & ACTIVE) == 0) return;
    const uint p = rows.v[row * ROW_WORDS + ROW_SLOT] * PARAM_WORDS;
    const float temperature = uintBitsToFloat(params.v[p + P_TEMPERATURE]);
    if (temperature == 0.0) return;
    float m = NEGATIVE_INFINITY;
    for (uint c = lane; c < CHUNKS; c += LOCAL) m = max(m, uintBitsToFloat(best.v[(line * CHUNKS + c) * 2]));
    weight[lane] = m;
    barrier();
    for (uint i = lane; i < GROUPS; i += LOCAL)
        for (uint k = 0; k < FAN; k++) m = max(m, weight[i + k * GROUPS]);
    barrier();
    if (lane < GROUPS) weight[lane] = m;
    barrier();
    for (uint g = 0; g < GROUPS; g++) m = max(m, weight[g]);
    barrier();
    const uint top_k = params.v[p + P_TOP_K];
    const float top_p = uintBitsToFloat(params.v[p + P_TOP_P]), min_p = uintBitsToFloat(params.v[p + P_MIN_P]);
    float t = NEGATIVE_INFINITY;
    if (!isinf(m)) {
        if (top_k > 0 && top_k < vocab) t = search(line, t, top_k, false, 0.0, m, 1.0);
        if (top_p < 1.0) t = search(line, t, 0, true, top_p, m, 1.0 / temperature);
        if (min_p > 0.0) t = max(t, m + temperature * log(min_p));
    }
    if (lane == 0) {
        limits.v[line * 2] = floatBitsToUint(t);
        limits.v[line * 2 + 1] = floatBitsToUint(m);
    }
}
