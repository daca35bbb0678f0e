"""An upgrade's questions: speeds whichever way the metric is, simultaneous intervals, words, and a picture of them."""

import json
from pathlib import Path

import numpy as np
import pytest

from labkit.errors import ParameterError, RunError
from labkit.lab.measurements import Measurement
from labkit.lab.pictures.forest import Branch, forest
from labkit.lab.record import canonical_cell
from labkit.lab.upgrade import changes, greedy_outputs, output_words, partings, question_words, tally, told_apart
from labkit.measure.serving.parting import Parting
from labkit.measure.statistics import family_level
from labkit.models.model import Model

pytestmark = pytest.mark.quick
TINY = Path(__file__).parents[1] / "data" / "tiny" / "llama-f32.gguf"
READ, LOAD = {"phase": "prefill", "prompt": 64}, {"phase": "load"}
WRITE = {"phase": "decode", "prompt": 16, "streams": 1}
CELLS = [{"version": side, **cell} for side in ("before", "after") for cell in (READ, WRITE, LOAD)]


def rows(ratios: dict[str, float], noise: float = 0.002, blocks: int = 10) -> list[Measurement]:
    """Samples of both sides: `after` over `before` by phase."""
    chance, found = np.random.default_rng(7), []
    for cell in CELLS:
        name = {"prefill": "prefill_tok_s", "decode": "decode_tok_s", "load": "load_s"}[cell["phase"]]
        for block in range(blocks):
            value = (ratios[cell["phase"]] if cell["version"] == "after" else 1) * float(
                np.exp(chance.normal(0, noise))
            )
            found.append(Measurement(block, len(found), canonical_cell(cell), name, value, ""))
    return found


def test_less_time_is_better_and_fewer_tokens_a_second_worse() -> None:
    found, level = changes(rows({"prefill": 0.9, "decode": 1.0, "load": 0.5}), "version", "before", "after", CELLS)
    assert level == family_level(3)
    assert {one.question: one.word for one in found} == {
        "reading 64 tokens": "worse", "decoding, 1 stream behind 16 tokens": "same", "loading the model": "better",
    }  # fmt: skip
    load = found[-1]
    assert load.ratio == pytest.approx(2, rel=0.01)
    assert load.low < load.ratio < load.high  # type: ignore[operator]
    assert load.new == pytest.approx(0.5, rel=0.01)
    assert np.exp(np.log(load.each).mean()) == pytest.approx(load.ratio)
    assert tally(found) == "1 better, 1 worse, 1 same"


def test_the_margin_says_how_far_from_one_is_still_the_same() -> None:
    samples = rows({"prefill": 0.97, "decode": 1.0, "load": 1.0})
    words = [changes(samples, "version", "before", "after", CELLS, margin)[0][0].word for margin in (0.02, 0.05)]
    assert words == ["worse", "same"]


def test_few_and_noisy_starts_are_undecided_and_a_failed_check_makes_all_invalid() -> None:
    noisy = rows({"prefill": 1.02, "decode": 1.0, "load": 1.0}, noise=0.1, blocks=4)
    assert {one.word for one in changes(noisy, "version", "before", "after", CELLS)[0]} == {"undecided"}
    broken, _ = changes(noisy, "version", "before", "after", CELLS, invalid=True)
    assert {one.word for one in broken if one.metric != "load_s"} == {"invalid"}


def test_a_question_that_one_side_never_answered_is_left_out() -> None:
    some = [
        row for row in rows({"prefill": 1, "decode": 1, "load": 1}) if '"before"' not in row.cell or "load" in row.cell
    ]
    assert [one.question for one in changes(some, "version", "before", "after", CELLS)[0]] == ["loading the model"]


def test_the_same_engine_twice_is_a_control_and_nothing_else() -> None:
    told_apart("llama.cpp b9000", "llama.cpp b9500", control=False)
    told_apart("llama.cpp b9000", "llama.cpp b9000", control=True)
    with pytest.raises(RunError, match=r"before and after are the same engine, llama\.cpp b9000"):
        told_apart("llama.cpp b9000", "llama.cpp b9000", control=False)
    with pytest.raises(RunError, match="control=True takes the same engine twice"):
        told_apart("llama.cpp b9000", "llama.cpp b9500", control=True)


def test_the_forest_has_a_line_a_question_the_first_on_top_and_the_band_shaded() -> None:
    branches = [Branch("reading", 0.9, 0.88, 0.92, "worse", [0.89, 0.91]), Branch("load", 2.0, None, None, "undecided")]
    figure = forest(branches, margin=0.02, title="Reading got slower")
    assert list(figure.layout.yaxis.ticktext) == ["load", "reading"]
    worse = next(trace for trace in figure.data if trace.name == "worse")
    assert (worse.x[0], worse.y[0]) == (0.9, 1)
    assert worse.error_x.arrayminus[0] == pytest.approx(0.02)
    (band, middle) = figure.layout.shapes
    assert (band.x0, band.x1, middle.x0) == (0.98, 1.02, 1)
    assert figure.layout.xaxis.type == "log"


def test_a_forest_needs_ratios_above_nothing() -> None:
    with pytest.raises(ParameterError, match="there is no ratio"):
        forest([], margin=0.02, title="")
    with pytest.raises(ParameterError, match="above 0"):
        forest([Branch("x", 0.0, None, None, "same")], margin=0.02, title="")


def test_a_cell_that_is_no_question_of_ours_keeps_its_words() -> None:
    assert question_words("phase=mixed, prompt=all lengths, streams=4") == "mixed load, 4 streams"
    assert question_words("width=8") == "width=8"


def test_outputs_are_compared_where_both_sides_had_the_prompt(tmp_path: Path) -> None:
    rows = [
        {"cell": {"version": side, "phase": "greedy"}, "prompt_sha256": sha, "prompt_ids": [5, 6], "token_ids": ids}
        for side, sha, ids in (("before", "a", [11, 12]), ("after", "a", [11, 13]), ("after", "b", [14]))
    ]
    (tmp_path / "requests.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in [*rows, {"cell": {"phase": "load"}}])
    )
    before, after = (greedy_outputs(tmp_path, "version", side) for side in ("before", "after"))
    assert before == {"a": ([5, 6], [11, 12])}
    with Model(TINY) as model:
        found, prompts = partings(model, before, after)
    assert (prompts, [(one.at, one.first, one.second) for one in found]) == (1, [(1, 12, 13)])


def test_a_near_tie_is_no_change_of_output_and_what_lies_further_apart_is() -> None:
    tie, other = Parting(3, 1, 2, 0.1), Parting(0, 1, 2, 4.0)
    assert output_words([], 4) == "outputs equal (4 prompts)"
    assert output_words([tie], 4) == "outputs equal up to near-ties (1 of 4 prompts part at one)"
    assert output_words([tie, other], 4).startswith(
        "outputs changed: 1 of 4 prompts part where the two tokens lie up to 4"
    )
    assert output_words([], 0).startswith("outputs not compared")
