"""AMD's management library by its Python package, `amdsmi`: what amdgpu's files say, and a counter of energy beside it."""

import importlib
from collections.abc import Callable
from typing import Any

from labkit.measure.amdgpu import Amdgpu, throttler_names
from labkit.measure.telemetry import Reading

MICROWATTS = 10_000  # a cap above it is in microwatts: versions of the library differ


def load_amdsmi() -> Any | None:
    """The package, or None where it is not there or does not find its library."""
    try:
        return importlib.import_module("amdsmi")
    except Exception:  # a version that does not fit the driver fails in ways of its own
        return None


class AmdSmi(Amdgpu):
    """Readings of one card through the library, by the card's files what that does not tell; made by `beside`."""

    name = "amdsmi"

    def __init__(self, files: Amdgpu, library: Any, handle: Any) -> None:
        super().__init__(files.folder, files.hwmon)
        self.library, self.handle = library, handle

    @classmethod
    def beside(
        cls, files: Amdgpu, pci: str, load: Callable[[], Any | None] = load_amdsmi
    ) -> "tuple[AmdSmi | None, str]":
        """The card at `pci`, of which `files` are known; or None and why."""
        library = load()
        if library is None:
            return None, "the Python package amdsmi is not installed"
        try:
            library.amdsmi_init()
            handles = {
                str(library.amdsmi_get_gpu_device_bdf(one)).lower(): one
                for one in library.amdsmi_get_processor_handles()
            }
        except Exception as error:  # its own classes, and what its library raises
            return None, f"amdsmi does not start: {error}"
        if pci.lower() not in handles:
            return None, f"amdsmi does not know the card at {pci}"
        return cls(files, library, handles[pci.lower()]), ""

    def _asked(self, call: str, *arguments: str) -> Any:
        """What a call of the library returns; None where it fails or is not there. Arguments are names within it."""
        try:
            found = [self.library]
            for name in arguments:
                part: Any = self.library
                for step in name.split("."):
                    part = getattr(part, step)
                found.append(part)
            return getattr(self.library, call)(self.handle, *found[1:])
        except Exception:  # not supported on this card, or not in this version
            return None

    def _number(self, call: str, names: tuple[str, ...], *arguments: str) -> float | None:
        """The first of these fields that holds a number: "N/A" and the largest of its type are none."""
        found = self._asked(call, *arguments)
        values = [found.get(name) for name in names] if isinstance(found, dict) else [found]
        limits = ((1 << 16) - 1, (1 << 32) - 1, (1 << 64) - 1)
        return next(
            (float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool) and v not in limits),
            None,
        )

    def energy(self) -> float | None:
        """Joules by the card's accumulator."""
        count = self._number("amdsmi_get_energy_count", ("energy_accumulator", "power"))
        unit = self._number("amdsmi_get_energy_count", ("counter_resolution",))
        return None if count is None or unit is None else count * unit * 1e-6

    def read(self) -> Reading:
        """The present."""
        files = super().read()
        power = self._number("amdsmi_get_power_info", ("current_socket_power", "socket_power", "average_socket_power"))
        core, memory = (
            self._number("amdsmi_get_clock_info", ("clk", "cur_clk"), f"AmdSmiClkType.{kind}")
            for kind in ("GFX", "MEM")
        )
        heat = self._number(
            "amdsmi_get_temp_metric", (), "AmdSmiTemperatureType.EDGE", "AmdSmiTemperatureMetric.CURRENT"
        )
        busy = self._number("amdsmi_get_gpu_activity", ("gfx_activity",))
        return Reading(
            power_w=files.power_w if power is None else power,
            core_mhz=files.core_mhz if core is None else core,
            memory_mhz=files.memory_mhz if memory is None else memory,
            temperature_c=files.temperature_c if heat is None else heat,
            utilisation=files.utilisation if busy is None else busy / 100,
            limited=files.limited,
            energy_j=self.energy(),
        )

    def limited(self) -> str:
        """What holds the clocks back, joined by `+`: as the library says, else as the files do."""
        bits = self._number("amdsmi_get_gpu_metrics_info", ("indep_throttle_status",))
        return super().limited() if bits is None else throttler_names(int(bits))

    def facts(self) -> dict[str, Any]:
        """The power cap, the default one where it is another, and the performance level asked for."""
        found = super().facts()
        for name, fields in (
            ("power_limit_w", ("power_cap",)),
            ("power_default_w", ("default_power_cap", "power_cap_default")),
        ):
            cap = self._number("amdsmi_get_power_cap_info", fields)
            if cap:
                found[name] = cap * 1e-6 if cap > MICROWATTS else cap
        return found
