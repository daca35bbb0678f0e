// Weights as float16 for matrix units, from any layout (weights.glsl, weights_k.glsl): a run is 32 elements of a row.
// fetch32 only loads, so that the next run's loads are in flight while the last is multiplied; unpack32 does the
// arithmetic. Both take the row in its tile (0 to 15).
//
// Half-word j of 8 elements holds element ORDER[j], as tile_f16.comp stores activations:
//   ORDER 0 (f16, bf16)  0 1 2 3 4 5 6 7    ORDER 1 (q8)  0 2 1 3 4 6 5 7    ORDER 2 (all others)  0 4 1 5 2 6 3 7
//
// bfloat16 beyond what float16 holds becomes +-65504, and what is below 2^-24 zero.
// Codes become 1024 + code by their bits; the scale (and minimum) is rounded to float16, and so is the product. The
// shader enables GL_EXT_shader_explicit_arithmetic_types_float16 and GL_EXT_control_flow_attributes.
#if defined(WEIGHT_K)
#include "weights_k.glsl"
#else
#include "weights.glsl"
#endif

struct Run {
#if defined(WEIGHT_Q6K)
    uvec4 q;
    uvec2 top;
    uint scales, d, block;
#elif defined(WEIGHT_Q5K)
    uvec4 q, scales;
    uint fifth, block;
#elif defined(WEIGHT_Q4K)
    uvec4 q, scales;
    uint block;  // of the super-block
#elif defined(WEIGHT_Q4)
    uvec4 q;
    uint scale;
#elif defined(WEIGHT_Q8)
    uvec4 q[2];
    uint scale;
#elif defined(WEIGHT_F16) || defined(WEIGHT_BF16)
    uvec4 q[4];
#else
    uvec4 q[8];
#endif
};

// Run `run` of row `row` of row tile `tile`, of rows of k elements (runs behind their end must not be asked for).
Run fetch32(Words4 w, Words scales, uint tile, uint row, uint run, uint k) {
    Run r;
#if defined(WEIGHT_K)
    const uint unit = tile * (k / 256) + run / 8, block = run % 8;
    r.q = w.v[unit * (UNIT / 4) + block * TILE + row];
    r.block = block;
#if defined(WEIGHT_Q6K)
    const uint top = unit * UNIT + 512 + ((block / 4 * 2 + block % 2) * TILE + row) * 4 + block % 4 / 2 * 2;
    r.top = uvec2(Words(w).v[top], Words(w).v[top + 1]);
    r.scales = scales.v[unit * 72 + row * 4 + block % 2 * 2 + block / 4];
    r.d = scales.v[unit * 72 + 64 + row / 2];
#else
    r.scales = Words4(scales).v[unit * TILE + row];
#if defined(WEIGHT_Q5K)
    r.fifth = Words(w).v[unit * UNIT + 512 + (block % 2 * TILE + row) * 4 + block / 2];
#endif
#endif
#elif defined(WEIGHT_Q4) || defined(WEIGHT_Q8)
    const uint at = (tile * ((k + 31) / 32) + run) * TILE + row;
#if defined(WEIGHT_Q4)
    r.q = w.v[at];
#else
    r.q[0] = w.v[at * 2];
    r.q[1] = w.v[at * 2 + 1];
#endif
#if defined(WEIGHT_MIN)
    r.scale = scales.v[at];
#else
    r.scale = scales.v[at / 2];
#endif
#else
    const uint blocks = (k + 15) / 16, count = r.q.length() / 2;
    [[unroll]] for (uint half_ = 0; half_ < 2; half_++) {
        const uint block = run * 2 + half_, at = ((tile * blocks + min(block, blocks - 1)) * TILE + row) * count;
        [[unroll]] for (uint i = 0; i < count; i++) r.q[half_ * count + i] = block < blocks ? w.v[at + i] : uvec4(0);
    }
#endif
    return r;
}

// A run of zeros: what lies behind a row's end.
Run zeros32() {
    Run r;
#if defined(WEIGHT_Q6K)
    r.q = uvec4(0);
    r.top = uvec2(0);
    r.scales = r.d = r.block = 0;
#elif defined(WEIGHT_K)
    r.q = r.scales = uvec4(0);
    r.block = 0;
#if defined(WEIGHT_Q5K)
    r.fifth = 0;
#endif
#elif defined(WEIGHT_Q4)
    r.q = uvec4(0);
    r.scale = 0;
#else
    [[unroll]] for (uint i = 0; i < r.q.length(); i++) r.q[i] = uvec4(0);
#if defined(WEIGHT_Q8)
    r.scale = 0;
#endif
#endif
    return r;
}

