"""Agreement of completions: the gap counts to the first token that parts, and no further."""

from types import SimpleNamespace

import pytest

from labkit.measure.bench.agreement import gap_between, gap_bound

pytestmark = pytest.mark.quick


def made(ids, logprobs):
    return SimpleNamespace(token_ids=tuple(ids), logprobs=tuple(logprobs))


def test_the_gap_ends_with_the_first_token_that_parts():
    first = made([1, 2, 3], [-1.0, -2.0, -3.0])
    assert gap_between([first, made([1, 2, 3], [-1.0, -2.5, -3.0])]) == pytest.approx(0.5)
    assert gap_between([first, made([1, 9, 8], [-1.0, -2.1, -99.0])]) == pytest.approx(0.1)
    assert gap_between([first]) == 0


@pytest.mark.parametrize(
    ("cpu", "kv", "arithmetic", "bound"),
    [
        (True, "f32", "exact", 0.001),
        (True, "f16", "fast", 0.02),
        (False, "f16", "exact", 0.02),
        (False, "f16", "fast", 0.3),
    ],
)
def test_the_bound_follows_what_is_rounded(cpu, kv, arithmetic, bound):
    assert gap_bound(SimpleNamespace(is_cpu=cpu), kv, arithmetic) == bound
