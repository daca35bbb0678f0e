"""The operations bench: every operation is right at the model's shapes, and a wrong one is found and has no time."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labkit.errors import ParameterError
from labkit.measure.bench.ceilings import Ceilings
from labkit.measure.ops_bench import report
from labkit.measure.ops_bench.cases import Case, Timed, Work, chosen, nmse, operations, sample_rows, time_case
from labkit.measure.ops_bench.matrices import make_matrices, shapes_of
from labkit.measure.roofline import MatrixRate, ReadBandwidth
from labkit.models.model import Model
from labkit.models.shapes import ShapeModel
from labkit.ops import linear
from labkit.vulkan.device import Device
from labkit.vulkan.program import Program

TINY = Path(__file__).parents[1] / "data" / "tiny"
CEILINGS = Ceilings(
    ReadBandwidth(10.0, 10.0, 1, 1, "d", "v", "u"),
    {"float32": MatrixRate("float32", 1.0, 1.0, (), "c", 1, "d", "v", "u")},
)


def work(device: Device, quant: str = "q8_0", arithmetic: str = "fast", **more: object) -> Work:
    options = {"rows": (1, 5), "depths": (200,)} | more
    return Work(ShapeModel("tiny", quant), device, arithmetic=arithmetic, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("arithmetic", ["fast", "exact"])
@pytest.mark.parametrize("name", ["attention", "rms_norm", "rope_kv", "swiglu", "sample", "linear"])
def test_every_operation_is_right_at_the_shapes_of_the_model(name: str, arithmetic: str, device: Device) -> None:
    cases = 0
    for case in operations()[name](work(device, arithmetic=arithmetic)):
        timed = time_case(device, case, 2)
        assert timed.right, f"{case.label}: error {timed.error}, limit {timed.limit}"
        assert len(timed.seconds) == 2
        assert all(seconds > 0 for seconds in timed.seconds)
        assert timed.kernels
        cases += 1
    assert cases == {"linear": 10}.get(name, 2)


@pytest.mark.parametrize("quant", ["f16", "bf16", "q4_0", "q4_1"])
def test_matrices_of_every_layout_are_right(quant: str, device: Device) -> None:
    for case in operations()["linear"](work(device, quant, rows=(3,))):
        assert time_case(device, case, 1).right, case.label


def test_a_prompt_attends_from_its_own_positions(device: Device) -> None:
    names = [name for name in operations() if "attention" in name]
    asked = work(device, rows=(80,), depths=(64, 200))
    cases = [time_case(device, case, 1) for name in names for case in operations()[name](asked)]
    assert [timed.case.knobs for timed in cases] == [{"rows": 80, "depth": 200}]  # 64 positions hold no prompt of 80
    assert cases[0].right


def test_flash_attention_is_benched_where_matrix_units_are(coopmat_device: Device) -> None:
    asked = work(coopmat_device, "f16", rows=(80,))
    found = [time_case(coopmat_device, case, 1) for case in operations()["flash_attention"](asked)]
    assert len(found) == 1
    assert found[0].right
    assert "flash_attention" in found[0].kernels[0]


def test_a_models_matrices_are_those_the_engine_joins() -> None:
    shapes = {
        shape.name: (shape.n, shape.k, shape.kind.name, shape.epilogue)
        for shape in shapes_of(ShapeModel("tiny", "f16"))
    }
    assert shapes == {
        "q_k_v": (256, 128, "F16", "store"), "attn_output": (128, 128, "F16", "add"), "down": (128, 256, "F16", "add"),
        "gate_up": (512, 128, "F16", "swiglu"), "head": (512, 128, "F16", "store"),
    }  # fmt: skip
    with Model(TINY / "llama-q4_1.gguf") as model:
        assert {shape.kind.name for shape in shapes_of(model)} >= {"Q4_1"}


def test_the_rows_of_a_matrix_repeat_with_its_period(device: Device) -> None:
    shape = next(shape for shape in shapes_of(ShapeModel("tiny", "q4_0")) if shape.name == "head")
    with device.pool("test") as pool:
        matrices, base = make_matrices(work(device, "q4_0"), pool, replace(shape, n=600))
        x = np.random.default_rng(0).standard_normal((1, shape.k)).astype(np.float32)
        source, target = pool.buffer(x), pool.buffer(600 * 4)
        program = device.program("test")
        linear.record(program, matrices[-1], source, target, rows=1, x_stride=shape.k, y_stride=600)
        program.run()
        got = target.download(np.float32)
        want = (x.astype(np.float64) @ base.T.astype(np.float64))[0][np.arange(600) % len(base)]
        assert nmse(got, want) < 1e-9
        program.close()


@pytest.mark.parametrize("error", [1e-3, float("inf")])
def test_a_wrong_result_has_no_time_and_is_marked(error: float, device: Device) -> None:
    generator = operations()["rms_norm"](work(device))
    case = replace(next(generator), check=lambda: (error, 1e-7))
    timed = time_case(device, case, 3)
    assert not timed.right
    assert timed.seconds == ()
    assert "WRONG" in report.table([timed], CEILINGS)
    assert all("kernel_us" not in metrics for metrics in report.samples(timed, CEILINGS))
    assert report.plain(timed, CEILINGS)["right"] is False
    generator.close()


def test_nan_is_infinitely_wrong() -> None:
    assert nmse(np.array([1.0, np.nan]), np.array([1.0, 2.0])) == float("inf")
    assert nmse(np.array([1.0, 2.2]), np.array([1.0, 2.0])) == pytest.approx(0.04 / 5)
    assert sample_rows(1) == [0]
    assert sample_rows(512) == [0, 170, 341, 511]


def test_rates_and_shares_follow_from_the_time() -> None:
    def nothing(program: Program, i: int) -> None:
        raise AssertionError

    case = Case(
        "linear",
        {"matrix": "down", "n": 1, "k": 2, "layout": "q8", "rows": 1},
        nothing,
        lambda: (0.0, 1.0),
        2,
        4e6,
        2e6,
    )
    timed = Timed(case, (1e-3, 2e-3, 1e-3), 1e-9, 1e-7, ("matvec.q8(COLS=1)",), "one row", "abc")
    first, second, _ = report.samples(timed, CEILINGS)
    assert first["kernel_us"] == pytest.approx(1000)
    assert first["achieved_gb_s"] == pytest.approx(2.0)
    assert first["share_of_read_bandwidth"] == pytest.approx(0.2)
    assert first["share_of_matrix_rate"] == pytest.approx(0.004)
    assert first["nmse"] == 1e-9
    assert "nmse" not in second
    plain = report.plain(timed, CEILINGS)
    assert plain["achieved_gb_s"] == pytest.approx(2.0)  # the median, not the mean
    assert (plain["why"], plain["n"]) == ("one row", 3)
    assert "matvec" in report.table([timed], CEILINGS)


def test_an_unknown_operation_is_named_with_those_there_are() -> None:
    assert chosen([]) == list(operations())
    with pytest.raises(ParameterError, match=r"'softmax' is not an operation that is benched; there are .*linear"):
        chosen(["softmax"])
