"""`watch(run)`: how far a run or a sweep is, the time left, and its metric while the interval tightens."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.errors import LabError, ParameterError, RunError
from labkit.lab.lab import Lab, StoredRun, find_root
from labkit.lab.progress import Pace, duration
from labkit.lab.run import Run
from labkit.lab.sweep_file import SweepFile, read_sweep, shown, sweeps_folder, table
from labkit.show.pieces import Html, bar, facts_table, mark, paragraph
from labkit.show.pieces import table as html_table
from labkit.widgets.following import Following, Standing
from labkit.widgets.tightening import Tightening, samples_of
from labkit.widgets.view import View

PERIOD_S = 0.5
DONE = ("completed", "failed", "killed", "crashed", "timed-out", "stopped-early", "withheld")


class Watch(View):
    """What watching a run and watching a sweep share: looks until nothing more will come."""

    def __init__(self, period_s: float) -> None:
        super().__init__()
        if not period_s > 0:
            raise ParameterError(f"period_s={period_s:g}: give a time above 0")
        self.period_s = period_s
        self._stop_button: Any = None

    @abstractmethod
    def look(self) -> bool:
        """Look once; whether it is over."""

    def watch(self) -> None:
        """Look until it is over or `stop`."""
        while not self._halt.is_set():
            over = self.look()
            self.changed()
            if over:
                return
            self._halt.wait(self.period_s)

    def controls(self) -> Sequence[Any]:
        """A button that ends the watching; what is watched goes on."""
        import ipywidgets as widgets

        self._stop_button = widgets.Button(description="Stop watching", icon="eye-slash")
        self._stop_button.on_click(lambda _: self.attempt(self.stop))
        return (self._stop_button,)

    def follow_controls(self) -> None:
        """The button is of use while there is something to end."""
        if self._stop_button is not None:
            self._stop_button.disabled = not self.running


class RunWatch(Watch):
    """Watches one run; see `watch`."""

    what = "watch"
    plots = True

    def __init__(self, root: Path, run_id: str, metric: str | None, period_s: float) -> None:
        super().__init__(period_s)
        self.run_id, self.metric = run_id, metric
        self.standing = Standing()
        self._following = Following(root, run_id)
        self._tightening = Tightening()
        self._chooser: Any = None

    def look(self) -> bool:
        """Reads the run's folder once."""
        self.standing = self._following.look()
        return self.standing.over

    @property
    def metrics(self) -> list[str]:
        """The metrics that have samples; that of the plan's rule first."""
        found = dict.fromkeys(row.metric for row in self.standing.rows)
        first = [self.standing.plan.rule.metric] if self.standing.plan is not None else []
        return sorted(found, key=lambda name: name not in first)

    @property
    def shown_metric(self) -> str:
        """The metric of the figure: the one asked for, else the first."""
        return self.metric if self.metric in self.metrics else next(iter(self.metrics), "")

    def state(self) -> dict[str, Any]:
        """State, progress, cells and the newest interval of each measured cell."""
        now, rows = self.standing, self.standing.rows
        cells = {
            cell: self._tightening.intervals(self.shown_metric, cell, values)[-1][1]._asdict()
            for cell, values in samples_of(rows, self.shown_metric).items()
        }
        return {
            "run": self.run_id, "running": self.running, "error": self.error, "state": self._state(),
            "reason": now.record.reason if now.record else "", "done": now.done, "total": now.total, "text": now.text,
            "left_s": now.left_s, "cells": now.cells.model_dump() if now.cells else None, "samples": len(rows),
            "metric": self.shown_metric, "intervals": cells,
        }  # fmt: skip

    def _state(self) -> str:
        return self.standing.record.state if self.standing.record is not None else "nothing stored yet"

    def html(self) -> Html:
        """State, a bar with the time left, and counts."""
        now = self.standing
        facts: dict[str, Any] = {"state": Html(f"{mark(self._state())} ")}
        if now.record is not None and now.record.reason:
            facts["reason"] = now.record.reason
        if now.total:
            left = f", about {duration(now.left_s)} left" if now.left_s is not None else ""
            facts["progress"] = Html(f"{bar(now.done / now.total)} {now.done:g} of {now.total:g}{left}")
        if now.text:
            facts["doing"] = now.text
        if now.cells is not None:
            here = f", at cell {now.cell}" if now.cell and not now.over else ""
            facts["notebook cells"] = f"{now.cells.executed} of {now.cells.total} done, {now.cells.failed} failed{here}"
        facts["samples"] = len(now.rows)
        if now.record is not None and now.record.verdict:
            facts["verdict"] = mark(str(now.record.verdict.get("outcome", "")))
        return facts_table(facts, self.run_id)

    def figure(self) -> Any:
        """The shown metric over the repetitions so far."""
        name = self.shown_metric
        return self._tightening.draw(self.standing.rows, name, f"{name} of {self.run_id}") if name else None

    def controls(self) -> Sequence[Any]:
        """Which metric, and the button."""
        import ipywidgets as widgets

        self._chooser = widgets.Dropdown(options=self.metrics, description="metric")
        self._chooser.observe(lambda change: self.attempt(lambda: self.choose(change["new"])), names="value")
        return (widgets.HBox([self._chooser, *super().controls()]),)

    def choose(self, metric: str | None) -> None:
        """Draw another metric."""
        if metric and metric != self.metric:
            self.metric = metric
            self.changed(now=True)

    def follow_controls(self) -> None:
        """The choice grows with the metrics that were measured."""
        super().follow_controls()
        if self._chooser is not None and list(self._chooser.options) != self.metrics:
            self._chooser.options = self.metrics
            self._chooser.value = self.shown_metric or None

    def __repr__(self) -> str:
        now = self.standing
        progress = f", {now.done:g} of {now.total:g}" if now.total else ""
        return f"<watch of {self.run_id}: {self.error or self._state()}{progress}, {len(now.rows)} samples>"


