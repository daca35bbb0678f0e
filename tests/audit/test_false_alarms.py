"""How often each detector speaks up over a thousand honest records: none fails one, and the rates are printed."""

from collections import Counter
from pathlib import Path

import pytest
from honest_records import honest_claims, write_honest_run
from make_evidence import claimed

from labkit.audit.registry import detectors
from labkit.audit.report import Audit, audit
from labkit.audit.run_evidence import read_run

RUNS, CLAIMS = 700, 300
MOST_WARNED = 0.05  # of the records, by one detector


def judged(root: Path) -> list[Audit]:
    """The audits of a thousand honest records: runs, and files of claims."""
    runs = [audit(read_run(write_honest_run(root, seed))) for seed in range(RUNS)]
    return runs + [audit(claimed(root, honest_claims(seed)).evidence()) for seed in range(CLAIMS)]


@pytest.mark.slow
def test_no_detector_fails_an_honest_record_and_few_warn(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    audits = judged(tmp_path)
    assert len(audits) == 1000
    said: dict[str, Counter[str]] = {id: Counter() for id in detectors()}
    first: dict[str, str] = {}
    for found in audits:
        for id, outcome in {(notice.detector, notice.outcome) for notice in found.notices}:
            said[id][outcome] += 1
        for notice in found.notices:
            if notice.trouble or "broke on" in notice.text:
                first.setdefault(notice.detector, f"{found.name}: {notice.text} {notice.arithmetic}")
    with capsys.disabled():
        print("\nfalse alarms over 1,000 honest records: fail, warn; and ok, not assessable")
        for id, counts in said.items():
            alarms = f"{counts['fail'] / 10:.1f} %, {counts['warn'] / 10:.1f} %"
            print(f"  {id:28} {alarms:16} {counts['ok'] / 10:.1f} %, {counts['not assessable'] / 10:.1f} %")
    broken = [one for one in first.values() if "broke on" in one]
    assert not broken, broken
    assert {id: counts["fail"] for id, counts in said.items() if counts["fail"]} == {}, first
    assert {id: counts["warn"] for id, counts in said.items() if counts["warn"] > MOST_WARNED * 1000} == {}, first


def test_the_detectors_do_assess_honest_records(tmp_path: Path):
    found = audit(read_run(write_honest_run(tmp_path, 3)))
    assert found.outcome == "ok", found.text()
    judged_by = {notice.detector for notice in found.notices if notice.outcome == "ok"}
    assert set(detectors()) - judged_by == {"text-arithmetic"}  # it has no words
