// Four neighbouring elements of a row, element 4 * quad first: into float32 y [rows][stride], or with `tiled` (1 + ORDER,
// ORDER 0 or 1) into the float16 tiles of tile_f16.comp, `stride` columns wide.
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Quads { uvec2 v[]; };

void store_quad(Floats4 y, uint r, uint quad, uint stride, uint tiled, vec4 a) {
    if (tiled == 0) {
        y.v[r * (stride / 4) + quad] = a;
        return;
    }
    const uint at = ((r / 16) * ((stride + 15) / 16) + quad / 4) * 64 + (r % 16) * 4 + quad % 4;
    Quads(y).v[at] = tiled == 2 ? uvec2(packHalf2x16(a.xz), packHalf2x16(a.yw)) : uvec2(packHalf2x16(a.xy), packHalf2x16(a.zw));
}

#if defined(INT8_TILES)
// The same four elements into the int8 tiles of int8_tiles.glsl, `width` elements a row, in `order`. The 8 invocations that
// have a block of 32 are neighbours, and all of them are here.
layout(buffer_reference, std430, buffer_reference_align = 2) buffer Halves { uint16_t v[]; };

void store_int8(Words codes, Halves scales, Halves sums_to, bool with_sums, uint r, uint quad, uint width, uint order, vec4 a) {
    uint greatest = magnitude(a);
    [[unroll]] for (uint step = 1; step < 8; step *= 2) greatest = max(greatest, subgroupShuffleXor(greatest, step));
    const uint h = scale_bits(greatest), own = quad % 8, at = r / 16 * (width / 32) + quad / 8;
    ivec4 q = ivec4(0);
    if (h != 0u && h != NOT_A_HALF) q = nearest4(a, from_half(h), 1.0 / from_half(h));
    int sum = q.x + q.y + q.z + q.w;
    [[unroll]] for (uint step = 1; step < 8; step *= 2) sum += subgroupShuffleXor(sum, step);
    uint word = bytes4(q);
    if (order == 1) {
        const uint other = subgroupShuffleXor(word, 1u), low = (own & 1) == 0 ? word : other, high = (own & 1) == 0 ? other : word;
        word = (own & 1) == 0
            ? (low & 255u) | ((low >> 8) & 0xFF00u) | ((high & 255u) << 16) | (((high >> 16) & 255u) << 24)
            : ((low >> 8) & 255u) | ((low >> 16) & 0xFF00u) | (((high >> 8) & 255u) << 16) | ((high >> 24) << 24);
    }
    codes.v[at * 128 + (r % 16) * 8 + own] = word;
    if (own == 0) {
        scales.v[at * 16 + r % 16] = uint16_t(h);
        if (with_sums) {
            const uvec2 halves = sum_bits(h, sum);
            sums_to.v[at * 32 + r % 16] = uint16_t(halves.x);
            sums_to.v[at * 32 + 16 + r % 16] = uint16_t(halves.y);
        }
    }
}
#endif