#if defined(WEIGHT_BF16)
// Eight bfloat16 as float16, in their order.
uvec4 bf16_halves(uvec4 q) {
    uvec4 made;
    [[unroll]] for (uint e = 0; e < 4; e++) {
        const vec2 pair = uintBitsToFloat(uvec2(q[e] << 16, q[e] & 0xFFFF0000u));
        made[e] = packHalf2x16(clamp(pair, vec2(-65504.0), vec2(65504.0)));
    }
    return made;
}
#endif

// What scales a run's codes: d[0] for its first 16 elements, d[1] for the others; m is added.
struct RunScale { f16vec2 d[2], m; };

RunScale scale32(Run r, uint row) {
    RunScale s;
#if defined(WEIGHT_Q6K)
    const vec2 pair = unpackHalf2x16(r.d);
    const float d = (row & 1) == 0 ? pair.x : pair.y;
    const int word = int(r.scales << (16 - 16 * (r.block / 2 % 2)));
    s.d[0] = f16vec2(float16_t(d * float((word << 8) >> 24)));
    s.d[1] = f16vec2(float16_t(d * float(word >> 24)));
    s.m = f16vec2(0.0hf);
#elif defined(WEIGHT_K)
    const Scale own = decode_scale(r.scales, r.block);
    s.d[0] = s.d[1] = f16vec2(float16_t(own.d));
    s.m = f16vec2(float16_t(own.m));
#elif defined(WEIGHT_MIN)
    const f16vec2 pair = unpackFloat2x16(r.scale);
    s.d[0] = s.d[1] = pair.xx;
    s.m = pair.yy;
#elif defined(WEIGHT_Q4) || defined(WEIGHT_Q8)
    const f16vec2 pair = unpackFloat2x16(r.scale);
    s.d[0] = s.d[1] = (row & 1) == 0 ? pair.xx : pair.yy;
    s.m = f16vec2(0.0hf);
#endif
    return s;
}

// Elements 8i to 8i + 7 of a run in ORDER.
uvec4 unpack8(Run r, RunScale s, uint i) {
    uvec4 made;
#if defined(WEIGHT_K) || defined(WEIGHT_Q4)
    [[unroll]] for (uint e = 0; e < 4; e++) {  // elements e and e + 4
        const uint low = (r.q[i] >> (4 * e)) & 0x000F000Fu;
#if defined(WEIGHT_Q6K)
        const uint at = 8 * (e / 2) + 4 * (i % 2) + 2 * (e % 2), top = r.top[i / 2];
        const uint code = (low | ((at < 4 ? top << (4 - at) : top >> (at - 4)) & 0x00300030u) | 0x64006400u) ^ 0x00200020u;
        made[e] = packFloat2x16((unpackFloat2x16(code) - f16vec2(1056.0hf)) * s.d[i / 2]);
#elif defined(WEIGHT_Q5K)
        const uint at = 8 * (e / 2) + 2 * i + e % 2;
        const uint code = low | ((at < 4 ? r.fifth << (4 - at) : r.fifth >> (at - 4)) & 0x00100010u) | 0x64006400u;
        made[e] = packFloat2x16((unpackFloat2x16(code) - f16vec2(1024.0hf)) * s.d[0] + s.m);
#elif defined(WEIGHT_Q4K) || defined(WEIGHT_MIN)
        made[e] = packFloat2x16((unpackFloat2x16(low | 0x64006400u) - f16vec2(1024.0hf)) * s.d[0] + s.m);
#else
        made[e] = packFloat2x16((unpackFloat2x16(low | 0x64006400u) - f16vec2(1032.0hf)) * s.d[0]);
#endif
    }
#elif defined(WEIGHT_Q8)
    [[unroll]] for (uint e = 0; e < 4; e++) {
        const uint word = r.q[i / 2][i % 2 * 2 + e / 2] ^ 0x80808080u;
        const uint code = ((word >> (8 * (e % 2))) & 0x00FF00FFu) | 0x64006400u;  // 1152 + code
        made[e] = packFloat2x16((unpackFloat2x16(code) - f16vec2(1152.0hf)) * s.d[0]);
    }
#elif defined(WEIGHT_F16)
    made = r.q[i];
#elif defined(WEIGHT_BF16)
    made = bf16_halves(r.q[i]);
#else
    const uvec4 a = r.q[2 * i], b = r.q[2 * i + 1];
    [[unroll]] for (uint e = 0; e < 4; e++) made[e] = packHalf2x16(vec2(uintBitsToFloat(a[e]), uintBitsToFloat(b[e])));
#endif
    return made;
}

// All 32 elements of a run, 8 a word of four.
void unpack32(Run r, uint row, out uvec4 halves[4]) {
    const RunScale s = scale32(r, row);
    [[unroll]] for (uint i = 0; i < 4; i++) halves[i] = unpack8(r, s, i);
}
