"""What a run asks of a runtime: settings compared before anything is sent, every request kept, a wrong token seen."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import labkit.lab.asking as asking
from labkit.engine.numpy_executor import NumpyExecutor
from labkit.errors import ParameterError, RunError
from labkit.lab.lab import Lab, _open_runs
from labkit.measure.bench.agreement import greedy_gap
from labkit.models.model import Model
from labkit.runtimes.load import Load, at_once
from labkit.runtimes.runtime import Abilities, Answer, Ask

TINY = Path(__file__).resolve().parents[1] / "data" / "tiny" / "llama-f32.gguf"


class Scripted:
    """A runtime whose answers are given; what it is asked it keeps."""

    label, origin, closed = "scripted", {"process": 7}, False
    can = Abilities(token_prompts=True, fixed_length=True)

    def __init__(self, answers: list[Answer], **settings: Any) -> None:
        self.answers, self.told, self.asked = answers, settings, []

    def settings(self) -> dict[str, Any]:
        return self.told

    def describe(self) -> dict[str, Any]:
        return {"kind": "scripted", "version": "3.1", "arguments": ["/bin/s", "--port", "99"]}

    def stream(self, asks: list[Ask], load: Load, progress: Any = None) -> list[Answer]:
        self.asked += asks
        return self.answers

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "labkit").mkdir()
    (tmp_path / "FINDINGS.md").write_text("# Findings\n")
    monkeypatch.delenv("LABKIT_RUN", raising=False)
    yield Lab(tmp_path).run("asked", parameters={})
    for each in _open_runs.values():
        each.close()
    _open_runs.clear()


def answered(ask: Ask, ids: tuple[int, ...], begin: float = 10.0) -> Answer:
    """An answer whose tokens come at 1.0, 1.1, ... s behind its submit."""
    times = tuple(begin + 1.0 + 0.1 * i for i in range(len(ids)))
    return Answer(
        ask, begin, times, times[-1], token_ids=ids, prompt_tokens=len(ask.prompt), completion_tokens=len(ids)
    )


def test_a_cell_keeps_each_request_the_failed_one_too_and_its_rate_is_of_the_others(run: Any) -> None:
    asks = [Ask((1, 2, 3), 5) for _ in range(3)]
    lost = Answer(asks[2], 10.0, end_s=10.2, failed="closed", error="the connection was closed")
    runtime = Scripted([answered(asks[0], (1,) * 5), answered(asks[1], (2,) * 5), lost], slots=2)
    asking.serve_cell(run, runtime, {"streams": 3}, 0, asks, at_once(3))  # type: ignore[arg-type]
    rows = [json.loads(line) for line in (run.folder / "requests.jsonl").read_text().splitlines()]
    assert [row.get("error") for row in rows] == [None, None, "the connection was closed"]
    assert all(row["settings"] == {"slots": 2} for row in rows)
    found = {row.metric: row.value for row in run.samples}
    assert found["total_tok_s"] == pytest.approx(10 / 1.4)  # from the first submit to the last token of the two
    assert found["failed_share"] == pytest.approx(1 / 3)
    assert "decode_tok_s" not in found
    assert (run.folder / "starts.csv").read_text().splitlines()[1].split(",")[1].endswith("/7")


@pytest.mark.parametrize(("knobs", "stops"), [(("streams", "slots"), True), (("streams",), False)])
def test_a_runtime_that_reports_another_value_of_a_knob_stops_and_is_closed(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, knobs: tuple[str, ...], stops: bool
) -> None:
    runtime = Scripted([], slots=2, context=64)
    monkeypatch.setattr(asking, "open_runtime", lambda *args, **more: runtime)
    options: dict[str, Any] = {"knobs": knobs, "log_folder": tmp_path, "slots": 4, "context": 64}
    if stops:
        with pytest.raises(RunError, match=r"slots, declared 4 here, and the running process reports 2"):
            asking.start_runtime(run, "labkit", "tiny", **options)
    else:
        assert asking.start_runtime(run, "labkit", "tiny", **options) is runtime
        assert "scripted is: scripted, 3.1: /bin/s --port PORT" in run.record.notes
        assert "scripted differs: slots: declared 4, reported 2" in " ".join(run.record.notes)
    assert runtime.closed == stops


def test_the_greedy_tokens_of_the_model_pass_and_one_other_token_does_not(run: Any) -> None:
    with Model(str(TINY)) as model:
        prompt = (5, 9, 12, 7)
        right: list[int] = []
        for _ in range(3):
            truth = NumpyExecutor(model).logprobs([*prompt, *right, 0], 1)[0]
            right.append(int(truth.argmax()))
        least = int(truth.argmin())  # of the last place
        assert greedy_gap(model, prompt, right) == 0
        second = int(truth.argsort()[-2])
        assert greedy_gap(model, prompt, [*right[:2], second]) > 0
        assert (
            greedy_gap(model, prompt, [*right[:2], second], ends=[int(truth.argmax())]) == 0
        )  # it never draws that one
        assert greedy_gap(model, prompt, [*right[:2], least]) == pytest.approx(float(truth.max() - truth.min()))
        ask = Ask(prompt, 3)
        good, bad = (Scripted([answered(ask, tuple(ids))]) for ids in (right, [*right[:2], least]))
        assert asking.check_greedy(run, good, model, [ask])  # type: ignore[arg-type]
        assert not asking.check_greedy(run, bad, model, [ask])  # type: ignore[arg-type]  # 13 nats below
        refused = Scripted([Answer(ask, 0.0, failed="status", error="answered 500")])
        assert not asking.check_greedy(run, refused, model, [ask])  # type: ignore[arg-type]


def test_a_text_without_ids_is_held_by_the_ids_of_the_same_text(run: Any) -> None:
    with Model(str(TINY)) as model:
        ask = Ask((5, 9, 12, 7), 1)
        truth = NumpyExecutor(model).logprobs([5, 9, 12, 7, 0], 1)[0]
        ids = (int(truth.argmax()),)
        text = Answer(ask, 0.0, (1.0,), 1.0, text="x", completion_tokens=1)
        same = Answer(ask, 0.0, (1.0,), 1.0, text="x", token_ids=ids, completion_tokens=1)
        assert asking.check_greedy(run, Scripted([text]), model, [ask], [same])  # type: ignore[arg-type]
        assert run.record.checks[-1].detail.startswith("at most 0.0e+00 nat")


def test_an_answer_whose_broken_character_hid_its_ids_is_not_judged_by_its_text(run: Any) -> None:
    with Model(str(TINY)) as model:
        ask = Ask((5, 9, 12, 7), 1)
        truth = NumpyExecutor(model).logprobs([5, 9, 12, 7, 0], 1)[0]
        told, broken = (
            Answer(ask, 0.0, (1.0,), 1.0, text="\ufffd", token_ids=ids, completion_tokens=1)
            for ids in ((int(truth.argmax()),), ())
        )
        assert asking.said_ids([told, broken], model) == [told.token_ids, ()]
        assert asking.check_greedy(run, Scripted([told, broken]), model, [ask, ask])  # type: ignore[arg-type]
        assert run.record.checks[-1].detail.endswith("1 prompts")
        assert not asking.check_greedy(run, Scripted([Answer(ask, 0.0, (1.0,), 1.0)]), model, [ask])  # type: ignore[arg-type]


def test_runtimes_are_named_by_kind_or_place_and_no_two_alike() -> None:
    specs = [
        "labkit",
        "llama-server:/opt/a/llama-server",
        " llama-server:/opt/b/llama-server",
        "http://127.0.0.1:8000/v1/",
    ]
    assert asking.name_runtimes(specs) == {
        "labkit": "labkit", "llama-server": specs[1], "llama-server-2": specs[2].strip(), "127.0.0.1:8000/v1": specs[3],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("specs", "said"), [([], "at least one"), (["labkit", "labkit "], "twice"), ([3], "no runtime")]
)
def test_no_runtime_one_given_twice_and_what_is_none_are_refused(specs: Any, said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        asking.name_runtimes(specs)
