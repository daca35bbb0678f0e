"""How often a session's verdict is wrong, over 2,000 seeded sessions of a known truth; each test prints its rates."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from labkit.errors import ParameterError
from labkit.measure import statistics

pytestmark = pytest.mark.quick

SESSIONS, PAIRS, NOISE = 2000, 10, 0.01
Floats = NDArray[np.float64]


def sessions(cells: int, seed: int, ratio: float = 1.0, drift: float = 0.0, noise: float = NOISE) -> Floats:
    """Log-ratios of each cell but the first over the first, (sessions, cells - 1, pairs): measured in complete blocks of
    the lab's own order, while everything gets slower by `drift` from first to last; the last cell is `ratio` faster."""
    order = [cell for block in statistics.block_order(list(range(cells)), PAIRS, seed) for cell in block]
    place = np.empty((cells, PAIRS), dtype=int)
    for cell in range(cells):
        place[cell] = np.flatnonzero(np.array(order) == cell)
    logs = np.random.default_rng(seed).normal(0, noise, (SESSIONS, cells, PAIRS)) - drift * place / (len(order) - 1)
    logs[:, -1] += math.log(ratio)
    return logs[:, 1:] - logs[:, :1]


def words(logs: Floats, level: float = statistics.LEVEL, margin: float = statistics.MARGIN) -> NDArray[np.str_]:
    """The word for each session of log-ratios, a rate's: (..., pairs) → (...)."""
    low, high = (np.exp(end) for end in interval_ends(logs, level))
    flat = [
        statistics.comparison_word(one, other, "higher", margin)
        for one, other in zip(low.ravel(), high.ravel(), strict=True)
    ]
    return np.array(flat).reshape(low.shape)


def interval_ends(logs: Floats, level: float) -> tuple[Floats, Floats]:
    """`statistics.interval` for many sessions at once: the wider of t and the bootstrap of the median, its ends."""
    mean = logs.mean(axis=-1)
    half = statistics.t_quantile(PAIRS - 1, level) * logs.std(axis=-1, ddof=1) / math.sqrt(PAIRS)
    low, high = statistics.bootstrap_median(logs, level)
    wider = high - low > 2 * half
    return np.where(wider, np.minimum(low, mean), mean - half), np.where(wider, np.maximum(high, mean), mean + half)


def rates(found: NDArray[np.str_]) -> dict[str, float]:
    return {word: float((found == word).mean()) for word in ("faster", "slower", "same", "undecided")}


def test_many_sessions_at_once_are_judged_as_each_alone() -> None:
    logs = sessions(2, 1)[:50, 0]
    for level in (0.95, 0.99):
        alone = [statistics.interval(session, level) for session in logs]
        low, high = interval_ends(logs, level)
        assert low == pytest.approx([one.low for one in alone])
        assert high == pytest.approx([one.high for one in alone])


@pytest.mark.parametrize("drift", [0.0, 0.03, 0.06])
def test_of_two_that_are_the_same_at_most_7_in_100_sessions_say_different_and_85_say_same(drift: float) -> None:
    found = rates(words(sessions(2, 31, drift=drift)[:, 0]))
    print(f"A/A, drift {drift:.0%}: {found}")
    assert found["faster"] + found["slower"] <= 0.07
    assert found["same"] >= 0.85


def test_a_2_percent_difference_at_1_percent_noise_is_found_by_ten_pairs_in_90_of_100() -> None:
    for ratio, word in ((1.02, "faster"), (1 / 1.02, "slower")):
        found = rates(words(sessions(2, 7, ratio=ratio, drift=0.03)[:, 0]))
        print(f"{ratio:.3f}×: {found}")
        assert found[word] >= 0.90
        assert found["same"] <= 0.05


def test_a_trend_is_told_in_at_most_1_of_200_honest_sessions_and_a_real_one_is_seen() -> None:
    for drift in (0.0, 0.03, 0.06):
        logs = sessions(2, 13, drift=drift)[:, 0]
        told = sum(statistics.trend_alarm(session) is not None for session in logs) / SESSIONS
        print(f"drift {drift:.0%}: a trend told in {told:.2%}")
        assert told <= 0.005
    moving = sessions(2, 17)[:, 0] + np.linspace(0, 0.15, PAIRS)
    seen = sum(statistics.trend_alarm(session) is not None for session in moving) / SESSIONS
    print(f"ratios that move by 15 %: told in {seen:.1%}")
    assert seen > 0.8
    sure_but_small = 0.001 * np.arange(10) + 1e-6 * np.cos(np.arange(10.0))
    line = statistics.trend(sure_but_small)
    assert line is not None
    assert line.p < statistics.TREND_P
    assert statistics.trend_alarm(sure_but_small) is None  # 0.9 %: certain, and of no matter


def test_the_move_of_plain_values_is_relative_to_their_mean() -> None:
    values = 100 + 0.5 * np.arange(10) + 0.01 * np.cos(np.arange(10.0))
    assert statistics.trend_alarm(values, logarithmic=False) is not None  # 4.5 of 102
    assert statistics.trend_alarm(values + 1000, logarithmic=False) is None


