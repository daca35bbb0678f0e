"""`roofline(engine)`: each operation of a decode step against the device's ceilings, from a profile or a stored bench."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.errors import LabError, ParameterError, RunError
from labkit.measure.bench.budget import Spent, spent
from labkit.palette import NEUTRAL, PALETTE
from labkit.show.pieces import Html, paragraph, share_words, size_words, table
from labkit.widgets.view import View

if TYPE_CHECKING:
    from labkit.vulkan.device import Device
    from labkit.vulkan.profile import Profile

STEPS = "steps.jsonl"
NAMED = 6  # operations with a colour and a symbol of their own
FIELDS = {"operation": str, "kernel": str, "dispatches": int, "gpu_ms": float, "bytes": int, "flops": int}


@dataclass(frozen=True)
class Ceilings:
    """What operations are held against: bytes and FLOPs a second (10^9, 10^12), each with the words that say whence."""

    gb_s: float | None = None
    tflop_s: Mapping[str, float] = field(default_factory=dict)
    source: str = ""

    @property
    def best(self) -> float | None:
        """The highest rate of products, in 10^12 a second."""
        return max(self.tflop_s.values(), default=None)

    def share(self, one: Spent) -> float | None:
        """How near an operation came to the ceiling that is nearer: the least time its bytes and FLOPs take over its own."""
        least = [one.nbytes / self.gb_s / 1e6] if self.gb_s else []
        least += [one.flops / self.best / 1e9] if self.best else []
        return max(least) / one.gpu_ms if least and one.gpu_ms > 0 else None


class Roofline(View):
    """The operations of one or several steps; see `roofline`."""

    what = "roofline"
    plots = True

    def __init__(self, steps: Mapping[str, Sequence[Spent]], ceilings: Ceilings, subtitle: str) -> None:
        super().__init__()
        self.steps, self.ceilings, self.subtitle = dict(steps), ceilings, subtitle
        self.chosen = next(iter(self.steps))
        self.live = len(self.steps) > 1  # else there is nothing to choose, and the picture is all

    def choose(self, step: str) -> None:
        """Show another step. ParameterError for one that is not there."""
        if step not in self.steps:
            raise ParameterError(f"there is no step {step!r}; there are {', '.join(self.steps)}")
        self.chosen = step
        self.changed(now=True)

    @property
    def operations(self) -> list[Spent]:
        """The operations of the step that is shown, the longest first."""
        return sorted(self.steps[self.chosen], key=lambda one: -one.gpu_ms)

    @property
    def total_ms(self) -> float:
        """The time of all operations of that step."""
        return sum(one.gpu_ms for one in self.operations)

    def state(self) -> dict[str, Any]:
        """The step that is shown: its operations with intensity (FLOP a byte), rates, and their share of the ceiling."""
        rows = [
            {"operation": one.operation, "kernel": one.kernel, "gpu_ms": one.gpu_ms, "gb_s": one.gb_s,
             "gflop_s": gflop_s(one), "intensity": intensity(one), "share_of_ceiling": self.ceilings.share(one)}
            for one in self.operations
        ]  # fmt: skip
        return {
            "step": self.chosen, "steps": list(self.steps), "gb_s": self.ceilings.gb_s, "error": self.error,
            "tflop_s": dict(self.ceilings.tflop_s), "total_ms": self.total_ms, "operations": rows,
        }  # fmt: skip

    def html(self) -> Html:
        """A row an operation."""
        total, rows = self.total_ms, []
        for one in self.operations:
            near = self.ceilings.share(one)
            rows.append(
                (one.operation, one.kernel, one.dispatches, f"{one.gpu_ms:.3f}",
                 share_words(one.gpu_ms / total if total else 0.0), size_words(one.nbytes), f"{one.gb_s:.3g}",
                 f"{gflop_s(one):.4g}", share_words(near) if near is not None else "")
            )  # fmt: skip
        head = ("operation", "kernel", "dispatches", "ms", "share", "bytes", "GB/s", "GFLOP/s", "of the ceiling")
        shown = table(head, rows, numbers=range(2, 9), title=f"{self.chosen}: {total:.3f} ms")
        return Html(shown + paragraph(self.ceilings.source or "No ceiling of this device is known."))

    def figure(self) -> Any:
        """FLOP a byte against FLOPs a second, both logarithmic, under the roofs; a point's area is its time."""
        import plotly.graph_objects as go

        from labkit.lab.figures import SYMBOLS, claim, register

        points = [one for one in self.operations if one.flops and one.nbytes and one.gpu_ms > 0]
        if not points:
            return None
        figure = go.Figure(layout={"template": register()})
        left, right = self._span(points)
        for trace in self._roofs(left, right):
            figure.add_trace(trace)
        longest = max(one.gpu_ms for one in points)
        for place, one in enumerate(points[:NAMED]):
            figure.add_trace(self._points([one], one.operation, PALETTE[place], SYMBOLS[place], longest))
        if points[NAMED:]:
            figure.add_trace(self._points(points[NAMED:], "the others", NEUTRAL, SYMBOLS[NAMED], longest))
        figure.update_xaxes(type="log", title_text="FLOP a byte", range=[math.log10(left), math.log10(right)],
                            tickformat="~g", dtick="D2")  # fmt: skip
        figure.update_yaxes(type="log", title_text="GFLOP/s", rangemode="normal", tickformat="~g", dtick=1)
        figure.update_layout(height=420 + 24 * len(figure.data))  # the legend names operations below one another
        subtitle = " · ".join(filter(None, [self.chosen, self.subtitle, "a point's area is its time"]))
        return claim(figure, self._claim(), subtitle)

    def _points(self, points: Sequence[Spent], name: str, colour: str, symbol: str, longest: float) -> Any:
        import plotly.graph_objects as go

        sizes = [9 + 25 * math.sqrt(one.gpu_ms / longest) for one in points]
        return go.Scatter(
            x=[intensity(one) for one in points], y=[gflop_s(one) for one in points], mode="markers", name=name,
            marker={"color": colour, "opacity": 0.75, "symbol": symbol, "size": sizes},
            customdata=[[one.operation, one.kernel, one.gpu_ms, one.gb_s] for one in points],
            hovertemplate="%{customdata[0]}<br>%{customdata[1]}<br>%{customdata[2]:.3f} ms, %{customdata[3]:.3g} GB/s<br>"
            "%{x:.3g} FLOP/byte, %{y:.4g} GFLOP/s<extra></extra>",
        )  # fmt: skip

    def _claim(self) -> str:
        first = self.operations[0]
        near = self.ceilings.share(first)
        share = share_words(first.gpu_ms / self.total_ms if self.total_ms else 0.0)
        return f"{first.operation} takes {share} of the step" + (
            f", at {share_words(near)} of its ceiling" if near else ""
        )

    def _span(self, points: Sequence[Spent]) -> tuple[float, float]:
        """The axis of intensity: the points, and the ridge where it is known."""
        found = [intensity(one) for one in points]
        if self.ceilings.gb_s and self.ceilings.best:
            found.append(self.ceilings.best * 1e3 / self.ceilings.gb_s)
        return min(found) / 3, max(found) * 3

    def _roofs(self, left: float, right: float) -> list[Any]:
        """The slope of the bandwidth up to the highest rate, and a line for each rate."""
        import plotly.graph_objects as go

        drawn, gb_s, best = [], self.ceilings.gb_s, self.ceilings.best
        if gb_s:
            ridge = min(right, best * 1e3 / gb_s) if best else right
            drawn.append(([left, ridge], [left * gb_s, ridge * gb_s], f"reads {gb_s:.4g} GB/s", "solid"))
        for (name, rate), dash in zip(
            self.ceilings.tflop_s.items(), ("dash", "dot", "dashdot", "longdash"), strict=False
        ):
            start = rate * 1e3 / gb_s if gb_s else left
            if start < right:
                drawn.append(([start, right], [rate * 1e3] * 2, f"{name} products {rate:.4g} TFLOP/s", dash))
        return [
            go.Scatter(x=x, y=y, mode="lines", name=name, hoverinfo="name",
                       line={"color": NEUTRAL, "width": 2, "dash": dash}) for x, y, name, dash in drawn
        ]  # fmt: skip

    def controls(self) -> Sequence[Any]:
        """Which step, where there are several."""
        import ipywidgets as widgets

        chooser = widgets.Dropdown(options=list(self.steps), value=self.chosen, description="step")
        chooser.observe(lambda change: self.attempt(lambda: self.choose(change["new"])), names="value")
        return (chooser,)

    def __repr__(self) -> str:
        return f"<roofline of {self.chosen}: {self._claim()}>"


