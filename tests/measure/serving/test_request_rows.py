"""Rows of requests: an answer becomes one, and a request comes back from it with every time."""

import json

import pytest

from labkit.engine.request import Completion
from labkit.errors import ParameterError
from labkit.measure.serving.requests import Timed, answer_row, request_row, tpot
from labkit.measure.workloads.hashes import block_hashes, prompt_sha256
from labkit.runtimes.runtime import Answer, Ask

IDS = tuple(range(40))


def answer(**changed: object) -> Answer:
    """Seven tokens of a drafting server, in three events: 1, 4 and 2."""
    given: dict[str, object] = {
        "ask": Ask(IDS, 7, about={"content": "code", "nominal_prompt_tokens": 40}), "submit_s": 100.0, "due_s": 99.5,
        "times": (101.0, *[101.5] * 4, *[101.75] * 2), "end_s": 101.875, "prompt_tokens": 41, "completion_tokens": 7,
        "cached_tokens": 3, "drafted": 8, "accepted": 4, "timings": {"predicted_ms": 700.0}, "finish": "length",
    }  # fmt: skip
    return Answer(**(given | changed))  # type: ignore[arg-type]


def test_an_answer_becomes_a_row_in_the_names_of_the_record() -> None:
    row = answer_row(answer(), lambda at: at - 90)
    assert row == {
        "prompt_sha256": prompt_sha256(IDS), "block_hashes": block_hashes(IDS), "prompt_tokens": 41, "cached_tokens": 3,
        "completion_tokens": 7, "asked_tokens": 7, "due_s": 9.5, "submit_s": 10.0, "first_token_s": 11.0,
        "last_token_s": 11.75, "end_s": 11.875, "gaps_s": [0.5, 0.25], "event_tokens": [1, 4, 2], "drafted": 8,
        "accepted": 4, "server": {"predicted_ms": 700.0}, "finish": "length", "content": "code",
        "nominal_prompt_tokens": 40,
    }  # fmt: skip


def test_a_request_comes_back_from_its_row_as_it_was() -> None:
    given = answer()
    stored = json.loads(json.dumps(answer_row(given, lambda at: at)))
    back = Timed.of_row(stored)
    assert back == Timed.of(given)
    assert back.times == given.times
    assert (back.ttft_s, back.e2e_s, back.tpot_s) == (1.0, 1.75, pytest.approx(0.75 / 6))
    assert back.gaps_s == (0.5, 0.25)  # an event of four tokens is one gap


def test_the_row_has_the_names_of_the_engines_own() -> None:
    own = Completion(
        text="", token_ids=(1, 2), prompt_ids=IDS, finish="length", logprobs=(), top_logprobs=(), slot=0, submit_s=1.0,
        start_s=1.5, first_token_s=2.0, last_token_s=3.0,
    ).row()  # fmt: skip
    ours = answer_row(answer())
    assert own.keys() - ours.keys() == {"slot", "start_s"}  # what only the engine can know
    assert own["prompt_sha256"] == ours["prompt_sha256"]
    assert Timed.of_row(own).e2e_s == 2.0


def test_a_failed_answer_is_a_row_that_says_how_and_is_no_good_request() -> None:
    bad = answer(failed="closed", error="the connection closed after 5 tokens", times=(101.0,), completion_tokens=None)
    row = answer_row(bad)
    assert (row["failed"], row["error"]) == ("closed", "the connection closed after 5 tokens")
    assert not Timed.of_row(row).good
    nothing = answer_row(Answer(Ask("hi", 3), 1.0, failed="refused", error="refused"))
    assert nothing.keys() == {"prompt_sha256", "asked_tokens", "submit_s", "failed", "error"}


def test_an_end_token_that_nobody_saw_makes_no_stream_faster() -> None:
    seen = Timed.of(answer(completion_tokens=8))  # the server counts it too
    assert seen.tokens == 8
    assert seen.tpot_s == pytest.approx(0.75 / 6)
    untold = Timed.of(answer(completion_tokens=31))  # events of tokens that it does not count out
    assert untold.tpot_s == pytest.approx(0.75 / 30)


def test_a_row_of_durations_has_its_moments() -> None:
    row = request_row(3, prompt=10, completion=5, submit_s=2.0, ttft_s=0.5, e2e_s=1.5)
    assert (row["first_token_s"], row["last_token_s"], row["tpot_s"]) == (2.5, 3.5, 0.25)
    assert Timed.of_row(row).tpot_s == 0.25
    assert tpot(1, 0.5, 1.5) is None
    assert tpot(5, 1.5, 1.5) is None


@pytest.mark.parametrize(
    "row",
    [
        {"gaps_s": [0.1, -0.1]}, {"gaps_s": "fast"}, {"gaps_s": [True]}, {"gaps_s": [float("nan")]}, {"gaps_s": {"a": 1}},
        {"gaps_s": [0.1], "event_tokens": [1]}, {"gaps_s": [0.1], "event_tokens": [1, 0]}, {"event_tokens": 7},
        {"gaps_s": [0.1], "event_tokens": [1, 1 << 40]}, {"gaps_s": [0.1], "event_tokens": [1, 1.5]},
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_is_refused_in_a_line(row: dict[str, object]) -> None:
    with pytest.raises(ParameterError, match=r"(gaps_s|event_tokens) of a request are"):
        Timed.of_row({"submit_s": 0.0, "first_token_s": 1.0, **row})


def test_a_row_of_other_nonsense_is_a_request_that_tells_nothing() -> None:
    found = Timed.of_row(
        {"submit_s": "now", "first_token_s": float("inf"), "completion_tokens": None, "prompt_tokens": True}
    )
    assert found == Timed()
    assert not found.good
