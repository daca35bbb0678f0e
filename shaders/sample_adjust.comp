// sample_adjust: y = logits after bias and penalties, for slots that have any, and the greatest y of each chunk.
//
//   x += bias[id]; if seen in prompt or output: x = x > 0 ? x / repetition : x * repetition;
//   x -= frequency * (times generated); if generated: x -= presence
// (Keskar et al. 2019, section 4.1, for repetition; the OpenAI API reference for the other two; the order of vLLM.)
//
// logits, adjusted: float32 [L][stride]; a line without bias and penalties is not copied, its readers take the logits.
// bias: uint32 [slots][MAX_BIAS][2] (id, float), ids unique; counts: uint32 [slots][vocab]; partials: top_logprobs_scan.
// best: uint32 [L][chunks][2] (greatest y, its id). Grid: x = chunk of LOCAL * QUADS * 4, y = line of logits.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#include "buffers.glsl"
#include "logits.glsl"

layout(constant_id = 0) const uint LOCAL = 64;
layout(constant_id = 1) const uint QUADS = 4;
layout(constant_id = 2) const uint FAN = 8;
layout(constant_id = 3) const uint MAX_BIAS = 512;
layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
    Floats4 logits;
    Words rows;
    Words logit_rows;
    Words params;
    Words bias;
    Words counts;
    Words4 partials;
    Floats4 adjusted;
    Words best;
    uint vocab;
    uint stride;  // in floats, multiple of 4
};

const uint CHUNK = LOCAL * QUADS * 4, GROUPS = LOCAL / FAN;
shared float added[CHUNK], value[LOCAL];
shared uint which[LOCAL];

void main() {
    const uint line = gl_WorkGroupID.y, lane = gl_LocalInvocationIndex;
    const uint row = logit_rows.v[line], part = line * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (row == NONE || (rows.v[row * ROW_WORDS + ROW_FLAGS] & ACTIVE) == 0) return;
    const uint slot = rows.v[row * ROW_WORDS + ROW_SLOT], p = slot * PARAM_WORDS;
    if ((params.v[p + P_FLAGS] & FLAG_ADJUSTS) == 0) {
        if (lane < 2) best.v[part * 2 + lane] = partials.v[part][lane];
        return;
    }
    const float repetition = uintBitsToFloat(params.v[p + P_REPETITION]);
    const float presence = uintBitsToFloat(params.v[p + P_PRESENCE]);
    const float frequency = uintBitsToFloat(params.v[p + P_FREQUENCY]);
    const uint biases = params.v[p + P_N_BIAS], chunk_start = gl_WorkGroupID.x * CHUNK;
    for (uint i = lane; i < CHUNK; i += LOCAL) added[i] = 0.0;
    barrier();
    for (uint i = lane; i < biases; i += LOCAL) {
        const uint id = bias.v[(slot * MAX_BIAS + i) * 2];
        if (id >= chunk_start && id < chunk_start + CHUNK)
            added[id - chunk_start] = uintBitsToFloat(bias.v[(slot * MAX_BIAS + i) * 2 + 1]);
    }
    barrier();
    float m = NEGATIVE_INFINITY;
    uint id = chunk_start + lane * 4 < vocab ? chunk_start + lane * 4 : NONE;
    for (uint q = 0; q < QUADS; q++) {
        const uint in_chunk = (q * LOCAL + lane) * 4, i = chunk_start + in_chunk;
        const vec4 x = logits.v[(line * stride + min(i, stride - 4)) / 4];
        vec4 y;
        for (uint e = 0; e < 4; e++) {
            float v = i + e < vocab ? x[e] + added[in_chunk + e] : NEGATIVE_INFINITY;
            const uint seen = counts.v[slot * vocab + min(i + e, vocab - 1)], times = seen & GENERATED;
            if (seen != 0) v = v > 0.0 ? v / repetition : v * repetition;
            v -= frequency * float(times);
            if (times > 0) v -= presence;
            if (v > m) m = v, id = i + e;
            y[e] = v;
        }
        if (i < stride) adjusted.v[(line * stride + i) / 4] = y;
    }
    value[lane] = m;
    which[lane] = id;
    barrier();
    if (lane < GROUPS)
        for (uint i = 1; i < FAN; i++) {
            const uint j = lane + i * GROUPS;
            if (before(value[j], which[j], m, id)) m = value[j], id = which[j];
        }
    barrier();
    if (lane < GROUPS) value[lane] = m, which[lane] = id;
    barrier();
    if (lane != 0) return;
    for (uint j = 1; j < GROUPS; j++)
        if (before(value[j], which[j], m, id)) m = value[j], id = which[j];
    best.v[part * 2] = floatBitsToUint(m);
    best.v[part * 2 + 1] = id;
}
