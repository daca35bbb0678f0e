// Fragments of 16x8x16 float16 products that an invocation builds out of words it has in registers. As mma.sync lays them
// out, lane g * 4 + t of 32 has, two a word: of A [16][16], rows g and g + 8 (r) in columns 2t and 2t + 8 (c), word 2r + c;
// of B [16][8], column g in the same rows, word c. In which order a driver numbers its components differs: A_OF and B_OF,
// 4 bits a pair of components, say which word each pair is (coopmat_layout.py).
//
// SUMS is the accumulator. With EMULATED, for tests where no device has such matrices, 32 invocations play a subgroup and
// hand their words around in shared memory; LOCAL of them are a workgroup. Loops stay loops there: compilers for CPUs take
// very long over hundreds of barriers.
#if defined(EMULATED)
#define EACH [[dont_unroll]]
#define LANE (gl_LocalInvocationIndex % 32)
#define SUBGROUP_ID (gl_LocalInvocationIndex / 32)
#define A_TYPE uvec4
#define B_TYPE uvec2
#define SUMS vec4
shared uvec4 emulated_a[LOCAL];
shared uvec2 emulated_b[LOCAL];

// c of lane g * 4 + t: rows g (first two) and g + 8, columns 2t and 2t + 1.
vec4 multiplied(uvec4 a, uvec2 b, vec4 c) {
    const uint base = SUBGROUP_ID * 32;
    emulated_a[gl_LocalInvocationIndex] = a;
    emulated_b[gl_LocalInvocationIndex] = b;
    barrier();
    EACH for (uint o = 0; o < 4; o++) {
        const uint row = base + LANE / 4 * 4, col = base + (LANE % 4 * 2 + o % 2) * 4;
        EACH for (uint t = 0; t < 4; t++)
            EACH for (uint h = 0; h < 2; h++)
                c[o] += dot(unpackHalf2x16(emulated_a[row + t][o / 2 * 2 + h]), unpackHalf2x16(emulated_b[col + t][h]));
    }
    barrier();
    return c;
}

#define MULTIPLY(acc, a, b) acc = multiplied(a, b, acc);
#define STORE_SUMS(acc, to, at)                   \
    [[unroll]] for (uint o_ = 0; o_ < 4; o_++)    \
        to[(at) + (LANE % 4 * 2 + o_ % 2) * 16 + LANE / 4 + o_ / 2 * 8] = acc[o_];
#define MAKE_A(to, words) to = words;
#define MAKE_B(to, words) to = words;
#else
#define EACH [[unroll]]
#define LANE gl_SubgroupInvocationID
#define SUBGROUP_ID gl_SubgroupID
#define A_TYPE coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define B_TYPE coopmat<float16_t, gl_ScopeSubgroup, 16, 8, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, 16, 8, gl_MatrixUseAccumulator>
#define MULTIPLY(acc, a, b) acc = coopMatMulAdd(a, b, acc);
#define STORE_SUMS(acc, to, at) coopMatStore(acc, to, at, 16, gl_CooperativeMatrixLayoutColumnMajor);
#define MAKE_PAIRS(to, words, count, order, mask)                                    \
    [[unroll]] for (uint p_ = 0; p_ < count; p_++) {                                 \
        const f16vec2 pair_ = unpackFloat2x16((words)[(order >> (4 * p_)) & mask]);  \
        to[2 * p_] = pair_.x;                                                        \
        to[2 * p_ + 1] = pair_.y;                                                    \
    }
#define MAKE_A(to, words) MAKE_PAIRS(to, words, 4, A_OF, 3u)
#define MAKE_B(to, words) MAKE_PAIRS(to, words, 2, B_OF, 1u)
#endif
