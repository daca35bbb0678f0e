"""The explorer: every sample by metric, knob and condition, each point's run, and what cannot be read left out."""

import math
from collections.abc import Callable

import pytest

from labkit.errors import LabError, ParameterError, RunError
from labkit.lab.lab import Lab
from labkit.measure.statistics import interval
from labkit.widgets import explore

Made = Callable[..., str]


@pytest.fixture
def made(lab: Lab) -> Made:
    def make(experiment: str, kv: str, device: str, scale: float, blocks: int = 3) -> str:
        run = lab.run(experiment, {"kv": kv, 'od"d': 1})
        run.describe(device={"name": device, "uuid": device})
        for block in range(blocks):
            for width in (1, 8):
                run.measure({"width": width, "content": "it's"}, block, decode_tok_s=scale * width + block)
        folder = run.end("completed")
        assert folder is not None
        return run.id

    return make


def test_points_are_the_cells_of_all_runs_with_their_means(lab: Lab, made: Made) -> None:
    first, second = made("one", "f16", "card A", 10.0), made("two", "f32", "card [B]*", 20.0)
    view = explore(lab, metric="decode_tok_s", x="cell.width", colour="device", facet="parameters.kv")
    points = view.state()["points"]
    assert len(points) == 4
    wanted = [(first, 1, "card A", "f16"), (first, 8, "card A", "f16"), (second, 1, "card [B]*", "f32"),
              (second, 8, "card [B]*", "f32")]  # fmt: skip
    assert sorted((one["run"], one["x"], one["colour"], one["facet"]) for one in points) == sorted(wanted)
    eight = next(one for one in points if one["run"] == second and one["x"] == 8)
    want = interval([math.log(160.0 + block) for block in range(3)]).exp()
    assert (eight["mean"], eight["low"], eight["high"], eight["n"]) == pytest.approx(
        (want.estimate, want.low, want.high, 3)
    )
    figure = view.figure()
    assert [note.text for note in figure.layout.annotations] == ["kv f16", "kv f32"]
    assert {trace.name for trace in figure.data} == {"card A", "card [B]*"}
    assert len({trace.marker.symbol for trace in figure.data}) == 2


def test_what_can_be_drawn_over_are_knobs_conditions_and_parameters(lab: Lab, made: Made) -> None:
    made("one", "f16", "card A", 10.0)
    view = explore(lab)
    assert view.metrics == ["decode_tok_s"]
    assert view.x == "cell.width"  # the knob with the most values
    assert view.dimensions[:2] == ["cell.content", "cell.width"]
    assert {"device", "started", "experiment", "parameters.kv"} <= set(view.dimensions)
    assert not any('"' in name for name in view.dimensions)
    for name in view.dimensions:
        view.pick(x=name)
        assert view.error == ""
    view.pick(x="cell.content", colour="", facet="")
    assert {one.x for one in view.points} == {"it's"}
    assert view.figure().layout.xaxis.type == "category"


def test_a_run_is_opened_and_links_to_its_files_from_where_the_notebook_is(
    lab: Lab, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = made("one", "f16", "<card>", 10.0)
    (lab.root / "notebooks").mkdir(exist_ok=True)
    monkeypatch.chdir(lab.root / "notebooks")
    page = lab.root / "site" / "runs" / name / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text("")
    view = explore(lab)
    assert f'<a href="../data/runs/{name}/run.json" target="_blank">{name}</a>' in view.html()
    assert "&lt;card&gt;" in view.html()
    view.open(name)
    assert f'href="../data/runs/{name}/measurements.csv"' in view.html()
    assert f'href="../site/runs/{name}/index.html"' in view.html()
    assert 14 in view.figure().data[0].marker.size
    with pytest.raises(ParameterError, match="the figure has no point of 'other'; it has 2"):
        view.open("other")


def test_a_run_that_cannot_be_read_is_named_and_left_out(lab: Lab, made: Made) -> None:
    good, bad = made("one", "f16", "card", 10.0), made("two", "f16", "card", 10.0)
    path = lab.root / "data" / "runs" / bad / "measurements.csv"
    path.write_text(path.read_text() + "1,2,not json,decode_tok_s,fast,now\n")
    view = explore(lab.runs())
    assert {one.run for one in view.points} == {good}
    assert any(text.startswith(f"{bad}: ") for text in view.damaged)
    assert "left out" in view.html()


def test_unknown_names_are_refused_with_those_there_are_and_nothing_changes(lab: Lab, made: Made) -> None:
    with pytest.raises(RunError, match="these runs have no samples"):
        explore(lab)
    made("one", "f16", "card", 10.0)
    view = explore(lab)
    with pytest.raises(ParameterError, match="no run has samples of 'speed'; there are decode_tok_s"):
        view.pick(metric="speed")
    with pytest.raises(ParameterError, match=r"'width' is nothing to draw over; there are cell\.content, cell\.width"):
        view.pick(x="width")
    assert (view.metric, len(view.points)) == ("decode_tok_s", 2)
    view.attempt(lambda: view.pick(x="width"))
    assert "is nothing to draw over; there are cell.content" in view.picture()
    with pytest.raises(ParameterError, match="'y' is nothing to choose"):
        explore(lab, y="cell.width")
    with pytest.raises(ParameterError, match=r"explore\(3\): give a Lab"):
        explore(3)  # type: ignore[arg-type]


def test_without_duckdb_it_says_what_to_install(lab: Lab, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made("one", "f16", "card", 10.0)
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    with pytest.raises(LabError, match=r"explore needs DuckDB: `pip install duckdb`"):
        explore(lab)
