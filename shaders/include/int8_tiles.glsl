// Activations as int8 in the tiles that linear_int8.comp reads, in blocks of 32 elements of a row, and sums made of them.
//
//   h = the least float16 with 127 h >= 64 max |x| of the block;  q = x / (h / 64), to the nearest, ties to even
//   codes   [row tile][block][16 rows][32 bytes], ORDER 0: byte j of word w is element 4w + j; 1 (4-bit weights): of each
//           8 elements the even ones, then the odd
//   scales  float16 h [row tile][block][16 rows]
//   sums    float16 [row tile][block][2][16 rows]: S = h / 64 * sum of q, its first 11 bits, and 11 of what is left
//
// Rows behind the last, to a whole tile, are read and what comes of them is not used: they may be anything.
//
// Every step is exact or decided by an exact comparison, so that all devices agree. A block of less than 2^-31 is zeros;
// one with a value that is not finite, or over 65504 * 127 / 64, has a NaN for h, and S over 65504 is infinite.

// The float of a positive float16, by its bits, and the greatest float16 not over a positive float below 2^17.
float from_half(uint bits) {
    return bits < 0x400u ? float(bits) * exp2(-24.0) : uintBitsToFloat((bits << 13) + (112u << 23));
}
uint down_to_half(float x) {
    return x < exp2(-14.0) ? uint(x * exp2(24.0)) : (floatBitsToUint(x) - (112u << 23)) >> 13;
}

// The magnitude of x as a whole number: orders as magnitudes do, infinities and NaNs above all.
uint magnitude(float x) { return floatBitsToUint(x) & 0x7FFFFFFFu; }
uint magnitude(vec4 x) {
    return max(max(magnitude(x.x), magnitude(x.y)), max(magnitude(x.z), magnitude(x.w)));
}

const uint NOT_A_HALF = 0x7E00u;

// The bits of h, of the greatest magnitude in a block.
uint scale_bits(uint top) {
    if (top <= 0x30000000u) return 0u;            // 2^-31
    if (top > 0x47FDE040u) return NOT_A_HALF;     // 65504 * 127 / 64
    const float t = uintBitsToFloat(top) * 64.0;  // times 127 is exact, of a float16
    uint bits = down_to_half(t * (1.0 / 127.0));
    if (bits > 0u && from_half(bits - 1u) * 127.0 >= t) bits--;
    if (from_half(bits) * 127.0 < t) bits++;
    if (from_half(bits) * 127.0 < t) bits++;
    return bits;
}

// The whole number nearest to x / h, ties to even, for 1 / h within a few units of its last place.
float nearest(float x, float h, float inverse) {
    const float q = roundEven(x * inverse), rest = x - q * h, off = abs(rest) - 0.5 * h;  // exact: rest has few bits
    return off > 0.0 || (off == 0.0 && (int(q) & 1) != 0) ? q + sign(rest) : q;
}
ivec4 nearest4(vec4 x, float h, float inverse) {
    x *= 64.0;
    return ivec4(nearest(x.x, h, inverse), nearest(x.y, h, inverse), nearest(x.z, h, inverse), nearest(x.w, h, inverse));
}

uint bytes4(ivec4 q) {
    return uint((q.x & 255) | ((q.y & 255) << 8) | ((q.z & 255) << 16) | (q.w << 24));
}

// Codes of elements a, b of a block with scale h: two words in order, and their sum.
uvec2 codes8(vec4 a, vec4 b, uint h, uint order, out int sum) {
    sum = 0;
    if (h == 0u || h == NOT_A_HALF) return uvec2(0);
    const float scale = from_half(h), inverse = 1.0 / scale;
    const ivec4 p = nearest4(a, scale, inverse), q = nearest4(b, scale, inverse);
    sum = p.x + p.y + p.z + p.w + q.x + q.y + q.z + q.w;
    if (order == 1u) return uvec2(bytes4(ivec4(p.xz, q.xz)), bytes4(ivec4(p.yw, q.yw)));
    return uvec2(bytes4(p), bytes4(q));
}

// The two float16 of S, for the sum of a block's codes.
uvec2 sum_bits(uint h, int sum) {
    if (h == NOT_A_HALF) return uvec2(NOT_A_HALF);
    const float s = from_half(h) * float(abs(sum)) * (1.0 / 64.0);  // 11 bits times 12: exact
    const uint sign_bit = sum < 0 ? 0x8000u : 0u;
    if (s > 65504.0) return uvec2(0x7C00u | sign_bit, 0u);
    const uint high = down_to_half(s);
    return uvec2(high, down_to_half(s - from_half(high))) | sign_bit;
}
