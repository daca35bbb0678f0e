"""Routing: laws give back the coefficients of made times, the choice crosses over where they do, and nothing is said of
what was not measured."""

import numpy as np
import pytest

from labkit.errors import ParameterError
from labkit.measure.routing import First, Later, Profile, Work, choose, profile, regrets, split_time
from labkit.measure.serving.requests import Timed
from labkit.measure.serving.served import Served

PROMPTS = [64, 256, 1024, 4096]
STREAMS = [1, 1, 1, 4, 4, 4]
DEPTHS = [64, 1024, 4600, 64, 1024, 4600]


def made(name: str, a: float, b: float, c: float, t0: float, r: float, k: float, noise: float = 0.0) -> Profile:
    """A profile from times made by these coefficients, in six blocks."""
    chance = np.random.default_rng(hash((a, b)) % 1000)
    prompts, at = PROMPTS * 2, [1] * 4 + [4] * 4
    n, s = np.array(prompts, float), np.array(at, float)
    first = a + b * n + c * n**2 + 0.5 * b * n * (s - 1)
    w, d = np.array(STREAMS, float), np.array(DEPTHS, float)
    later = t0 + r * w + k * w * d
    times = [x[:, None] * np.exp(noise * chance.standard_normal((len(x), 6))) for x in (first, later)]
    return profile(name, First(prompts, at, times[0]), Later(STREAMS, DEPTHS, times[1]))


def test_the_coefficients_come_back_and_the_time_is_their_sum() -> None:
    found = made("x", a=0.01, b=1e-4, c=2e-9, t0=5e-3, r=1e-3, k=1e-7)
    assert found.first.coefficients["b, a token"].estimate == pytest.approx(1e-4)
    assert found.first.coefficients["w, a token of another stream"].estimate == pytest.approx(5e-5)
    assert found.later.coefficients["k, a position"].estimate == pytest.approx(1e-7)
    # TTFT 0.01 + 0.1 + 0.002 + 0.05 * 2; TPOT (5 + 3 + 3 * 1e-4 * 1050) ms at depth 1000 + 50
    ttft = 0.01 + 0.1 + 0.002 + 1000 * 5e-5 * 2
    tpot = 5e-3 + 3e-3 + 1e-7 * 3 * 1050
    assert found.seconds(Work(1000, 100, 3)) == pytest.approx(ttft + 99 * tpot)


def timed(first_s: float, tokens: int, step_s: float, wait_s: float = 0.0) -> Timed:
    """A request submitted at 0, whose tokens come at an even pace but for a wait behind the first."""
    times = [first_s, *(first_s + wait_s + step_s * i for i in range(1, tokens))]
    return Timed(0.0, None, times[0], times[-1], tuple((at, 1) for at in times), tokens, 8)


def test_the_time_of_one_request_is_its_ttft_and_its_steps() -> None:
    found = split_time(Served((timed(0.5, 11, 0.02),)))
    assert found == pytest.approx((0.5, 0.02))


def test_what_the_prompts_of_others_cost_a_request_is_no_part_of_its_steps() -> None:
    """Two prompts of 0.3 s each, one after the other: the first to come waits 0.3 s behind its first token, the other
    before it. Each takes 0.6 s and ten steps."""
    found = split_time(Served((timed(0.3, 11, 0.02, wait_s=0.3), timed(0.6, 11, 0.02))))
    assert found == pytest.approx((0.6, 0.02))


def test_tokens_of_one_request_that_come_in_bursts_have_their_mean_time() -> None:
    """Eleven tokens in two events, 0.2 s apart: by the window alone six steps in 0.2 s."""
    one = Timed(0.0, None, 0.5, 0.7, ((0.5, 5), (0.7, 6)), 11, 8)
    assert split_time(Served((one,))) == pytest.approx((0.5, 0.02))
    assert split_time(Served((Timed(0.0, error="closed"),))) is None


def test_requests_that_never_decode_at_once_have_no_such_split() -> None:
    assert split_time(Served((timed(0.1, 3, 0.01), timed(5.0, 3, 0.01)))) is None


