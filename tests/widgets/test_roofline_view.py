"""The roofline view: points by arithmetic, the nearer ceiling, stored benches, and what has no times."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from page_rules import check_noun

from labkit.engine.engine import Engine
from labkit.errors import ParameterError, RunError
from labkit.lab.lab import Lab
from labkit.measure.bench.budget import Spent, spent
from labkit.measure.roofline import MatrixRate, ReadBandwidth
from labkit.vulkan.profile import Profile
from labkit.widgets import roofline
from labkit.widgets.roofline import Ceilings, Roofline, of_folder

# 2 ms for 1 GB and 4 GFLOP: 500 GB/s, 2000 GFLOP/s, 4 FLOP a byte
BOUND_BY_READS = Spent("linear ffn", "matvec.q8", 32, 2.0, 10**9, 4 * 10**9)
# 1 ms for 1 MB and 60 GFLOP: 60 TFLOP/s
BOUND_BY_PRODUCTS = Spent("linear wide", "gemm.f16", 8, 1.0, 10**6, 60 * 10**9)
COPY = Spent("embedding", "embedding.q8", 1, 0.1, 10**5, 0)
CEILINGS = Ceilings(1000.0, {"float16": 100.0, "float32": 20.0}, "Measured.")


def test_an_operation_is_held_against_the_ceiling_that_is_nearer() -> None:
    assert CEILINGS.share(BOUND_BY_READS) == pytest.approx(0.5)
    assert CEILINGS.share(BOUND_BY_PRODUCTS) == pytest.approx(0.6)
    assert Ceilings(1000.0).share(BOUND_BY_PRODUCTS) == pytest.approx(0.001)
    assert Ceilings().share(COPY) is None
    assert CEILINGS.share(Spent("x", "x", 1, 0.0, 1, 1)) is None


def test_the_figure_has_each_operation_at_its_intensity_under_the_roofs() -> None:
    view = Roofline({"step": [COPY, BOUND_BY_PRODUCTS, BOUND_BY_READS]}, CEILINGS, "a card")
    state = view.state()
    assert [one["operation"] for one in state["operations"]] == ["linear ffn", "linear wide", "embedding"]
    assert state["operations"][0] | {"kernel": ""} == {
        "operation": "linear ffn", "kernel": "", "gpu_ms": 2.0, "gb_s": 500.0, "gflop_s": 2000.0, "intensity": 4.0,
        "share_of_ceiling": pytest.approx(0.5),
    }  # fmt: skip
    figure = view.figure()
    reads, best, vector, *points = figure.data  # the copy has no place on a logarithmic axis
    assert [(one.name, *one.x, *one.y) for one in points] == [
        ("linear ffn", 4.0, 2000.0),
        ("linear wide", 60000.0, 60000.0),
    ]
    assert len({(one.marker.color, one.marker.symbol) for one in points}) == 2
    assert reads.y[0] == pytest.approx(reads.x[0] * 1000)
    assert reads.x[1] == pytest.approx(100)  # the ridge: 100 TFLOP/s over 1000 GB/s
    assert (best.y[0], vector.y[0]) == (100_000.0, 20_000.0)
    assert figure.layout.title.text == "linear ffn takes 65 % of the step, at 50 % of its ceiling"
    assert "65 % 954 MiB 500" in check_noun(view)


def bench(lab: Lab, rows: list[Any]) -> Path:
    run = lab.run("bench")
    run.measure({"streams": 1}, 0, decode_tok_s=1.0)
    path = run.folder / "steps.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    folder = run.end("completed")
    assert folder is not None
    return folder


def test_a_stored_bench_is_drawn_step_by_step(lab: Lab) -> None:
    rows = [{"cell": {"streams": n, "quant": None}} | one.plain(1000.0) for n in (1, 8) for one in
            (BOUND_BY_READS, COPY)]  # fmt: skip
    folder = bench(lab, rows)
    for what in (folder, lab.find_run(folder.name)):
        view = roofline(what)
        assert list(view.steps) == ["streams 1", "streams 8"]
        assert view.live
        assert view.ceilings.gb_s == pytest.approx(1000)
        view.choose("streams 8")
        assert view.operations == [BOUND_BY_READS, COPY]
    with pytest.raises(ParameterError, match="there is no step 'streams 9'; there are streams 1, streams 8"):
        view.choose("streams 9")


@pytest.mark.parametrize("line", ["{", '{"cell": {}}', "[]", '{"cell": 3, "operation": "x"}'])
def test_a_damaged_bench_names_its_line(lab: Lab, line: str) -> None:
    folder = bench(lab, [{"cell": {"streams": 1}} | COPY.plain(1000.0), line])
    with pytest.raises(RunError, match=r"steps\.jsonl, line 2, is not an operation of a step"):
        of_folder(folder)


def test_runs_without_times_and_other_things_are_refused(lab: Lab, engine: Engine) -> None:
    folder = bench(lab, [])
    with pytest.raises(RunError, match="has no operations"):
        roofline(folder)
    (folder / "steps.jsonl").unlink()
    with pytest.raises(RunError, match=r"has no steps\.jsonl: `lab bench` writes one"):
        roofline(folder)
    with pytest.raises(ParameterError, match="has no timestamps on its compute queue"):
        roofline(Profile(engine.device))
    with pytest.raises(ParameterError, match=r"roofline\(7\): give an Engine"):
        roofline(7)


def test_an_engines_step_is_profiled_and_layers_are_one_operation(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = ReadBandwidth(10.0, 10.0, 1, 1, "d", "v", "2026-12-01T00:00:00Z")
    rate = MatrixRate("float32", 1.0, 1.0, (), "c", 1, "d", "v", "2026-12-01T00:00:00Z")
    monkeypatch.setattr("labkit.measure.roofline.kept_ceilings", lambda device: (read, [rate]))
    view = roofline(engine, width=2, depth=10)
    assert not view.live  # one step: nothing to choose
    assert sum(one.dispatches for one in view.operations) == engine.dispatches(2)
    assert view.ceilings.source == "Ceilings measured on this device, 2026-12-01."
    assert view.figure() is not None


def test_merges_of_all_layers_are_one_operation_and_a_count_in_a_name_stays() -> None:
    def dispatch(label: str) -> Any:
        return SimpleNamespace(label=label, kernel="k", nbytes=1, flops=1)

    labels = (
        "attention 0 merge",
        "attention 11 merge",
        "rope_kv 3",
        "top 8 log-probabilities",
        "blk.2.ffn_norm.weight",
    )
    found = {one.operation for one in spent([(dispatch(label), 1.0) for label in labels])}
    assert found == {"attention merge", "rope_kv", "top 8 log-probabilities", "ffn_norm.weight"}
