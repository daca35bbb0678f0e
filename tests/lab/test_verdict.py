"""Verdicts on samples whose truth is known: the four outcomes, strength, pooling, and what no data means."""

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from ledger_runs import EIGHT, ONE, make_plan, make_run, ratios_about

from labkit.errors import LedgerError
from labkit.lab.measurements import Measurement
from labkit.lab.plan import Anchor, Plan, Rule, document_hash
from labkit.lab.record import Check
from labkit.lab.starts import Start
from labkit.lab.verdict import Verdict, effect_words, judge, judge_folder, pool

pytestmark = pytest.mark.quick

PASSED = [Check(name="ids", passed=True)]


def rows(ratios: Sequence[float], metric: str = "decode_tok_s", base: float = 20.0) -> list[Measurement]:
    """Samples of width 1 and 8 whose paired ratios are `ratios`; the base drifts, which pairing cancels."""
    found = []
    for block, ratio in enumerate(ratios):
        for cell, value in ((ONE, base + block), (EIGHT, (base + block) * ratio)):
            found.append(Measurement(block, len(found), json.dumps(cell, separators=(",", ":")), metric, value, ""))
    return found


def judged(ratio: float, pairs: int = 10, noise: float = 0.01, **rule: Any) -> Verdict:
    return judge(make_plan(rule=rule), rows(ratios_about(ratio, pairs, noise)), PASSED)


def test_the_effect_is_the_geometric_mean_of_the_paired_ratios() -> None:
    ratios = [4.0, 5.0, 6.0, 5.5, 4.5, 5.2, 4.8, 5.1, 4.9, 5.3]
    verdict = judge(make_plan(), rows(ratios), PASSED)
    assert verdict.effect == pytest.approx(math.exp(np.log(ratios).mean()))
    assert verdict.values == pytest.approx(ratios)
    assert verdict.blocks == tuple(range(10))
    assert verdict.low is not None
    assert verdict.high is not None
    assert verdict.low < verdict.effect < verdict.high


@pytest.mark.parametrize(
    ("comparison", "threshold", "margin", "ratio", "outcome"),
    [
        (">=", 4.0, 0.02, 5.0, "confirmed"),
        (">=", 4.0, 0.02, 3.0, "refuted"),
        (">=", 4.0, 0.02, 4.0, "inconclusive"),
        ("<=", 0.5, 0.0, 0.4, "confirmed"),
        ("<=", 0.5, 0.0, 0.6, "refuted"),
        ("<=", 0.5, 0.0, 0.5, "inconclusive"),
        ("same", None, 0.02, 1.0, "confirmed"),
        ("same", None, 0.02, 1.1, "refuted"),
        ("same", None, 0.02, 0.9, "refuted"),
        ("same", None, 0.02, 1.02, "inconclusive"),
        ("same", 2.0, 0.02, 2.0, "confirmed"),
        ("different", None, 0.0, 1.1, "confirmed"),
        ("different", None, 0.0, 1.0, "inconclusive"),
        ("different", None, 0.05, 1.0, "refuted"),
        ("different", None, 0.05, 1.1, "confirmed"),
        ("different", None, 0.05, 1.05, "inconclusive"),
    ],
)
def test_the_whole_interval_decides(
    comparison: str, threshold: float | None, margin: float, ratio: float, outcome: str
) -> None:
    verdict = judged(ratio, comparison=comparison, threshold=threshold, margin=margin)
    assert verdict.outcome == outcome, verdict
    assert verdict.sentence.startswith(f"{outcome.capitalize()} (session result): ")


def test_a_verdict_won_by_less_than_the_margin_is_called_close() -> None:
    assert judged(4.05, noise=0.001, margin=0.02).close
    assert not judged(4.2, noise=0.001, margin=0.02).close
    assert "by less than the margin" in judged(3.95, noise=0.001, margin=0.02).reason


@pytest.mark.parametrize(
    ("pairs", "strength"), [(2, "look"), (9, "look"), (10, "session result"), (30, "session result")]
)
def test_fewer_than_ten_pairs_are_a_look(pairs: int, strength: str) -> None:
    assert judged(5.0, pairs).strength == strength


