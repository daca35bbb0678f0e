"""The notebook on power, its measuring half too: run in this process, over a card whose every watt is imitated."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

import labkit as lk
from labkit.audit.stored import run_audit
from labkit.lab.lab import Lab, StoredRun
from labkit.lab.measurements import read_rows
from labkit.measure.telemetry import Reading

ROOT = Path(__file__).resolve().parents[2]
REST_W, WORK_W = 40.0, 90.0


class Card:
    """A sensor that is renewed every 2 ms: at rest 40 W, at work 90, and a counter of what it took. Its cap is 100 W,
    until `changes_to` is set, which it is after the work that `changes_after` counts."""

    name = "the imitated card"

    def __init__(self, celsius_a_second: float = 0.0, changes_after: int | None = None) -> None:
        self.working = self.worked = 0
        self.joules, self.at = 0.0, time.perf_counter()
        self.began, self.rises, self.changes_after = self.at, celsius_a_second, changes_after
        self.mutex = threading.Lock()

    def work(self, step: int) -> None:
        """Begin (1) or end (-1) some work."""
        with self.mutex:
            self._spend()
            self.working += step
            self.worked += step == 1

    def _spend(self) -> None:
        now = time.perf_counter()
        self.joules += (now - self.at) * (WORK_W if self.working else REST_W)
        self.at = now

    def read(self) -> Reading:
        with self.mutex:
            self._spend()
            busy = self.working > 0
            return Reading(
                power_w=(WORK_W if busy else REST_W) + 1e-3 * (self.worked % 7) + 1e-6 * (time.perf_counter_ns() % 1000),
                core_mhz=2000.0, memory_mhz=1250.0, utilisation=1.0 if busy else 0.0, energy_j=self.joules,
                temperature_c=60.0 + self.rises * (time.perf_counter() - self.began),
            )  # fmt: skip

    def facts(self) -> dict[str, Any]:
        lower = self.changes_after is not None and self.worked > self.changes_after
        return {"power_limit_w": 80.0 if lower else 100.0, "power_default_w": 120.0}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    (tmp_path / "labkit").mkdir()
    (tmp_path / "FINDINGS.md").write_text("# Findings\n")
    monkeypatch.setenv("LABKIT_LAB", str(tmp_path))
    monkeypatch.delenv("LABKIT_RUN", raising=False)
    monkeypatch.setenv(
        "XDG_RUNTIME_DIR", str(tmp_path / "runtime")
    )  # the device's lock of another's run is not waited for
    return Lab(tmp_path)


def cells() -> Iterator[tuple[str, str]]:
    """(name, source) of the notebook's code."""
    notebook = nbformat.read(ROOT / "notebooks" / "power.ipynb", as_version=4)
    yield from ((cell.id, cell.source) for cell in notebook.cells if cell.cell_type == "code")


def perform(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, card: Card | None, **parameters: Any
) -> tuple[dict[str, Any], StoredRun]:
    """Runs the notebook's code with these parameters; its names, and the run it left."""
    if card is not None:
        generate = lk.Engine.generate

        def working(engine: Any, *arguments: Any, **options: Any) -> Any:
            card.work(1)
            try:
                return generate(engine, *arguments, **options)
            finally:
                card.work(-1)

        monkeypatch.setattr(lk.Engine, "generate", working)
        for module in ("labkit.measure.telemetry", "labkit.measure.caps", "labkit.lab.watching"):
            monkeypatch.setattr(f"{module}.find_source", lambda device, root=None: (card, card.name))
    names: dict[str, Any] = {"__name__": "notebook"}
    for name, source in cells():
        exec(compile(source, name, "exec"), names)  # what a kernel does
        if name == "parameters":
            names |= parameters
    (run,) = lab.runs("power")
    return names, run


