// count_prompt: counts[slot][token] |= bit 31 for every row that is ACTIVE and a PROMPT row.
//
// rows: uint32 [R][8]; counts: uint32 [slots][vocab]. Grid: x = rows in groups of LOCAL.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#include "buffers.glsl"
#include "logits.glsl"

layout(constant_id = 0) const uint LOCAL = 64;
layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
    Words rows;
    Words counts;
    uint count;  // rows
    uint vocab;
};

void main() {
    const uint row = gl_GlobalInvocationID.x;
    if (row >= count) return;
    const uint flags = rows.v[row * ROW_WORDS + ROW_FLAGS], token = rows.v[row * ROW_WORDS + ROW_TOKEN];
    if ((flags & (ACTIVE | PROMPT)) == (ACTIVE | PROMPT) && token < vocab)
        atomicOr(counts.v[rows.v[row * ROW_WORDS + ROW_SLOT] * vocab + token], SEEN_IN_PROMPT);
}