def test_one_pair_has_no_interval_and_decides_nothing() -> None:
    verdict = judged(50.0, 1)
    assert (verdict.outcome, verdict.low, verdict.high) == ("inconclusive", None, None)
    assert "one pair, which has no interval" in verdict.reason


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        ([], "decode_tok_s was not measured at width=8"),
        (rows([5.0] * 10, metric="ttft_s"), "decode_tok_s was not measured at width=8"),
        ([row for row in rows([5.0] * 10) if row.cell == '{"width":8}'], "was not measured at width=1"),
        ([row for row in rows([5.0] * 10) if (row.cell == '{"width":8}') == (row.block < 5)], "no block has both"),
        (rows([5.0] * 9 + [0.0]), "needs positive samples; block 9 has 0.0"),
    ],
    ids=["nothing", "another-metric", "one-cell", "no-pair", "zero"],
)
def test_no_data_is_invalid_and_neither_confirms_nor_refutes(samples: list[Measurement], reason: str) -> None:
    for comparison in (">=", "<="):
        verdict = judge(make_plan(rule={"comparison": comparison}), samples, PASSED)
        assert verdict.outcome == "invalid"
        assert not verdict.decided
        assert verdict.effect is None
        assert reason in verdict.reason


def test_a_failed_check_makes_a_fast_run_invalid_and_keeps_its_numbers() -> None:
    checks = [*PASSED, Check(name="log-probabilities", passed=False)]
    verdict = judge(make_plan(), rows([5.0] * 10), checks)
    assert (verdict.outcome, verdict.reason) == ("invalid", "failed check: log-probabilities")
    assert verdict.values == pytest.approx([5.0] * 10)


def test_a_speed_without_any_check_is_refused_and_a_count_is_not() -> None:
    assert "no correctness check was recorded" in judge(make_plan(), rows([5.0] * 10), []).reason
    counted = make_plan(rule={"metric": "dispatches", "comparison": "<=", "threshold": 6.0})
    assert judge(counted, rows([5.0] * 10, metric="dispatches"), []).outcome == "confirmed"


def test_a_negative_control_that_moves_makes_the_run_invalid() -> None:
    again = {"width": 1, "again": True}
    plan = make_plan(
        cells=[ONE, EIGHT, again],
        negative_control=Rule(metric="decode_tok_s", cell=again, against=ONE, comparison="same", margin=0.02),
    )

    def with_control(ratio: float) -> Verdict:
        extra = [
            row._replace(cell='{"again":true,"width":1}', value=row.value * ratio * (1 + 0.001 * (row.block % 2)))
            for row in rows([5.0] * 10)
            if row.cell == '{"width":1}'
        ]
        return judge(plan, rows([5.0] * 10) + extra, PASSED)

    assert with_control(1.0).outcome == "confirmed"
    moved = with_control(1.1)
    assert moved.outcome == "invalid"
    assert "the negative control is not the same" in moved.reason
    assert judge(plan, rows([5.0] * 10), PASSED).outcome == "invalid"  # the control was not measured


def test_the_metric_itself_is_judged_when_there_is_nothing_to_compare_with() -> None:
    rule = {"against": None, "comparison": ">=", "threshold": 100.0, "margin": 0.0}
    verdict = judge(make_plan(rule=rule), rows([5.0] * 10), PASSED)
    assert verdict.outcome == "confirmed"
    assert verdict.effect == pytest.approx(math.exp(np.log([5 * (20 + b) for b in range(10)]).mean()))
    assert verdict.number().startswith("121.7 tok/s [") or verdict.number().startswith("122 tok/s [")
    zero = {"metric": "logprob_gap", "against": None, "comparison": "<=", "threshold": 0.01, "margin": 0.0}
    gaps = [Measurement(b, b, '{"width":8}', "logprob_gap", 0.001 * (b % 3), "") for b in range(10)]
    verdict = judge(make_plan(rule=zero), gaps, PASSED)
    assert (verdict.outcome, verdict.logarithmic) == ("confirmed", False)
    assert verdict.effect == pytest.approx(0.0009)


def test_several_samples_of_a_cell_in_a_block_are_one_repetition() -> None:
    doubled = [row for row in rows(ratios_about(5.0, 10)) for _ in range(3)]
    assert judge(make_plan(), doubled, PASSED).pairs == 10


@pytest.mark.parametrize(
    ("ratio", "metric", "word"),
    [
        (1.0, "decode_tok_s", "same"),
        (1.05, "decode_tok_s", "faster"),
        (0.95, "decode_tok_s", "slower"),
        (0.95, "step_ms", "faster"),
        (1.015, "decode_tok_s", "undecided"),
    ],
)
def test_every_ratio_has_a_word_whatever_its_rule_asked(ratio: float, metric: str, word: str) -> None:
    noise = 0.06 if word == "undecided" else 0.01
    verdict = judge(make_plan(rule={"metric": metric}), rows(ratios_about(ratio, 10, noise), metric), PASSED)
    assert (verdict.outcome, verdict.word) == ("refuted", word)
    assert verdict.facts()["in a word"] == word


def test_same_is_what_the_rule_declares_it_to_be_and_what_is_invalid_has_no_word() -> None:
    assert judged(1.03, comparison="same", threshold=None, margin=0.05).word == "same"
    assert judged(1.03, comparison="different", threshold=None, margin=0.01).word == "faster"
    assert judge(make_plan(), rows([5.0] * 10), []).word == ""
    assert judged(5.0, against=None, threshold=10.0).word == ""
    assert pool(make_plan(), [ratios_about(5.0, 10)] * 3).word == "faster"


