// Resident weight tiles of K-quants: super-blocks of 256 elements, eight blocks of 32. A matrix W[n][k] is cut into tiles
// of 16 rows by 256 columns, stored [row tile][super-block], the last row tile padded with zeros. Blocks go by parity
// where they are many: in a team of 32 invocations the first 16 own a row's even blocks, the others its odd ones.
//
//   q4k   codes 2048 bytes: [8 blocks][16 rows][16 bytes]: element e of a block in bits 4(e%8) of word e/8
//         scales 256 bytes: [16 rows][4 words], SCALES below                   x = (d * scale) * code - d_min * minimum
//   q5k   codes 2560 bytes: as q4k, then fifth bits [parity][16 rows][4 words]: bit 8b + 2i + p of word j is bit 4 of
//         element 8i + 2b + p of block 2j + parity;  scales as q4k
//   q6k   codes 3072 bytes: as q4k, then top bits [2 pairs][parity][16 rows][4 words]: bits 8b + 4i + 2p of word 2j + g
//         are bits 4 and 5 of element 16g + 8i + 2b + p of block 4 pair + 2j + parity, the upper one flipped
//         scales 288 bytes: [16 rows][parity][4 blocks][2] int8, one for 16 elements; then float16 d [16 rows]
//                                                                              x = (d * scale) * (code - 32)
// SCALES: d and d_min as float16; three words of six-bit scales and minima, byte j for blocks 2j (even) and 2j + 1 (odd):
//   word 1: scale of the even block, and above it two high bits of the odd one's; word 2: the minima, likewise;
//   word 3: four low bits of the odd block's scale, above them those of its minimum.
const uint TILE = 16;
#if defined(WEIGHT_Q6K)
const uint BLOCK = 16;  // elements with a scale of their own
const uint UNIT = 768;  // words of codes a tile of a super-block takes
#elif defined(WEIGHT_Q5K)
const uint BLOCK = 32, UNIT = 640;
#else
const uint BLOCK = 32, UNIT = 512;
#endif
const uint PIECES = BLOCK / 8;

struct Scale { float d, m; };

#if !defined(WEIGHT_Q6K)
// Scale and minimum of block `block` (modulo 8) from a row's SCALES.
Scale decode_scale(uvec4 words, uint block) {
    const vec2 pair = unpackHalf2x16(words.x);
    const uint shift = block % 8 / 2 * 8, scale = words.y >> shift, minimum = words.z >> shift, low = words.w >> shift;
    if ((block & 1) == 0) return Scale(pair.x * float(scale & 63), -(pair.y * float(minimum & 63)));
    return Scale(pair.x * float((low & 15) | ((scale >> 2) & 48)), -(pair.y * float(((low >> 4) & 15) | ((minimum >> 2) & 48))));
}
#endif

// The scale and minimum of row `row` of the tile at block index `at`: W = d * code + m.
Scale load_scale(Words scales, uint at, uint row) {
#if defined(WEIGHT_Q6K)
    const uint base = at / 16 * 72, block = at % 16 / 2, byte = block / 2 * 2 + at % 2;
    const int word = int(scales.v[base + row * 4 + (block % 2) * 2 + byte / 4]);
    const vec2 pair = unpackHalf2x16(scales.v[base + 64 + row / 2]);
    const float d = ((row & 1) == 0 ? pair.x : pair.y) * float((word << (24 - 8 * (byte % 4))) >> 24);
    return Scale(d, -32.0 * d);
#else
    const uint base = (at / 8 * TILE + row) * 4;
    return decode_scale(uvec4(scales.v[base], scales.v[base + 1], scales.v[base + 2], scales.v[base + 3]), at);
#endif
}

// The words that hold 8 elements of a row, and element `i` of them as a bare code: W = s.d * code + s.m. With `masked`,
// code i comes multiplied by a power of two, one mask and no shift: 16^(i % 4) of 4-bit codes, 256^(i / 2) of wider ones;
// what it is multiplied with must carry the inverse, UNMASK(i).
#if defined(WEIGHT_Q4K)
#define UNMASK(i) exp2(-4.0 * float((i) & 3))
struct Piece { uint a; };
Piece fetch8(Words w, uint at, uint row, uint piece) { return Piece(w.v[(at * TILE + row) * 4 + piece]); }
float code(Piece p, uint i, bool masked) {
    if (masked) return float(int((i < 4 ? p.a : p.a >> 16) & (15u << (4 * (i & 3)))));
    return float(int((p.a >> (4 * i)) & 15u));
}
#else
#define UNMASK(i) exp2(-8.0 * float(((i) & 7) / 2))
struct Piece { uint even, odd; };  // a byte an element
Piece fetch8(Words w, uint at, uint row, uint piece) {
#if defined(WEIGHT_Q5K)
    const uint unit = at / 8 * UNIT, block = at % 8;
    const uint high = w.v[unit + 512 + ((block % 2) * TILE + row) * 4 + block / 2] >> (2 * piece);
    const uint even = (high & 0x01010101u) << 4, odd = (high & 0x02020202u) << 3;
#else
    const uint unit = at / 16 * UNIT, block = at % 16 / 2, half_ = at % 2;
    const uint group = block / 4 * 2 + block % 2;
    const uint high = (w.v[unit + 512 + (group * TILE + row) * 4 + block % 4 / 2 * 2 + half_] >> (4 * piece)) ^ 0x0A0A0A0Au;
    const uint even = (high & 0x03030303u) << 4, odd = (high & 0x0C0C0C0Cu) << 2;
    piece += half_ * 2;
#endif
    const uint low = w.v[unit + (block * TILE + row) * 4 + piece];
    return Piece((low & 0x0F0F0F0Fu) | even, ((low >> 4) & 0x0F0F0F0Fu) | odd);
}
float code(Piece p, uint i, bool masked) {
    const uint word = (i & 1) == 0 ? p.even : p.odd;
    if (masked) return float(int(word & (63u << (8 * (i / 2)))));
    return float(int((word >> (8 * (i / 2))) & 63u));
}
#endif

// Elements 8 * piece to 8 * piece + 7 of row `row` of the tile at `at`, dequantised.
void load8(Words w, uint at, uint row, uint piece, Scale s, out vec4 lo, out vec4 hi) {
    const Piece p = fetch8(w, at, row, piece);
    lo = fma(vec4(code(p, 0, false), code(p, 1, false), code(p, 2, false), code(p, 3, false)), vec4(s.d), vec4(s.m));
    hi = fma(vec4(code(p, 4, false), code(p, 5, false), code(p, 6, false), code(p, 7, false)), vec4(s.d), vec4(s.m));
}
