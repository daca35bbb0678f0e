"""Statistics against closed forms, SciPy and simulations with a known truth; each simulation prints what it found."""

import math

import numpy as np
import pytest
from scipy import stats

from labkit.errors import ParameterError
from labkit.measure import statistics

SESSIONS = 2000


def differs(logs: "np.ndarray") -> bool:
    """Whether a session of log-ratios calls two things different."""
    found = statistics.interval(logs)
    assert found.low is not None
    assert found.high is not None
    return found.low > 0 or found.high < 0


@pytest.mark.quick
def test_ratios_are_paired_by_block_and_what_has_no_partner_is_left_out() -> None:
    pairs = statistics.paired_ratios({0: 10.0, 1: 12.0, 3: 9.0}, {3: 3.0, 0: 5.0, 7: 1.0})
    assert pairs.blocks == (0, 3)
    assert pairs.ratios == (2.0, 3.0)
    assert pairs.logs == pytest.approx([math.log(2), math.log(3)])


@pytest.mark.quick
@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_ratio_of_what_is_not_positive_is_refused_with_its_block(bad: float) -> None:
    with pytest.raises(ParameterError, match=r"positive samples; block 4 has"):
        statistics.paired_ratios({4: bad}, {4: 1.0})


@pytest.mark.quick
@pytest.mark.parametrize(("freedom", "value"), [(1, 12.7062), (2, 4.3027), (9, 2.2622), (29, 2.0452)])
def test_quantiles_of_t_are_those_of_the_tables(freedom: int, value: float) -> None:
    assert statistics.t_quantile(freedom) == pytest.approx(value, abs=5e-5)


@pytest.mark.quick
@pytest.mark.parametrize("n", [2, 3, 10, 33])
def test_the_t_interval_is_scipys(n: int) -> None:
    values = np.random.default_rng(n).normal(3, 2, n)
    low, high = stats.t.interval(0.95, n - 1, loc=values.mean(), scale=stats.sem(values))
    found = statistics.t_interval(values)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9)
    assert found.estimate == pytest.approx(values.mean())


@pytest.mark.quick
@pytest.mark.parametrize("n", [3, 4, 10, 11])
def test_the_bootstrap_of_the_median_is_a_percentile_bootstrap(n: int) -> None:
    values = np.random.default_rng(n).normal(0, 1, n)
    low, high = statistics.bootstrap_median(values)
    drawn = np.random.default_rng(1).choice(values, size=(200_000, n))
    medians = np.sort(np.median(drawn, axis=1))
    # a resampled median takes few values, so compare how much lies beyond each end
    for end, share in ((low, 0.025), (high, 0.975)):
        at_most, below = (medians <= end + 1e-12).mean(), (medians < end - 1e-12).mean()
        assert below - 0.004 <= share <= at_most + 0.004


@pytest.mark.quick
def test_the_bootstrap_is_the_same_in_any_order_and_in_a_batch() -> None:
    values = np.random.default_rng(5).normal(0, 1, (7, 10))
    low, high = statistics.bootstrap_median(values)
    for row, (one, other) in zip(values, zip(low, high, strict=True), strict=True):
        assert statistics.bootstrap_median(row[::-1]) == (one, other)
    one_way, another = statistics.interval(values[0]), statistics.interval(np.sort(values[0]))
    assert (one_way.low, one_way.high) == pytest.approx((another.low, another.high), rel=1e-12)


@pytest.mark.quick
def test_the_wider_interval_is_reported_and_holds_the_estimate() -> None:
    rng = np.random.default_rng(3)
    methods = set()
    for _ in range(300):
        values = rng.normal(0, 1, 10) + (rng.random(10) < 0.1) * 3
        found, by_t = statistics.interval(values), statistics.t_interval(values)
        low, high = statistics.bootstrap_median(values)
        assert found.low is not None
        assert found.high is not None
        assert by_t.low is not None
        assert by_t.high is not None
        assert found.high - found.low >= max(by_t.high - by_t.low, high - low) - 1e-12
        assert found.low <= found.estimate <= found.high
        methods.add(found.method)
    assert methods == {"t", "bootstrap"}


@pytest.mark.quick
def test_one_value_has_no_interval_and_none_is_refused() -> None:
    found = statistics.interval([2.0])
    assert (found.estimate, found.low, found.high, found.n, found.method) == (2.0, None, None, 1, "none")
    assert found.exp().estimate == pytest.approx(math.e**2)
    for bad in ([], [1.0, math.nan], [[1.0]]):
        with pytest.raises(ParameterError, match="at least one finite value"):
            statistics.interval(bad)


