// sample: the token of each line: the greatest of its chunks' candidates, and its log-probability under the raw logits.
//
// A slot that draws takes the greatest score of `drawn`, one that only adjusts the greatest of `best`, any other the
// greatest raw logit of `partials`. With FULL false all are taken to be of the last kind (greedy, nothing adjusted).
// chosen: uint32 [L][4]: token, log-probability (float), flags, slot. flags: 1 the row is active, 8 its logits are not
// finite (a NaN, +inf, or nothing above -inf), then the token is NONE. A skipped or inactive line has flags 0.
// Grid: x = line.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#include "buffers.glsl"
#include "logits.glsl"

layout(constant_id = 0) const uint LOCAL = 64;
layout(constant_id = 1) const uint FAN = 8;
layout(constant_id = 2) const bool FULL = true;
layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
    Floats logits;
    Words rows;
    Words logit_rows;
    Words params;
    Words4 partials;
    Words best;
    Words drawn;
    Words chosen;
    uint vocab;
    uint stride;  // in floats
    uint chunks;  // of a line
};

const uint GROUPS = LOCAL / FAN, LIVE = 1u, NOT_FINITE = 8u;
shared float value[LOCAL], greatest[LOCAL], sum[LOCAL];
shared uint which[LOCAL], odd[LOCAL];

void main() {
    const uint line = gl_WorkGroupID.x, lane = gl_LocalInvocationIndex, row = logit_rows.v[line];
    bool live = row != NONE;
    if (live) live = (rows.v[row * ROW_WORDS + ROW_FLAGS] & ACTIVE) != 0;
    if (!live) {
        if (lane < 4) chosen.v[line * 4 + lane] = lane == 0 ? NONE : 0;
        return;
    }
    const uint slot = rows.v[row * ROW_WORDS + ROW_SLOT];
    const bool draws = FULL && uintBitsToFloat(params.v[slot * PARAM_WORDS + P_TEMPERATURE]) != 0.0;
    const bool adjusts = FULL && (params.v[slot * PARAM_WORDS + P_FLAGS] & FLAG_ADJUSTS) != 0;
    float v = NEGATIVE_INFINITY, m = NEGATIVE_INFINITY, s = 0.0;
    uint id = NONE, nan = 0;
    for (uint c = lane; c < chunks; c += LOCAL) {
        const uvec4 part = partials.v[line * chunks + c];
        const float high = uintBitsToFloat(part.x), both = max(m, high);
        if (both != NEGATIVE_INFINITY) s = s * exp(m - both) + uintBitsToFloat(part.z) * exp(high - both);
        m = both;
        nan |= part.w;
        uvec2 candidate = part.xy;
        const uint from = (line * chunks + c) * 2;
        if (draws) candidate = uvec2(drawn.v[from], drawn.v[from + 1]);
        else if (adjusts) candidate = uvec2(best.v[from], best.v[from + 1]);
        if (before(uintBitsToFloat(candidate.x), candidate.y, v, id)) v = uintBitsToFloat(candidate.x), id = candidate.y;
    }
    value[lane] = v, which[lane] = id, greatest[lane] = m, sum[lane] = s, odd[lane] = nan;
    // two levels: GROUPS invocations take FAN entries each, then every invocation takes those GROUPS
    for (uint level = 0; level < 2; level++) {
        barrier();
        const uint first = level == 0 ? lane % GROUPS : 0, step = level == 0 ? GROUPS : 1, n = level == 0 ? FAN : GROUPS;
        v = NEGATIVE_INFINITY, m = NEGATIVE_INFINITY, s = 0.0, id = NONE, nan = 0;
        for (uint i = 0; i < n; i++) {
            const uint j = first + i * step;
            if (before(value[j], which[j], v, id)) v = value[j], id = which[j];
            m = max(m, greatest[j]);
            nan |= odd[j];
        }
        for (uint i = 0; i < n; i++) {
            const uint j = first + i * step;
            if (greatest[j] != NEGATIVE_INFINITY) s += sum[j] * exp(greatest[j] - m);
        }
        barrier();
        if (level == 0 && lane < GROUPS) value[lane] = v, which[lane] = id, greatest[lane] = m, sum[lane] = s, odd[lane] = nan;
    }
    if (lane != 0) return;
    const bool refused = nan != 0 || isinf(m) || id >= vocab;
    chosen.v[line * 4] = refused ? NONE : id;
    chosen.v[line * 4 + 1] = floatBitsToUint(refused ? NOT_A_NUMBER : logits.v[line * stride + min(id, vocab - 1)] - (m + log(s)));
    chosen.v[line * 4 + 2] = refused ? LIVE | NOT_FINITE : LIVE;
    chosen.v[line * 4 + 3] = slot;
}
