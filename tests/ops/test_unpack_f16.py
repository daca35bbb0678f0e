"""Weights unpacked to float16 for matrix units, in every layout: each element in its place, rounded and no more."""

import gguf
import numpy as np
import pytest
from k_blocks import K_TYPES, random_rows

from labkit.ops.linear import upload
from labkit.ops.weights import pack
from labkit.vulkan.kernel import Kernel
from labkit.vulkan.toolchain import find_compiler

pytestmark = pytest.mark.skipif(
    find_compiler(pinned=False) is None, reason="no GLSL compiler is on this machine: `lab shaders --fetch-compiler`"
)

KERNEL = """#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
%s
#include "buffers.glsl"
#include "unpack_f16.glsl"
layout(local_size_x = 16) in;
layout(push_constant, std430) uniform Push { Words4 w; Words scales; Words4 y; uint k; };
void main() {  // grid: x = run, y = row tile
    const uint row = gl_LocalInvocationIndex, run = gl_WorkGroupID.x, tile = gl_WorkGroupID.y;
    uvec4 halves[4];
    unpack32(fetch32(w, scales, tile, row, run, k), row, halves);
    for (uint i = 0; i < 4; i++) y.v[((tile * 16 + row) * gl_NumWorkGroups.x + run) * 4 + i] = halves[i];
}
"""
DEFINES = {
    "f32": ["WEIGHT_F32"], "f16": ["WEIGHT_F16"], "bf16": ["WEIGHT_BF16"], "q8": ["WEIGHT_Q8"], "q4": ["WEIGHT_Q4"],
    "q4m": ["WEIGHT_Q4", "WEIGHT_MIN"], "q4k": ["WEIGHT_K", "WEIGHT_Q4K"], "q5k": ["WEIGHT_K", "WEIGHT_Q5K"],
    "q6k": ["WEIGHT_K", "WEIGHT_Q6K"],
}  # fmt: skip
ORDER = {"f16": [*range(8)], "bf16": [*range(8)], "q8": [0, 2, 1, 3, 4, 6, 5, 7]}  # element of each half-word
OTHERS = [0, 4, 1, 5, 2, 6, 3, 7]


def made(n: int, k: int, kind: str) -> np.ndarray:
    if kind in K_TYPES:
        return random_rows(n, k, kind)
    data = np.random.default_rng(0).standard_normal((n, k)).astype(np.float32)
    return np.ascontiguousarray(gguf.quantize(data, gguf.GGMLQuantizationType[kind])).view(np.uint8).reshape(n, -1)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", *K_TYPES])
@pytest.mark.parametrize(("n", "k"), [(37, 768), (16, 272)])
def test_every_element_is_in_its_place_and_rounded_to_float16(device, kind, n, k):
    if not device.has("fp16"):
        pytest.skip(f"{device.name} has no float16 arithmetic")
    block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0]
    k -= k % block
    rows = made(n, k, kind)
    want = gguf.dequantize(rows, gguf.GGMLQuantizationType[kind]).astype(np.float32).reshape(n, k)
    packed, runs = pack(rows, kind, k), -(-k // 32)
    text = KERNEL % "\n".join(f"#define {name}" for name in DEFINES[packed.layout])
    with device.pool() as pool:
        matrix, target = upload(pool, packed), pool.buffer(-(-n // 16) * 16 * runs * 64)
        program = device.program()
        program.dispatch(
            Kernel(device, text, name=f"unpack {kind}"),
            (runs, -(-n // 16)),
            {"w": matrix.codes, "scales": matrix.scales or matrix.codes, "y": target, "k": k},
            reads=[matrix.codes, *([matrix.scales] if matrix.scales else [])],
            writes=[target],
        )
        program.run()
        pool.check_guards()
        halves = target.download(np.float16, (-(-n // 16) * 16, runs * 4, 8))
        program.close()
    got = np.empty_like(halves)
    got[..., ORDER.get(packed.layout, OTHERS)] = halves
    values = got.reshape(len(got), -1).astype(np.float32)
    assert not values[n:].any()
    assert not values[:, k:].any()
    # scale, minimum, product and sum are rounded by half a unit in the last place each, of the largest they meet
    runs_of_16 = want.reshape(n, -1, 16)
    errors = np.abs(values[:n, :k].reshape(runs_of_16.shape) - runs_of_16)
    assert (errors <= 2**-9 * np.abs(runs_of_16).max(axis=-1, keepdims=True) + 1e-6).all()
