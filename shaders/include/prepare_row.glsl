// One row of float32 activations rounded to int8 by the workgroup that multiplies it: codes and scales in shared memory, as
// quantize_q8.comp makes them in ROW_ORDER; with NORM of x * gain, and what the sums must then be multiplied with. Needs
// SOURCE_WIDTH (k rounded up to 32, or 0: nothing to do), NORM, GATHER, LOCAL and the push constants x, k, x_stride, gain,
// logit_rows and eps. With GATHER the row is logit_rows[0], and zeros for none.
const bool HERE = SOURCE_WIDTH > 0;
shared uvec4 codes[HERE ? SOURCE_WIDTH / 16 : 1];
shared vec2 code_scales[HERE ? SOURCE_WIDTH / 32 : 1];
shared float squares_of[HERE ? LOCAL : 1];  // a subgroup

int byte4(ivec4 q) { return (q.x & 255) | ((q.y & 255) << 8) | ((q.z & 255) << 16) | (q.w << 24); }

// The codes of four neighbouring elements in `order`, the scale of their block of 32 and the sum of its codes. The 8
// invocations of a block are neighbours, and all of them are here.
int round_quad(vec4 a, uint order, out float d, out int sum) {
    float top = max(max(abs(a.x), abs(a.y)), max(abs(a.z), abs(a.w)));
    [[unroll]] for (uint step = 1; step < 8; step *= 2) top = max(top, subgroupShuffleXor(top, step));
    d = top / 127.0;
    const ivec4 q = ivec4(roundEven(top > 0.0 ? a / d : vec4(0.0)));
    sum = q.x + q.y + q.z + q.w;
    [[unroll]] for (uint step = 1; step < 8; step *= 2) sum += subgroupShuffleXor(sum, step);
    const int word = byte4(q);
    if (order == 0) return word;
    const bool lower = (gl_LocalInvocationIndex & 1) == 0;  // of each 8 elements the even ones, then the odd
    const int other = subgroupShuffleXor(word, 1u), low = lower ? word : other, high = lower ? other : word;
    return lower ? (low & 255) | ((low >> 8) & 0xFF00) | ((high & 255) << 16) | (((high >> 16) & 255) << 24)
                 : ((low >> 8) & 255) | ((low >> 16) & 0xFF00) | (((high >> 8) & 255) << 16) | (((high >> 24) & 255) << 24);
}

void prepare_row() {
    uint from = 0;
    bool real = true;
    if (GATHER) {
        from = logit_rows.v[0];
        real = from != 0xFFFFFFFFu;
        from = real ? from * (x_stride / 4) : 0;
    }
    float squares = 0.0;
    for (uint first = 0; first < SOURCE_WIDTH / 4; first += LOCAL) {  // 8 neighbours share a block
        const uint i = first + gl_LocalInvocationIndex, own = i % 8;
        vec4 a = real && i < k / 4 ? Floats4(x).v[from + i] : vec4(0.0);
        if (NORM) {
            squares += dot(a, a);
            if (i < k / 4) a *= gain.v[i];
        }
        float d;
        int sum;
        const int word = round_quad(a, ROW_ORDER, d, sum);
        if (i < SOURCE_WIDTH / 4) {
            codes[i / 4][i % 4] = uint(word);
            if (own == 0) code_scales[i / 8] = vec2(d, d * float(sum));
        }
    }
    if (NORM) {
        const float mine = subgroupAdd(squares);
        if (subgroupElect()) squares_of[gl_SubgroupID] = mine;
    }
    barrier();
}

// With OUT, SWIGLU leaves its row rounded for the mat-vec behind it: a workgroup's groups follow each other, their results
// gather in `gated`, and finish_row writes codes in order OUT - 1 to y and scales to `table`, of which no other epilogue than
// ROPE_KV has a use (128 bytes hold no pointer more), from element `first` of `width`.
#define GROUP(turn) (OUT > 0 ? gl_WorkGroupID.x * REPEAT + (turn) : gl_WorkGroupID.x + (turn) * gl_NumWorkGroups.x)
const uint GATED = TILES * TILE / 2;
shared float gated[OUT > 0 ? GATED * REPEAT : 1];

void finish_row(uint first, uint width) {
    barrier();
    for (uint from = 0; from < GATED * REPEAT / 4; from += LOCAL) {
        const uint i = from + gl_LocalInvocationIndex;
        vec4 a = vec4(0.0);
        if (i < GATED * REPEAT / 4) a = vec4(gated[i * 4], gated[i * 4 + 1], gated[i * 4 + 2], gated[i * 4 + 3]);
        float d;
        int sum;
        const int word = round_quad(a, OUT - 1, d, sum);
        if (i < GATED * REPEAT / 4 && first + i * 4 < width) {
            Words(y).v[first / 4 + i] = uint(word);
            if (i % 8 == 0) table.v[(first + i * 4) / 32] = vec2(d, d * float(sum));
        }
    }
}

// 1 / sqrt(mean(x^2) + eps), behind a barrier.
float norm_factor() {
    float squares = 0.0;
    for (uint i = 0; i < gl_NumSubgroups; i++) squares += squares_of[i];
    return 1.0 / sqrt(squares / float(k) + eps);
}