def test_the_choice_crosses_over_where_the_times_do() -> None:
    """Fast to read and slow to write against the other way about: equal at 1e-4 n = 0.01 (m - 1), so n = 100 (m - 1)."""
    reader = made("reader", a=0.0, b=1e-4, c=0.0, t0=0.02, r=0.0, k=0.0)
    writer = made("writer", a=0.0, b=2e-4, c=0.0, t0=0.01, r=0.0, k=0.0)
    assert choose([reader, writer], Work(1000, 10)).runtime == "reader"
    assert choose([reader, writer], Work(1000, 12)).runtime == "writer"
    assert choose([reader, writer], Work(3000, 30)).runtime == "reader"
    assert choose([reader, writer], Work(3000, 32)).runtime == "writer"


def test_two_that_cannot_be_told_apart_are_said_to_be() -> None:
    pair = [made("a", 0.01, 1e-4, 0, 5e-3, 0, 0, noise=0.1), made("b", 0.01, 1.001e-4, 0, 5e-3, 0, 0, noise=0.1)]
    choice = choose(pair, Work(1000, 50))
    assert "not told apart" in choice.words
    clear = choose([pair[0], made("c", 0.01, 3e-4, 0, 15e-3, 0, 0, noise=0.01)], Work(1000, 50))
    assert clear.runtime == "a"
    assert clear.lead is not None
    assert clear.lead.estimate == pytest.approx(3.0, rel=0.1)  # six blocks of 10 % noise
    assert "not told apart" not in clear.words


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (Work(5000, 8), "prompt 5,000 (measured: 64 to 4,096)"),
        (Work(32, 64), "prompt 32"),
        (Work(4096, 600), "depth 4,696 (measured: 64 to 4,600)"),
        (Work(256, 8, 5), "streams 5 (measured: 1 to 4)"),
    ],
)
def test_outside_of_what_was_measured_there_is_no_answer(work: Work, said: str) -> None:
    one = made("one", 0.01, 1e-4, 0, 5e-3, 1e-3, 1e-7)
    choice = choose([one], work)
    assert choice.runtime is None
    assert "not measured" in choice.words
    assert said in choice.words
    with pytest.raises(ParameterError, match="one was not measured at"):
        one.seconds(work)


def test_one_that_was_not_measured_there_has_no_say_and_is_named() -> None:
    fast = profile("fast", First([64, 128], [1, 1], [[0.001], [0.002]]), Later([1, 1], [64, 200], [[0.001], [0.001]]))
    slow = made("slow", 0.01, 1e-3, 0, 5e-2, 0, 0)
    choice = choose([fast, slow], Work(1000, 10))
    assert choice.runtime == "slow"
    assert choice.words.endswith("not measured there: fast")


def test_regret_is_the_time_lost_against_the_best_and_routing_that_is_right_has_none() -> None:
    reader = made("reader", a=0.0, b=1e-4, c=0.0, t0=0.02, r=0.0, k=0.0)
    writer = made("writer", a=0.0, b=2e-4, c=0.0, t0=0.01, r=0.0, k=0.0)
    asked = [Work(1000, 2), Work(1000, 100), Work(9000, 4)]
    measured = {
        asked[0]: {"reader": 0.12, "writer": 0.21},
        asked[1]: {"reader": 2.08, "writer": 1.19},
        asked[2]: {"reader": 1.0, "writer": 2.0},
    }
    routing, first, second = regrets(measured, [reader, writer])
    assert (routing.policy, routing.mean, routing.answered, routing.asked) == ("routing", 0.0, 2, 3)
    assert first.each == pytest.approx((0.0, 2.08 / 1.19 - 1))
    assert second.mean == pytest.approx((0.21 / 0.12 - 1) / 2)
    assert second.worst == pytest.approx(0.75)


def test_cells_that_tell_no_line_are_refused() -> None:
    later = Later([1, 1], [64, 200], [[0.001], [0.001]])
    with pytest.raises(ParameterError, match="do not tell the terms"):
        profile("x", First([64, 64], [1, 1], [[0.1], [0.1]]), later)
    with pytest.raises(ParameterError, match="of the same blocks"):
        profile("x", First([64, 128], [1, 1], [[0.1, 0.1], [0.2, 0.2]]), later)
    with pytest.raises(ParameterError, match="at least one token of each"):
        Work(0, 1)
