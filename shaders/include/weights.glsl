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

// The words that hold 8 elements of a row, and element `i` of them as a bare code: W = s.d * code + s.m. Used where the
// scale is applied once a block. With `masked`, 4-bit code i comes multiplied by 16^(i % 4): one mask and no shift; what
// it is multiplied with must carry 16^-(i % 4).
#if defined(WEIGHT_Q4)
struct Piece { uint a; };
Piece fetch8(Words w, uint at, uint row, uint piece) { return Piece(w.v[(at * TILE + row) * 4 + piece]); }
float code(Piece p, uint i, bool masked) {
    if (masked) return float(int((i < 4 ? p.a : p.a >> 16) & (15u << (4 * (i & 3)))));
    return float(int((p.a >> (4 * i)) & 15u));
}
#elif defined(WEIGHT_Q8)
struct Piece { int a, b; };
Piece fetch8(Words w, uint at, uint row, uint piece) {
    const uint base = (at * TILE + row) * 8 + piece * 2;
    return Piece(int(w.v[base]), int(w.v[base + 1]));
}
float code(Piece p, uint i, bool masked) { return float(((i < 4 ? p.a : p.b) << (24 - 8 * (i & 3))) >> 24); }
#elif defined(WEIGHT_F16) || defined(WEIGHT_BF16)
struct Piece { uint a, b, c, d; };
Piece fetch8(Words w, uint at, uint row, uint piece) {
    const uint base = (at * TILE + row) * 8 + piece * 4;
    return Piece(w.v[base], w.v[base + 1], w.v[base + 2], w.v[base + 3]);
}
float code(Piece p, uint i, bool masked) {
    const uint word = i < 2 ? p.a : i < 4 ? p.b : i < 6 ? p.c : p.d;
#if defined(WEIGHT_F16)
    const vec2 pair = unpackHalf2x16(word);
    return (i & 1) == 0 ? pair.x : pair.y;
#else
    return uintBitsToFloat((i & 1) == 0 ? word << 16 : word & 0xFFFF0000u);
#endif
}
#else
struct Piece { uint v[8]; };
Piece fetch8(Words w, uint at, uint row, uint piece) {
    const uint base = (at * TILE + row) * 16 + piece * 8;
    Piece p;
    for (uint i = 0; i < 8; i++) p.v[i] = w.v[base + i];
    return p;
}
float code(Piece p, uint i, bool masked) { return uintBitsToFloat(p.v[i]); }
#endif
