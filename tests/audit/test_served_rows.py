"""Rows that answers become are what the audit reads: caches, lengths, residents, the server's clock."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from make_evidence import notices
from make_run import run_of

from labkit.audit.notice import Notice
from labkit.measure.serving.requests import answer_row
from labkit.measure.serving.served import Served
from labkit.measure.workloads.asks import make_asks
from labkit.runtimes.runtime import Abilities, Answer, Ask

CELL = {"runtime": "imitated", "phase": "decode", "streams": 6, "prompt": 64, "generate": 32}


class Letters:
    """A tokenizer with a token a character."""

    label, can = "letters", Abilities(token_prompts=True, tokenizer=True)

    def tokenize(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def detokenize(self, ids: Any) -> str:
        return "".join(map(chr, ids))


def served(asks: list[Ask], residents: int = 6, cached: int = 0, prompt: int = 64) -> list[Answer]:
    """Answers of a server that holds so many: 20 ms a token."""
    found = []
    for number, ask in enumerate(asks):
        start = 1.0 + number // residents * ask.tokens * 0.02
        times = tuple(start + 0.02 * (i + 1) for i in range(ask.tokens))
        found.append(
            Answer(
                ask, 1.0, times, times[-1], prompt_tokens=prompt, completion_tokens=ask.tokens, cached_tokens=cached,
                finish="length",
            )
        )  # fmt: skip
    return found


def judged(detector: str, root: Path, answers: list[Answer]) -> list[Notice]:
    """The detector's notices on a run of these answers."""
    metrics = {name: [value] for name, value in Served.of(answers).metrics().items()}
    return notices(detector, run_of(root, [(CELL, metrics, [answer_row(answer) for answer in answers])]))


def outcomes(detector: str, root: Path, answers: list[Answer]) -> list[str]:
    return [notice.outcome for notice in judged(detector, root, answers)]


def test_prompts_that_a_cache_did_not_hold_pass_and_those_that_it_did_warn(tmp_path: Path) -> None:
    asks = make_asks(Letters(), "prose", 6, 64, 32)
    assert outcomes("shared-prefix", tmp_path / "cold", served(asks)) == ["ok"]
    assert outcomes("shared-prefix", tmp_path / "cached", served(asks, cached=48)) == ["warn"]


def test_where_no_counter_tells_the_hashes_of_blocks_show_a_prompt_sent_again(tmp_path: Path) -> None:
    def untold(asks: list[Ask]) -> list[Answer]:
        return [Answer(a.ask, a.submit_s + i, a.times, prompt_tokens=64) for i, a in enumerate(served(asks))]

    asks = make_asks(Letters(), "prose", 6, 64, 32)
    assert outcomes("shared-prefix", tmp_path / "new", untold(asks)) == ["not assessable"]
    (again,) = judged("shared-prefix", tmp_path / "again", untold([asks[0]] * 6))
    assert again.outcome == "warn"
    assert again.arithmetic == ("320 of 384 prompt tokens had been sent before = 83%",)


def test_nominal_lengths_are_held_against_what_the_server_counted(tmp_path: Path) -> None:
    asks = make_asks(Letters(), "code", 6, 64, 32)
    assert set(outcomes("nominal-lengths", tmp_path / "exact", served(asks))) == {"ok"}
    assert "warn" in outcomes("nominal-lengths", tmp_path / "longer", served(asks, prompt=107))


def test_waves_of_admission_are_seen_in_the_rows(tmp_path: Path) -> None:
    asks = make_asks(Letters(), "code", 6, 64, 32)
    assert outcomes("admission-waves", tmp_path / "all", served(asks)) == ["ok"]
    (waited,) = judged("admission-waves", tmp_path / "waves", served(asks, residents=4))
    assert waited.outcome == "warn"
    assert "4 of 6 streams were resident at once, the rest waited, in 2 waves" in waited.text


def test_its_metrics_agree_with_littles_law(tmp_path: Path) -> None:
    asks = make_asks(Letters(), "code", 6, 64, 32)
    assert set(outcomes("littles-law", tmp_path, served(asks))) == {"ok"}


def test_an_open_load_offers_no_number_of_streams_and_is_no_batch_that_waits(tmp_path: Path) -> None:
    asks = make_asks(Letters(), "prose", 6, 64, 32)
    cell = {"runtime": "imitated", "phase": "decode", "load": "poisson 2/s"}
    for due, expected in ((True, []), (False, ["warn"])):
        answers = [replace(answer, due_s=answer.submit_s if due else None) for answer in served(asks, residents=2)]
        metrics = {name: [value] for name, value in Served.of(answers).metrics().items()}
        root = tmp_path / str(due)
        evidence = run_of(root, [(cell, metrics, [answer_row(answer) for answer in answers])])
        assert evidence.observations[0].streams == (None if due else 6)
        assert [notice.outcome for notice in notices("admission-waves", evidence)] == expected