MEASURED = {
    "shape": "tiny", "streams": [1, 2], "compare": 4, "read": 48, "seconds": 0.1, "period_s": 0.002, "rest_s": 0.2,
    "steady_s": 1.0, "repetitions": 3, "threshold": 0.9, "tokens": 128,
}  # fmt: skip


def test_the_measuring_half_finds_the_energy_of_an_imitated_card(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    names, run = perform(lab, monkeypatch, Card(), **MEASURED, caps_w=[100])
    assert {check.name: check.passed for check in run.record.checks} == {
        "company changes nothing": True,
        "a cell lasts ten renewals of the sensor": True,
        "the power cap stayed what it was": True,
    }
    assert names["still"].watts == pytest.approx(REST_W, abs=0.1)
    rows = read_rows(run.folder / "measurements.csv")
    by = {name: [row for row in rows if row.metric == name] for name in {row.metric for row in rows}}
    cells = {row.cell for row in by["power_w"]}
    assert len(cells) == 4  # three numbers of streams and one prompt
    assert len(by["power_w"]) >= 8  # of 12: where a busy machine read the card too seldom, nothing is told
    for one in by["power_w"]:
        assert one.value == pytest.approx(WORK_W, rel=0.05)
    rate = {(row.cell, row.block): row.value for row in by["decode_tok_s"]}
    for one in by["j_per_token"]:
        assert one.value * rate[one.cell, one.block] == pytest.approx(WORK_W, rel=0.05)
    assert len(by["j_per_token"]) + len(by["j_per_prompt_token"]) == len(by["power_w"])
    assert len(by["j_per_prompt_token"]) == len(by["j_per_prompt_token_above_rest"])
    above = {(row.cell, row.block): row.value for row in by["j_per_token_above_rest"]}
    for one in by["j_per_token"]:
        assert above[one.cell, one.block] == pytest.approx(one.value * (1 - REST_W / WORK_W), rel=0.1)
    assert run.record.verdict is not None
    assert run.record.verdict["outcome"] in ("confirmed", "inconclusive", "refuted")
    assert any(note.startswith("power_cap: 100 W of 120 W by default") for note in run.record.notes)
    assert not [notice for notice in run_audit(run.folder).notices if notice.outcome == "fail"]


def test_a_cap_that_changes_meanwhile_voids_the_run(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    _, run = perform(
        lab, monkeypatch, Card(changes_after=20), **MEASURED | {"streams": [1], "steady_s": 0.1, "repetitions": 1}
    )
    failed = [check for check in run.record.checks if not check.passed]
    assert [check.name for check in failed] == ["the power cap stayed what it was"]
    assert "100 W before, 80 W after" in failed[0].detail
    assert run.record.verdict is not None
    assert run.record.verdict["outcome"] == "invalid"


def test_without_a_sensor_nothing_is_measured_and_stored_power_is_read(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = next((ROOT / "data" / "runs").glob("20261201T133618Z-bench-*"))
    claims = str(ROOT / "data" / "claims" / "r9700.csv")
    names, run = perform(lab, monkeypatch, None, records=[str(record)], claims=claims, quick=True)
    assert names["why"]
    assert run.record.exploratory
    assert run.record.plan_hash is None
    assert run.record.verdict is None
    assert not (run.folder / "measurements.csv").exists()
    assert any("no power was measured" in note for note in run.record.notes)
    assert not list((lab.root / "data" / "ledger").glob("*.json"))
    assert names["ratios"]["labkit q4_0"].estimate == pytest.approx(0.149, abs=0.001)
    assert names["ratios"]["llama-server q4_0"].estimate == pytest.approx(0.349, abs=0.001)
    assert (names["CAP"], names["PEAKS"]) == (250.0, (488.0, 584.0))  # NikoCloud's notes, docs/06
    assert names["rates"][1] == {250.0: 20.8, 330.0: 22.3}  # docs/13, section 6
    assert [round(ratio, 3) for ratio in sorted(names["even"])] == [0.933, 0.939, 0.940, 0.942]
