"""Plans and rules: refused where they are made when they cannot decide anything, and the same after a round trip."""

import json
import math
from typing import Any

import pytest
from ledger_runs import EIGHT, ONE, make_plan

from labkit.errors import ParameterError
from labkit.lab.plan import Anchor, Plan, Rule, document_hash, read_plan, stored_hash

pytestmark = pytest.mark.quick


def test_a_plan_is_the_same_after_a_round_trip_through_json() -> None:
    plan = make_plan(knob=("width", "kv"), cells=[ONE | {"kv": "f16"}, EIGHT | {"kv": "f16"}], control=None,
                     rule={"cell": EIGHT | {"kv": "f16"}, "against": {"kv": "f16", "width": 1}})  # fmt: skip
    for document in (plan.model_dump(mode="json"), json.loads(plan.model_dump_json()), json.loads(plan.canonical())):
        again = Plan.model_validate(document)
        assert again == plan
        assert again.hash == plan.hash


def test_the_hash_is_that_of_the_content_and_of_all_of_it() -> None:
    plan = make_plan()
    assert len(plan.hash) == 64
    assert plan.hash == make_plan().hash
    others = [
        make_plan(11),
        make_plan(belief="Another belief entirely"),
        make_plan(rule={"threshold": 4.01}),
        make_plan(seed=1),
    ]
    assert len({plan.hash, *(other.hash for other in others)}) == 5


def test_knob_order_and_number_types_of_numpy_do_not_change_a_plan() -> None:
    import numpy as np

    one = make_plan(cells=[{"width": 1, "kv": "f16"}, {"width": 8, "kv": "f16"}], control=None,
                    rule={"cell": {"width": 8, "kv": "f16"}, "against": {"width": 1, "kv": "f16"}})  # fmt: skip
    other = make_plan(cells=[{"kv": "f16", "width": np.int64(1)}, {"kv": "f16", "width": 8}], control=None,
                      rule={"cell": {"kv": "f16", "width": 8}, "against": {"kv": "f16", "width": 1}})  # fmt: skip
    assert one.hash == other.hash


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"repetitions": 0}, "Plan.repetitions: 0 repetitions; use 1 to 1000"),
        ({"repetitions": 1001}, "1001 repetitions; use 1 to 1000"),
        ({"repetitions": "many"}, "Plan.repetitions is 'many': input should be a valid integer"),
        ({"belief": "  "}, "states? the belief in one sentence"),
        ({"belief": "42"}, "says nothing that could be wrong"),
        ({"cells": []}, "there are no cells"),
        ({"cells": {"width": 1}}, 'give a list of knob values, such as'),
        ({"cells": [ONE, EIGHT, {"width": 8}]}, r'the cell {"width":8} is listed twice'),
        ({"cells": [ONE, EIGHT, {"height": 8}]}, r'the cell {"height":8} has no value for the knob .width.'),
        ({"cells": [ONE, {"width": math.nan}]}, "cannot be a cell"),
        ({"cells": [ONE, {}]}, "is not a cell"),
        ({"cells": [ONE, {"width": 4}]}, r'rule.cell is {"width":8}, which is not among the cells'),
        ({"control": {"width": 3}}, r'control is {"width":3}, which is not among the cells'),
        ({"kind": "hopeful"}, "Plan.kind is 'hopeful': input should be 'exploratory', 'confirmatory' or 'retrospective'"),
        ({"design": "at once"}, "Plan.design is 'at once': input should be 'interleaved' or 'restarts'"),
        ({"warmup": "dropped"}, "Plan.warmup is 'dropped': input should be 'counted' or 'left out'"),
        ({"anchor": {"metric": "read_gb_s", "cell": ONE, "pinned": "ab12"}}, "is one of the cells; it stands apart"),
        ({"experiment": "Batch decode!"}, "is not an experiment's name"),
        ({"colour": "red"}, "Plan.colour is not a field of a Plan"),
        ({"rule": {"metric": "decode_toks"}}, "'decode_toks' is not a registered metric; did you mean decode_tok_s"),
        ({"rule": {"comparison": ">"}}, "Rule.comparison is '>': input should be '>=', '<=', 'same' or 'different'"),
        ({"rule": {"threshold": None}}, "'>=' needs a threshold"),
        ({"rule": {"threshold": math.nan}}, "threshold is nan; use a finite number"),
        ({"rule": {"threshold": -4.0}}, "threshold is -4.0; a ratio is compared with a number above 0"),
        ({"rule": {"margin": -0.1}}, "margin is -0.1"),
        ({"rule": {"margin": math.inf}}, "margin is inf"),
        ({"rule": {"margin": 2.0}}, "it is a share of the threshold and stays under 1"),
        ({"rule": {"against": EIGHT}}, "cell and against are both"),
        ({"rule": {"comparison": "same", "threshold": None, "margin": 0.0}}, "'same' needs a margin above 0"),
        ({"rule": {"against": None, "comparison": "same", "threshold": None}}, "'same' needs a threshold"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_what_cannot_decide_is_refused_in_one_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message) as raised:
        make_plan(**fields)
    assert "\n" not in str(raised.value)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ParameterError, match=r"Plan\.experiment is missing; a Plan needs it"):
        Plan(belief="A belief of some kind")  # type: ignore[call-arg]


