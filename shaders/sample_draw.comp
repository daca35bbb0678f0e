// sample_draw: one draw from softmax(y / temperature) over y >= threshold, by the Gumbel-max trick, chunk by chunk.
//
//   score(id) = (y - max) / temperature - log(E), E exponential (include/draw.glsl); the greatest score is drawn
//   (Gumbel 1954; Maddison, Tarlow and Minka 2014, section 2).
// Lines that sample_threshold has drawn (top-k or top-p on) are left alone.
//
// y: float32 [L][stride], adjusted where the slot adjusts, else logits; limits: uint32 [L][2], by sample_threshold.
// drawn: uint32 [L][chunks][2] (score, id). Grid: x = chunk of LOCAL * QUADS * 4, y = line of logits.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#include "buffers.glsl"
#include "logits.glsl"
#include "draw.glsl"

layout(constant_id = 0) const uint LOCAL = 64;
layout(constant_id = 1) const uint QUADS = 4;
layout(constant_id = 2) const uint FAN = 8;
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
    uint vocab;
    uint stride;  // in floats, multiple of 4
};

const uint CHUNK = LOCAL * QUADS * 4, GROUPS = LOCAL / FAN;
shared float value[LOCAL];
shared uint which[LOCAL];

void main() {
    const uint line = gl_WorkGroupID.y, lane = gl_LocalInvocationIndex;
    const uint row = logit_rows.v[line];
    if (row == NONE || (rows.v[row * ROW_WORDS + ROW_FLAGS] & ACTIVE) == 0) return;
    const uint p = rows.v[row * ROW_WORDS + ROW_SLOT] * PARAM_WORDS, top_k = params.v[p + P_TOP_K];
    const float temperature = uintBitsToFloat(params.v[p + P_TEMPERATURE]);
    const float limit = uintBitsToFloat(limits.v[line * 2]), m = uintBitsToFloat(limits.v[line * 2 + 1]);
    const bool listed = (top_k > 0 && top_k < vocab) || uintBitsToFloat(params.v[p + P_TOP_P]) < 1.0;
    if (temperature == 0.0 || (listed && !isinf(m))) return;
    const uint to = (line * gl_NumWorkGroups.x + gl_WorkGroupID.x) * 2;
    if (!(uintBitsToFloat(best.v[to]) >= limit)) {  // nothing of this chunk may be drawn
        if (lane == 0) drawn.v[to] = floatBitsToUint(NEGATIVE_INFINITY), drawn.v[to + 1] = NONE;
        return;
    }
    Floats4 source = logits;
    if ((params.v[p + P_FLAGS] & FLAG_ADJUSTS) != 0) source = adjusted;
    const uvec2 keys = draw_keys(params.v[p + P_SEED_LO], params.v[p + P_SEED_HI], rows.v[row * ROW_WORDS + ROW_POSITION]);
    const float cold = 1.0 / temperature;
    float s = NEGATIVE_INFINITY;
    uint id = NONE;
    for (uint q = 0; q < QUADS; q++) {
        const uint i = gl_WorkGroupID.x * CHUNK + (q * LOCAL + lane) * 4;
        const vec4 y = source.v[(line * stride + min(i, stride - 4)) / 4];
        for (uint e = 0; e < 4; e++) {
            const float score = (y[e] - m) * cold + gumbel(draw_bits(keys, i + e));
            if (y[e] >= limit && i + e < vocab && score > s) s = score, id = i + e;
        }
    }
    value[lane] = s;
    which[lane] = id;
    barrier();
    if (lane < GROUPS)
        for (uint i = 1; i < FAN; i++) {
            const uint j = lane + i * GROUPS;
            if (before(value[j], which[j], s, id)) s = value[j], id = which[j];
        }
    barrier();
    if (lane < GROUPS) value[lane] = s, which[lane] = id;
    barrier();
    if (lane != 0) return;
    for (uint j = 1; j < GROUPS; j++)
        if (before(value[j], which[j], s, id)) s = value[j], id = which[j];
    drawn.v[to] = floatBitsToUint(s);
    drawn.v[to + 1] = id;
}
