// advance: ends a step. Each line's chosen token goes to the output ring and becomes its row's next input.
//
//   out[step % RING][line] = (token, log-probability, flags, slot); top_out[step % RING][line] = top[line];
//   counts[slot][token] += 1 (saturating); row: token, position + 1, remaining - 1; the row stops being ACTIVE when
//   nothing remains, at a stop id (unless its slot ignores them), or when its logits were not finite; step += 1.
// out flags: 1 the row was active, 2 it stopped at a stop id, 4 nothing remains, 8 its logits were not finite.
//
// chosen: uint32 [L][4]; top: uint32 [L][TOP][2]; out: uint32 [RING][L][4]; top_out: uint32 [RING][L][TOP][2];
// stops: uint32 [16], unused entries NONE; control: uint32 [1]: the step. Rows that no line names are left alone.
// Grid: one workgroup, so that the step is read by all before it is written.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#include "buffers.glsl"
#include "logits.glsl"

layout(constant_id = 0) const uint LOCAL = 64;
layout(constant_id = 1) const uint STOPS = 16;
layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
    Words chosen;
    Words rows;
    Words logit_rows;
    Words params;
    Words counts;
    Words stops;
    Words control;
    Words out_ring;
    Words top;
    Words top_ring;
    uint lines;
    uint vocab;
    uint ring;
    uint top_words;  // 2 * TOP, 0 for none
};

const uint LIVE = 1u, STOPPED = 2u, SPENT = 4u, NOT_FINITE = 8u;

void main() {
    const uint step = control.v[0], place = (step % ring) * lines;
    for (uint line = gl_LocalInvocationIndex; line < lines; line += LOCAL) {
        const uint token = chosen.v[line * 4], slot = chosen.v[line * 4 + 3];
        uint flags = chosen.v[line * 4 + 2];
        if ((flags & LIVE) != 0) {
            const uint row = logit_rows.v[line] * ROW_WORDS, remaining = max(rows.v[row + ROW_REMAINING], 1) - 1;
            if ((flags & NOT_FINITE) == 0) {
                const uint seen = counts.v[slot * vocab + token];
                if ((seen & GENERATED) != GENERATED) atomicAdd(counts.v[slot * vocab + token], 1);
                if ((params.v[slot * PARAM_WORDS + P_FLAGS] & FLAG_IGNORE_EOS) == 0)
                    for (uint i = 0; i < STOPS; i++)
                        if (stops.v[i] == token) flags |= STOPPED;
                if (remaining == 0) flags |= SPENT;
                rows.v[row + ROW_TOKEN] = token;
                rows.v[row + ROW_POSITION] += 1;
                rows.v[row + ROW_REMAINING] = remaining;
            }
            const uint over = (flags & (STOPPED | SPENT | NOT_FINITE)) != 0 ? ACTIVE : 0;
            rows.v[row + ROW_FLAGS] &= ~(over | PROMPT);
        }
        const uint to = (place + line) * 4;
        out_ring.v[to] = token;
        out_ring.v[to + 1] = chosen.v[line * 4 + 1];
        out_ring.v[to + 2] = flags;
        out_ring.v[to + 3] = slot;
    }
    for (uint i = gl_LocalInvocationIndex; i < lines * top_words; i += LOCAL) top_ring.v[place * top_words + i] = top.v[i];
    barrier();
    if (gl_LocalInvocationIndex == 0) control.v[0] = step + 1;
}
