// sample_draw: one draw from softmax(y / temperature) over y >= threshold, by the Gumbel-max trick, chunk by chunk.
//
//   score(id) = (y - max) / temperature - log(E), E = -log(1 - u) exponential, u = (h + 0.5) / 2^32,
//   h = hash(seed, position, id); the greatest score is drawn (Gumbel 1954; Maddison, Tarlow and Minka 2014, section 2).
// h depends on nothing else, so a draw is the same in any row, beside any neighbours, at any batch width.
//
// adjusted: float32 [L][stride]; limits: uint32 [L][2]; drawn: uint32 [L][chunks][2] (score, id).
// Grid: x = chunk of LOCAL * QUADS * 4, y = line of logits.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#include "buffers.glsl"
#include "logits.glsl"

layout(constant_id = 0) const uint LOCAL = 64;
layout(constant_id = 1) const uint QUADS = 4;
layout(constant_id = 2) const uint FAN = 8;
layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
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

// The 32-bit finaliser lowbias32 (C. Wellons, "Prospecting for hash functions", 2018).
uint mix32(uint h) {
    h = (h ^ (h >> 16)) * 0x7FEB352Du;
    h = (h ^ (h >> 15)) * 0x846CA68Bu;
    return h ^ (h >> 16);
}

// -log of a standard exponential from 32 random bits; exact to the last bits where u is small, which is where draws win.
float gumbel(uint h) {
    const float u = (float(h) + 0.5) * exp2(-32.0);
    const float small = u * (1.0 + u * (0.5 + u * (1.0 / 3.0 + u * 0.25)));
    return -log(u < 0.0078125 ? small : -log(max(1.0 - u, exp2(-33.0))));
}

void main() {
    const uint line = gl_WorkGroupID.y, lane = gl_LocalInvocationIndex;
    const uint row = logit_rows.v[line];
    if (row == NONE || (rows.v[row * ROW_WORDS + ROW_FLAGS] & ACTIVE) == 0) return;
    const uint p = rows.v[row * ROW_WORDS + ROW_SLOT] * PARAM_WORDS;
    const float temperature = uintBitsToFloat(params.v[p + P_TEMPERATURE]);
    if (temperature == 0.0) return;
    const uint to = (line * gl_NumWorkGroups.x + gl_WorkGroupID.x) * 2;
    const float limit = uintBitsToFloat(limits.v[line * 2]), m = uintBitsToFloat(limits.v[line * 2 + 1]);
    if (!(uintBitsToFloat(best.v[to]) >= limit)) {  // nothing of this chunk may be drawn
        if (lane == 0) drawn.v[to] = floatBitsToUint(NEGATIVE_INFINITY), drawn.v[to + 1] = NONE;
        return;
    }
    const uint key = mix32(mix32(mix32(params.v[p + P_SEED_LO]) + params.v[p + P_SEED_HI]) + rows.v[row * ROW_WORDS + ROW_POSITION]);
    const uint key2 = mix32(key ^ 0x9E3779B9u);
    const float cold = 1.0 / temperature;
    float s = NEGATIVE_INFINITY;
    uint id = NONE;
    for (uint q = 0; q < QUADS; q++) {
        const uint i = gl_WorkGroupID.x * CHUNK + (q * LOCAL + lane) * 4;
        if (i >= stride) break;
        const vec4 y = adjusted.v[(line * stride + i) / 4];
        for (uint e = 0; e < 4; e++) {
            const float score = (y[e] - m) * cold + gumbel(mix32(mix32((i + e) ^ key) + key2));
            if (y[e] >= limit && score > s) s = score, id = i + e;
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
