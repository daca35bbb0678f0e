"""The embedding kernel against the dequantised rows themselves: a copy, so every bit must agree."""

import gguf
import numpy as np
import pytest

from labkit.errors import ModelError, ParameterError
from labkit.models.tensor_types import tensor_type
from labkit.ops.embedding import embedding, record, reference
from labkit.ops.linear import upload
from labkit.ops.rows import make_rows
from labkit.ops.weights import pack

TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"]


def table(n: int, k: int, kind: str, scale: float = 1.0) -> np.ndarray:
    """Random rows [n, k] in the file's blocks, as uint8 [n, bytes]."""
    data = (scale * np.random.default_rng(n).standard_normal((n, k))).astype(np.float32)
    quantised = gguf.quantize(data, gguf.GGMLQuantizationType[kind])
    return np.ascontiguousarray(quantised).view(np.uint8).reshape(n, -1)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("count", [1, 2, 5, 33])
@pytest.mark.parametrize(("n", "k"), [(1, 32), (37, 96), (257, 576)])
def test_every_bit_is_that_of_the_dequantised_row(device, kind, count, n, k):
    tokens = np.random.default_rng(count).integers(0, n, count)
    rows = table(n, k, kind)
    want = reference(tensor_type(kind).dequantise(rows), tokens)
    assert np.array_equal(embedding(device, tokens, rows, kind, k), want)


@pytest.mark.parametrize("kind", [*TYPES, "Q6_K"])
def test_a_scale_multiplies_each_element_once(device, kind):
    k = 256 if kind == "Q6_K" else 96
    rows = table(21, k, kind) if kind in TYPES else np.random.default_rng(1).integers(0, 60, (21, 210), dtype=np.uint8)
    want = reference(tensor_type(kind).dequantise(rows), np.arange(21), 25.298221)
    got = embedding(device, np.arange(21), rows, kind, k, scale=25.298221)
    np.testing.assert_allclose(got, want, rtol=3e-7)
    assert np.abs(want).max() > 0


@pytest.mark.parametrize("kind", TYPES)
def test_the_dequantised_rows_are_those_of_the_gguf_package(device, kind):
    rows = table(19, 64, kind)
    want = gguf.dequantize(rows, gguf.GGMLQuantizationType[kind]).astype(np.float32).reshape(19, 64)
    assert np.array_equal(embedding(device, np.arange(19), rows, kind, 64), want)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("k", [4, 12, 20, 100])
def test_rows_that_are_no_multiple_of_a_piece_end_where_they_should(device, kind, k):
    rows = table(9, k, kind)
    want = tensor_type(kind).dequantise(rows)
    assert np.array_equal(embedding(device, np.array([8, 0]), rows, kind, k), want[[8, 0]])


@pytest.mark.parametrize("kind", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("value", [0.0, -0.0, 6.1e-5, -65504.0, np.inf, -np.inf, np.nan])
def test_unusual_values_pass_through(device, kind, value):
    data = np.full((1, 32), value, np.float32)
    rows = np.ascontiguousarray(gguf.quantize(data, gguf.GGMLQuantizationType[kind])).view(np.uint8).reshape(1, -1)
    got = embedding(device, np.array([0]), rows, kind, 32)
    want = tensor_type(kind).dequantise(rows)
    assert np.array_equal(got, want, equal_nan=True)
    assert np.array_equal(np.signbit(got), np.signbit(want))


@pytest.mark.parametrize("kind", TYPES)
def test_a_token_outside_the_table_reads_its_last_row(device, kind):
    rows = table(21, 32, kind)
    with device.pool() as pool:
        matrix, x = upload(pool, pack(rows, kind, 32)), pool.buffer(2 * 32 * 4)
        described = pool.buffer(make_rows([0xFFFFFFFF, 3], [0, 0], [0, 0]))
        program = device.program()
        record(program, matrix, described, x, count=2, x_stride=32)
        program.run()
        pool.check_guards()
        assert np.array_equal(x.download(np.float32, (2, 32)), tensor_type(kind).dequantise(rows)[[20, 3]])


def test_wrong_arguments_are_refused_in_one_line(device):
    rows = table(5, 32, "F32")
    with pytest.raises(ParameterError, match="0 to 4"):
        embedding(device, np.array([5]), rows, "F32", 32)
    with pytest.raises(ModelError, match="no device layout"):
        embedding(device, np.array([0]), rows, "Q3_K", 32)
    with device.pool() as pool:
        matrix, x, described = (
            upload(pool, pack(rows, "F32", 32)),
            pool.buffer(128),
            pool.buffer(make_rows([0], [0], [0])),
        )
        with pytest.raises(ParameterError, match="x needs 256 bytes"):
            record(device.program(), matrix, described, x, count=2, x_stride=32)
        with pytest.raises(ParameterError, match="2 rows were asked for"):
            record(device.program(), matrix, described, pool.buffer(256), count=2, x_stride=32)
        with pytest.raises(ParameterError, match="multiples of 4"):
            record(device.program(), matrix, described, x, count=1, x_stride=33)
