// linear_coopmat: linear on cooperative matrices: y[r][i] = sum over k of W[i][k] * x[r][k], float16 products, float32 sums.
//
//   EPILOGUE 0 STORE, 1 ADD (residual, in place), 2 SWIGLU (rows of W interleave gate and up), as in linear.comp
//
// W: [n][k] in resident tiles (include/weights.glsl). x: float16 in tiles [rows / 16][k / 16][16][16] (tile_f16.comp, with
// the order of elements that the weights unpack to). y: float32 [rows][y_stride], rows a multiple of 16.
// A subgroup owns FR * CM rows of W and FC * CN rows of x. A workgroup is SR * SC of these side by side, each SK times
// over: SK subgroups take turns along K and their sums are added in fixed order. float16 weights are loaded straight from
// their tiles; quantised ones are unpacked to float16 in a subgroup's own shared memory.
// Grid: x = rows of W in groups of SR * FR * CM, y = rows of x in groups of SC * FC * CN.
//
// variant f16: -DWEIGHT_F16
// variant q8: -DWEIGHT_Q8
// variant q4: -DWEIGHT_Q4
// variant q4m: -DWEIGHT_Q4 -DWEIGHT_MIN
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#include "buffers.glsl"
#include "weights.glsl"

layout(constant_id = 0) const uint CM = 16;
layout(constant_id = 1) const uint CN = 16;
layout(constant_id = 2) const uint CK = 16;
layout(constant_id = 3) const uint FR = 1;
layout(constant_id = 4) const uint FC = 1;
layout(constant_id = 5) const uint SR = 1;
layout(constant_id = 6) const uint SC = 1;
layout(constant_id = 7) const uint SK = 1;
layout(constant_id = 8) const uint EPILOGUE = 0;
layout(constant_id = 9) const uint UNROLL = 1;    // blocks of K whose loads are in flight at once (float16 weights)
layout(constant_id = 10) const bool WHOLE = true;  // n is a multiple of CM
layout(constant_id = 11) const uint SUBGROUP = 32;
layout(constant_id = 12) const uint LOCAL = 32;    // SR * SC * SK * SUBGROUP
layout(local_size_x_id = 12, local_size_y = 1, local_size_z = 1) in;

layout(push_constant, std430) uniform Push {
    Words4 w;
    Words scales;
    Words4 x;
    Floats y;
    uint rows;
    uint n;
    uint k;
    uint y_stride;
};

const uint SUBGROUPS = SR * SC * SK;
const uint ROWS = FR * CM;                 // of W, a subgroup
const uint TILES = (ROWS + TILE - 1) / TILE;
const uint PAD = BLOCK / 8 + 1;            // uvec4s a row of unpacked weights takes
shared float stage[SUBGROUPS * CM * CN];
#if defined(WEIGHT_Q4) || defined(WEIGHT_Q8)
shared uvec4 unpacked[SUBGROUPS * TILES * TILE * PAD];
#endif

#if defined(WEIGHT_Q4) || defined(WEIGHT_Q8)
// Unpack the block at `block` of the subgroup's row tiles into its shared memory.
void unpack(uint sg, uint first_tile, uint last_tile, uint blocks, uint block) {
#if defined(WEIGHT_Q4)
    const uint PER_ROW = 1;
#else
    const uint PER_ROW = 2;
#endif
    for (uint i = gl_SubgroupInvocationID; i < TILES * TILE * PER_ROW; i += SUBGROUP) {
        const uint t = i / (TILE * PER_ROW), own = i / PER_ROW % TILE, piece = i % PER_ROW;
        const uint tile = min(first_tile + t, last_tile) * blocks + block;
        const uvec4 q = w.v[(tile * TILE + own) * PER_ROW + piece];
        const Scale s = load_scale(scales, tile, own);
        const f16vec2 d = f16vec2(float16_t(s.d));
        const uint to = ((sg * TILES + t) * TILE + own) * PAD;
#if defined(WEIGHT_Q4)
        [[unroll]] for (uint j = 0; j < 4; j++) {
            uvec4 made;
            [[unroll]] for (uint e = 0; e < 4; e++) {
                const f16vec2 code = unpackFloat2x16(((q[j] >> (4 * e)) & 0x000F000Fu) | 0x64006400u);  // 1024 + code
#if defined(WEIGHT_MIN)
                made[e] = packFloat2x16((code - f16vec2(1024.0hf)) * d + f16vec2(float16_t(s.m)));
#else
                made[e] = packFloat2x16((code - f16vec2(1032.0hf)) * d);
#endif
            }
            unpacked[to + j] = made;
        }
#else
        [[unroll]] for (uint j = 0; j < 2; j++) {
            uvec4 made;
            [[unroll]] for (uint e = 0; e < 4; e++) {
                const uint word = q[2 * j + e / 2] ^ 0x80808080u;
                const f16vec2 code = unpackFloat2x16(((word >> (8 * (e % 2))) & 0x00FF00FFu) | 0x64006400u);  // 1152 + code
                made[e] = packFloat2x16((code - f16vec2(1152.0hf)) * d);
            }
            unpacked[to + piece * 2 + j] = made;
        }
#endif
    }
    subgroupMemoryBarrierShared();
    subgroupBarrier();
}
#endif