@pytest.mark.parametrize("drift", [0.0, 0.03])
def test_a_sweep_of_8_cells_that_are_all_the_same_finds_one_different_in_at_most_7_of_100(drift: float) -> None:
    logs = sessions(9, 23, drift=drift)  # eight cells against one control
    level = statistics.family_level(8)
    different = {}
    for name, at in (("together", level), ("each alone", statistics.LEVEL)):
        low, high = interval_ends(logs, at)
        different[name] = float(((low > 0) | (high < 0)).any(axis=1).mean())
    called = float(np.isin(words(logs, level), ["faster", "slower"]).any(axis=1).mean())
    print(
        f"a sweep of 8 cells, drift {drift:.0%}: 1 left out of an interval {different}, called different {called:.1%}"
    )
    assert called <= different["together"] <= 0.07
    assert different["each alone"] > 0.15  # why each is not judged as if it were alone


def test_a_sweep_finds_the_one_cell_that_differs() -> None:
    found = words(sessions(9, 29, ratio=1.05), statistics.family_level(8))
    rate = float((found[:, -1] == "faster").mean())
    print(f"5 % in one cell of eight: found in {rate:.1%}")
    assert rate > 0.95


def test_intervals_of_a_family_are_a_little_wider_than_dunnetts() -> None:
    normal = np.random.default_rng(0).standard_normal((100_000, 9, 10))
    logs = normal[:, 1:] - normal[:, :1]
    t = np.abs(logs.mean(axis=-1) / (logs.std(axis=-1, ddof=1) / math.sqrt(10))).max(axis=1)
    exact, ours = float(np.quantile(t, 0.95)), statistics.t_quantile(9, statistics.family_level(8))
    print(f"t of eight cells against one control: {exact:.2f} exact, {ours:.2f} by Bonferroni")
    assert 1.01 < ours / exact < 1.06
    assert statistics.family_level(1) == statistics.LEVEL
    assert statistics.family_level(8) == pytest.approx(1 - 0.05 / 8)
    with pytest.raises(ParameterError, match="a family has at least one comparison, not 0"):
        statistics.family_level(0)


@pytest.mark.parametrize(
    ("low", "high", "better", "word"),
    [
        (0.99, 1.01, "higher", "same"),
        (1.003, 1.015, "higher", "same"),  # certain, and too small to matter
        (1.011, 1.029, "higher", "faster"),
        (1.011, 1.029, "lower", "slower"),
        (0.90, 0.95, "lower", "faster"),
        (1.011, 1.029, "none", "higher"),
        (0.90, 0.95, "none", "lower"),
        (0.97, 1.001, "higher", "undecided"),
        (0.97, 1.03, "higher", "undecided"),
        (None, None, "higher", "undecided"),
    ],
)
def test_the_word_is_that_of_the_whole_interval(low: float | None, high: float | None, better: str, word: str) -> None:
    assert statistics.comparison_word(low, high, better) == word  # type: ignore[arg-type]


def test_a_difference_beyond_the_margin_is_asked_of_single_sessions() -> None:
    assert statistics.comparison_word(1.011, 1.029, "higher", beyond=True) == "undecided"
    assert statistics.comparison_word(1.021, 1.039, "higher", beyond=True) == "faster"
    assert statistics.comparison_word(0.95, 0.97, "higher", beyond=True) == "slower"


def test_what_is_not_paired_has_welchs_interval() -> None:
    rng = np.random.default_rng(5)
    a, b = rng.normal(3, 1, 8), rng.normal(4, 3, 12)
    low, high = stats.ttest_ind(b, a, equal_var=False).confidence_interval(0.95)
    found = statistics.welch_interval(a, b)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= low < found.estimate < high <= found.high  # the degrees of freedom are rounded down
    assert found.high - found.low < 1.05 * (high - low)
    assert statistics.welch_interval([1.0], b).low is None


def test_the_next_session_falls_into_the_prediction_interval_as_often_as_it_says() -> None:
    drawn = np.random.default_rng(2).normal(0, 1, (SESSIONS, 6))
    held = 0
    for earlier in drawn:
        found = statistics.prediction_interval(earlier[:5])
        assert found.low is not None
        assert found.high is not None
        held += found.low <= earlier[5] <= found.high
    print(f"the sixth session lies in the interval of five: {held / SESSIONS:.1%}")
    assert 0.93 < held / SESSIONS < 0.97
    five = statistics.prediction_interval([1.0, 2.0, 3.0, 4.0, 5.0])  # t(4) = 2.776, s = 1.5811
    assert five.high == pytest.approx(3 + 2.7764 * 1.5811 * math.sqrt(1.2), rel=1e-4)
    assert statistics.prediction_interval([1.0]).low is None


def test_over_restarts_a_restart_is_one_repetition_since_its_samples_share_its_luck() -> None:
    rng = np.random.default_rng(37)
    starts = rng.normal(0, 0.01, (SESSIONS, 2, PAIRS, 1))  # each start lands a little faster or slower, and stays there
    samples = starts + rng.normal(0, 0.005, (SESSIONS, 2, PAIRS, 8))
    by_restart = samples.mean(axis=-1)
    low, high = interval_ends(by_restart[:, 0] - by_restart[:, 1], statistics.LEVEL)
    alarms = float(((low > 0) | (high < 0)).mean())
    loose = (samples[:, 0] - samples[:, 1]).reshape(SESSIONS, -1)
    half = statistics.t_quantile(loose.shape[1] - 1) * loose.std(axis=-1, ddof=1) / math.sqrt(loose.shape[1])
    each = float((np.abs(loose.mean(axis=-1)) > half).mean())
    print(f"ten restarts of each, no difference: called different {alarms:.1%}; {each:.1%} if every sample were a pair")
    assert alarms <= 0.07
    assert each > 0.30