def test_a_first_block_that_is_warm_up_counts_or_is_left_out_as_the_plan_says() -> None:
    samples = rows([2.0, *ratios_about(5.0, 11)], base=1e6)
    cold = [row._replace(value=row.value * (0.5 if row.block == 0 else 1)) for row in samples]
    assert (judge(make_plan(), cold, PASSED).pairs, judge(make_plan(), cold, PASSED).warmup) == (12, ())
    verdict = judge(make_plan(warmup="left out"), cold, PASSED)
    assert (verdict.pairs, verdict.warmup, verdict.blocks) == (11, (0,), tuple(range(1, 12)))
    assert "1 block of warm-up, kept in the record" in verdict.facts()["left out"]


def test_an_anchor_that_is_missing_or_moves_by_itself_is_told() -> None:
    plan = make_plan(anchor=Anchor(metric="read_gb_s", cell={"anchor": "stream"}, pinned="ab12"))

    def notices(values: Sequence[float]) -> tuple[str, ...]:
        anchors = [Measurement(b, 0, '{"anchor":"stream"}', "read_gb_s", value, "") for b, value in enumerate(values)]
        return judge(plan, rows(ratios_about(5.0, 10)) + anchors, PASSED).notices

    assert notices([600 + block % 3 for block in range(10)]) == ()
    assert "its anchor was not measured" in notices([])[0]
    assert "its anchor moved through the session" in notices([600 - 5 * block + block % 2 for block in range(10)])[0]


