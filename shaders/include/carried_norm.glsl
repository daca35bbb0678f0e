// A norm carried by two products: the one that finishes the residual h leaves it as float16 tiles of h * gain and sums of its
// squares, the one that reads the tiles multiplies its sums with 1 / sqrt(mean(h^2) + eps). Nothing runs in between.
//
// So that the tiles stay within float16 whatever h grows to, they hold h * gain * f', f' the factor of the norm before; the
// reader takes f' out again. Beyond +-65504 they are clamped.
//
// carried: float32 f [2][CARRIED_ROWS], by turns of norms, then squares [width / CM][CARRIED_ROWS]: a sum for CM elements.
// Needs CM, SC, FC, CN, LOCAL and STAGED (floats the kernel stages), and the push constants y, table, cache_k, n, y_stride, carried, slot and eps. `slot` bit 0:
// whose turn; bit 1: this product is the first that reads the norm, and leaves its factor.
layout(constant_id = 27) const uint CARRY = 0;        // ADD: 1 + the ORDER of the tiles left; the pointers of ROPE_KV, which
                                                      // ADD has no use for, are then gain (table) and tiles (cache_k)
layout(constant_id = 28) const bool CARRIED = false;  // x is such tiles
layout(constant_id = 29) const uint CARRIED_ROWS = 8;  // of x, rounded up to 8: closely packed, every workgroup reads them
const uint CARRIED_COLS = SC * FC * CN;  // rows of x a workgroup takes
const uint SEGMENTS = LOCAL / CARRIED_COLS > 64 ? 64 : (LOCAL + CARRIED_COLS - 1) / CARRIED_COLS;
const uint AT_ONCE = 8;  // loads in flight: one after the other they would take longer than a norm
shared float stage[STAGED + (CARRIED ? (SEGMENTS + 1) * CARRIED_COLS : 0)];  // the kernel's own, then what follows
#define SEGMENT(item) stage[STAGED + (item)]
#define FACTOR(c) stage[STAGED + SEGMENTS * CARRIED_COLS + (c)]

// The squares of the workgroup's rows, SEGMENTS sums of each, and what the tiles were multiplied with.
void gather_squares(uint first_col, uint width) {
    for (uint item = gl_LocalInvocationIndex; item < SEGMENTS * CARRIED_COLS; item += LOCAL) {
        const uint r = min(first_col + item % CARRIED_COLS, CARRIED_ROWS - 1);
        float sum = 0.0;
        for (uint p = item / CARRIED_COLS; p < width / CM; p += SEGMENTS * AT_ONCE) {
            float part[AT_ONCE];
            [[unroll]] for (uint i = 0; i < AT_ONCE; i++)
                part[i] = carried.v[(2 + min(p + i * SEGMENTS, width / CM - 1)) * CARRIED_ROWS + r];
            [[unroll]] for (uint i = 0; i < AT_ONCE; i++) sum += p + i * SEGMENTS < width / CM ? part[i] : 0.0;
        }
        SEGMENT(item) = sum;
        if (item < CARRIED_COLS) FACTOR(item) = carried.v[((slot & 1) ^ 1) * CARRIED_ROWS + r];
    }
}

// What the sums of each row must be multiplied with. Behind it a barrier has to stand.
void settle_factors(uint first_col, uint rows_of_x, uint width) {
    barrier();
    for (uint c = gl_LocalInvocationIndex; c < CARRIED_COLS; c += LOCAL) {
        float total = 0.0;
        [[unroll]] for (uint s = 0; s < SEGMENTS; s++) total += SEGMENT(s * CARRIED_COLS + c);
        const float factor = 1.0 / sqrt(total / float(width) + eps);
        if ((slot & 2) != 0 && gl_WorkGroupID.x == 0 && first_col + c < rows_of_x) carried.v[(slot & 1) * CARRIED_ROWS + first_col + c] = factor;
        FACTOR(c) = factor / FACTOR(c);
    }
}

// ADD's FINISH: h = y + a, its tile element, and its square into `square`.
#define CARRY_ON(r, i, a, square)                                                                                       \
    {                                                                                                                   \
        const float h = y.v[(r) * y_stride + (i)] + (a);                                                                \
        y.v[(r) * y_stride + (i)] = h;                                                                                  \
        const float scaled = h * Floats(table).v[i] * carried.v[((slot & 1) ^ 1) * CARRIED_ROWS + (r)];                 \
        Halves(cache_k).v[tiled_at(r, i, n, CARRY - 1)] = float16_t(clamp(scaled, -65504.0, 65504.0));                  \
        square = h * h;                                                                                                 \
    }
