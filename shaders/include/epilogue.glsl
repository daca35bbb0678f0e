// What becomes of the finished sums of a matrix product: the last stage of the matrix kernels for GPUs.
//
//   STORE    y[r][i] = a
//   ADD      y[r][i] += a                            the residual, in place
//   SWIGLU   y[r][i / 2] = silu(a) * b               rows of W interleave gate and up: a is row i, b row i + 1
//   ROPE_KV  rows of W are the q, k and v heads: q and k turn in pairs (i, i + 1) by the position of row r (rope_kv.comp,
//            INTERLEAVED), q goes to y, k and v into the cache (kv_cache.glsl). Rows of x that are not ACTIVE go nowhere.
//
// y: float32 [rows][y_stride]; with TILED (SWIGLU only) float16 tiles as tile_f16.comp makes them, of n / 2 columns.
layout(constant_id = 20) const uint EPILOGUE = 0;
const uint STORE = 0, ADD = 1, SWIGLU = 2, ROPE_KV = 3;
const uint EACH_ROWS = EPILOGUE >= SWIGLU ? 2 : 1;  // rows of W that are finished together
layout(constant_id = 21) const uint HEADS = 1;
layout(constant_id = 22) const uint KV_HEADS = 1;
layout(constant_id = 23) const uint HEAD_DIM = 64;
layout(constant_id = 24) const uint ROPE_DIM = 64;
layout(constant_id = 25) const uint PAGE = 128;
layout(constant_id = 26) const bool KV_F32 = false;

layout(buffer_reference, std430, buffer_reference_align = 8) buffer Floats2 { vec2 v[]; };

// Push constants of ROPE_KV: the step's rows uint32 [R][8], angles float32 [context][ROPE_DIM / 2] (cos, sin), the cache.
// offset: what row 0 of W is among all rows of q, k and v.
#define EPILOGUE_PUSH  \
    Words row_words;   \
    Floats2 table;     \
    Words cache_k;     \
    Words cache_v;     \
    Words page_table;  \
    uint offset;       \
    uint pages_per_slot;

void store_cache(Words cache, uint pair, float a, float b) {
    if (KV_F32) {
        cache.v[pair * 2] = floatBitsToUint(a);
        cache.v[pair * 2 + 1] = floatBitsToUint(b);
    } else {
        cache.v[pair] = packHalf2x16(vec2(a, b));
    }
}

// Where float16 tiles (as tile_f16.comp, ORDER `order`) of `width` columns hold element i of row r, in halves.
uint tiled_at(uint r, uint i, uint width, uint order) {
    const uint e = i % 8;
    uint to = e;
    if (order == 1) to = (e & 4) | ((e & 1) << 1) | ((e >> 1) & 1);
    if (order == 2) to = (e & 3) * 2 + e / 4;
    return ((r / 16) * ((width + 15) / 16) + i / 16) * 256 + (r % 16) * 16 + (i % 16 - e) + to;
}

// SWIGLU into float16 tiles is the kernel's own business: it knows the type.
float swiglu(float gate, float up) { return gate / (1.0 + exp(-gate)) * up; }

// a: the sum of row i of W and row r of x; b: of row i + 1, with SWIGLU and ROPE_KV.
#define FINISH(r, i, a, b)                                                                                              \
    {                                                                                                                   \
        if (EPILOGUE == SWIGLU) y.v[(r) * y_stride + (i) / 2] = swiglu(a, b);                                           \
        else if (EPILOGUE == ROPE_KV) {                                                                                 \
            const uint row_slot = row_words.v[(r) * 8 + 1], position = row_words.v[(r) * 8 + 2];                        \
            const uint head = (offset + (i)) / HEAD_DIM, dimension = (offset + (i)) % HEAD_DIM;                         \
            if ((row_words.v[(r) * 8 + 3] & 1) != 0) {                                                                  \
                vec2 pair = vec2(a, b);                                                                                 \
                if (head < HEADS + KV_HEADS && dimension < ROPE_DIM) {                                                  \
                    const vec2 angle = table.v[position * (ROPE_DIM / 2) + dimension / 2];                              \
                    pair = vec2(pair.x * angle.x - pair.y * angle.y, pair.x * angle.y + pair.y * angle.x);              \
                }                                                                                                       \
                if (head < HEADS) {                                                                                     \
                    y.v[(r) * y_stride + (i)] = pair.x;                                                                 \
                    y.v[(r) * y_stride + (i) + 1] = pair.y;                                                             \
                } else {                                                                                                \
                    const uint page = page_table.v[row_slot * pages_per_slot + position / PAGE];                        \
                    const uint kv_head = (head - HEADS) % KV_HEADS;                                                     \
                    const uint to = ((page * KV_HEADS + kv_head) * PAGE + position % PAGE) * (HEAD_DIM / 2) + dimension / 2; \
                    if (head < HEADS + KV_HEADS) store_cache(cache_k, to, pair.x, pair.y);                              \
                    else store_cache(cache_v, to, pair.x, pair.y);                                                      \
                }                                                                                                       \
            }                                                                                                           \
        } else if (EPILOGUE == ADD) y.v[(r) * y_stride + (i)] += a;                                                     \
        else y.v[(r) * y_stride + (i)] = a;                                                                             \
    }
