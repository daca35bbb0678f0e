"""A champion is named only where every rival of another camp is told apart from it, all questions together."""

import numpy as np
import pytest

from labkit.errors import ParameterError
from labkit.lab.champions import contests
from labkit.measure.statistics import family_level

pytestmark = pytest.mark.quick


def series(rate: float, seed: int, noise: float = 0.01, blocks: int = 10) -> dict[int, float]:
    return {b: rate * float(np.exp(v)) for b, v in enumerate(np.random.default_rng(seed).normal(0, noise, blocks))}


def test_the_best_is_champion_where_every_rivals_interval_lies_above_one() -> None:
    (found,), level = contests({"long": {"a": series(100, 1), "b": series(90, 2), "c": series(50, 3)}}, "higher")
    assert (found.champion, found.beside) == ("a", ())
    assert level == family_level(3)
    assert found.over["b"].estimate == pytest.approx(100 / 90, rel=0.02)
    assert "a (1.1" in found.words()


def test_two_that_are_alike_are_not_told_apart_whichever_is_ahead() -> None:
    (found,), _ = contests({"long": {"a": series(100, 1), "b": series(100.1, 2), "c": series(50, 3)}}, "higher")
    assert found.champion == ""
    assert set((found.best, *found.beside)) == {"a", "b"}
    assert found.words().startswith("not told apart: ")


def test_a_time_is_better_where_it_is_less_and_the_ratio_still_lies_above_one() -> None:
    (found,), _ = contests({"load": {"a": series(2.0, 1), "b": series(1.0, 2)}}, "lower")
    assert found.champion == "b"
    assert found.over["a"].estimate == pytest.approx(2, rel=0.02)


def test_settings_of_one_backend_are_no_rivals() -> None:
    candidates = {"a, ub 16": series(99.9, 1), "a, ub 64": series(100, 2), "b, ub 16": series(80, 3)}
    (found,), level = contests({"long": candidates}, "higher", lambda name: name.split(",")[0])
    assert (found.champion, set(found.over)) == ("a", {"b, ub 16"})
    assert level == family_level(2)


def test_one_start_of_each_tells_nothing_apart_and_one_alone_is_no_champion() -> None:
    found, _ = contests(
        {"one": {"a": {0: 100.0}, "b": {0: 1.0}}, "alone": {"a": {0: 1.0}}, "none": {"a": {}}}, "higher"
    )
    assert [(one.question, one.champion) for one in found] == [("one", ""), ("alone", "")]
    assert found[1].words() == "a, alone here"


def test_starts_that_share_no_block_are_not_compared() -> None:
    (found,), _ = contests({"long": {"a": {0: 2.0, 1: 2.0}, "b": {2: 1.0, 3: 1.0}}}, "higher")
    assert (found.champion, found.beside) == ("", ("b",))


def test_a_metric_without_a_better_end_has_no_champion() -> None:
    with pytest.raises(ParameterError, match="a champion has the higher or the lower value"):
        contests({}, "none")


def test_among_equals_a_champion_is_named_in_at_most_one_family_of_twenty() -> None:
    wrong = 0
    for seed in range(120):
        questions = {
            f"q{q}": {name: series(100, 1000 * seed + 10 * q + i, 0.05, 6) for i, name in enumerate("abc")}
            for q in range(3)
        }
        wrong += any(one.champion for one in contests(questions, "higher")[0])
    assert wrong <= 6
