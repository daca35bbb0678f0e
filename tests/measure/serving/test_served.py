"""A cell of requests in numbers: by hand, by identities that must hold, and by the published record's figures."""

import random
from dataclasses import replace

import pytest

from labkit.errors import ParameterError
from labkit.measure.metrics import METRICS
from labkit.measure.serving.requests import Timed
from labkit.measure.serving.residents import Steps, count_at_once
from labkit.measure.serving.saturation import saturation
from labkit.measure.serving.served import Limits, Served, streams_needed
from labkit.measure.waves import waves


def request(submit: float, first: float, gaps: list[float], **more: object) -> Timed:
    """A request whose tokens come one an event."""
    moments = [first]
    for gap in gaps:
        moments.append(moments[-1] + gap)
    return Timed(
        submit_s=submit, first_s=first, last_s=moments[-1], events=tuple((at, 1) for at in moments), tokens=len(moments),
        **more,  # type: ignore[arg-type]
    )  # fmt: skip


def queue(streams: int, residents: int, tokens: int = 100, step: float = 0.02) -> Served:
    """`streams` requests at once to a server that holds so many: a token a step, the next admitted when one ends."""
    whole = tokens * step
    return Served(
        tuple(
            request(0.0, i // residents * whole + step, [step] * (tokens - 1), prompt_tokens=32) for i in range(streams)
        )
    )


def test_the_metrics_of_two_requests_by_hand() -> None:
    a = request(0.0, 1.0, [0.5, 0.5], prompt_tokens=10, cached_tokens=4)  # tokens at 1, 1.5, 2
    b = request(0.5, 1.0, [1.0, 1.0], prompt_tokens=30, cached_tokens=0)  # tokens at 1, 2, 3
    found = Served((a, b)).metrics(Limits(tpot_s=0.6))
    assert found == pytest.approx(
        {
            "failed_share": 0.0, "ttft_s": 0.75, "tpot_s": 0.75, "itl_s": 0.75, "e2e_s": 2.25, "makespan_s": 3.0,
            "request_s": 2 / 3, "total_tok_s": 2.0, "resident_most": 2.0, "resident_mean": (1 + 2) / 3,
            "in_flight_mean": (2 + 2.5) / 3, "stream_min_tok_s": 3 / 2.5, "stream_max_tok_s": 1.5,
            "stream_tok_s": (2 + 1) / 2, "completion_tokens": 3.0, "prompt_tokens": 20.0, "cached_share": 0.1,
            "goodput_req_s": 1 / 3, "goodput_tok_s": 1.0,
        }
    )  # fmt: skip
    assert found.keys() <= METRICS.keys()


def test_every_metric_it_can_give_is_registered() -> None:
    drafting = {"drafted": 40, "accepted": 20, "prompt_tokens": 5, "cached_tokens": 0}
    many = Served(tuple(request(0.001 * i, 1 + 0.001 * i, [0.02] * 40, **drafting) for i in range(80)))
    found = many.metrics(Limits(ttft_s=2.0))
    assert {"ttft_p95_s", "itl_p99_s", "e2e_p95_s", "decode_tok_s", "acceptance"} <= found.keys()
    assert found.keys() <= METRICS.keys()
    assert found["acceptance"] == 0.5
    assert found["tokens_per_step"] == 2.0  # 40 tokens after the first, 20 of them drafted: 20 steps
    assert found["accepted_per_step"] == 1.0


def test_while_all_decode_the_rate_is_tokens_over_wall_time() -> None:
    found = queue(8, 8).metrics()
    assert found["decode_tok_s"] == pytest.approx(8 / 0.02)
    assert found["total_tok_s"] == pytest.approx(800 / 2.0)
    assert found["stream_tok_s"] == pytest.approx(50)


def test_failed_requests_are_counted_and_part_of_no_rate() -> None:
    good = queue(4, 4)
    broken = replace(request(0.0, 0.1, [0.1]), error="the connection closed")
    found = Served((*good.requests, broken))
    assert (found.failed, found.failed_share) == (1, 0.2)
    metrics = found.metrics()
    assert metrics["total_tok_s"] == good.metrics()["total_tok_s"]
    assert "decode_tok_s" not in metrics  # not all that were asked decoded
    assert found.window[1] == "1 of 5 requests failed"
    assert "4 of 5 requests came whole, 1 failed" in str(found)
    assert "the connection closed" in str(found)
    nothing = Served((broken,))
    assert nothing.metrics() == {"failed_share": 1.0}
    assert "0 of 1 requests came whole" in nothing._repr_html_()
    with pytest.raises(ParameterError, match="no request was sent"):
        Served(())


def test_littles_law_holds_of_every_cell() -> None:
    """L = λ W, exactly, over the makespan: requests a second times the mean time each took."""
    chance = random.Random(3)
    many = []
    for i in range(200):
        submit = i * 0.1 + chance.random()
        many.append(request(submit, submit + chance.random(), [chance.random() * 0.1 for _ in range(20)]))
    served = Served(tuple(many))
    found = served.metrics()
    mean_e2e = sum(served.values("e2e_s")) / len(many)
    assert found["in_flight_mean"] == pytest.approx(found["request_s"] * mean_e2e, rel=1e-12)


@pytest.mark.parametrize(
    ("tok_s", "seconds", "streams"), [(44.3, 0.0629, 2.8), (134.6, 0.070, 9.4), (234.2, 0.0858, 20.1)]
)
def test_a_published_table_needs_more_streams_than_it_had(tok_s: float, seconds: float, streams: float) -> None:
    """A ladder of n = 1, 4, 8 that was published so: its n were not the requests in flight."""
    assert streams_needed(tok_s, seconds) == pytest.approx(streams, abs=0.05)


def test_four_published_days_had_little_over_one_request_in_flight() -> None:
    assert pytest.approx(1.27, abs=0.005) == 49_288 / 345_600 * 8.92
    day = Served(
        tuple(request(7.0 * i, 7.0 * i + 0.368, [8.552]) for i in range(500))
    )  # the same rate and time, evenly
    assert day.metrics()["in_flight_mean"] == pytest.approx(8.92 / 7.0, rel=0.01)


def test_admission_waves_are_seen_in_the_residents() -> None:
    """24 streams where 23 fit: one full wave and a lone stream, as a published ladder had at n = 24."""
    served = queue(24, 23)
    assert served.resident.most == 23
    assert waves(24, served.resident.most) == 2
    found = served.metrics()
    assert found["makespan_s"] == pytest.approx(2 * 2.0)
    assert found["stream_max_tok_s"] / found["stream_min_tok_s"] == pytest.approx(2.0)
    assert served.waiting.at(1.0) == 1
    assert served.in_flight.at(1.0) == 24
    assert "decode_tok_s" not in found
    assert "did not all decode at once" in str(served)
    assert "each at 25 to 50 tok/s, its wait included: 2 times apart" in str(served)


def test_requests_at_once_are_a_step_function() -> None:
    steps = count_at_once([(0.0, 2.0), (1.0, 3.0), (2.0, 4.0), (5.0, 5.0)])
    assert steps == Steps((0.0, 1.0, 3.0, 4.0), (1, 2, 1, 0))  # at 2 one ends and one begins: two, never three
    assert steps.most == 2
    assert steps.mean(0.0, 4.0) == pytest.approx(6 / 4)
    assert [steps.at(moment) for moment in (-1.0, 0.0, 2.5, 9.0)] == [0, 1, 2, 0]
    assert steps.line() == ([0.0, 1.0, 3.0, 4.0], [1, 2, 1, 0])
    assert count_at_once([]).most == 0
    with pytest.raises(ParameterError, match="the end must come after"):
        steps.mean(1.0, 1.0)


def test_goodput_asks_for_all_limits_at_once() -> None:
    quick_start = request(0.0, 0.1, [0.5] * 4)
    quick_tokens = request(0.0, 1.0, [0.1] * 4)
    both = request(0.0, 0.1, [0.1] * 4)
    served = Served((quick_start, quick_tokens, both))
    makespan = served.metrics()["makespan_s"]
    for limits, met in ((Limits(ttft_s=0.2), 2), (Limits(tpot_s=0.2), 2), (Limits(ttft_s=0.2, tpot_s=0.2), 1)):
        assert served.metrics(limits)["goodput_req_s"] == pytest.approx(met / makespan)
    assert Limits(ttft_s=0.2, tpot_s=0.2).words == "ttft ≤ 0.2 s, tpot ≤ 0.2 s"
    with pytest.raises(ParameterError, match="at least one limit"):
        Limits()
    with pytest.raises(ParameterError, match="limit ttft_s is -1"):
        Limits(ttft_s=-1)


def test_the_table_shows_counts_and_no_percentile_that_they_cannot_carry() -> None:
    served = queue(40, 40)
    rows = {row[0]: row for row in served.rows()}
    assert rows["TTFT"][1] == "40"
    assert rows["TTFT"][2].startswith("20 [")
    assert rows["TTFT"][3] != "–"  # p90: 36 are enough
    assert rows["TTFT"][4:] == ("–", "–")
    assert rows["ITL"][1] == str(40 * 99)
    assert "p99 needs 368" in str(served)
    with pytest.raises(ParameterError, match="no latency of a request"):
        served.values("speed")


def open_load(seed: int, count: int, share: float) -> list[Timed]:
    """A queue of one server with exponential times, asked at `share` of what it takes."""
    chance = random.Random(seed)
    now = free = 0.0
    found = []
    for _ in range(count):
        now += chance.expovariate(share)
        start = max(now, free)
        free = start + chance.expovariate(1.0)
        found.append(Timed(submit_s=now, first_s=start + 0.01, last_s=free + 0.02, events=((start, 1),), tokens=1))
    return found


def test_an_open_load_over_what_the_server_takes_is_flagged_and_one_below_it_is_not() -> None:
    """Over 400 requests: at 130 % nearly always, at 70 % nearly never (0.955 and 0.010 of 400 seeds)."""
    assert sum(bool(saturation(open_load(seed, 400, 1.3)).over) for seed in range(60)) >= 51
    assert sum(bool(saturation(open_load(seed, 400, 0.7)).over) for seed in range(60)) <= 4
    found = saturation(open_load(1, 400, 2.0))
    assert found.words().startswith("over-saturated")
    assert saturation(open_load(1, 39, 2.0)).over is None
    sent_when_due = [replace(one, due_s=one.submit_s) for one in open_load(1, 400, 2.0)]
    assert "over-saturated: requests came faster" in str(Served(tuple(sent_when_due)))
    assert "over-saturated" not in str(Served(tuple(open_load(1, 400, 2.0))))  # no load said when they were due
    assert "cannot be told" in saturation([]).words()


def test_a_closed_load_is_never_over_saturated() -> None:
    assert queue(64, 8).saturation.over is False