@pytest.mark.quick
def test_identical_values_have_an_interval_of_no_width() -> None:
    found = statistics.interval([0.5] * 10)
    assert (found.low, found.high) == pytest.approx((0.5, 0.5))


@pytest.mark.parametrize(
    ("n", "lowest", "highest"), [(3, 0.93, 0.97), (5, 0.93, 0.98), (10, 0.94, 0.985), (20, 0.93, 0.985)]
)
def test_the_interval_holds_the_true_ratio_as_often_as_it_says(n: int, lowest: float, highest: float) -> None:
    rng, truth = np.random.default_rng(20), math.log(1.05)
    shape = (SESSIONS, 2, n)
    samples = rng.normal(0, 0.03, shape) + np.log(np.where(rng.random(shape) < 0.05, 1.05, 1.0))
    held = {"t": 0, "bootstrap": 0, "wider": 0}
    for a, b in samples:
        logs = truth + a - b
        by_t, wider = statistics.t_interval(logs), statistics.interval(logs)
        low, high = statistics.bootstrap_median(logs)
        held["t"] += by_t.low <= truth <= by_t.high
        held["bootstrap"] += low <= truth <= high
        held["wider"] += wider.low <= truth <= wider.high
    shares = {name: count / SESSIONS for name, count in held.items()}
    print(f"n={n}: coverage {shares}")
    assert lowest <= shares["wider"] <= highest
    assert shares["wider"] >= max(shares["t"], shares["bootstrap"]) - 0.002
    if n == 3:
        assert shares["bootstrap"] < 0.80  # why the bootstrap alone will not do


@pytest.mark.parametrize("drift", [0.0, 0.03])
def test_no_difference_is_called_one_in_at_most_7_of_100_sessions_even_under_drift(drift: float) -> None:
    rng, pairs = np.random.default_rng(31), 10
    order = [cell for block in statistics.block_order(["A", "B"], pairs) for cell in block]
    first = np.flatnonzero(np.array(order) == "A"), np.flatnonzero(np.array(order) == "B")
    sequential = np.arange(pairs), np.arange(pairs, 2 * pairs)
    slope = np.linspace(0, drift, 2 * pairs)
    alarms = {"blocks": 0, "all of A, then all of B": 0}
    for noise in rng.normal(0, 0.01, (SESSIONS, 2 * pairs)):
        times = noise + slope
        alarms["blocks"] += differs(times[first[0]] - times[first[1]])
        alarms["all of A, then all of B"] += differs(times[sequential[0]] - times[sequential[1]])
    shares = {name: count / SESSIONS for name, count in alarms.items()}
    print(f"drift {drift:.0%}: called different {shares}")
    assert shares["blocks"] <= 0.07
    if drift:
        assert shares["all of A, then all of B"] > 0.75


def test_a_slowdown_of_5_percent_is_found_by_ten_pairs() -> None:
    rng = np.random.default_rng(17)
    found = sum(
        statistics.interval(math.log(0.95) + a - b).high < 0 for a, b in rng.normal(0, 0.02, (500, 2, 10))
    ) / 500  # fmt: skip
    print(f"found in {found:.1%} of sessions with 2 % noise")
    assert found > 0.97


def test_session_means_hold_the_spread_between_sessions_that_one_session_lacks() -> None:
    rng = np.random.default_rng(8)
    sessions = rng.normal(0, 0.01, (SESSIONS, 5, 1)) + rng.normal(0, 0.014, (SESSIONS, 5, 10))
    one = sum(differs(session[0]) for session in sessions) / SESSIONS
    many = sum(
        not (found.low <= 0 <= found.high) for found in map(statistics.session_interval, sessions.mean(axis=2))
    ) / SESSIONS  # fmt: skip
    print(f"a null called different: one session {one:.1%}, the means of five {many:.1%}")
    assert 0.27 < one < 0.40
    assert many < 0.07


def test_rerunning_a_null_until_it_is_confirmed_would_succeed_often() -> None:
    rng = np.random.default_rng(9)
    up = np.array([statistics.interval(logs).low > 0 for logs in rng.normal(0, 0.014, (5000, 10))]).reshape(-1, 10)
    fifth, tenth = up[:, :5].any(axis=1).mean(), up.any(axis=1).mean()
    print(f"confirmed by the 5th try {fifth:.1%}, by the 10th {tenth:.1%}")
    assert 0.05 < fifth < 0.12
    assert 0.11 < tenth < 0.21


