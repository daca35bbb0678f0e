"""A runtime as the bench sees it: cells in, samples out; and labkit's own engine as one."""

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from labkit.engine.engine import Engine, StepRecord
from labkit.engine.request import Completion
from labkit.errors import ParameterError
from labkit.measure.bench.budget import Spent, spent
from labkit.measure.bench.costs import Costs
from labkit.measure.bench.settings import OURS, Cell, Settings
from labkit.measure.bench.streams import Arrivals, Window, window_of
from labkit.models.shapes import AnyModel
from labkit.vulkan.device import Device

RECORD_S = 0.5  # how long a step's record may be behind its tokens


@dataclass(frozen=True)
class Sample:
    """One measurement: metrics by their registered id, a row a request, and when it was (`time.perf_counter`)."""

    metrics: dict[str, float]
    requests: list[dict[str, Any]]
    start_s: float
    end_s: float
    depth: float = 0.0
    tokens: int = field(default=0)


class Side(Protocol):
    """A runtime that can be measured."""

    name: str

    def measure(self, cell: Cell, prompts: Sequence[Sequence[int]], since: Callable[[float], float]) -> Sample:
        """Run `cell` once over `prompts`; `since` turns a clock reading into seconds of the run, for request rows."""
        ...

    def spent(self, cell: Cell) -> list[Spent]:
        """Where the time of a decode step of `cell` goes; nothing where that is not told."""
        ...

    def close(self) -> None:
        """Free the device."""
        ...


def decode_metrics(streams: Sequence[Arrivals], costs: Costs) -> tuple[dict[str, float], Window]:
    """Metrics of a decode cell from arrival times alone, and the window they hold for."""
    window = window_of(streams)
    metrics = {
        "decode_tok_s": window.tok_s,
        "step_ms": window.step_s * 1e3,
        "achieved_gb_s": costs.decode_bytes(window.streams, window.depth) / window.step_s / 1e9,
        "achieved_gflop_s": costs.decode_flops(window.streams, window.depth) / window.step_s / 1e9,
    }
    return metrics, window


def prefill_metrics(tokens: int, ttft_s: float, costs: Costs) -> dict[str, float]:
    """Metrics of a prefill cell: a prompt of `tokens`, its first token after `ttft_s`."""
    return {
        "prefill_tok_s": tokens / ttft_s,
        "ttft_s": ttft_s,
        "achieved_gflop_s": costs.prefill_flops(tokens) / ttft_s / 1e9,
    }


def engine_takes(name: str) -> bool:
    """Whether `Engine` has the keyword `name`."""
    return name in inspect.signature(Engine.__init__).parameters


class LabkitSide:
    """labkit's engines over one copy of the weights: one with slots for decoding, one with a single long slot."""

    name = OURS

    def __init__(self, model: AnyModel, device: Device, settings: Settings, costs: Costs, progress: Any = None) -> None:
        self.settings, self.costs = settings, costs
        self.engines: dict[str, Engine] = {}
        common: dict[str, Any] = {"kv": settings.kv, "arithmetic": settings.arithmetic, "progress": progress}
        if settings.ub is not None:
            if not engine_takes("ub"):
                raise ParameterError(
                    f"--ub {settings.ub} cannot be set: this labkit's engine chooses its prompt chunks itself; leave it out"
                )
            common["ub"] = settings.ub
        try:
            if settings.batch:
                context = settings.context or settings.decode_context
                self.engines["decode"] = Engine(model, device, slots=settings.streams, context=context, **common)
            if settings.prompt:
                context = settings.prefill_context
                self.engines["prefill"] = Engine(model, device, slots=1, context=max(context, 8), **common)
        except BaseException:
            self.close()
            raise

    def measure(self, cell: Cell, prompts: Sequence[Sequence[int]], since: Callable[[float], float]) -> Sample:
        """See `Side`."""
        engine = self.engines[cell.phase]
        before = len(engine.steps)
        tokens = self.settings.tokens(cell) if cell.phase == "decode" else 1
        done = engine.generate(prompts, max_tokens=tokens, ignore_eos=True)
        records = _records(engine, before, max(c.last_token_s or 0.0 for c in done))
        rows = [completion.row(since) for completion in done]
        if cell.phase == "prefill":
            return self._prefill(done[0], records, rows)
        streams = [Arrivals(len(c.prompt_ids), c.submit_s, c.token_times_s) for c in done]
        metrics, window = decode_metrics(streams, self.costs)
        inside = [
            r for r in records
            if r.decode_only and r.rows == window.streams and r.start_s >= window.start_s - 1e-9
            and r.end_s <= window.end_s + 1e-9
        ]  # fmt: skip
        metrics |= _step_costs(inside)
        rows = [row | window.row(i, since) for i, row in enumerate(rows)]
        return Sample(metrics, rows, window.start_s, window.end_s, window.depth, window.tokens)

    def _prefill(self, done: Completion, records: Sequence[StepRecord], rows: list[dict[str, Any]]) -> Sample:
        assert done.first_token_s is not None
        assert done.ttft_s is not None
        metrics = prefill_metrics(len(done.prompt_ids), done.ttft_s, self.costs) | _step_costs(records)
        return Sample(metrics, rows, done.submit_s, done.first_token_s, len(done.prompt_ids) / 2, len(done.prompt_ids))

    def fingerprints(self) -> dict[str, str]:
        """Fingerprints of the decode programs, for the record."""
        engine = self.engines.get("decode")
        return {} if engine is None else engine.fingerprints(self.settings.batch)

    def spent(self, cell: Cell) -> list[Spent]:
        """Where the time of a decode step of `cell` goes, halfway through what it decodes."""
        engine = self.engines["decode"]
        return spent(engine.profile(cell.streams, min(cell.prompt + self.settings.tokens(cell) // 2, engine.context)))

    def dispatches(self, cell: Cell) -> int:
        """Dispatches of a decode step of `cell`."""
        return self.engines["decode"].dispatches(cell.streams)

    def close(self) -> None:
        """Close the engines; the weights go with the last."""
        for engine in self.engines.values():
            engine.close()
        self.engines.clear()


def _records(engine: Engine, before: int, until_s: float) -> list[StepRecord]:
    """The engine's records from number `before` on: it writes the last a moment after it handed out its tokens."""
    patience = time.perf_counter() + RECORD_S
    while time.perf_counter() < patience and (len(engine.steps) == before or engine.steps[-1].end_s < until_s - 1e-6):
        time.sleep(1e-4)
    return engine.steps[before:]


def _step_costs(records: Sequence[StepRecord]) -> dict[str, float]:
    """GPU and host milliseconds a step; nothing where the device has no clock or no whole step lies inside."""
    steps = sum(r.steps for r in records)
    if not steps:
        return {}
    gpu = sum(r.gpu_s * r.steps for r in records) / steps
    found = {"host_ms_step": sum(r.host_s for r in records) / steps * 1e3}
    return found | ({"gpu_ms_step": gpu * 1e3} if gpu > 0 else {})