class SweepWatch(Watch):
    """Watches a sweep; see `watch`."""

    what = "watch of a sweep"

    def __init__(self, root: Path, sweep: SweepFile, period_s: float) -> None:
        super().__init__(period_s)
        self.root, self.file = root, sweep
        self.rows: list[dict[str, Any]] = []
        self.left_s: float | None = None
        self.doing = ""  # of the point that runs
        self._pace = Pace()
        self._following: Following | None = None

    def look(self) -> bool:
        """Reads the sweep's file, its runs' records, and how far the one that runs is."""
        self.file = read_sweep(sweeps_folder(self.root) / f"{self.file.id}.json")
        self.rows = table(self.root, self.file)
        self.left_s = self._pace.left(self.done, len(self.rows))
        going = next((row["run"] for row in self.rows if row["state"] == "running"), None)
        self.doing = ""
        if going is not None:
            if self._following is None or self._following.run_id != going:
                self._following = Following(self.root, going)
            now = self._following.look()
            self.doing = " ".join(filter(None, [f"{now.done:g}/{now.total:g}" if now.total else "", now.text]))
        return self.file.ended is not None or self.done == len(self.rows)

    @property
    def done(self) -> int:
        """Points that nothing more will come of."""
        return sum(row["state"] in DONE for row in self.rows)

    def state(self) -> dict[str, Any]:
        """Points by state, and the table."""
        failed = [row for row in self.rows if row["state"] in DONE and row["state"] != "completed"]
        return {
            "sweep": self.file.id, "running": self.running, "error": self.error, "done": self.done, "total": len(self.rows),
            "failed": len(failed), "left_s": self.left_s, "doing": self.doing, "points": self.rows,
        }  # fmt: skip

    def html(self) -> Html:
        """A bar with the time left and a row a point."""
        now = self.state()
        left = f", about {duration(self.left_s)} left" if self.left_s is not None and self.done < len(self.rows) else ""
        share = self.done / len(self.rows) if self.rows else 0.0
        names = list(self.rows[0]["values"]) if self.rows else []
        body = [
            (*(shown(row["values"][name]) for name in names), mark(row["state"]),
             mark(row["verdict"]) if row["verdict"] else "", self.doing if row["state"] == "running" else "", row["run"])
            for row in self.rows
        ]  # fmt: skip
        head = [*names, "state", "verdict", "doing", "run"]
        said = paragraph(bar(share), f"{self.done} of {len(self.rows)} points done, {now['failed']} failed{left}")
        return Html(said + html_table(head, body, title=self.file.id))

    def __repr__(self) -> str:
        return f"<watch of {self.file.id}: {self.error or f'{self.done} of {len(self.rows)} points done'}>"


def watch(
    what: Any = None, *, metric: str | None = None, lab: Lab | None = None, period_s: float = PERIOD_S
) -> RunWatch | SweepWatch:
    """A view that follows a run or a sweep until it is over, in whichever process it runs.

    `what`: a `Run`, a stored run, a run's id (a part that is unlike others is enough), its folder, a sweep's id or file;
    left out, the newest run that goes on. `metric`: what the figure shows first; by default that of the plan's rule.
    Without a browser: `view.state()`, `view.wait()`. Raises RunError where there is no such run, or none going on."""
    view = _find(what, metric, lab, period_s)
    view.look()
    view.begin(view.watch)
    return view


def _find(what: Any, metric: str | None, lab: Lab | None, period_s: float) -> RunWatch | SweepWatch:
    if isinstance(what, Run):
        return RunWatch(what.lab.root, what.id, metric, period_s)
    if isinstance(what, StoredRun):
        return RunWatch(what.folder.parents[2], what.record.id, metric, period_s)
    if isinstance(what, SweepFile):
        return SweepWatch((lab or Lab()).root, what, period_s)
    if isinstance(what, Path):
        path = what.resolve()
        if path.suffix == ".json":
            return SweepWatch(find_root(path.parents[2]), read_sweep(path), period_s)
        return RunWatch(find_root(path.parents[2]), path.name.removeprefix(".partial-"), metric, period_s)
    here = lab or Lab()
    if isinstance(what, str):
        sweeps = sorted(sweeps_folder(here.root).glob(f"*{what}*.json")) if what.strip(". ") else []
        if len(sweeps) == 1:
            return SweepWatch(here.root, read_sweep(sweeps[0]), period_s)
        return RunWatch(here.root, here.find_run(what).record.id, metric, period_s)
    if what is not None:
        raise ParameterError(f"watch({what!r:.60}): give a run, its id or folder, or a sweep's id or file")
    going = here.runs(state="running")
    if not going:
        raise RunError(f"no run goes on in {here.root}; start one with `lab run`, or name a stored one")
    return RunWatch(here.root, going[0].record.id, metric, period_s)


def main() -> None:
    """`python -m labkit.widgets.watch [RUN]`: the standing of a run (the newest) as a page on standard output."""
    import sys

    try:
        lab = Lab()
        names = sys.argv[1:] or [run.record.id for run in lab.runs()[:1]]
        if not names:
            raise RunError("no runs yet; start one with `lab run`")
        with watch(names[0], lab=lab) as view:
            print(view.page(repr(view)))
    except LabError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
