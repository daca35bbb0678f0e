"""The lab's rules: the document says what they say, and each names an enforcer that is there."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from labkit.audit.registry import detectors
from labkit.cli import lab
from labkit.errors import ParameterError
from labkit.lab import rules_text
from labkit.lab.rules import NOT_HERE, PUBLISHED, RULES, Enforcer, LabRule
from labkit.lab.rules_text import BEGIN, END, faults, missing, published_rules, rendered

ROOT = Path(__file__).resolve().parents[2]


def test_methodology_says_what_the_rules_say():
    document = (ROOT / "METHODOLOGY.md").read_text(encoding="utf-8")
    assert rendered(document) == document, "run `lab docs`"


def test_a_changed_rule_is_a_changed_document(monkeypatch: pytest.MonkeyPatch):
    document = (ROOT / "METHODOLOGY.md").read_text(encoding="utf-8")
    one = RULES["ceiling"]
    other = LabRule(one.id, one.group, "A rate may be anything.", one.why, one.enforced, one.published)
    monkeypatch.setattr(rules_text, "RULES", {**RULES, "ceiling": other})
    assert rendered(document) != document
    assert "A rate may be anything." in rendered(document)
    assert rendered(document).split(BEGIN)[0] == document.split(BEGIN)[0], "what stands above is a person's"


def test_each_enforcer_is_there_and_each_detector_has_its_rule():
    assert list(faults(ROOT)) == []


@pytest.mark.parametrize(
    ("kind", "name", "trouble"),
    [
        ("detector", "no-such-detector", "no detector 'no-such-detector'"),
        ("check", "labkit.lab.verdict.no_such_function", "no function"),
        ("check", "labkit.no_such_module.thing", "no function"),
        ("field", "labkit.lab.plan.Plan.no_such_field", "has no field 'no_such_field'"),
        ("field", "labkit.lab.plan.Plan.hash", "has no field 'hash'"),  # derived, not stored
        ("field", "labkit.lab.no_such_thing.Plan.belief", "has no field"),
        ("test", "tests/lab/test_rules.py::test_that_nobody_wrote_" + "down", "no test"),
        ("verb", "ledger forget", "no verb `lab ledger forget`"),
        ("verb", "run away", "no verb"),
    ],
)
def test_an_enforcer_that_is_not_there_is_told(kind, name, trouble):
    assert trouble in missing(Enforcer(kind, name), ROOT)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("detector", "above-roofline"),
        ("check", "labkit.lab.run.Run.plan"),
        ("field", "labkit.lab.plan.Plan.anchor"),
        ("field", "labkit.engine.sampling.Sampling.temperature"),
        ("test", "tests/lab/test_rules.py::test_an_enforcer_that_is_there_is_found"),
        ("verb", "ledger verify"),
        ("person", "thinks"),
    ],
)
def test_an_enforcer_that_is_there_is_found(kind, name):
    assert missing(Enforcer(kind, name), ROOT) == ""


def test_a_detector_without_a_rule_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rules_text, "RULES", {id: one for id, one in RULES.items() if id != "all-resident"})
    assert any("admission-waves" in line for line in faults())


def test_each_published_rule_is_answered_or_set_aside_with_a_reason():
    assert sorted([*published_rules(), *NOT_HERE]) == list(range(1, PUBLISHED + 1))


def test_a_rule_that_nothing_enforces_is_refused():
    with pytest.raises(ParameterError, match="nothing enforces"):
        LabRule("hope", "Judging", "All is well.", "It would be nice.", ())
    with pytest.raises(ParameterError, match="none of"):
        LabRule("hope", "Hoping", "All is well.", "It would be nice.", (Enforcer("person", "hopes"),))
    with pytest.raises(ParameterError, match="one line"):
        LabRule("hope", "Judging", "All | is well.", "It would be nice.", (Enforcer("person", "hopes"),))


@pytest.mark.parametrize("document", ["# Methodology\n", f"{END}\n{BEGIN}\n", f"{BEGIN}\n{BEGIN}\n{END}\n"])
def test_a_document_without_its_markers_is_refused(document):
    with pytest.raises(ParameterError, match="once each"):
        rendered(document)


def test_the_verb_checks_renders_and_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    assert CliRunner().invoke(lab, ["docs", "--check"]).exit_code == 0
    told = json.loads(CliRunner().invoke(lab, ["docs", "--json"]).output)
    assert {row["id"] for row in told} == set(RULES)
    assert {each["name"] for row in told for each in row["enforced"] if each["kind"] == "detector"} == set(detectors())
    (tmp_path / "lab.toml").write_text("")
    (tmp_path / "FINDINGS.md").write_text("# Findings\n")
    monkeypatch.setenv("LABKIT_LAB", str(tmp_path))
    refused = CliRunner().invoke(lab, ["docs"])
    assert isinstance(refused.exception, ParameterError)
    assert "labkit's own repository" in str(refused.exception)
