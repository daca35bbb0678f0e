"""Prefill and decode from answers: failures are no part of a rate, a cache is no reading, a server's clock stands beside ours."""

from pathlib import Path

import pytest

from labkit.measure.bench.costs import Costs
from labkit.measure.serving.parting import TIE, parting
from labkit.measure.serving.phases import decode_of, prefill_of
from labkit.models.model import Model
from labkit.runtimes.runtime import Answer, Ask

TINY = Path(__file__).parents[2] / "data" / "tiny" / "llama-f32.gguf"
COSTS = Costs(weight_bytes=1000, body=100, head=10, kv_bytes=4, attention=2)
pytestmark = pytest.mark.quick


def read(ttft_s: float, prompt: int = 64, **more: object) -> Answer:
    """An answer of one token."""
    told: dict[str, object] = {
        "times": (10 + ttft_s,),
        "prompt_tokens": prompt,
        "completion_tokens": 1,
        "cached_tokens": 0,
    }
    return Answer(Ask("x", 1), 10.0, **(told | more))  # type: ignore[arg-type]


FAILED = Answer(Ask("x", 1), 10.0, failed="closed", error="the connection was closed")


def test_a_rate_of_reading_is_the_prompt_over_the_mean_time_of_those_that_came_whole() -> None:
    found = prefill_of([read(0.1), read(0.3), FAILED], COSTS)
    assert found["ttft_s"] == pytest.approx(0.2)
    assert found["prefill_tok_s"] == pytest.approx(320)
    assert found["failed_share"] == pytest.approx(1 / 3)
    assert "transport_ms" not in found


def test_a_servers_clock_stands_beside_ours_and_what_lies_between_is_transport() -> None:
    found = prefill_of([read(0.1, timings={"prompt_ms": 80.0}), read(0.2, timings={"prompt_ms": 160.0})], COSTS)
    assert found["server_prefill_tok_s"] == pytest.approx(128 / 0.24)
    assert found["transport_ms"] == pytest.approx(30)
    one_tells = prefill_of([read(0.1, timings={"prompt_ms": 80.0}), read(0.2)], COSTS)
    assert "server_prefill_tok_s" not in one_tells


def test_nothing_is_said_of_prompts_that_failed_or_came_from_a_cache() -> None:
    assert prefill_of([FAILED], COSTS) == {"failed_share": 1.0}
    assert prefill_of([read(0.01, cached_tokens=32)], COSTS) == {"failed_share": 0.0}


def test_a_rate_of_decoding_counts_what_arrives_while_all_decode() -> None:
    times = ([11.0, 12, 13, 14, 15], [12.0, 13, 14, 15, 16])
    told = {"prompt_tokens": 8, "completion_tokens": 5}
    answers = [Answer(Ask("x", 5), 10.0, times=tuple(each), end_s=each[-1], **told) for each in times]  # type: ignore[arg-type]
    found, why = decode_of(answers, COSTS)
    assert why == ""
    assert found["decode_tok_s"] == pytest.approx(2)  # both get one a second from 12 to 15
    assert found["step_ms"] == pytest.approx(1000)
    found, why = decode_of([answers[0], FAILED], COSTS)
    assert found == {"failed_share": 0.5}
    assert why == "1 of 2 requests failed"


def test_a_servers_own_rate_of_decoding_is_that_of_the_tokens_after_the_first() -> None:
    def told(ms: float) -> dict[str, float]:
        own = {"predicted_n": 5.0, "predicted_ms": ms}
        times = (11.0, 12.0, 13.0, 14.0, 15.0)
        return decode_of([Answer(Ask("x", 5), 10.0, times=times, end_s=15.0, prompt_tokens=8, timings=own)], COSTS)[0]

    assert told(4000.0)["server_decode_tok_s"] == pytest.approx(1)
    assert "server_decode_tok_s" not in told(400.0)  # too short a time to hold ours against


def test_outputs_part_at_the_first_other_token_and_a_near_tie_is_told_from_another_answer() -> None:
    with Model(TINY) as model:
        assert parting(model, [5, 6, 7], [1, 2, 3], [1, 2, 3, 4]) is None
        found = parting(model, [5, 6, 7], [1, 2, 3], [1, 9, 3])
        again = parting(model, [5, 6, 7], [1, 9], [1, 2])
        assert parting(model, [5, 6, 7], [1, 2], [1, 9], ends=[9]) is None  # the other could not have said it
    assert found is not None
    assert again is not None
    assert (found.at, found.first, found.second) == (1, 2, 9)
    assert found.gap == pytest.approx(again.gap) != 0
    assert found.tie == (found.gap <= TIE)