def test_over_restarts_each_start_settles_by_itself_and_is_one_repetition() -> None:
    samples, starts = [], {}
    for block in range(10):
        for cell, rate in ((ONE, 20.0), (EIGHT, 100.0)):
            for cold in (0.3, 0.6, 1.0, 1.001, 0.999, 1.0, 1.0, 1.001):
                order = len(samples)
                starts[order] = Start("1f2e3d4c", "1", "1", str(order // 8))
                samples.append(Measurement(block, order, json.dumps(cell, separators=(",", ":")), "decode_tok_s",
                                           rate * cold * (1 + 0.002 * (block % 3)), ""))  # fmt: skip
    only_one = [row for row in samples if not (row.cell == '{"width":1}' and row.order % 8 < 2)]
    counted = judge(make_plan(design="restarts"), only_one, PASSED, starts=starts)
    settled = judge(make_plan(design="restarts", warmup="left out"), only_one, PASSED, starts=starts)
    assert (counted.pairs, settled.pairs) == (10, 10)
    assert counted.effect is not None
    assert counted.effect < 4.5  # the cold starts of the eight are in it
    assert settled.effect == pytest.approx(5.0, rel=1e-3)
    assert settled.warmup == tuple(range(10))


def test_leaving_warm_up_out_makes_no_difference_where_there_is_none() -> None:
    rng, alarms = np.random.default_rng(11), 0
    plan = make_plan(warmup="left out", rule={"comparison": "same", "threshold": None, "margin": 0.02})
    for noise in rng.normal(0, 0.01, (300, 10, 2)) - np.linspace(0, 0.03, 20).reshape(10, 2):
        made = [
            Measurement(block, 0, json.dumps(cell, separators=(",", ":")), "decode_tok_s", math.exp(one), "")
            for block, pair in enumerate(noise)
            for cell, one in zip((ONE, EIGHT)[:: 1 - 2 * (block % 2)], pair, strict=True)
        ]
        alarms += judge(plan, made, PASSED).word in ("faster", "slower")
    print(f"A/A with 3 % drift, warm-up left out: called different {alarms / 300:.1%}")
    assert alarms <= 21


def test_a_run_that_drifts_apart_says_so_and_keeps_its_samples() -> None:
    rng = np.random.default_rng(0)
    ratios = list(5.0 * np.exp(0.01 * np.arange(12) + rng.normal(0, 0.002, 12)))
    verdict = judge(make_plan(), rows(ratios), PASSED)
    assert any("the effect moves through the session" in notice for notice in verdict.notices)
    spiked = judge(make_plan(), rows([*ratios_about(5.0, 11), 9.0]), PASSED)
    assert any("1 outlier" in notice for notice in spiked.notices)
    assert spiked.pairs == 12


# Pooling


def effects(*means: float, pairs: int = 10, noise: float = 0.01) -> list[list[float]]:
    return [ratios_about(mean, pairs, noise) for mean in means]


def test_one_session_pools_to_itself() -> None:
    session = ratios_about(5.0, 10)
    alone, together = judge(make_plan(), rows(session), PASSED), pool(make_plan(), [session])
    assert (together.outcome, together.strength, together.runs) == (alone.outcome, "session result", 1)
    assert (together.effect, together.low, together.high) == pytest.approx((alone.effect, alone.low, alone.high))


def test_two_sessions_confirm_only_what_both_confirm() -> None:
    agreed = pool(make_plan(), effects(5.0, 5.2))
    assert (agreed.outcome, agreed.strength, agreed.runs, agreed.method) == ("confirmed", "session result", 2, "hull")
    assert pool(make_plan(), effects(5.0, 3.0)).outcome == "inconclusive"
    assert pool(make_plan(), effects(5.0, 4.0)).outcome == "inconclusive"


def test_three_sessions_are_a_finding_by_the_t_interval_of_their_means() -> None:
    verdict = pool(make_plan(), effects(5.0, 5.1, 4.9))
    means = np.log([5.0, 5.1, 4.9])
    half = 4.302653 * means.std(ddof=1) / math.sqrt(3)
    assert (verdict.outcome, verdict.strength, verdict.runs, verdict.pairs) == ("confirmed", "finding", 3, 30)
    assert verdict.low == pytest.approx(math.exp(means.mean() - half), rel=1e-6)
    assert verdict.high == pytest.approx(math.exp(means.mean() + half), rel=1e-6)


def test_looks_never_add_up_to_a_result_and_do_not_widen_one() -> None:
    looks = effects(5.0, 5.0, 5.0, 5.0, pairs=5)
    together = pool(make_plan(), looks)
    assert (together.strength, together.pairs, together.runs) == ("look", 20, 4)
    result = pool(make_plan(), [*looks, ratios_about(5.0, 10)])
    assert (result.strength, result.pairs, result.runs) == ("session result", 10, 1)


def test_rerunning_a_null_does_not_confirm_it_in_the_end() -> None:
    rng, plan = np.random.default_rng(6), make_plan(rule={"threshold": 1.0, "margin": 0.0})
    ever = 0
    for _ in range(100):
        sessions = np.exp(rng.normal(0, 0.01, (10, 10)) + rng.normal(0, 0.005, (10, 1)))
        last = pool(plan, [list(session) for session in sessions])
        ever += last.decided
    print(f"a null decided after ten sessions in {ever} of 100")
    assert ever <= 12


def test_nothing_pools_to_nothing() -> None:
    with pytest.raises(LedgerError, match="no valid session"):
        pool(make_plan(), [])


# A folder


def test_a_run_folder_is_judged_by_its_own_files(tmp_path: Any) -> None:
    folder = make_run(tmp_path, 5.0)
    verdict = judge_folder(folder)
    assert (verdict.outcome, verdict.retrospective) == ("confirmed", False)
    assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict


def test_data_older_than_their_rule_are_retrospective(tmp_path: Any) -> None:
    verdict = judge_folder(make_run(tmp_path, 5.0, retrospective=True))
    assert (verdict.outcome, verdict.retrospective) == ("confirmed", True)
    assert "retrospective" in verdict._repr_html_()


def test_a_plan_changed_after_the_fact_makes_the_run_invalid(tmp_path: Any) -> None:
    folder = make_run(tmp_path, 3.0)
    plan = Plan.model_validate_json((folder / "plan.json").read_text())
    easier = Plan(**plan.model_dump() | {"rule": plan.rule.model_copy(update={"threshold": 2.0})})
    (folder / "plan.json").write_text(easier.model_dump_json())
    verdict = judge_folder(folder)
    assert verdict.outcome == "invalid"
    assert "plan.json was changed after it was declared" in verdict.reason


def test_a_plan_stored_before_a_field_was_added_is_still_the_plan_that_was_declared(tmp_path: Any) -> None:
    folder = make_run(tmp_path, 5.0)
    older = {name: value for name, value in make_plan().model_dump(mode="json").items() if name != "negative_control"}
    (folder / "plan.json").write_text(json.dumps(older))
    record = json.loads((folder / "run.json").read_text()) | {"plan_hash": document_hash(older)}
    (folder / "run.json").write_text(json.dumps(record))
    assert judge_folder(folder).outcome == "confirmed"


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((5.83, 5.70, 5.96), "5.83× [5.70, 5.96]"),
        ((1.0012, 0.9987, 1.0037), "1.0012× [0.9987, 1.0037]"),
        ((1.0, 1.0, 1.0), "1.00× [1.00, 1.00]"),
        ((412.3, 380.0, 440.0), "412× [380, 440]"),
        ((5.0, None, None), "5×"),
    ],
)
def test_an_effect_is_written_at_the_digits_its_interval_supports(numbers: tuple[Any, Any, Any], words: str) -> None:
    assert effect_words(*numbers, ratio=True, unit="") == words
