"""The report: the root cause is shown first, what follows from it stands beneath, and a broken detector breaks nothing."""

import importlib
import json

import pytest
from make_evidence import MISTRAL_7B, claims_of, observed
from pydantic import ValidationError

from labkit.audit import registry
from labkit.audit.notice import Notice
from labkit.audit.report import audit, group_notices


def notice(
    detector: str, outcome: str = "fail", about: tuple[str, ...] = ("a",), explains: tuple[str, ...] = ()
) -> Notice:
    """A notice of a detector that need not exist."""
    return Notice(
        detector=detector, outcome=outcome, text=f"{detector} says so", about=about, arithmetic=("1 + 1 = 2",), explains=explains
    )  # fmt: skip


@pytest.mark.quick
def test_a_root_cause_stands_above_what_follows_from_it_however_grave():
    groups = group_notices(
        [notice("consequence"), notice("root", "warn", explains=("consequence",)), notice("other", "warn")]
    )
    assert [group.root.detector for group in groups] == ["root", "other"]
    assert [one.detector for one in groups[0].consequences] == ["consequence"]
    assert groups[0].outcome == "fail"


def test_a_notice_on_another_cell_is_no_consequence():
    groups = group_notices(
        [notice("consequence", about=("b",)), notice("root", about=("a",), explains=("consequence",))]
    )
    assert len(groups) == 2


def test_detectors_that_explain_each_other_do_not_hang():
    groups = group_notices([notice("x", explains=("y",)), notice("y", explains=("x",))])
    assert sum(1 + len(group.consequences) for group in groups) == 2


def test_a_warning_shows_its_arithmetic_and_what_is_missing_belongs_to_not_assessable():
    with pytest.raises(ValidationError, match="arithmetic"):
        Notice(outcome="fail", text="wrong")
    with pytest.raises(ValidationError, match="not assessable"):
        Notice(outcome="ok", text="fine", missing=("a rate",))


def test_rows_stand_by_their_gravest_notice_and_text_json_and_html_say_it():
    rows = [
        observed("decode_tok_s", 1724, "impossible", streams=32, **MISTRAL_7B),
        observed("decode_tok_s", 17, "plausible", streams=1, **MISTRAL_7B),
        observed("decode_tok_s", 90, "open", group="another", streams=None),
    ]
    found = audit(claims_of(*rows))
    assert {name: found.standing(name) for name in found.subjects} == {
        "impossible": "fail", "plausible": "ok", "open": "not assessable",
    }  # fmt: skip
    assert found.outcome == "fail"
    assert "above-roofline" in found.failed
    assert "impossible" in found.text()
    assert "<script" not in found._repr_html_()
    assert json.loads(json.dumps(found.document()))["subjects"]["impossible"]["outcome"] == "fail"


def test_a_detector_that_breaks_says_so_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch):
    def broken(evidence: object) -> list[Notice]:
        raise ZeroDivisionError("by nothing")

    known = registry.detectors()
    fake = registry.Detector("broken", 99, 1, "Broken", "", broken, module="labkit.audit.report")
    monkeypatch.setattr("labkit.audit.report.detectors", lambda: known | {"broken": fake})
    found = audit(claims_of(observed("decode_tok_s", 17, "plausible", streams=1, **MISTRAL_7B)))
    assert any("ZeroDivisionError" in one.text for one in found.notices)
    assert found.standing("plausible") == "ok"


def test_every_detector_says_what_it_judges_and_which_version_did():
    known = registry.detectors()
    assert known
    for one in known.values():
        assert one.about, one.id
        assert one.title, one.id
        assert registry.stamps()[one.id].startswith(f"{one.version}-")


def test_what_a_detector_explains_is_a_detector():
    known = registry.detectors()
    assert {id: [name for name in one.explains if name not in known] for id, one in known.items()} == {
        id: [] for id in known
    }


def test_a_detector_is_stamped_with_all_it_takes_names_from():
    leaned = {
        id: [module.__name__ for module in registry.leaned_on(importlib.import_module(one.module))]
        for id, one in registry.detectors().items()
    }
    assert "labkit.measure.statistics" in leaned["repetitions"]
    assert {"labkit.lab.conditions", "labkit.lab.coverage"} <= set(leaned["single-shape"])
    assert {"labkit.lab.levers", "labkit.lab.lever_checks"} <= set(leaned["lever-witness"])
