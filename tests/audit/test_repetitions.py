"""Repetitions of one kind: one boot of three that was another machine, a first run that compiled, and honest noise."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_evidence import notices
from make_run import plan_of, run_of

ID = "repetitions"
ENDS = ({"phase": "decode", "tp": 2}, {"phase": "decode", "tp": 1})


def pairs(root: Path, first: Any, second: Any, **plan: Any) -> list[Any]:
    """What is said of two cells with these repetitions."""
    cells = [(end, {"decode_tok_s": list(values)}, []) for end, values in zip(ENDS, (first, second), strict=True)]
    return notices(ID, run_of(root, cells, plan=plan_of("tp", *ENDS, **plan)))


def noise(seed: int, n: int, sigma: float) -> Any:
    """Factors of honest noise."""
    return np.exp(np.random.default_rng(seed).normal(0, sigma, n))


@pytest.mark.quick
def test_one_boot_of_three_that_is_another_machine_warns(tmp_path: Path):
    # NIK: boots of the tensor-parallel server at 34.20, 34.19 and 23.52 tok/s; one boot would have given +103 %
    found = pairs(tmp_path, [47.7, 47.6, 47.7], [34.20, 34.19, 23.52])
    (warned,) = [notice for notice in found if notice.trouble]
    assert warned.outcome == "warn"
    assert warned.about == ("phase=decode, tp=1",)
    assert pytest.approx(0.454, abs=0.001) == 34.195 / 23.52 - 1
    assert "45.4% apart" in warned.arithmetic[0]


def test_drift_checks_that_agree_are_fine(tmp_path: Path):
    # NIK: 68.02 against 68.01 tok/s before a late addition
    found = pairs(tmp_path, [68.02, 68.01, 68.02], [34.20, 34.19, 34.21])
    assert [notice.outcome for notice in found] == ["ok"]


def test_a_first_repetition_that_compiled_its_shape_warns(tmp_path: Path):
    # BLU: 71.6 tok/s at first, 98 to 100 after it: the warm-up prompt had another shape
    found = pairs(tmp_path, [71.6, 99.0, 99.4, 99.1], [47.7, 47.6, 47.7, 47.7])
    (warned,) = [notice for notice in found if notice.trouble]
    assert "the first repetition" in warned.text
    assert "-28%" in warned.text


def test_it_is_no_trouble_where_the_plan_leaves_warm_up_out(tmp_path: Path):
    found = pairs(tmp_path, [71.6, 99.0, 99.4, 99.1], [47.7, 47.6, 47.7, 47.7], warmup="left out")
    assert not any(notice.trouble for notice in found)


def test_a_cold_start_among_many_is_told_by_the_rests_spread(tmp_path: Path):
    honest = 100 * noise(1, 12, 0.004)
    cold = honest.copy()
    cold[0] *= 0.93
    assert any("first repetition" in n.text for n in pairs(tmp_path / "cold", cold, honest[::-1]) if n.trouble)
    assert not any(n.trouble for n in pairs(tmp_path / "warm", honest, honest[::-1]))


def test_two_clocks_are_two_groups(tmp_path: Path):
    values = np.where(np.arange(12) % 2, 100, 92) * noise(2, 12, 0.004)
    (warned,) = [n for n in pairs(tmp_path, values, 50 * noise(3, 12, 0.004)) if n.trouble]
    assert "two groups" in warned.text


def test_ratios_that_drift_across_the_threshold_fail_and_others_only_warn(tmp_path: Path):
    # 30 blocks in which the pairs move from 0.98 to 1.10; the rule asks for 1.02
    moving = 50 * np.linspace(0.98, 1.10, 30) * noise(4, 30, 0.003)
    still = 50 * noise(5, 30, 0.003)
    failed = [n for n in pairs(tmp_path / "across", moving, still) if n.outcome == "fail"]
    assert [n.subject for n in failed] == ["phase=decode, tp=2"]
    assert "one end is, the other is not" in failed[0].arithmetic[2]
    above = [n.outcome for n in pairs(tmp_path / "above", 2 * moving, still) if "moves through" in n.text]
    assert above == ["warn"]


def test_drift_that_both_share_is_cancelled(tmp_path: Path):
    drift = np.linspace(1.0, 1.06, 20)
    found = pairs(tmp_path, 60 * drift * noise(6, 20, 0.003), 50 * drift * noise(7, 20, 0.003))
    assert not any("moves through" in notice.text for notice in found)


def test_two_repetitions_are_too_few_to_judge(tmp_path: Path):
    assert [notice.outcome for notice in pairs(tmp_path, [47.7, 47.6], [34.2, 23.5])] == ["not assessable"]
