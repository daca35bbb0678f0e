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
