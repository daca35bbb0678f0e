"""A run's watch over its device: the card's telemetry and its neighbours, kept in the run's folder as they come."""

from collections.abc import Callable
from pathlib import Path

from labkit.lab.measurements import append_text
from labkit.measure.neighbours import Neighbours
from labkit.measure.telemetry import Telemetry, find_source, header
from labkit.measure.watch import Watch, observe
from labkit.vulkan.device import Device

PERIOD_S = 0.5  # between two readings of a notebook's run, which may take a night


class DeviceWatch:
    """Watches `device` for a run from `start` to `stop`: neighbours go to `tell`, readings to `folder`/telemetry.csv.

    `since` makes seconds since the run's start of a reading of `time.perf_counter()`; `period_s` is the rest between two
    readings, shorter where transients are looked for."""

    def __init__(
        self,
        device: Device,
        folder: Path,
        since: Callable[[float], float],
        tell: Callable[[Neighbours], None],
        period_s: float = PERIOD_S,
    ) -> None:
        self.folder, self.since = folder, since
        self._told = tell
        observer = observe(device)
        self.watch = Watch(observer, self._tell)
        source, _ = find_source(device)
        rest_s = period_s if source is not None else self.watch.period_s
        self.telemetry = Telemetry(source, rest_s, beside=lambda: self.watch.latest)

    def start(self) -> "DeviceWatch":
        """Take the look before, then watch."""
        self.watch.start()
        self.telemetry.start()
        return self

    def stop(self) -> Neighbours:
        """Take the look after and keep what was not kept yet."""
        self.telemetry.stop()
        return self.watch.stop()

    def _tell(self, seen: Neighbours) -> None:
        self._told(seen)
        if text := self.telemetry.fresh(self.since):
            path = self.folder / "telemetry.csv"
            append_text(path, text if path.exists() else header() + text)
