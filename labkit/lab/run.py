"""A run as its notebook sees it: plan, conditions, checks, samples, progress and conclusion, stored as they come."""

import atexit
import contextlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.errors import ParameterError, RunError
from labkit.lab.folder import PARTIAL, PROGRESS, RunFolder
from labkit.lab.lever_checks import check_plan
from labkit.lab.levers import known_levers
from labkit.lab.lock import free_device, take_device
from labkit.lab.measurements import Measurement, append_json, append_rows, checked_value, read_rows
from labkit.lab.progress import ProgressDisplay, write_progress
from labkit.lab.record import (
    Check,
    RunRecord,
    State,
    canonical_cell,
    exclusive,
    plain_value,
    read_record,
    update_record,
    utc_now,
    write_atomic,
)
from labkit.lab.redact import Redactor
from labkit.lab.starts import FILE as STARTS
from labkit.lab.starts import append_start, read_starts, start_of, started_rows
from labkit.lab.watching import PERIOD_S, DeviceWatch
from labkit.measure.neighbours import Neighbours, together
from labkit.measure.telemetry import Reading
from labkit.vulkan.device import Device

if TYPE_CHECKING:
    import pandas

    from labkit.lab.compare import CellRatio
    from labkit.lab.lab import Lab
    from labkit.lab.plan import Rule


