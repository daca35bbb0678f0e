"""`telemetry(device)`: load, memory, power, temperature and clocks against their limits, as they change."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labkit.errors import LabError, ParameterError
from labkit.lab.progress import duration
from labkit.measure.telemetry import UNTOLD, Reading, Telemetry, find_source
from labkit.palette import NEUTRAL, PALETTE
from labkit.show.pieces import Html, bar, paragraph, size_words, table
from labkit.widgets.view import View

if TYPE_CHECKING:
    from labkit.engine.engine import Engine
    from labkit.lab.run import Run
    from labkit.vulkan.device import Device

PERIOD_S = 0.5
SPAN_S = 120.0  # the figure shows this much of the past


@dataclass(frozen=True)
class Meter:
    """One line of the view: a field of `Reading`, what it is called, how it is written, and where its limit is found: a
    number, or a name among the source's facts."""

    field: str
    name: str
    words: Callable[[float], str]
    limit: str | float | None = None
    scale: float = 1.0  # of the figure's axis
    unit: str = ""


METERS = (
    Meter("utilisation", "load", lambda share: f"{100 * share:.0f} %", 1.0, 100.0, "%"),
    Meter("memory_used_bytes", "memory", size_words, "memory_bytes", 1 / (1 << 30), "GiB"),
    Meter("power_w", "power", lambda w: f"{w:.1f} W", "power_limit_w", 1.0, "W"),
    Meter("temperature_c", "temperature", lambda c: f"{c:.0f} °C", None, 1.0, "°C"),
    Meter("core_mhz", "core clock", lambda mhz: f"{mhz:,.0f} MHz", "core_max_mhz", 1.0, "MHz"),
    Meter("memory_mhz", "memory clock", lambda mhz: f"{mhz:,.0f} MHz", "memory_max_mhz", 1.0, "MHz"),
)


