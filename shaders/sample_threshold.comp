// sample_threshold: the least logit that may be drawn, and the draw itself where top-k or top-p leaves few candidates.
//
//   top-k: t = the k-th greatest y; top-p: t = the greatest value with sum of w(y >= t) >= top_p * sum of w(y >= t_k),
//   w = exp((y - max) / temperature); min-p: t = max + temperature * log(min_p). The greatest t holds; ties stay in.
//
// y: float32 [L][stride], adjusted where the slot adjusts, else logits; best: uint32 [L][chunks][2], by sample_adjust.
// limits (written): uint32 [L][2]: t and the greatest y, as floats, for lines whose slot draws (temperature > 0).
// drawn (written where top-k or top-p is on): uint32 [L][chunks][2], the drawn (score, id) first, then nothing.
// candidates: scratch, uint32 [L][list][2], list = LOCAL * 4 * ceil(stride / (4 * LOCAL)). Grid: x = line.
// One pass over the line measures 7 guesses of t; what lies above the best guess is listed, invocation by invocation,
// and the list alone is searched: each pass measures 7 cuts of the bracket of t and sets aside what lies outside the
// bracket, until it is a single float. Sums have a fixed order, so nothing depends on neighbours or timing.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#include "buffers.glsl"
#include "logits.glsl"
#include "draw.glsl"

layout(constant_id = 0) const uint LOCAL = 64;
layout(constant_id = 1) const uint FAN = 8;
layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
    Floats4 logits;
    Words rows;
    Words logit_rows;
    Words params;
    Floats4 adjusted;
    Words best;
    Words limits;
    Words drawn;
    Words candidates;
    uint vocab;
    uint stride;  // in floats, multiple of 4
    uint chunks;  // of a line
};

#define POSITIVE_INFINITY uintBitsToFloat(0x7F800000u)
const uint WAYS = 8, GROUPS = LOCAL / FAN, PASSES = 16;
shared float share[WAYS * LOCAL];
shared uint which[LOCAL];

// Sums every invocation's measure[] over the workgroup in a fixed tree; the same result for all.
void total(inout float measure[WAYS]) {
    const uint lane = gl_LocalInvocationIndex;
    for (uint j = 0; j < WAYS; j++) share[j * LOCAL + lane] = measure[j];
    barrier();
    for (uint i = lane; i < WAYS * GROUPS; i += LOCAL) {  // pairs (way, group)
        const uint first = (i / GROUPS) * LOCAL + i % GROUPS;
        float s = share[first];
        for (uint k = 1; k < FAN; k++) s += share[first + k * GROUPS];
        share[first] = s;
    }
    barrier();
    for (uint j = 0; j < WAYS; j++) {
        measure[j] = share[j * LOCAL];
        for (uint g = 1; g < GROUPS; g++) measure[j] += share[j * LOCAL + g];
    }
    barrier();
}

#define MEASURE(y, amount)                                                   \
    for (uint j = 0; j < WAYS; j++) measure[j] += (y) >= limit[j] ? (amount) : 0.0;

// The list of one invocation lies in three parts: what is surely drawn from (before `first`), what is searched, and what
// is below the threshold (from `last`). These are the bounds of the part searched.
struct Part { uint first, last; };

void exchange(uint i, uint j) {
    const uint y = candidates.v[i], id = candidates.v[i + 1];
    candidates.v[i] = candidates.v[j], candidates.v[i + 1] = candidates.v[j + 1];
    candidates.v[j] = y, candidates.v[j + 1] = id;
}

// Moves y >= hi to the front and y < lo to the back of the part.
void narrow(uint list, inout Part part, float lo, float hi) {
    for (uint i = part.first; i < part.last;) {
        const float y = uintBitsToFloat(candidates.v[list + i * LOCAL * 2]);
        if (y < lo) exchange(list + i * LOCAL * 2, list + --part.last * LOCAL * 2);
        else if (y >= hi) exchange(list + i++ * LOCAL * 2, list + part.first++ * LOCAL * 2);
        else i++;
    }
}

