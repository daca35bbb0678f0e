"""Across an upgrade, as a person walks it: an anchor in the plan, five sessions, another driver, `lab compare`."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from ledger_runs import DEVICE, EIGHT, ONE, make_plan

import labkit
import labkit.lab.lab
import labkit.lab.run
import labkit.measure.roofline
from labkit.commands.compare import command
from labkit.lab.anchor import CELL, measure_anchor, stream_anchor
from labkit.lab.lab import Lab, _open_runs
from labkit.lab.recheck import verify
from labkit.lab.record import read_record

NEWER = DEVICE | {"driver_info": "Mesa 25.1.0"}
CARD: Any = SimpleNamespace(name="A card")  # what measure_anchor is handed; its read rate is made up here


class Bench:
    """A lab with a card in it: each session is one run by hand of ten blocks, an hour after the last."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lab = Lab(root)
        self.rng = np.random.default_rng(11)
        self.now = datetime(2026, 12, 1, tzinfo=UTC)
        self.read_gb_s = 600.0
        for module in (labkit.lab.lab, labkit.lab.run):
            monkeypatch.setattr(module, "utc_now", self.utc)
        monkeypatch.setattr(
            labkit.measure.roofline, "read_bandwidth", lambda device, fresh: SimpleNamespace(gb_s=self.read_gb_s)
        )

    def utc(self) -> str:
        self.now += timedelta(seconds=1)
        return f"{self.now:%Y-%m-%dT%H:%M:%SZ}"

    def session(
        self, rate: float = 20.0, stream: float = 600.0, device: dict[str, Any] | None = None, anchored: bool = True,
        anchor: labkit.Anchor | None = None, measured: bool = True,
    ) -> str:  # fmt: skip
        """A concluded run at about `rate` tok/s and `stream` GB/s; its id."""
        self.now += timedelta(hours=1)
        rate, stream = (value * float(np.exp(self.rng.normal(0, 0.002))) for value in (rate, stream))
        run = self.lab.run("batch-decode", {"tokens": 24})
        plan = make_plan(anchor=(anchor or stream_anchor()) if anchored else None)
        run.plan(plan)
        run.describe(device=device or DEVICE, model={"name": "m", "sha256": "ab" * 32})
        run.check("ids equal", passed=True)
        for block, cell in plan.schedule():
            value = rate * (5.0 if cell == EIGHT else 1.0) * float(np.exp(self.rng.normal(0, 0.003)))
            run.measure(cell, block, decode_tok_s=value)
            if cell == ONE and anchored and measured:
                self.read_gb_s = stream * float(np.exp(self.rng.normal(0, 0.001)))
                assert measure_anchor(run, CARD, block) == self.read_gb_s
        run.conclude()
        record = read_record(run.folder)
        assert record.verdict is not None
        assert record.verdict["outcome"] == "confirmed", record.verdict
        return run.id

    def compare(self, old: str, new: str) -> tuple[dict[str, Any], str]:
        """What `lab compare OLD NEW` says, as JSON and on the terminal."""
        read = CliRunner().invoke(command, [old, new, "--json"])
        shown = CliRunner().invoke(command, [old, new])
        assert (read.exit_code, shown.exit_code) == (0, 0), read.output + shown.output
        return json.loads(read.output), shown.output


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    (tmp_path / "labkit").mkdir()
    (tmp_path / "FINDINGS.md").write_text("# Findings\n")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("LABKIT_LAB", str(tmp_path))
    monkeypatch.delenv("LABKIT_RUN", raising=False)
    yield Bench(tmp_path, monkeypatch)
    for run in _open_runs.values():
        run.close()
    _open_runs.clear()


def words(found: dict[str, Any]) -> list[str]:
    return [cell["word"] for cell in found["cells"]]


def only_notice(found: dict[str, Any]) -> str:
    [notice] = found["notices"]
    return str(notice)


def test_a_stable_anchor_lets_an_upgrade_be_judged(bench: Bench) -> None:
    before = [bench.session() for _ in range(5)]
    found, shown = bench.compare(before[-1], bench.session(rate=23.0, device=NEWER))
    assert found["upgrade"]
    assert words(found) == ["faster", "faster"]
    assert [cell["cell"] for cell in found["cells"]] == ["width=1", "width=8"]  # the anchor is no cell of the table
    assert all(cell["low"] < 1.15 < cell["high"] for cell in found["cells"])
    assert found["notices"] == []
    assert (found["anchor"]["sessions"], found["anchor"]["reason"]) == (5, "")
    assert found["anchor"]["low"] < found["anchor"]["value"] < found["anchor"]["high"]
    assert "anchor: read_gb_s is " in shown
    assert "as 5 earlier sessions predict" in shown
    assert "differs: driver: radv Mesa 25.0.7" in shown
    assert "Only the driver differs of what the records tell, so the ratio may be put to it." in shown
    assert verify(bench.lab.root).faults == ()