class Run:
    """One run of an experiment. Made by `Lab.run`; everything handed to it is on the disk when the call returns.

    Under `lab run` it writes into the folder the runner made. By hand in a notebook it makes a folder of its own at
    the first thing worth storing, and `conclude` closes it."""

    def __init__(self, lab: "Lab", record: RunRecord, path: Path | None, wait: bool = True) -> None:
        self.lab = lab
        self.attached = path is not None  # a runner owns the folder
        self.closed = False
        self._draft = record
        self._path = path
        self._folder: RunFolder | None = None
        self._wait = wait
        self._device: str | None = None
        self._display: ProgressDisplay | None = None
        self._watch: DeviceWatch | None = None
        self._met_before = record.neighbours  # of a run that is taken up again
        self._redactor = Redactor()
        self._over_restarts: frozenset[str] | None = None  # the cells of a plan over restarts, once it was looked up
        self._told: dict[str, Any] = {}  # the device and the model as they were described
        self._rows: list[Measurement] = read_rows(path / "measurements.csv") if path else []
        self._order = self._rows[-1].order + 1 if self._rows else 0
        started = datetime.fromisoformat(record.started)
        self._zero = time.perf_counter() - (datetime.now(UTC) - started).total_seconds()

    # What it is

    @property
    def id(self) -> str:
        """The run's name on the disk and in the ledger."""
        return self._draft.id

    @property
    def experiment(self) -> str:
        """The experiment it is a run of, `batch-decode`."""
        return self._draft.experiment

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters as stored, defaults included."""
        return self._draft.parameters

    @property
    def folder(self) -> Path:
        """Where its files are now; made on first use when the run is by hand."""
        if self._path is None:
            if self.closed:
                raise RunError(f"the run {self.id} is closed; start another with lab.run({self.experiment!r})")
            self._folder = RunFolder.create(self.lab.root, self._draft)
            self._path = self._folder.path
        return self._path

    @property
    def record(self) -> RunRecord:
        """What is known so far, as `run.json` has it."""
        return self._draft if self._path is None else read_record(self._path)

    @property
    def samples(self) -> tuple[Measurement, ...]:
        """The samples so far, in the order they were measured."""
        return tuple(self._rows)

    @property
    def described(self) -> dict[str, Any]:
        """The device and the model as they were described: what `describe` takes again."""
        return dict(self._told)

    @property
    def readings(self) -> "tuple[tuple[float, Reading], ...]":
        """What the device told of itself since it was described, each with its time of `time.perf_counter()`."""
        return () if self._watch is None else tuple(self._watch.telemetry.readings)

    @property
    def waits(self) -> bool:
        """Whether it waits for a device that is in use, instead of refusing."""
        return self._wait

    def elapsed(self, at: float | None = None) -> float:
        """Seconds since the run's start; `at` is a reading of `time.perf_counter()`, now when left out.

        A resumed run counts from its first start, so times of one run share one zero."""
        return (time.perf_counter() if at is None else at) - self._zero

    # What it is told

    def plan(self, plan: Any) -> "Run":
        """Stores the plan and its hash, before the first measurement; later, the record says *retrospective*.

        A run keeps the plan it was given first, and is judged by it: another plan is kept as a *deviation*, which says
        what it changes, when, and after how many samples. ParameterError for a plan of another experiment, or over a
        lever that is not declared or cannot act at this workload."""
        from labkit.lab.plan import store_plan

        path = self._open()
        document, plan_hash = plan_document(plan)
        if document["experiment"] != self.experiment:
            raise ParameterError(f"the plan is for {document['experiment']!r}, this is a run of {self.experiment!r}")
        known = read_record(path).plan_hash
        if known == plan_hash:
            return self
        check_plan(plan, self.parameters, known_levers(self.lab.root))
        if known is not None:
            return self._deviate(path, plan)
        self._update(**store_plan(path, document, known_data=bool(self._rows)))
        return self

    def _deviate(self, path: Path, plan: Any) -> "Run":
        from labkit.lab.deviations import deviation
        from labkit.lab.plan import read_plan

        found = deviation(read_plan(path / "plan.json"), plan, len(self._rows))
        kept = read_record(path).deviations
        if found is not None and not (kept and kept[-1].plan_hash == found.plan_hash):
            self._update(deviations=(*kept, found))
        return self

    def describe(
        self,
        device: Any = None,
        model: Any = None,
        programs: Mapping[str, str] | None = None,
        telemetry_s: float | None = None,
        **notes: str,
    ) -> "Run":
        """Fills in the conditions: plain dictionaries, or objects with a `describe()`; programs: label → fingerprint.

        With a device, waits until no other timed run is on it, and holds it until the run ends. `telemetry_s` is the rest
        between two of its readings, half a second when left out. Further keywords are kept as notes,
        `clock="fixed at 2.4 GHz"`."""
        path = self._open()
        fields: dict[str, Any] = {}
        self._told |= {name: thing for name, thing in (("device", device), ("model", model)) if thing is not None}
        if device is not None:
            fields["device"] = described = self._redactor.value(plain_value(description(device, "device")))
            self._hold(str(described.get("uuid") or described.get("name") or "unnamed"))
            self._look_at(device, telemetry_s)
        if model is not None:
            fields["model"] = self._redactor.value(plain_value(description(model, "model")))
        old = read_record(path)
        if programs:
            fields["program_fingerprints"] = old.program_fingerprints | {str(k): str(v) for k, v in programs.items()}
        if notes:
            added = [f"{name}: {self._redactor.text(str(text))}" for name, text in notes.items()]
            fields["notes"] = (*old.notes, *added)
        self._update(**fields)
        return self

    def met(self, seen: Neighbours) -> None:
        """Keeps who shared the device so far. A run that describes a `Device` looks by itself."""
        both = together(self._met_before, seen)
        update_record(self.folder, lambda _: {"neighbours": self._redactor.value(both.model_dump())})

    def check(self, name: str, passed: bool, detail: str = "") -> bool:
        """Records a correctness gate; a speed is worth nothing where it failed. Returns `passed`."""
        check = Check(name=name, passed=bool(passed), detail=self._redactor.text(detail))
        update_record(self._open(), lambda old: {"checks": (*old.checks, check)})
        return check.passed

    def measure(self, cell: Mapping[str, Any], block: int, start: Any = None, **metrics: float) -> "Run":
        """Appends the samples of one measurement: metrics by their registered id, `decode_tok_s=41.2`.

        `cell` holds the knob values measured, `block` is the repetition. `start` is what was made anew for the sample:
        the `Engine`, a `Device`, a process (`subprocess.Popen`), or "process" for the one this runs in. It is kept in
        `starts.csv`, and a plan over restarts needs it: its judge takes one value a start. The rows are on the disk on
        return. ParameterError for a metric that is not registered, a value that is not a finite number, or a sample of
        a plan over restarts that does not say its start."""
        if not metrics:
            raise ParameterError(f"measure(cell={dict(cell)}) has no metric; give at least one, as decode_tok_s=41.2")
        require_registered(metrics)
        values = {metric: checked_value(metric, value) for metric, value in metrics.items()}
        text, utc = canonical_cell(cell), utc_now()
        rows = [Measurement(int(block), self._order, text, metric, value, utc) for metric, value in values.items()]
        path = self._open()
        self._require_start(cell, start)
        origin = start_of(start) if start is not None else None
        with exclusive(path):
            if origin is not None:
                append_start(path / STARTS, self._order, origin)
            append_rows(path / "measurements.csv", rows)
        self._rows += rows
        self._order += 1
        return self

    def _require_start(self, cell: Mapping[str, Any], start: Any) -> None:
        if start is not None or not (self._path and (self._path / "plan.json").exists()):
            return
        from labkit.lab.plan import read_plan

        if self._over_restarts is None:
            plan = read_plan(self._path / "plan.json")
            self._over_restarts = (
                frozenset(map(canonical_cell, plan.cells)) if plan.design == "restarts" else frozenset()
            )
        if canonical_cell(cell) in self._over_restarts:
            raise ParameterError(
                f"the plan compares over restarts, so measure({canonical_cell(cell)}) must say which start the sample came "
                f'from: start=engine (the Engine made anew for it), a Device, a subprocess.Popen, or "process"'
            )

    def warm_up(
        self, cell: Mapping[str, Any], measure: Callable[[], Mapping[str, float] | float], metric: str, most: int = 50
    ) -> int:
        """Repeats `measure` at the measured shape until `metric` has settled, and returns how often that was.

        `measure` returns the metrics by id, or the metric alone. Where it settles the data say (see
        `statistics.settled`). The repetitions are kept in `warmup.csv`, apart from the samples, and decide nothing;
        where `most` were not enough the record notes it. ParameterError as in `measure`."""
        from labkit.lab.warming import warm_up

        return warm_up(self, cell, measure, metric, most)

    def request(self, *, block: int, cell: Mapping[str, Any], **row: Any) -> "Run":
        """Appends one request to `requests.jsonl`; times in seconds since the run's start (see `elapsed`)."""
        path = self._open()
        full = {"block": int(block), "cell": plain_value(cell), **self._redactor.value(plain_value(row))}
        with exclusive(path):
            append_json(path / "requests.jsonl", full)
        return self

    def missing(
        self, cells: Iterable[Mapping[str, Any]], blocks: int | Iterable[int], metric: str | None = None
    ) -> list[tuple[dict[str, Any], int]]:
        """The (cell, block) pairs that have no sample yet (none of `metric`, when given), block by block.

        All of them in a fresh run; after `lab run --resume`, what the killed run lacks."""
        have = {(row.cell, row.block) for row in self._rows if metric in (None, row.metric)}
        wanted = [dict(cell) for cell in cells]
        repetitions = range(blocks) if isinstance(blocks, int) else blocks
        return [(cell, block) for block in repetitions for cell in wanted if (canonical_cell(cell), block) not in have]

    def progress(self, done: float, total: float, text: str = "") -> None:
        """Says how far a long cell is: shown by `lab run` with the time left, or in the notebook when run by hand."""
        if self.closed:
            return
        if self.attached:
            write_progress(self.folder / PROGRESS, done, total, text)
            return
        if self._display is None:
            self._display = ProgressDisplay()
        self._display.show(done, total, text)

    def stop(self, reason: str) -> None:
        """Ends the notebook early on purpose: the record says `stopped-early` and why, and no later cell is run."""
        if self.attached:
            self._update(reason=self._redactor.text(reason))
            raise SystemExit(0)
        self._close("stopped-early", reason)

    def conclude(self, figure: Any = None, claims: Sequence[str] = (), should_not_claim: Sequence[str] = ()) -> "Run":
        """Stores the main figure and what may and may not be claimed. By hand, also judges, closes and enters it in
        the ledger; under `lab run` the runner does that once the notebook has ended."""
        path = self._open()
        if figure is not None:
            store_figure(path, figure)
        document = {"claims": list(claims), "should_not_claim": list(should_not_claim), "utc": utc_now()}
        write_atomic(
            path / "conclusion.json", json.dumps(self._redactor.value(document), indent=2, ensure_ascii=False) + "\n"
        )
        self._look_away()
        if not self.attached:
            self._close("completed", "concluded by hand")
        return self

    def end(self, state: State, reason: str = "", figure: Any = None) -> Path | None:
        """Closes a run that a command made, in whatever state it ended; its final folder, None when it stored nothing."""
        path = self._open()
        if figure is not None:
            store_figure(path, figure)
        self._close(state, self._redactor.text(reason))
        return self._path

    def promote(
        self,
        belief: str,
        rule: "Rule | None" = None,
        *,
        metric: str | None = None,
        control: Mapping[str, Any] | None = None,
        repetitions: int = 10,
        measure: "Callable[[dict[str, Any]], Mapping[str, Any] | float] | None" = None,
        **plan: Any,
    ) -> "Run":
        """Repeats what this run without a plan found, as a planned run of its own, which is returned; see
        `labkit.lab.promote.promote`."""
        from labkit.lab.promote import promote

        return promote(
            self, belief, rule, metric=metric, control=control, repetitions=repetitions, measure=measure, **plan
        )

    def close(self) -> None:
        """Ends a run by hand that is not concluded; one that stored nothing leaves nothing."""
        if not self.attached and not self.closed:
            self._close("stopped-early", "closed before run.conclude()")

    # What it knows

    def table(self, metric: str | None = None) -> "pandas.DataFrame":
        """The samples as a table: the columns of `measurements.csv` and one column a knob."""
        import pandas

        rows = [row for row in self._rows if metric in (None, row.metric)]
        frame = pandas.DataFrame(rows, columns=list(Measurement._fields))
        knobs = [json.loads(row.cell) for row in rows]
        for knob in dict.fromkeys(name for cell in knobs for name in cell):
            if knob not in frame:
                frame[knob] = [cell.get(knob) for cell in knobs]
        return frame

    def verdict(self) -> Any:
        """The plan's rule applied to the samples so far. RunError when there is no plan."""
        from labkit.lab.judging import judge_run

        verdict = judge_run(self.folder)
        if verdict is None:
            raise RunError(f"the run {self.id} has no plan to judge by; give it one with run.plan(...)")
        return verdict

    def cells(self, metric: str | None = None) -> "tuple[CellRatio, ...]":
        """Each cell of the plan over its control so far, with a word; see `labkit.lab.compare.against_control`. RunError
        when there is no plan."""
        from labkit.lab.compare import against_control
        from labkit.lab.plan import read_plan

        if self.record.plan_hash is None:
            raise RunError(f"the run {self.id} has no plan that says what its cells are read against")
        plan, rows = read_plan(self.folder / "plan.json"), self._rows
        if plan.design == "restarts":
            rows = started_rows(plan, rows, read_starts(self.folder))
        return against_control(plan, rows, metric)

    def __repr__(self) -> str:
        record = self.record
        verdict = f", {record.verdict.get('outcome', '')}" if record.verdict else ""
        return f"<Run {self.id}: {record.state}{verdict}, {len(self._rows)} samples>"

    def _repr_html_(self) -> str:
        from labkit.lab.run_html import run_html

        return run_html(self.record, len(self._rows))

    # How it writes

    def _open(self) -> Path:
        if self.closed:
            raise RunError(f"the run {self.id} is closed; start another with lab.run({self.experiment!r})")
        return self.folder

    def _update(self, **fields: Any) -> None:
        self._draft = update_record(self._open(), lambda _: fields)

    def _hold(self, uuid: str) -> None:
        if self._device == uuid:
            return
        if self._device is not None:
            free_device(self._device)
        waited: list[str] = []

        def waiting(text: str) -> None:
            waited.append(text)
            self.progress(0, 0, text)

        take_device(uuid, self.experiment, wait=self._wait, waiting=waiting)
        self._device = uuid
        if waited:
            self.progress(0, 0, "the device is free")

    def _look_at(self, device: Any, telemetry_s: float | None) -> None:
        if not isinstance(device, Device) or self._watch is not None:
            return
        rest_s = PERIOD_S if telemetry_s is None else telemetry_s
        self._watch = DeviceWatch(device, self._open(), self.elapsed, self.met, rest_s).start()
        atexit.register(self._look_away)

    def _look_away(self) -> None:
        if self._watch is not None:
            watch, self._watch = self._watch, None
            with contextlib.suppress(OSError, RunError):  # the folder may be final already
                watch.stop()

    def _close(self, state: Any, reason: str) -> None:
        self.closed = True
        self._look_away()
        if self._display is not None:
            self._display.close()
        if self._device is not None:
            free_device(self._device)
            self._device = None
        if self._folder is None:
            return
        if state != "completed" and not self._rows and self.record.plan_hash is None:
            self._folder.discard()
            self._path = None
            return
        from labkit.lab.judging import judged_fields

        fields = judged_fields(self._folder.path) if state == "completed" else {}
        self._path = self._folder.finalise(state, reason, **fields)
        if state == "completed":
            from labkit.lab.settle import enter_ledger

            enter_ledger(self.lab.root, self._path)


