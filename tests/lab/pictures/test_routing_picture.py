"""The picture of a routing rule: the map says what `choose` says, and draws what was not measured as such."""

import pytest

from labkit.errors import ParameterError
from labkit.lab.pictures.routing import ALIKE, NOT_MEASURED, map_choices, routing, steps_between
from labkit.measure.routing import First, Later, Profile, profile


def made(name: str, b: float, t0: float, scatter: float = 1.01) -> Profile:
    """A runtime that reads a token in b and writes one in t0 seconds, in three blocks that scatter."""
    blocks = [1 / scatter, 1.0, scatter]
    first = First([64, 1024], [1, 1], [[b * n * each for each in blocks] for n in (64, 1024)])
    return profile(name, first, Later([1, 1], [64, 2048], [[t0 * each for each in blocks]] * 2))


READER, WRITER = made("reader", 1e-4, 0.02), made("writer", 2e-4, 0.01, scatter=0.99)


def test_the_map_says_what_the_rule_says() -> None:
    """They are equal at n = 100 (m - 1)."""
    found = map_choices([READER, WRITER], 1, [64, 1000, 2000], [2, 11, 100])
    assert found.chosen[0] == ("writer", "reader", NOT_MEASURED)
    assert found.chosen[1][1] == ALIKE  # n = 1,000 = 100 x 10: as long either way
    assert found.chosen[2] == ("writer", "writer", NOT_MEASURED)
    assert found.share(NOT_MEASURED) == pytest.approx(1 / 3)


def test_more_streams_than_were_measured_are_all_not_measured() -> None:
    assert map_choices([READER, WRITER], 2, [64, 128], [8]).share(NOT_MEASURED) == 1


def test_steps_are_whole_and_each_once() -> None:
    assert steps_between(1, 4, 9) == (1, 2, 3, 4)
    assert steps_between(512, 4096, 4) == (512, 1024, 2048, 4096)
    with pytest.raises(ParameterError, match="a map from"):
        steps_between(8, 4)


def test_the_picture_has_each_request_and_each_place_once() -> None:
    over = {"reader": {"64 + 8": [1.0, 1.1, 0.9]}, "writer": {"64 + 8": [1.0, 1.2, 1.0]}}
    one = map_choices([READER, WRITER], 1, [64, 512, 2000], [2, 100])
    figure = routing(over, [one, one], title="It chooses")
    raw = [trace for trace in figure.data if trace.name == "each block"]
    assert [list(trace.y) for trace in raw] == [[1.0, 1.1, 0.9], [1.0, 1.2, 1.0]]
    maps = [trace for trace in figure.data if trace.yaxis not in (None, "y")]
    assert sum(len(trace.x) for trace in maps) == 2 * 6
    assert sum(len(trace.x) for trace in maps if trace.name == NOT_MEASURED) == 2 * 2
    shown = [trace.name for trace in figure.data if trace.showlegend is not False]
    assert sorted(shown) == sorted({"reader", "writer", ALIKE, NOT_MEASURED})
    assert len(routing({}, [one], title="alone").data) == 4
    with pytest.raises(ParameterError, match="no map"):
        routing(over, [], title="none")
