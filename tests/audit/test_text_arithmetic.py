"""Arithmetic in words: an estimate of memory that is off by 2.5 times, and statements of the record that come out."""

import time

import pytest
from make_evidence import claims_of, notices

from labkit.audit.detectors.text_arithmetic import statements

ID = "text-arithmetic"


@pytest.mark.quick
def test_a_product_that_its_own_factors_do_not_give_is_named_with_what_they_give():
    # NIK docs/15: 24 x 8,192 x 32,000 x 2 bytes are 12.6e9, so 11.7 GiB, and were called 4.6
    (notice,) = notices(ID, claims_of(texts=[("a row", "24*8192*32000*2 B = 4.6 GiB")]))
    assert pytest.approx(11.7, abs=0.05) == 24 * 8192 * 32000 * 2 / 2**30
    assert notice.outcome == "warn"
    assert "11.72" in notice.text


@pytest.mark.parametrize(
    "text",
    [
        "3,391 → 4,635 tok/s (+36.7 %)",
        "3,491 -> 4,635 = +32.8%",
        "331.4 → 385.8 (+16 %)",
        "381 → 82.8 tok/s (-78 %)",
        "31.9 → 88 tok/s (2.76×)",
        "10.3 -> 32.0 tok/s (3.1x)",
        "1,012 → 896 → 622 (-39 %)",
        "24*8192*32000*2 B = 11.7 GiB",
        "44.3 x .0629 = 2.8 in flight",
        "53.9 steps/s × 14.23 GB = 767 GB/s",
        "20,424 / 31.7 = 644.3 tok/s",
        "52.2 + 38.5 = 90.7 s",
    ],
)
def test_what_comes_out_passes(text: str):
    found = list(statements(text))
    assert len(found) == 1
    assert found[0][2], found


@pytest.mark.parametrize(
    ("text", "gives"),
    [
        ("108 → 167.6 tok/s (+20 %)", "+55.2 %"),
        ("990 → 1,012 (−2 %)", "+2.2 %"),
        ("77.9 → 1,915.5 tok/s (60×)", "24.59×"),
        ("44 / 191 = 30 %", "23.04"),
        ("52.2 + 38.5 = 80.7 s", "90.7"),
        ("17 × 32 = 1,724", "544"),
    ],
)
def test_what_does_not_come_out_is_said(text: str, gives: str):
    ((_, given, fits),) = statements(text)
    assert not fits
    assert given == gives


@pytest.mark.parametrize(
    "text",
    [
        "368/425/294 -> 570/590/595 GB/s",
        "from ub 512 to 2048, pp2048",
        "14.8 → 38.7 → 128.9 thousand tokens",
        "the 27B of 2026-09-12 at 250 W",
        "https://example.org/a/1 → b",
        "a 20480 × 17408 matrix",
    ],
)
def test_numbers_that_state_nothing_are_let_alone(text: str):
    assert list(statements(text)) == []


def test_no_text_makes_it_hang():
    began = time.perf_counter()
    for text in (
        "1," * 9000,
        "1 → " * 5000,
        "9" * 20000,
        "1*" * 9000,
        "1.1" * 6000,
        " " * 19000 + "→",
        "1e9" * 6000,
        "1 x " * 5000,
    ):
        list(statements(text))
    assert time.perf_counter() - began < 20