def test_an_upgrade_that_changes_nothing_is_not_called_faster_or_slower(bench: Bench) -> None:
    before = [bench.session() for _ in range(6)]
    found, _ = bench.compare(before[-1], bench.session(device=NEWER))
    assert found["anchor"]["reason"] == ""
    assert words(found) == ["same", "same"]


def test_the_order_in_which_the_two_are_named_turns_the_ratio_and_not_the_judgement(bench: Bench) -> None:
    before = [bench.session() for _ in range(5)]
    after = bench.session(rate=23.0, device=NEWER)
    found, _ = bench.compare(after, before[-1])
    assert found["anchor"]["reason"] == ""
    assert words(found) == ["slower", "slower"]


def test_an_anchor_that_moved_leaves_it_undecided_and_says_so(bench: Bench) -> None:
    before = [bench.session() for _ in range(5)]
    found, shown = bench.compare(before[-1], bench.session(rate=23.0, stream=660.0, device=NEWER))
    assert words(found) == ["undecided", "undecided"]
    said = only_notice(found)
    assert said.startswith(
        "undecided, since another driver or build is judged by an anchor, and its anchor moved too: read_gb_s is 6"
    )
    assert "its 5 sessions predict" in said
    assert "(clocks, cooling, another program), or the upgrade moves every kernel" in said
    assert "anchor: does not hold, so nothing is judged across the upgrade" in shown
    assert f"notice: {said}" in shown


def test_four_earlier_sessions_leave_it_undecided_and_say_what_is_missing(bench: Bench) -> None:
    before = [bench.session() for _ in range(4)]
    found, _ = bench.compare(before[-1], bench.session(rate=23.0, device=NEWER))
    assert words(found) == ["undecided", "undecided"]
    said = only_notice(found)
    assert "its anchor has 4 of the 5 earlier sessions on this device and driver (radv Mesa 25.0.7" in said
    assert "measure it in 1 more completed run there, then once more after the upgrade" in said


def test_without_an_anchor_it_is_undecided_and_says_how_to_have_one(bench: Bench) -> None:
    before = [bench.session(anchored=False) for _ in range(5)]
    after = bench.session(rate=23.0, device=NEWER)
    found, _ = bench.compare(before[-1], after)
    assert words(found) == ["undecided", "undecided"]
    said = only_notice(found)
    assert f"no anchor was measured in both: {before[-1]} declared none" in said
    assert "Plan(anchor=stream_anchor()) and measure_anchor(run, device, block) in each block" in said


def test_an_anchor_that_was_declared_and_not_measured_is_told_by_the_run_and_by_the_comparison(bench: Bench) -> None:
    before = [bench.session() for _ in range(5)]
    after = bench.session(rate=23.0, device=NEWER, measured=False)
    verdict = read_record(bench.lab.find_run(after).folder).verdict
    assert verdict is not None
    assert any("measure_anchor(run, device, block) once a block" in notice for notice in verdict["notices"])
    found, _ = bench.compare(before[-1], after)
    assert words(found) == ["undecided", "undecided"]
    assert f"{after} did not measure its anchor; labkit.lab.anchor.measure_anchor" in only_notice(found)


def test_another_kernel_s_anchor_is_another_anchor(bench: Bench) -> None:
    before = [bench.session() for _ in range(5)]
    other = labkit.Anchor(metric="read_gb_s", cell=CELL, pinned="spv/read_stream.spv 00ff")
    found, _ = bench.compare(before[-1], bench.session(rate=23.0, device=NEWER, anchor=other))
    assert words(found) == ["undecided", "undecided"]
    said = only_notice(found)
    assert "the two runs have different anchors, read_gb_s at anchor=read stream, pinned to spv/read_stream.spv" in said
    assert "pinned to spv/read_stream.spv 00ff: each has a history of its own" in said


def test_the_help_of_the_verb_says_how_to_have_an_anchor() -> None:
    shown = " ".join(CliRunner().invoke(command, ["--help"]).output.split())
    assert "labkit.lab.anchor.stream_anchor() goes into the plan" in shown
    assert "measure_anchor(run, device, block) into each block" in shown