void main() {
    const uint line = gl_WorkGroupID.x, lane = gl_LocalInvocationIndex;
    const uint row = logit_rows.v[line];
    if (row == NONE || (rows.v[row * ROW_WORDS + ROW_FLAGS] & ACTIVE) == 0) return;
    const uint p = rows.v[row * ROW_WORDS + ROW_SLOT] * PARAM_WORDS;
    const float temperature = uintBitsToFloat(params.v[p + P_TEMPERATURE]);
    if (temperature == 0.0) return;
    float m = NEGATIVE_INFINITY;
    for (uint c = lane; c < chunks; c += LOCAL) m = max(m, uintBitsToFloat(best.v[(line * chunks + c) * 2]));
    share[lane] = m;
    barrier();
    for (uint k = 0; k < FAN; k++) m = max(m, share[lane % GROUPS + k * GROUPS]);
    barrier();
    share[lane] = m;
    barrier();
    for (uint g = 0; g < GROUPS; g++) m = max(m, share[g]);
    barrier();
    const uint top_k = params.v[p + P_TOP_K];
    const float top_p = uintBitsToFloat(params.v[p + P_TOP_P]), min_p = uintBitsToFloat(params.v[p + P_MIN_P]);
    const bool counts_k = top_k > 0 && top_k < vocab, weighs_p = top_p < 1.0, finite = !isinf(m);
    const float cold = 1.0 / temperature;
    float t = finite && min_p > 0.0 ? m + temperature * log(min_p) : NEGATIVE_INFINITY;
    if (finite && (counts_k || weighs_p)) {
        Floats4 source = logits;
        if ((params.v[p + P_FLAGS] & FLAG_ADJUSTS) != 0) source = adjusted;
        const uint first = line * (stride / 4);
        float limit[WAYS], measure[WAYS];
        for (uint j = 0; j < WAYS; j++) {  // m - 32, m - 16, ... m - 0.5 in units of the distribution that is measured
            limit[j] = j == 0 ? NEGATIVE_INFINITY : m - exp2(6.0 - float(j)) * (counts_k ? 1.0 : temperature);
            measure[j] = 0.0;
        }
        for (uint i = lane; i < stride / 4; i += LOCAL) {
            const vec4 y = source.v[first + i];
            for (uint e = 0; e < 4; e++) {
                const float amount = i * 4 + e >= vocab ? 0.0 : counts_k ? 1.0 : exp((y[e] - m) * cold);
                MEASURE(y[e], amount)
            }
        }
        total(measure);
        float wanted = counts_k ? float(top_k) : top_p * measure[0];
        float low = limit[0], high = POSITIVE_INFINITY, above = 0.0;
        for (uint j = 1; j < WAYS; j++)
            if (measure[j] >= wanted) low = limit[j];
        for (uint j = WAYS - 1; j > 0; j--)
            if (!(measure[j] >= wanted)) high = limit[j], above = measure[j];
        const uint list = (line * ((stride / 4 + LOCAL - 1) / LOCAL * LOCAL * 4) + lane) * 2;
        uint count = 0;
        for (uint i = lane; i < stride / 4; i += LOCAL) {
            const vec4 y = source.v[first + i];
            for (uint e = 0; e < 4; e++)
                if (y[e] >= low && i * 4 + e < vocab) {
                    candidates.v[list + count * LOCAL * 2] = floatBitsToUint(y[e]);
                    candidates.v[list + count * LOCAL * 2 + 1] = i * 4 + e;
                    count++;
                }
        }
        Part part = Part(0, count);
        for (uint stage = counts_k ? 0 : 1; stage < (weighs_p ? 2 : 1); stage++) {  // top-k by number, top-p by weight
            const bool weighs = stage == 1, anew = weighs && counts_k;
            if (anew) part.first = 0, high = POSITIVE_INFINITY, above = 0.0;
            // lo satisfies; hi, above which lies `above`, does not; m itself may be -0.0, so high stays infinite till cut
            uint lo = sortable(low), hi = min(sortable(high), sortable(m) + 1);
            for (uint pass = 0; pass < PASSES; pass++) {
                narrow(list, part, unsortable(lo), high);
                if (hi - lo <= 1) break;
                const uint step = max((hi - lo) / WAYS, 1), start = lo, end = hi - 1;
                for (uint j = 0; j < WAYS; j++) limit[j] = unsortable(min(start + step * j, end)), measure[j] = 0.0;
                for (uint i = part.first; i < part.last; i++) {
                    const float y = uintBitsToFloat(candidates.v[list + i * LOCAL * 2]);
                    const float amount = weighs ? exp((y - m) * cold) : 1.0;
                    MEASURE(y, amount)
                }
                total(measure);
                const float base = above;
                if (anew && pass == 0) wanted = top_p * measure[0];
                for (uint j = 1; j < WAYS; j++)
                    if (base + measure[j] >= wanted) lo = min(start + step * j, end);
                for (uint j = WAYS - 1; j > 0; j--)
                    if (!(base + measure[j] >= wanted)) {
                        hi = min(start + step * j, end);
                        high = unsortable(hi), above = base + measure[j];
                    }
            }
            low = unsortable(lo);
        }
        t = max(t, low);
        const uvec2 keys = draw_keys(params.v[p + P_SEED_LO], params.v[p + P_SEED_HI], rows.v[row * ROW_WORDS + ROW_POSITION]);
        float s = NEGATIVE_INFINITY;
        uint id = NONE;
        for (uint i = 0; i < part.last; i++) {
            const float y = uintBitsToFloat(candidates.v[list + i * LOCAL * 2]);
            const uint candidate = candidates.v[list + i * LOCAL * 2 + 1];
            const float score = (y - m) * cold + gumbel(draw_bits(keys, candidate));
            if (y >= t && before(score, candidate, s, id)) s = score, id = candidate;
        }
        share[lane] = s;
        which[lane] = id;
        barrier();
        if (lane < GROUPS)
            for (uint i = 1; i < FAN; i++) {
                const uint j = lane + i * GROUPS;
                if (before(share[j], which[j], s, id)) s = share[j], id = which[j];
            }
        barrier();
        if (lane < GROUPS) share[lane] = s, which[lane] = id;
        barrier();
        for (uint j = 0; j < GROUPS; j++)
            if (before(share[j], which[j], s, id)) s = share[j], id = which[j];
        for (uint c = lane; c < chunks; c += LOCAL) {
            drawn.v[(line * chunks + c) * 2] = floatBitsToUint(c == 0 ? s : NEGATIVE_INFINITY);
            drawn.v[(line * chunks + c) * 2 + 1] = c == 0 ? id : NONE;
        }
    }
    if (lane == 0) {
        limits.v[line * 2] = floatBitsToUint(t);
        limits.v[line * 2 + 1] = floatBitsToUint(m);
    }
}