@pytest.mark.quick
def test_a_trend_is_scipys_regression() -> None:
    values = np.random.default_rng(2).normal(0, 1, 12) + 0.1 * np.arange(12)
    line = stats.linregress(np.arange(12), values)
    found = statistics.trend(values)
    assert found is not None
    assert (found.slope, found.p) == pytest.approx((line.slope, line.pvalue))
    assert statistics.trend([1.0, 2.0, 3.0]) is None
    assert statistics.trend([1.0, 1.0, 1.0, 1.0]) == statistics.Trend(0.0, 1.0)
    assert statistics.trend([1.0, 2.0, 3.0, 4.0]) == statistics.Trend(1.0, 0.0)


@pytest.mark.quick
def test_outliers_are_counted_by_the_modified_z() -> None:
    values = [10.0, 10.1, 9.9, 10.05, 9.95, 14.0]
    z = statistics.modified_z(values)
    assert z[5] == pytest.approx(0.6745 * (14.0 - 10.025) / 0.075)
    assert statistics.count_outliers(values) == 1
    assert statistics.count_outliers([1.0] * 9 + [2.0]) == 1  # the MAD is 0: the mean deviation stands in
    assert statistics.count_outliers([1.0] * 10) == 0


@pytest.mark.quick
@pytest.mark.parametrize(
    ("values", "dropped"),
    [
        ([20.0, 10.1, 9.9, 10.0, 10.1, 9.9, 10.0, 10.1, 9.9, 10.0], 1),
        ([30.0, 25.0, 20.0, 15.0, 10.0, 10.1, 9.9, 10.0, 10.1, 9.9, 10.0, 10.1, 9.9, 10.0], 4),
        ([10.0, 10.1, 9.9, 10.0, 10.1, 9.9, 10.0, 10.1, 9.9, 10.0], 0),
        ([10.0, 10.1, 9.9, 10.0, 15.0, 9.9, 10.0, 10.1, 9.9, 10.0], 0),
        ([30.0, 10.0, 10.0], 0),
    ],
    ids=["first-slow", "falls-for-four", "steady", "a-spike-is-no-warm-up", "too-few"],
)
def test_warm_up_is_what_precedes_the_settled_median(values: list[float], dropped: int) -> None:
    assert statistics.warmup_length(values) == dropped


@pytest.mark.quick
def test_repetitions_settle_soon_under_noise_and_not_while_they_move() -> None:
    rng = np.random.default_rng(12)
    needed, late = [], []
    for noise in rng.normal(0, 0.05, (500, 50)):
        needed.append(next((n for n in range(51) if statistics.settled(1 + noise[:n])), 51))
        cold = (1 + 0.2 * noise) * (1 - 0.8 * np.exp(-np.arange(50) / 4))  # 45 % of the way after two, 98 % after 15
        late.append(next(n for n in range(51) if statistics.settled(cold[:n])))
    print(
        f"5 % noise: settled after {np.mean(needed):.1f} of at least 6; a slow start of 15: after {np.mean(late):.1f}"
    )
    assert np.mean(needed) < 9
    assert max(needed) < 40
    assert 12 < np.mean(late) < 25
    assert not statistics.settled(np.arange(1.0, 7.0) ** 2)
    assert not statistics.settled([1.0] * 5)


@pytest.mark.quick
def test_two_groups_are_seen_and_rarely_imagined() -> None:
    rng = np.random.default_rng(4)
    for n in (10, 20):
        false = sum(statistics.two_groups(rng.normal(0, 1, n)) for _ in range(1000)) / 1000
        true = sum(statistics.two_groups(rng.normal(0, 1, n) + 12 * (np.arange(n) % 2)) for _ in range(200)) / 200
        print(f"n={n}: two groups imagined {false:.1%}, seen {true:.1%}")
        assert false <= 0.015
        assert true > 0.9
    assert not statistics.two_groups([1.0, 1.0, 5.0, 5.0])
    assert not statistics.two_groups([1.0] * 10)


@pytest.mark.quick
def test_two_cells_go_a_b_b_a() -> None:
    assert statistics.block_order(["A", "B"], 4) == [["A", "B"], ["B", "A"], ["A", "B"], ["B", "A"]]
    assert statistics.block_order(["A"], 2) == [["A"], ["A"]]


@pytest.mark.quick
def test_more_cells_are_shuffled_in_complete_blocks_by_the_seed() -> None:
    cells = [1, 2, 4, 8, 16, 32]
    order = statistics.block_order(cells, 50, seed=3)
    assert all(sorted(block) == cells for block in order)
    assert order == statistics.block_order(cells, 50, seed=3)
    assert order != statistics.block_order(cells, 50, seed=4)
    firsts = [block[0] for block in order]
    assert set(firsts) == set(cells)  # no cell keeps the place where the machine is cold
    for bad in (([], 3), (cells, 0)):
        with pytest.raises(ParameterError, match="an order needs cells and blocks"):
            statistics.block_order(*bad)
