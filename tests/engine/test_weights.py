"""Weights on their way to the device: piece by piece, the same bits, in little memory of the host's."""

import tracemalloc

import numpy as np
import pytest
from tiny_models import TINY

from labkit.engine.weights import ResidentWeights
from labkit.models.model import Model
from labkit.ops import linear
from labkit.ops.weights import interleave, pack
from labkit.vulkan.memory import staging


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0", "Q4_1", "Q4_K"])
@pytest.mark.parametrize(("n", "most"), [(16, 1), (37, 1), (100, 5000), (100, 1 << 30)])
def test_a_matrix_in_pieces_is_the_matrix_as_a_whole(device, kind, n, most):
    rng, row_bytes = np.random.default_rng(0), {"F32": 1024, "BF16": 512, "Q8_0": 272, "Q4_1": 160, "Q4_K": 144}[kind]
    rows = rng.integers(0, 256, (n, row_bytes), dtype=np.uint8)
    whole = pack(rows, kind, 256)
    with device.pool("pieces") as pool:
        made = linear.stream(pool, lambda start, stop: rows[start:stop], n, 256, kind, "x", most)
        assert (made.layout, made.n, made.k) == (whole.layout, n, 256)
        assert np.array_equal(made.codes.download(), whole.codes)
        assert (made.scales is None) == (whole.scales is None)
        if made.scales is not None:
            assert np.array_equal(made.scales.download(), whole.scales)
        pool.check_guards()


@pytest.mark.parametrize("name", ["mistral-folder", "llama-q4_1.gguf", "odd-q8_0.gguf"])
def test_joined_matrices_hold_their_tensors_rows_in_order(device, monkeypatch, name):
    monkeypatch.setattr(
        linear.stream, "__defaults__", ("", 4000)
    )  # pieces that begin inside one tensor and end in the next
    model = Model(TINY / name)
    weights = ResidentWeights(model, device)

    def rows(tensor: str) -> np.ndarray:
        return model.raw(tensor).reshape(model.tensors[tensor].shape[0], -1)

    qkv, pair = [f"blk.1.attn_{p}.weight" for p in "qkv"], ("blk.1.ffn_gate.weight", "blk.1.ffn_up.weight")
    for names, content in (
        (qkv, np.concatenate([rows(n) for n in qkv])), (pair, interleave(*(rows(n) for n in pair))),
    ):  # fmt: skip
        first = model.tensors[names[0]]
        [matrix] = weights.matrices(*names)
        assert np.array_equal(matrix.codes.download(), pack(content, first.type.name, first.shape[1]).codes)
    weights.pool.check_guards()
    weights.pool.close()


def test_loading_takes_less_of_the_host_than_one_large_tensor(device):
    """Gate and up of 32 MB each, side by side: what the loader allocates beside the staging ring is a few pieces."""
    staging(device)  # allocated once a device, and not the loader's

    def take(start: int, stop: int) -> np.ndarray:
        return interleave(*(np.zeros(((stop - start) // 2, 4096), np.uint8) for _ in range(2)))

    with device.pool("large") as pool:
        tracemalloc.start()
        linear.stream(pool, take, 16384, 1024, "F32")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert linear.PIECE < peak < 24 << 20
