"""A bench from its first measurement to its record and its text: of whole models, and of single operations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labkit.lab.bench import BenchRun
from labkit.measure.bench.budget import Spent
from labkit.measure.bench.ceilings import Ceilings, ceilings_of
from labkit.measure.bench.report import Results, budget_line, table
from labkit.measure.bench.session import Plan, bench_model, described, measurements
from labkit.measure.bench.settings import Cell, Settings
from labkit.measure.bench.sides import LabkitSide, Sample
from labkit.measure.ops_bench import report as ops_report
from labkit.measure.ops_bench.cases import Timed, Work, operations, time_case
from labkit.models.shapes import AnyModel, ShapeModel
from labkit.runtimes.llama_binary import Binary
from labkit.vulkan.device import Device

Models = Sequence[tuple[str, AnyModel]]  # (label of the weights' type, model)


@dataclass(frozen=True)
class Outcome:
    """What a bench has to say: as text, as JSON, whether all that was asked for was measured and right, and where its
    record is."""

    text: str
    document: dict[str, Any]
    whole: bool
    folder: Path | None = None


def run_bench(
    settings: Settings, models: Models, device: Device, peer: Binary | None, *, parameters: Mapping[str, Any],
    name: str | None = None, keep: bool = True,
) -> Outcome:  # fmt: skip
    """Measures each model in turn, each freed before the next, as one run of the experiment `bench`."""
    results, total = Results(), measurements(settings, peer is not None) * len(models)
    with BenchRun("bench", parameters, device, total, keep=keep, name=name) as run:
        ceilings = _conditions(run, device, models)
        if peer is not None:
            run.note("peer", f"{peer.version}, {peer.path.name}")

        def store(cell: Cell, block: int, sample: Sample) -> None:
            metrics = sample.metrics | run.sensed(sample.start_s, sample.end_s) | ceilings.shares(sample.metrics)
            if cell.phase == "decode" and "power_w" in metrics:
                metrics["j_per_token"] = metrics["power_w"] * (sample.end_s - sample.start_s) / sample.tokens
            results.add(cell, block, replace(sample, metrics=metrics))
            run.store(cell.knobs(), block, metrics, sample.requests)

        budgets: list[str] = []
        steps: list[dict[str, Any]] = []

        def spend(cell: Cell, rows: list[Spent]) -> None:
            budgets.append(budget_line(cell, rows, ceilings.read.gb_s))
            for row in rows:
                steps.append({"cell": cell.knobs()} | row.plain(ceilings.read.gb_s))
                run.line("steps.jsonl", steps[-1])

        def figure_of() -> Any:
            from labkit.lab.pictures.bench import figure

            return figure(results.rows(), results, subtitle=f"{settings.repetitions} repetitions · {device.name}")

        run.figure = figure_of
        for quant, model in models:
            log = run.log(f"llama-server-{quant}") if peer is not None else Path()

            def describe(side: LabkitSide, quant: str = quant) -> None:
                run.describe(programs={f"{quant} {label}": made for label, made in side.fingerprints().items()})

            plan = Plan(
                settings, device, run.since, store, run.progress.show, run.progress.advance,
                note=lambda text: run.note("bench", text), trouble=run.trouble, described=describe, spent=spend, log=log, peer=peer,
            )  # fmt: skip
            try:
                bench_model(plan, model, quant)
            finally:
                if peer is not None:
                    run.redact(log)
    rows = results.rows()
    random = any(isinstance(model, ShapeModel) for _, model in models)
    document = run.document(
        ceilings=ceilings.plain(), random_weights=random, rows=[row.plain() for row in rows], steps=steps
    )  # fmt: skip
    where = ["", "Where a step's time goes, each operation alone behind a barrier:", *budgets] if budgets else []
    return Outcome(_text(run, ceilings, "\n".join([table(rows), *where])), document, not run.troubled, run.folder)


def run_ops(
    names: Sequence[str], models: Models, device: Device, *, parameters: Mapping[str, Any], name: str | None = None,
    keep: bool = True,
) -> Outcome:  # fmt: skip
    """Checks and times every case of these operations as one run of the experiment `bench-ops`; operations that do not
    depend on the type of the weights for the first model alone. `parameters` holds rows, depth, repetitions, arithmetic.
    """
    results: list[Timed] = []
    with BenchRun("bench-ops", parameters, device, 0, keep=keep, name=name) as run:
        ceilings = _conditions(run, device, models)
        for number, (_, model) in enumerate(models):
            work = Work(model, device, parameters["rows"], parameters["depth"], parameters["arithmetic"])
            for operation in names:
                if number and operation != "linear":
                    continue
                begun = len(results)
                for case in operations()[operation](work):
                    run.progress.show(case.label)
                    timed = time_case(device, case, parameters["repetitions"])
                    results.append(timed)
                    sensed = run.sensed(timed.start_s, timed.end_s)
                    for block, metrics in enumerate(ops_report.samples(timed, ceilings)):
                        run.store({"operation": operation, **case.knobs}, block, metrics | sensed, [])
                    run.line("ops.jsonl", ops_report.plain(timed, ceilings))
                _check(run, operation, results[begun:])
    document = run.document(ceilings=ceilings.plain(), rows=[ops_report.plain(timed, ceilings) for timed in results])
    right = all(timed.right for timed in results)
    return Outcome(_text(run, ceilings, ops_report.table(results, ceilings)), document, right, run.folder)


def _check(run: BenchRun, operation: str, mine: Sequence[Timed]) -> None:
    wrong = [timed.case.label for timed in mine if not timed.right]
    worst = max((timed.error for timed in mine), default=0.0)
    detail = f"wrong: {', '.join(wrong)}" if wrong else f"{len(mine)} cases, worst error {worst:.1e}"
    run.check(f"{operation} equals NumPy's", not wrong, detail)


def _conditions(run: BenchRun, device: Device, models: Models) -> Ceilings:
    """The ceilings of the device, measured now or kept; the record is told of them and of the models."""
    run.progress.show("the device's ceilings")
    ceilings = ceilings_of(device)
    run.note("ceilings", ceilings.text())
    run.describe(model=described([model for _, model in models]))
    return ceilings


def _text(run: BenchRun, ceilings: Ceilings, rows: str) -> str:
    kept = f"\nrecord: {run.folder}" if run.folder is not None else ""
    return f"{run.device.name}, {run.device.info.driver_info}\n{ceilings.text()}; {run.sensor}\n{rows}{kept}"