def test_a_plan_is_not_changed_once_made() -> None:
    plan = make_plan()
    with pytest.raises(ParameterError, match=r"a Plan is not changed once made \(belief\); make another"):
        plan.belief = "Something else"
    with pytest.raises(ParameterError, match="a Rule is not changed"):
        plan.rule.threshold = 3.0


def test_a_negative_control_must_ask_for_the_same() -> None:
    asked = {"metric": "decode_tok_s", "cell": EIGHT, "against": ONE, "comparison": ">=", "threshold": 1.0}
    with pytest.raises(ParameterError, match="the negative control asks for '>='; it must ask for 'same'"):
        make_plan(negative_control=Rule(**asked))


def test_an_anchor_says_what_is_pinned_of_a_metric_there_is() -> None:
    anchor = Anchor(metric="read_gb_s", cell={"anchor": "stream"}, pinned="ab12")
    plan = make_plan(anchor=anchor, design="restarts", warmup="left out")
    assert Plan.model_validate_json(plan.canonical()) == plan
    assert plan.facts()["anchor"] == "read_gb_s at anchor=stream"
    assert plan.facts()["design"] == "over restarts"
    with pytest.raises(ParameterError, match="say what is pinned"):
        Anchor(metric="read_gb_s", cell={"anchor": "stream"}, pinned=" ")
    with pytest.raises(ParameterError, match="did you mean read_gb_s"):
        Anchor(metric="read_gbs", cell={"anchor": "stream"}, pinned="ab12")


def test_a_plan_of_an_earlier_version_reads_and_its_hash_stays_that_of_what_was_stored(tmp_path: Any) -> None:
    new = ("design", "warmup", "anchor", "claim")
    older = {name: value for name, value in make_plan().model_dump(mode="json").items() if name not in new}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(older))
    assert read_plan(path) == make_plan()
    assert stored_hash(path) == document_hash(older) != make_plan().hash


@pytest.mark.parametrize(
    ("fields", "held"),
    [
        ({}, True),
        ({"kind": "exploratory"}, False),
        ({"kind": "retrospective"}, False),
        ({"believed_because": ""}, False),
        ({"kind": "exploratory", "held": True}, True),
        ({"held": False}, False),
    ],
)
def test_a_belief_is_held_when_declared_so_or_confirmatory_with_a_reason(fields: dict[str, Any], held: bool) -> None:
    assert make_plan(**fields).belief_held is held


def test_the_schedule_is_complete_blocks_from_the_plans_own_seed() -> None:
    assert make_plan(3).schedule() == [(0, ONE), (0, EIGHT), (1, EIGHT), (1, ONE), (2, ONE), (2, EIGHT)]
    widths = [{"width": width} for width in (1, 2, 4, 8)]
    plan = make_plan(5, cells=widths, seed=7)
    schedule = plan.schedule()
    assert schedule == make_plan(5, cells=widths, seed=7).schedule()
    for block in range(5):
        assert sorted(cell["width"] for at, cell in schedule if at == block) == [1, 2, 4, 8]


def test_a_stored_plan_reads_back_and_a_damaged_one_is_named(tmp_path: Any) -> None:
    plan, path = make_plan(), tmp_path / "plan.json"
    path.write_text(json.dumps(plan.model_dump(mode="json"), indent=2))
    assert read_plan(path) == plan
    assert stored_hash(path) == plan.hash
    path.write_text("{")
    with pytest.raises(ParameterError, match=r"plan\.json is not a plan"):
        read_plan(path)


def test_plans_and_rules_show_themselves() -> None:
    plan = make_plan()
    assert "decode_tok_s at width=8 over width=1, in each block: at least 4" in repr(plan)
    assert "\n" not in repr(plan)
    page = make_plan(belief="Fast & <b>bold</b> beliefs")._repr_html_()
    assert "Fast &amp; &lt;b&gt;bold" in page
    same = Rule(metric="tpot_s", cell=EIGHT, against=ONE, comparison="same", margin=0.02)
    assert same.words().endswith("within 0.98 to 1.02")
