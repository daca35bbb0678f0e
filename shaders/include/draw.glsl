// The randomness of a draw: a hash of (seed, position, token id) and nothing else, so that a draw is the same in any row,
// beside any neighbours, at any batch width.

// The 32-bit finaliser lowbias32 (C. Wellons, "Prospecting for hash functions", 2018).
uint mix32(uint h) {
    h = (h ^ (h >> 16)) * 0x7FEB352Du;
    h = (h ^ (h >> 15)) * 0x846CA68Bu;
    return h ^ (h >> 16);
}

// The two keys of a slot's draw at a position, and the 32 random bits of a token under them.
uvec2 draw_keys(uint seed_lo, uint seed_hi, uint position) {
    const uint key = mix32(mix32(mix32(seed_lo) + seed_hi) + position);
    return uvec2(key, mix32(key ^ 0x9E3779B9u));
}
uint draw_bits(uvec2 keys, uint id) { return mix32(mix32(id ^ keys.x) + keys.y); }

// -log(E) with E = -log(1 - u) exponential and u = (h + 0.5) / 2^32: a Gumbel variable. The series holds log(1 - u) to
// its last bits where u is small, which is where draws are won.
float gumbel(uint h) {
    const float u = (float(h) + 0.5) * exp2(-32.0);
    const float series = u * (1.0 + u * (0.5 + u * (1.0 / 3.0 + u * 0.25)));
    return -log(u < 0.0078125 ? series : -log(max(1.0 - u, exp2(-33.0))));
}
