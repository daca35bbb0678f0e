"""Runtimes as a run asks them: opened and compared with what was declared, checked, and a cell of requests measured."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.errors import ParameterError
from labkit.measure.bench.agreement import INT8_GAP, greedy_gap
from labkit.measure.serving.requests import answer_row
from labkit.measure.serving.served import Limits, Served
from labkit.measure.token_energy import energy_metrics
from labkit.models.model import Model
from labkit.runtimes.declared import COLUMN, note_runtime, note_settings, require_settings
from labkit.runtimes.load import Load
from labkit.runtimes.opening import is_address, open_runtime
from labkit.runtimes.runtime import Answer, Ask, Progress, Runtime, no_progress

if TYPE_CHECKING:
    from labkit.lab.run import Run

PEER_BOUND = (
    2 * INT8_GAP
)  # nats: both the token it took and NumPy's best may lie as far off as rounding to int8 puts them


def name_runtimes(specs: Sequence[str]) -> dict[str, str]:
    """Name → spec, each name as cells and pictures have it: a kind without the path behind it, an address without its
    scheme. ParameterError for none, and for one that is given twice."""
    found: dict[str, str] = {}
    for spec in specs:
        if not isinstance(spec, str) or not spec.strip():
            raise ParameterError(
                f"runtimes: {spec!r} is no runtime; give names such as labkit, or addresses http://..."
            )
        spec = spec.strip()
        if spec in found.values():
            raise ParameterError(f"runtimes: {spec} is given twice")
        short = spec.partition("://")[2].rstrip("/") if is_address(spec) else spec.partition(":")[0]
        name = next(name for i in range(len(specs)) if (name := short if i == 0 else f"{short}-{i + 1}") not in found)
        found[name] = spec
    if not found:
        raise ParameterError("runtimes: give at least one, such as labkit")
    return found


def start_runtime(
    run: "Run",
    spec: str,
    model: str,
    *,
    name: str | None = None,
    knobs: Collection[str],
    log_folder: Path,
    **settings: Any,
) -> Runtime:
    """The runtime of a spec, as `open_runtime` opens it, labelled `name`, once its settings are compared with what was
    declared and both are noted. RunError where it reports another value of one of the plan's `knobs`; it is closed then."""
    runtime = open_runtime(spec, model, log_folder=log_folder, label=name or spec, **settings)
    try:
        note_runtime(run, runtime)
        told = runtime.settings()
        declared: dict[str, Any] = {
            name: settings[name] for name in ("slots", "context", "ub", "kv") if name in settings
        }
        declared |= {} if is_address(spec) else {"model": model}
        note_settings(run, runtime.label, told, require_settings(runtime.label, declared, told, knobs))
    except BaseException:
        runtime.close()
        raise
    return runtime


def serve_cell(
    run: "Run",
    runtime: Runtime,
    cell: Mapping[str, Any],
    block: int,
    asks: Sequence[Ask],
    load: Load,
    *,
    limits: Limits | None = None,
    settings: Mapping[str, Any] | None = None,
    progress: Progress = no_progress,
) -> Served:
    """Asks one cell of one block, and keeps it: a row a request, failed ones too, then the cell's metrics with the start
    they came from. `settings`: what the process reports of itself, asked for here where not given."""
    told = dict(runtime.settings() if settings is None else settings)
    answers = runtime.stream(asks, load, progress)
    for answer in answers:
        run.request(block=block, cell=cell, **answer_row(answer, run.elapsed), **{COLUMN: told})
    served = Served.of(answers)
    drawn = {} if not served.good else energy_metrics(run.readings, served.span, served.tokens)
    run.measure(cell, block, start=runtime if runtime.origin else None, **served.metrics(limits), **drawn)
    return served


def said_ids(answers: Sequence[Answer], weights: Model, same: Sequence[Answer] = ()) -> list[tuple[int, ...]]:
    """The token ids of each answer, empty where they cannot be had. Of a runtime that tells none they are those of the
    answers `same` where the text is the same, else those of the text; one that tells them, but withheld the ids of a
    character that was not whole, told the text with a mark in its place, whose ids are others."""
    tells = any(answer.token_ids for answer in answers)
    found: list[tuple[int, ...]] = []
    for i, answer in enumerate(answers):
        ids = answer.token_ids
        if not ids and i < len(same) and answer.text == same[i].text:
            ids = same[i].token_ids
        if not ids and not tells:
            ids = tuple(weights.tokenizer.encode(answer.text, special=True, bos=False))
        found.append(ids[: answer.ask.tokens])
    return found


def check_greedy(
    run: "Run", runtime: Runtime, weights: Model, asks: Sequence[Ask], same: Sequence[Answer] = ()
) -> bool:
    """Records whether a runtime's greedy tokens are the model's: none lies further below NumPy's best token than rounding
    to int8 explains, 0.6 nat. One that tells no token ids is held by its text (see `said_ids`)."""
    gaps, name = [], f"{runtime.label}: greedy tokens are the model's, by NumPy"
    answers = runtime.stream(asks, Load("concurrent"))
    if failed := next((answer for answer in answers if answer.failed), None):
        return run.check(name, False, f"{failed.failed}: {failed.error}")
    for answer, ids in zip(answers, said_ids(answers, weights, same), strict=True):
        prompt = answer.ask.prompt
        given = weights.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        ends = weights.tokenizer.eos_ids if answer.ask.fixed else ()
        gaps += [greedy_gap(weights, given, ids, ends)] if ids else []
    if not gaps:
        return run.check(name, False, f"no token of {len(answers)} prompts was told")
    detail = f"at most {max(gaps):.1e} nat below its best, bound {PEER_BOUND:g}, {len(gaps)} prompts"
    return run.check(name, max(gaps) <= PEER_BOUND, detail)