void main() {
    const uint sg = gl_SubgroupID, sk = sg % SK, sr = sg / SK % SR, sc = sg / (SK * SR);
    const uint blocks = (k + BLOCK - 1) / BLOCK, last_tile = (n + TILE - 1) / TILE - 1;
    const uint row0 = (gl_WorkGroupID.x * SR + sr) * ROWS, col0 = (gl_WorkGroupID.y * SC + sc) * FC * CN;
    const uint ktiles = (k + 15) / 16;
    const uint last_col = rows - CN;
    coopmat<float, gl_ScopeSubgroup, CM, CN, gl_MatrixUseAccumulator> acc[FR * FC];
    [[unroll]] for (uint f = 0; f < FR * FC; f++) acc[f] = coopmat<float, gl_ScopeSubgroup, CM, CN, gl_MatrixUseAccumulator>(0.0);
#if defined(WEIGHT_Q4) || defined(WEIGHT_Q8)
    for (uint turn = 0; turn < blocks; turn += SK) {  // as many turns for every subgroup: some drivers wait for all
        const uint b = turn + sk;
        unpack(sg, row0 / TILE, last_tile, blocks, min(b, blocks - 1));
        if (b < blocks) [[unroll]] for (uint kk = 0; kk < BLOCK; kk += CK) {
            coopmat<float16_t, gl_ScopeSubgroup, CM, CK, gl_MatrixUseA> a[FR];
            [[unroll]] for (uint i = 0; i < FR; i++)
                coopMatLoad(a[i], unpacked, (sg * TILES * TILE + row0 % TILE + i * CM) * PAD + kk / 8, PAD, gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint j = 0; j < FC; j++) {
                const uint col = min(col0 + j * CN, last_col), at = b * BLOCK + kk;
                coopmat<float16_t, gl_ScopeSubgroup, CK, CN, gl_MatrixUseB> e;
                coopMatLoad(e, x.v, ((col / 16) * ktiles + at / 16) * 32 + (col % 16) * 2 + (at % 16) / 8, 2,
                            gl_CooperativeMatrixLayoutColumnMajor);
                [[unroll]] for (uint i = 0; i < FR; i++) acc[i * FC + j] = coopMatMulAdd(a[i], e, acc[i * FC + j]);
            }
        }
        subgroupBarrier();
    }
#else
    const uint PARTS = 16 / CK;
    for (uint b = sk; b < blocks; b += SK * UNROLL) {
        coopmat<float16_t, gl_ScopeSubgroup, CM, CK, gl_MatrixUseA> a[UNROLL * PARTS * FR];
        coopmat<float16_t, gl_ScopeSubgroup, CK, CN, gl_MatrixUseB> e[UNROLL * PARTS * FC];
        [[unroll]] for (uint u = 0; u < UNROLL * PARTS; u++) {
            const uint block = min(b + u / PARTS * SK, blocks - 1), kk = u % PARTS * CK;
            [[unroll]] for (uint i = 0; i < FR; i++) {
                const uint row = row0 + i * CM, tile = min(row / TILE, last_tile) * blocks + block;
                coopMatLoad(a[u * FR + i], w.v, tile * 32 + (row % TILE) * 2 + kk / 8, 2, gl_CooperativeMatrixLayoutRowMajor);
            }
        }
        [[unroll]] for (uint u = 0; u < UNROLL * PARTS; u++) {
            const uint block = min(b + u / PARTS * SK, blocks - 1), kk = u % PARTS * CK;
            [[unroll]] for (uint j = 0; j < FC; j++) {
                const uint col = min(col0 + j * CN, last_col);
                coopMatLoad(e[u * FC + j], x.v, ((col / 16) * ktiles + block) * 32 + (col % 16) * 2 + kk / 8, 2,
                            gl_CooperativeMatrixLayoutColumnMajor);
            }
        }
        [[unroll]] for (uint u = 0; u < UNROLL * PARTS; u++) {
            if (b + u / PARTS * SK >= blocks) break;
            [[unroll]] for (uint j = 0; j < FC; j++)
                [[unroll]] for (uint i = 0; i < FR; i++)
                    acc[i * FC + j] = coopMatMulAdd(a[u * FR + i], e[u * FC + j], acc[i * FC + j]);
        }
    }
#endif
    if (SK == 1 && EPILOGUE == 0 && WHOLE) {
        [[unroll]] for (uint i = 0; i < FR; i++)
            [[unroll]] for (uint j = 0; j < FC; j++) {
                const uint row = row0 + i * CM, col = col0 + j * CN;
                if (row < n && col < rows)
                    coopMatStore(acc[i * FC + j], y.v, col * y_stride + row, y_stride, gl_CooperativeMatrixLayoutColumnMajor);
            }
        return;
    }
    const uint own = (sg - sk) * CM * CN;  // the stages of the SK subgroups that share these rows
    [[unroll]] for (uint i = 0; i < FR; i++)
        [[unroll]] for (uint j = 0; j < FC; j++) {
            coopMatStore(acc[i * FC + j], stage, sg * CM * CN, CM, gl_CooperativeMatrixLayoutColumnMajor);
            barrier();
            const uint step = EPILOGUE == 2 ? 2 : 1;
            for (uint item = sk * SUBGROUP + gl_SubgroupInvocationID; item < CM * CN / step; item += SK * SUBGROUP) {
                const uint at = item * step, row = row0 + i * CM + at % CM, col = col0 + j * CN + at / CM;
                float total = 0.0, other = 0.0;
                for (uint p = 0; p < SK; p++) {
                    total += stage[own + p * CM * CN + at];
                    if (EPILOGUE == 2) other += stage[own + p * CM * CN + at + 1];
                }
                if (row >= n || col >= rows) continue;
                if (EPILOGUE == 2) y.v[col * y_stride + row / 2] = total / (1.0 + exp(-total)) * other;
                else if (EPILOGUE == 1) y.v[col * y_stride + row] += total;
                else y.v[col * y_stride + row] = total;
            }
            barrier();
        }
}