def attach(lab: "Lab", path: Path, experiment: str, parameters: Mapping[str, Any] | None, wait: bool) -> Run:
    """The run whose folder the runner made; the notebook's own parameter values are added to the record."""
    if not path.name.startswith(PARTIAL):
        raise RunError(f"LABKIT_RUN names {path}, which is not a run in progress; start experiments with `lab run`")
    record = read_record(path)
    if record.experiment != experiment:
        raise RunError(
            f"this notebook runs as {record.experiment!r} but asks for a run of {experiment!r}; use lab.run with "
            f"the notebook's own name"
        )
    if parameters:
        added = Redactor().value(plain_value(parameters))
        record = update_record(path, lambda old: {"parameters": old.parameters | added})
    return Run(lab, record, path, wait)


def plan_document(plan: Any) -> tuple[dict[str, Any], str]:
    """A plan as stored, and its hash. ParameterError for what is not a plan."""
    try:
        return plan.model_dump(mode="json"), str(plan.hash)
    except AttributeError:
        raise ParameterError(f"run.plan takes a labkit Plan, not {type(plan).__name__}") from None


def description(thing: Any, what: str) -> dict[str, Any]:
    """A device or model as a dictionary. ParameterError when it is neither one nor describes itself."""
    if isinstance(thing, Mapping):
        return dict(thing)
    if hasattr(thing, "describe"):
        return dict(thing.describe())
    raise ParameterError(f"describe({what}=...) takes a dictionary or an object with describe(), not {thing!r}")


def require_registered(metrics: Iterable[str]) -> None:
    """ParameterError for a metric the registry does not define; the message names those most like it."""
    from labkit.measure.metrics import metric

    for name in metrics:
        metric(name)


def store_figure(path: Path, figure: Any) -> None:
    """Writes a plotly figure as `figure.json`. ParameterError for anything else."""
    if not hasattr(figure, "to_json"):
        raise ParameterError(f"conclude(figure=...) takes a plotly figure, not {type(figure).__name__}")
    document = Redactor().value(json.loads(figure.to_json()))
    write_atomic(path / "figure.json", json.dumps(document, ensure_ascii=False))