class Meters(View):
    """The readings of one device; see `telemetry`."""

    what = "telemetry"
    plots = True

    def __init__(self, device: "Device", run: "Run | None", period_s: float) -> None:
        super().__init__()
        device.alive()
        self.device, self.recorded, self.period_s = device, run, period_s
        self.source, self.source_name = find_source(device)
        self.facts: dict[str, Any] = {"memory_bytes": device.info.memory_bytes}
        if self.source is not None:
            self.facts |= self.source.facts()
        self._own = Telemetry(self.source, period_s, beside=self._memory) if run is None else None
        self._readings: tuple[tuple[float, Reading], ...] = ()
        self._button: Any = None

    def _memory(self) -> dict[str, Any]:
        free = None if self.device.closed else self.device.memory_free()
        return {} if free is None else {"memory_used_bytes": float(self.device.info.memory_bytes - free)}

    @property
    def readings(self) -> tuple[tuple[float, Reading], ...]:
        """What was read so far, each with its time of `time.perf_counter()`."""
        if self._own is not None:
            return tuple(self._own.readings)
        if self.recorded is not None and (found := self.recorded.readings):
            self._readings = found  # they go with the run when it ends
        return self._readings

    @property
    def latest(self) -> Reading:
        """The newest reading; empty before the first."""
        found = self.readings
        return found[-1][1] if found else Reading()

    def watch(self) -> None:
        """Follow the readings until `stop`, or until the run that records them has ended."""
        if self._own is not None:
            self._own.start()
        try:
            while not self._halt.wait(self.period_s):
                self.changed()
                if self._own is not None and self._own.trouble:
                    self.error = self._own.trouble
                    return
                if self.recorded is not None and self.recorded.closed:
                    return
        finally:
            if self._own is not None:
                self._own.stop()

    def limit(self, meter: Meter) -> float | None:
        """What a meter is measured against, None where nothing is known."""
        found = self.facts.get(meter.limit) if isinstance(meter.limit, str) else meter.limit
        return float(found) if isinstance(found, int | float) and found > 0 else None

    def told(self) -> list[Meter]:
        """The meters that some reading has."""
        recent = [one for _, one in self.readings[-200:]]
        return [meter for meter in METERS if any(getattr(one, meter.field) is not None for one in recent)]

    def untold(self) -> str:
        """What the device does not tell, and why where that is known."""
        missing = [meter.name for meter in METERS if meter not in self.told()]
        why = str(self.facts.get("no_power", ""))
        return f"not told: {', '.join(missing)}{f' ({why})' if why else ''}" if missing and self.readings else ""

    def state(self) -> dict[str, Any]:
        """The newest value of each meter with its limit, what holds the device back, and where it is recorded."""
        now = self.latest
        return {
            "running": self.running, "error": self.error, "device": self.device.name, "source": self.source_name,
            "readings": len(self.readings), "limited": now.limited, "run": self.recorded.id if self.recorded else None,
            "meters": {m.field: {"value": getattr(now, m.field), "limit": self.limit(m)} for m in self.told()},
            "untold": self.untold(),
        }  # fmt: skip

    def html(self) -> Html:
        """A row a meter: its value, a bar against its limit."""
        now, rows = self.latest, []
        for place, meter in enumerate(self.told()):
            value, limit = getattr(now, meter.field), self.limit(meter)
            drawn = bar(value / limit, place) if value is not None and limit else ""
            of = f"of {meter.words(limit)}" if limit and meter.limit != 1.0 else ""
            rows.append((meter.name, meter.words(value) if value is not None else "not told", drawn, of))
        notes = [self.source_name]
        if now.limited and now.limited != UNTOLD:
            notes.append(f"held back by {now.limited}")
        found = self.readings
        if len(found) > 1:
            notes.append(f"{len(found)} readings in {duration(found[-1][0] - found[0][0])}")
        if self.recorded is not None:
            notes.append(f"recorded in {self.recorded.id}")
        notes += filter(None, [self.untold()])
        head = ("", "now", "", "limit")
        shown = table(head, rows, numbers=(1,), title=self.device.name) if rows else paragraph("No reading yet.")
        return Html(shown + paragraph(" · ".join(notes)))

    def figure(self) -> Any:
        """A strip a meter over the last two minutes, its limit dashed."""
        meters, found = self.told(), self.readings
        if not meters or len(found) < 2:
            return None
        from plotly.subplots import make_subplots

        from labkit.lab.template import register

        last = found[-1][0]
        recent = [(at - last, one) for at, one in found if last - at <= SPAN_S]
        figure = make_subplots(rows=len(meters), cols=1, shared_xaxes=True, vertical_spacing=0.12 / len(meters))
        for row, meter in enumerate(meters, 1):
            points = [(at, getattr(one, meter.field)) for at, one in recent]
            figure.add_scatter(
                x=[at for at, value in points if value is not None],
                y=[value * meter.scale for _, value in points if value is not None],
                mode="lines", line={"color": PALETTE[(row - 1) % len(PALETTE)], "width": 2}, name=meter.name, row=row, col=1,
                hovertemplate="%{y:.4g} " + meter.unit + "<extra>" + meter.name + "</extra>",
            )  # fmt: skip
            if (limit := self.limit(meter)) is not None:
                figure.add_hline(
                    y=limit * meter.scale, line={"color": NEUTRAL, "width": 1, "dash": "dash"}, row=row, col=1
                )
            figure.update_yaxes(
                title_font={"size": 13},
                tickfont={"size": 12},
                title_text=f"{meter.name}<br>({meter.unit})",
                rangemode="tozero",
                nticks=4,
                row=row,
                col=1,
            )
        figure.update_xaxes(
            title_font={"size": 13},
            title_text="seconds before the newest reading; dashed: the limit",
            row=len(meters),
            col=1,
        )
        figure.update_layout(
            template=register(), showlegend=False, height=90 + 120 * len(meters), margin={"t": 16, "b": 56, "l": 88},
        )  # fmt: skip
        return figure

    def controls(self) -> Sequence[Any]:
        """A button that ends the reading."""
        import ipywidgets as widgets

        self._button = widgets.Button(description="Stop reading", icon="stop")
        self._button.on_click(lambda _: self.attempt(self.stop))
        return (self._button,)

    def follow_controls(self) -> None:
        """The button is of use while it reads."""
        if self._button is not None:
            self._button.disabled = not self.running

    def __repr__(self) -> str:
        now = self.latest
        values = [f"{meter.name} {meter.words(value)}" for meter in METERS
                  if (value := getattr(now, meter.field)) is not None]  # fmt: skip
        return f"<telemetry of {self.device.name}: {self.error or ', '.join(values) or 'no reading yet'}>"


def telemetry(
    device: "Device | Engine | int | str | None" = None, *, run: "Run | None" = None, period_s: float = PERIOD_S
) -> Meters:
    """A view of what a device tells of itself: load, memory, power, temperature and clocks, against their limits.

    `device`: a `Device`, an `Engine` for the one it is on, or a selector for the shared one. With `run`, the readings are
    the run's own, kept in its `telemetry.csv`: it is described by this device if it was not yet, which holds the device
    for it. A driver on the CPU is read by the processor's sensors. Without a browser: `view.state()`, `view.stop()`."""
    from labkit.engine.engine import Engine, default_device
    from labkit.vulkan.device import Device

    if not period_s > 0:
        raise ParameterError(f"period_s={period_s:g}: give a time above 0")
    found = device.device if isinstance(device, Engine) else device
    view = Meters(found if isinstance(found, Device) else default_device(found), run, period_s)
    if run is not None and not run.readings:
        run.describe(device=view.device, telemetry_s=period_s)
    view.begin(view.watch)
    return view


def main() -> None:
    """`python -m labkit.widgets.telemetry`: three seconds of the best device as a page on standard output."""
    import sys

    try:
        with telemetry(period_s=0.2) as view:
            time.sleep(3)
            view.stop()
            view.wait()
            print(view.page(f"Telemetry: {view.device.name}"))
    except LabError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