def intensity(one: Spent) -> float:
    """FLOPs a byte."""
    return one.flops / one.nbytes if one.nbytes else math.inf


def gflop_s(one: Spent) -> float:
    """10^9 FLOPs a second."""
    return one.flops / one.gpu_ms / 1e6 if one.gpu_ms else 0.0


def ceilings_of(device: "Device") -> Ceilings:
    """The measured ceilings of a device that were kept; nothing is measured for it."""
    from labkit.measure.roofline import kept_ceilings

    read, rates = kept_ceilings(device)
    dates = sorted({rate.utc[:10] for rate in rates} | ({read.utc[:10]} if read else set()))
    return Ceilings(
        read.gb_s if read else None,
        {rate.kind: rate.tflop_s for rate in rates},
        f"Ceilings measured on this device, {' and '.join(dates)}." if dates else "",
    )


def of_profile(profile: "Profile", name: str) -> Roofline:
    """The view of a profiled program. ParameterError where the device has no timestamps."""
    if not profile:
        raise ParameterError(
            f"{profile.device.name} has no timestamps on its compute queue, so operations have no times"
        )
    return Roofline({name: spent(profile)}, ceilings_of(profile.device), profile.device.name)


def of_folder(folder: Path) -> Roofline:
    """The view of a stored bench: a step for each cell in its `steps.jsonl`. RunError where there is none."""
    path = folder / STEPS
    if not path.is_file():
        raise RunError(f"{folder} has no {STEPS}: `lab bench` writes one where the device has timestamps")
    steps: dict[str, list[Spent]] = {}
    reads: list[float] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            values = [kind(row[name]) for name, kind in FIELDS.items()]
            cell = ", ".join(f"{name} {value}" for name, value in row["cell"].items() if value is not None)
            share = float(row.get("share_of_read_bandwidth") or 0)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{path}, line {number}, is not an operation of a step: {error}") from None
        one = Spent(*values)
        steps.setdefault(cell, []).append(one)
        if share > 0:
            reads.append(one.gb_s / share)
    if not steps:
        raise RunError(f"{path} has no operations")
    from labkit.lab.record import read_record

    record = read_record(folder)
    device = (record.device or {}).get("name", "")
    known = sorted(reads)[len(reads) // 2] if reads else None
    source = f"Reads as measured in {record.id}; products: what its card can do at the most." if known else ""
    return Roofline(steps, Ceilings(known, card_rates(record.device or {}), source), str(device))


def card_rates(device: Mapping[str, Any]) -> dict[str, float]:
    """What a card can do at the very most in matrix products, by data/devices.toml; nothing where it is not known."""
    from labkit.audit.devices import find_device, read_devices

    try:
        card = find_device(device.get("name"), read_devices(), device.get("vendor_id"), device.get("device_id"))
    except LabError:
        return {}
    rates = card.rates if card is not None else {}
    return {unit.removesuffix("_matrix"): rates[unit] for unit in ("fp16_matrix", "int8_matrix") if unit in rates}


def roofline(what: Any, *, width: int = 1, depth: int | None = None) -> Roofline:
    """A view of a step's operations under the device's roofs.

    `what`: an `Engine`, whose decode step of `width` streams at `depth` positions is profiled now (half its context by
    default); a `Profile`; or a stored bench: a run, its id or its folder. The longest operation is the title. Raises
    ParameterError or RunError where there are no times."""
    from labkit.engine.engine import Engine
    from labkit.lab.lab import Lab, StoredRun
    from labkit.lab.run import Run
    from labkit.vulkan.profile import Profile

    if isinstance(what, Engine):
        at = max(1, what.context // 2) if depth is None else depth
        return of_profile(
            what.profile(width, at), f"{what.model.name}, {width} stream{'s' if width > 1 else ''} at {at} positions"
        )
    if isinstance(what, Profile):
        return of_profile(what, "profile")
    if isinstance(what, StoredRun | Run):
        return of_folder(what.folder)
    if isinstance(what, Path):
        return of_folder(what)
    if isinstance(what, str):
        return of_folder(Lab().find_run(what).folder)
    raise ParameterError(f"roofline({what!r:.60}): give an Engine, a Profile, or a bench's run, id or folder")


def main() -> None:
    """`python -m labkit.widgets.roofline [RUN]`: a stored bench, else a step of a small model, as a page."""
    import sys

    from labkit.engine.engine import Engine
    from labkit.models.shapes import ShapeModel

    try:
        if sys.argv[1:]:
            view = roofline(sys.argv[1])
        else:
            with Engine(ShapeModel("tiny", "q8_0"), slots=4, context=256) as engine:
                view = roofline(engine, width=4)
        print(view.page("Roofline"))
    except LabError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
