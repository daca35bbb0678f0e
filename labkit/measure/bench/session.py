"""The course of a bench: sides opened, every shape warmed up, cells measured in randomised blocks, all given back."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import RunError
from labkit.measure.bench.budget import Spent
from labkit.measure.bench.costs import Costs, costs_of
from labkit.measure.bench.peer import PeerSide, peer_bytes
from labkit.measure.bench.settings import Cell, Prompts, Settings
from labkit.measure.bench.sides import LabkitSide, Sample, Side
from labkit.measure.roofline import warm_up
from labkit.measure.statistics import block_order
from labkit.models.model import Model
from labkit.models.shapes import AnyModel, ShapeModel
from labkit.runtimes.llama_binary import NAME, Binary
from labkit.vulkan.device import Device

Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What a bench of one model does and where it tells of it.

    `store(cell, block, sample)` is called as each sample is there, `progress(text)` when something begins, `done()`
    after each measurement; `log`: where the peer's output goes; `note`: what the record should say; `trouble(runtime,
    what)`: a peer failed, and labkit goes on without it; `spent(cell, rows)`: where the time of a decode step goes."""

    settings: Settings
    device: Device
    since: Callable[[float], float]
    store: Callable[[Cell, int, Sample], None]
    progress: Say
    done: Callable[[], None]
    note: Say
    trouble: Callable[[str, str], None]
    described: Callable[[LabkitSide], None]
    spent: Callable[[Cell, list[Spent]], None]
    log: Path
    peer: Binary | None = None


def measurements(settings: Settings, peer: bool) -> int:
    """How many cells are run for one model, warm-up included."""
    names = [LabkitSide.name, *([NAME] if peer else [])]
    return len(settings.cells(names, "")) * (1 + settings.repetitions)


def bench_model(plan: Plan, model: AnyModel, quant: str) -> None:
    """Measure one model with labkit and the peer, interleaved when both fit on the device, else one after the other."""
    settings, costs = plan.settings, costs_of(model, plan.settings.kv)
    prompts = Prompts(model.config.vocab, settings.seed, model.tokenizer.eos_ids)
    course = _Course(plan, quant, prompts)
    with contextlib.ExitStack() as held:
        gguf = held.enter_context(_file_of(plan, model)) if plan.peer else None
        with contextlib.ExitStack() as ours_held:
            plan.progress(f"{quant}: loading the weights")
            ours = LabkitSide(model, plan.device, settings, costs)
            ours_held.callback(ours.close)
            plan.described(ours)
            if gguf is None:
                course.run([ours])
                return
            if _fits(plan, model, costs):
                with contextlib.ExitStack() as peer_held:
                    try:
                        peers = [peer_held.enter_context(_started(plan, gguf, model, quant, costs, _phases(settings)))]
                    except RunError as error:
                        plan.trouble(NAME, str(error))
                        peers = []
                    course.run([ours, *peers])
                return
            course.run([ours])
        plan.note(f"{quant}: {NAME} was measured after labkit, not in turns with it: both do not fit on the device")
        for phase in _phases(settings):
            try:
                with _started(plan, gguf, model, quant, costs, [phase]) as peer:
                    course.run([peer], [phase])
            except RunError as error:
                plan.trouble(NAME, str(error))


def _phases(settings: Settings) -> list[str]:
    return [phase for phase, wanted in (("decode", settings.batch), ("prefill", settings.prompt)) if wanted]


def _fits(plan: Plan, model: AnyModel, costs: Costs) -> bool:
    """Whether a server for all phases fits beside what the device holds now; where the driver does not say, it does."""
    free = plan.device.memory_free()
    need = peer_bytes(plan.settings, costs, model.nbytes, _phases(plan.settings), model.config.context)
    return free is None or free > need


@contextlib.contextmanager
def _file_of(plan: Plan, model: AnyModel) -> Iterator[Path]:
    """The file the peer loads: the model's own, or one of random weights in the same shape."""
    if isinstance(model, Model):
        yield model.path
        return
    assert isinstance(model, ShapeModel)
    from labkit.models.random_gguf import temporary_gguf

    plan.progress(f"writing {model.nbytes / 1e9:.1f} GB of random weights for {NAME}")
    with temporary_gguf(model) as path:
        yield path


@contextlib.contextmanager
def _started(
    plan: Plan, gguf: Path, model: AnyModel, quant: str, costs: Costs, phases: Sequence[str]
) -> Iterator[PeerSide]:
    assert plan.peer is not None
    plan.progress(f"{quant}: starting {NAME}")
    side = PeerSide(
        plan.peer, gguf, plan.settings, costs, phases=phases, limit=model.config.context, log=plan.log,
        device_index=plan.device.info.index,
        waiting=lambda seconds: plan.progress(f"{quant}: {NAME} is loading, {seconds:.0f} s"),
    )  # fmt: skip
    try:
        plan.note(f"{quant}: {' '.join(side.server.arguments[1:])}")
        yield side
    finally:
        side.close()


class _Course:
    """Warm-up and blocks over some sides of one model."""

    def __init__(self, plan: Plan, quant: str, prompts: Prompts) -> None:
        self.plan, self.quant, self.prompts = plan, quant, prompts
        self.by_name: dict[str, Side] = {}

    def run(self, sides: Sequence[Side], phases: Sequence[str] = ("decode", "prefill")) -> None:
        """Every cell of these sides once to warm up, then in randomised complete blocks. A peer that fails is left out
        of what follows."""
        plan, settings = self.plan, self.plan.settings
        self.by_name = {side.name: side for side in sides}
        cells = [cell for cell in settings.cells(list(self.by_name), self.quant) if cell.phase in phases]
        warm_up(plan.device)
        for cell in cells:
            self._once(cell, -1, f"{cell.runtime} warms up, {cell.label}")
        order = block_order(cells, settings.repetitions, settings.seed)
        warm_up(plan.device)
        for block, in_turn in enumerate(order):
            for cell in in_turn:
                self._once(cell, block, f"{block + 1}/{settings.repetitions}, {cell.runtime} {cell.label}")
        for cell in cells:
            side = self.by_name.get(cell.runtime)
            if side is not None and cell.phase == "decode" and (rows := side.spent(cell)):
                plan.spent(cell, rows)

    def _once(self, cell: Cell, block: int, text: str) -> None:
        side = self.by_name.get(cell.runtime)
        if side is not None:
            self.plan.progress(f"{self.quant}: {text}")
            prompts = self.prompts.take((block, cell.phase), cell.streams, cell.prompt)
            try:
                sample = side.measure(cell, prompts, self.plan.since)
            except RunError as error:  # raised by peers alone
                self.plan.trouble(cell.runtime, str(error))
                del self.by_name[cell.runtime]
            else:
                if block >= 0:
                    self.plan.store(cell, block, sample)
        self.plan.done()


def described(models: Sequence[AnyModel]) -> dict[str, Any]:
    """What a record keeps of the models, with the mark of random weights where they have them."""
    facts: list[dict[str, Any]] = []
    for model in models:
        mark = {"note": "random weights: for speed only"} if isinstance(model, ShapeModel) else {}
        facts.append(model.describe() | mark)
    return facts[0] if len(facts) == 1 else {"name": ", ".join(each["name"] for each in facts), "models": facts}
