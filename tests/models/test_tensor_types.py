"""Tensor types: the table equals ggml's, the dequantisers are bit-equal to the reference ones."""

import gguf
import numpy as np
import pytest

from labkit.models.tensor_types import TENSOR_TYPES, runnable_types, tensor_type


def test_codes_and_block_sizes_are_those_of_ggml() -> None:
    theirs = {(int(kind), kind.name, *gguf.GGML_QUANT_SIZES[kind]) for kind in gguf.GGMLQuantizationType}
    ours = {(kind.code, kind.name, kind.block, kind.block_bytes) for kind in TENSOR_TYPES.values()}
    assert theirs <= ours


@pytest.mark.quick
@pytest.mark.parametrize("name", runnable_types())
def test_dequantised_values_are_bit_equal_to_the_reference(name: str) -> None:
    kind = tensor_type(name)
    raw = np.random.default_rng(1).integers(
        0, 256, (257, kind.block_bytes * 3), dtype=np.uint8
    )  # NaN and inf among them
    ours = kind.dequantise(raw)
    with np.errstate(invalid="ignore", over="ignore"):
        theirs = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])
    assert ours.dtype == np.float32
    assert ours.shape == (257, kind.block * 3)
    both_nan = np.isnan(ours) & np.isnan(theirs)
    assert ((ours.view(np.uint32) == theirs.view(np.uint32)) | both_nan).all()


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1", "F16", "BF16"])
def test_dequantised_values_come_close_to_what_was_quantised(name: str) -> None:
    values = np.random.default_rng(2).standard_normal((8, 256), dtype=np.float32)
    stored = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name]).view(np.uint8)
    error = tensor_type(name).dequantise(stored) - values
    # relative errors of normal data, from ggml's own quantisers: Q8_0 .0054, Q4_1 .078, Q4_0 .086
    bound = {"Q8_0": 0.006, "Q4_0": 0.09, "Q4_1": 0.082, "F16": 3e-4, "BF16": 2.5e-3}[name]
    assert np.sqrt((error**2).mean() / (values**2).mean()) < bound


def test_a_known_type_that_is_not_run_has_no_dequantiser() -> None:
    kind = tensor_type("Q3_K")
    assert (kind.block, kind.block_bytes, kind.runnable, kind.bits_per_weight) == (256, 110, False, 3.4375)
    with pytest.raises(ValueError, match="Q3_K"):
        kind.dequantise(np.zeros((1, 110), np.uint8))
    assert runnable_types() == ["F32", "F16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "BF16"]
