// Resident weight tiles. A matrix W[n][k] is cut into tiles of 16 rows by BLOCK columns, stored [row tile][k block],
// both edges padded with zeros; inside a tile each row's BLOCK elements lie together, so that 16 invocations that own
// a row each read one contiguous piece, and a cooperative matrix loads the tile with a stride of BLOCK.
//
//   f32, f16, bf16   BLOCK 16: 64, 32, 32 bytes a row, no scales
//   q8               BLOCK 32: 32 int8 a row; scales: float16 d, [tile][block][16]                 x = d * q
//   q4               BLOCK 32: 32 nibbles a row, element e in bits 4(e%8) of word e/8; float16 d   x = d * (q - 8)
//   q4 with minimum  the same; scales: float16 pair (d, m) a row                                    x = d * q + m
const uint TILE = 16;
#if defined(WEIGHT_Q8) || defined(WEIGHT_Q4)
const uint BLOCK = 32;
#else
const uint BLOCK = 16;
#endif
const uint PIECES = BLOCK / 8;

struct Scale { float d, m; };

// The scale (and minimum) of row `row` of the tile at block index `at`.
Scale load_scale(Words scales, uint at, uint row) {
#if defined(WEIGHT_MIN)
    const vec2 pair = unpackHalf2x16(scales.v[at * TILE + row]);
    return Scale(pair.x, pair.y);
#elif defined(WEIGHT_Q4) || defined(WEIGHT_Q8)
    const vec2 pair = unpackHalf2x16(scales.v[(at * TILE + row) / 2]);
    const float d = (row & 1) == 0 ? pair.x : pair.y;
    return Scale(d, -8.0 * d);
#else
    return Scale(1.0, 0.0);
#endif
}

// Elements 8 * piece to 8 * piece + 7 of row `row` of the tile at `at`, dequantised.
void load8(Words w, uint at, uint row, uint piece, Scale s, out vec4 lo, out vec4 hi) {
#if defined(WEIGHT_Q4)
    const uint q = w.v[(at * TILE + row) * 4 + piece];
    lo = fma(vec4(q & 15u, (q >> 4) & 15u, (q >> 8) & 15u, (q >> 12) & 15u), vec4(s.d), vec4(s.m));
    hi = fma(vec4((q >> 16) & 15u, (q >> 20) & 15u, (q >> 24) & 15u, q >> 28), vec4(s.d), vec4(s.m));
#elif defined(WEIGHT_Q8)
    const uint base = (at * TILE + row) * 8 + piece * 2;
    const int a = int(w.v[base]), b = int(w.v[base + 1]);
    lo = s.d * vec4((a << 24) >> 24, (a << 16) >> 24, (a << 8) >> 24, a >> 24);
    hi = s.d * vec4((b << 24) >> 24, (b << 16) >> 24, (b << 8) >> 24, b >> 24);
#elif defined(WEIGHT_F16)
    const uint base = (at * TILE + row) * 8 + piece * 4;
    lo = vec4(unpackHalf2x16(w.v[base]), unpackHalf2x16(w.v[base + 1]));
    hi = vec4(unpackHalf2x16(w.v[base + 2]), unpackHalf2x16(w.v[base + 3]));
#elif defined(WEIGHT_BF16)
    const uint base = (at * TILE + row) * 8 + piece * 4;
    const uvec4 q = uvec4(w.v[base], w.v[base + 1], w.v[base + 2], w.v[base + 3]);
    lo = uintBitsToFloat(uvec4(q.x << 16, q.x & 0xFFFF0000u, q.y << 16, q.y & 0xFFFF0000u));
    hi = uintBitsToFloat(uvec4(q.z << 16, q.z & 0xFFFF0000u, q.w << 16, q.w & 0xFFFF0000u));
#else
    const uint base = (at * TILE + row) * 16 + piece * 8;
    lo = uintBitsToFloat(uvec4(w.v[base], w.v[base + 1], w.v[base + 2], w.v[base + 3]));
    hi = uintBitsToFloat(uvec4(w.v[base + 4], w.v[base + 5], w.v[base + 6], w.v[base + 7]));
#endif
}

// The same 8 elements as bare codes: W = s.d * code + s.m. Used where the scale is applied once a block.
// With `masked`, 4-bit code e comes multiplied by 16^(e % 4): one mask and no shift; x must carry 16^-(e % 4).
void codes8(Words w, uint at, uint row, uint piece, bool masked, out vec4 lo, out vec4 hi) {
#if defined(WEIGHT_Q4)
    const int q = int(w.v[(at * TILE + row) * 4 + piece]), p = (q >> 16) & 0xFFFF;
    if (masked) {
        lo = vec4(q & 0xF, q & 0xF0, q & 0xF00, q & 0xF000);
        hi = vec4(p & 0xF, p & 0xF0, p & 0xF00, p & 0xF000);
    } else {
        lo = vec4(q & 15, (q >> 4) & 15, (q >> 8) & 15, (q >> 12) & 15);
        hi = vec4(p & 15, (p >> 4) & 15, (p >> 8) & 15, p >> 12);
    }
#elif defined(WEIGHT_Q8)
    const uint base = (at * TILE + row) * 8 + piece * 2;
    const int a = int(w.v[base]), b = int(w.v[base + 1]);
    lo = vec4((a << 24) >> 24, (a << 16) >> 24, (a << 8) >> 24, a >> 24);
    hi = vec4((b << 24) >> 24, (b << 16) >> 24, (b << 8) >> 24, b >> 24);
#else
    load8(w, at, row, piece, Scale(1.0, 0.0), lo, hi);
#endif
}
