"""Kinds of product kernels: each runs the kernel it names and is right, and one the device lacks says why."""

from typing import Any

import pytest

from labkit.errors import ParameterError
from labkit.measure.ops_bench.cases import Timed, Work, time_case
from labkit.measure.ops_bench.kinds import KINDS, cut_of
from labkit.measure.ops_bench.matrices import Shape, make_case, make_matrices
from labkit.models.shapes import ShapeModel
from labkit.models.tensor_types import tensor_type
from labkit.ops.linear_int8 import int8_shapes
from labkit.vulkan.device import Device


def timed(device: Device, kind: str, rows: int, quant: str = "Q4_0", epilogue: str = "store", k: int = 512) -> Timed:
    work = Work(ShapeModel("tiny", "q4_0"), device, (rows,), ())
    shape = Shape("matrix", 96, k, tensor_type(quant), epilogue)
    with device.pool("kind") as pool:
        matrices, base = make_matrices(work, pool, shape)
        first = matrices[0]
        cut = cut_of(kind, device, first.layout, rows, first.n, first.k, swiglu=epilogue == "swiglu")
        return time_case(device, make_case(work, pool, shape, matrices[:2], base, rows, cut), 1)


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize(("kind", "kernel"), [("float", "matvec."), ("integer-dot", "matvec_int8.")])
def test_a_mat_vec_over_float_or_integer_activations_runs_anywhere(
    kind: str, kernel: str, rows: int, device: Device
) -> None:
    found = timed(device, kind, rows)
    assert found.right, (found.error, found.limit)
    assert [name for name in found.kernels if name.startswith(kernel)], found.kernels
    assert (found.error > 1e-7) == (kind == "integer-dot"), "int8 activations cost accuracy, float32 ones none"


def test_the_engines_own_choice_is_a_kind(device: Device) -> None:
    assert timed(device, "engine", 4).right


def test_k_quants_have_integer_products_and_no_float_mat_vec(device: Device) -> None:
    found = timed(device, "integer-dot", 2, "Q4_K")
    assert found.right
    assert "matvec_k_int8" in found.kernels[0]
    with pytest.raises(ParameterError, match="int8 activations only"):
        timed(device, "float", 2, "Q4_K")


@pytest.mark.parametrize(
    ("kind", "quant", "k", "why"),
    [
        ("integer-dot", "F16", 512, "no integers"),
        ("matrices", "Q4_0", 512, "no cooperative matrices"),
        ("int8-matrices", "Q4_0", 512, "no int8 matrices"),
        ("gemm", "Q4_0", 512, "no staged tiles"),
        ("wmma", "Q4_0", 512, "there are engine, float"),
    ],
)
def test_a_kind_that_is_not_here_says_why(
    kind: str, quant: str, k: int, why: str, device: Device, monkeypatch: Any
) -> None:
    if kind in ("matrices", "int8-matrices", "gemm"):
        monkeypatch.setattr(Device, "coopmat_size", property(lambda self: 0))
        monkeypatch.setattr("labkit.ops.linear_int8.int8_shapes", lambda device: [])
    with pytest.raises(ParameterError, match=why):
        timed(device, kind, 2, quant, k=k)


@pytest.mark.parametrize("epilogue", ["store", "swiglu"])
@pytest.mark.parametrize(
    ("kind", "kernel"), [("matrices", "linear_coopmat"), ("gemm", "linear_gemm"), ("int8-matrices", "MAGIC=True"),
                         ("int8-converted", "MAGIC=False")],
)  # fmt: skip
def test_matrix_units_run_where_they_are(kind: str, kernel: str, epilogue: str, coopmat_device: Device) -> None:
    if kind.startswith("int8") and not int8_shapes(coopmat_device):
        pytest.skip(f"{coopmat_device.name} multiplies no int8 matrices that fit float16 ones")
    found = timed(coopmat_device, kind, 9, epilogue=epilogue)
    assert found.right, (found.error, found.limit)
    assert any(kernel in name for name in found.kernels), found.kernels


def test_every_kind_says_what_it_is() -> None:
    assert all(about and callable(chooser) for about, chooser in KINDS.values())
