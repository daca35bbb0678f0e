"""What to look at before a long series of runs: free disk, who else is on the device, mains power."""

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from labkit.errors import LabError
from labkit.lab.folder import runs_folder
from labkit.measure.neighbours import Neighbours
from labkit.measure.watch import SETTLE_S

RUN_BYTES = 5_000_000  # of a run nobody has seen yet
SPARE_BYTES = 500_000_000  # that a night leaves free
LOOK_S = 30.0  # a driver may take so long to open


@dataclass(frozen=True)
class Checked:
    """What was found: `refusals` stop the night, `warnings` are told and kept."""

    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def check_night(root: Path, experiment: str, runs: int, selector: str | None, mains: Path = Path("/sys")) -> Checked:
    """Looks at disk, device and power before `runs` runs. `selector` is the notebook's device, None where it has none."""
    seen = look(selector)
    refusals = [text for text in (disk_trouble(root, experiment, runs),) if text]
    warnings = [*seen.troubles, *(text for text in (power_trouble(mains),) if text)]
    return Checked(tuple(refusals), tuple(warnings))


def disk_trouble(root: Path, experiment: str, runs: int) -> str:
    """Why the disk is too small for `runs` more runs, or nothing. A run takes what those before it took."""
    folder = runs_folder(root)
    sizes = [folder_bytes(path) for path in newest(folder, experiment)] or [RUN_BYTES]
    need = int(median(sizes) * runs)
    free = shutil.disk_usage(folder if folder.is_dir() else root).free
    if free >= need + SPARE_BYTES:
        return ""
    return (
        f"the disk of {folder} has {free / 1e9:.2f} GB free; {runs} runs need about {need / 1e9:.2f} GB and "
        f"{SPARE_BYTES / 1e9:.1f} GB must stay free"
    )


def newest(folder: Path, experiment: str, most: int = 10) -> Sequence[Path]:
    """The newest runs of an experiment."""
    return sorted(folder.glob(f"*Z-{experiment}-????????"))[-most:]


def folder_bytes(folder: Path) -> int:
    """The bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def power_trouble(root: Path = Path("/sys")) -> str:
    """Why the machine's power speaks against a night, or nothing: it runs on a battery."""
    supplies = root / "class/power_supply"
    kinds = {path.name: words(path / "type") for path in sorted(supplies.glob("*"))}
    mains = [name for name, kind in kinds.items() if kind == "Mains"]
    if any(words(supplies / name / "online") == "1" for name in mains):
        return ""
    batteries = [
        name for name, kind in kinds.items() if kind == "Battery" and words(supplies / name / "scope") != "Device"
    ]
    discharging = [name for name in batteries if words(supplies / name / "status") == "Discharging"]
    return (
        f"the machine runs on its battery ({discharging[0]}): clocks differ, and it may go off" if discharging else ""
    )


def words(path: Path) -> str:
    """A small file's text, or nothing."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def look(selector: str | None) -> Neighbours:
    """One look at the device, in a process of its own, so that this one holds no part of the card. Without a device, or
    where it does not open, the processor's load alone."""
    command = [sys.executable, "-m", "labkit.lab.night", *([] if selector is None else [selector])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LOOK_S, check=False)
        return Neighbours.model_validate_json(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return Neighbours(unseen=("the device: it could not be looked at",))


def main(arguments: Sequence[str]) -> int:
    """`python -m labkit.lab.night [SELECTOR]`: prints who is on the device as JSON."""
    from labkit.measure.watch import Observer, Watch, observe

    observer = Observer(None)
    if arguments:
        try:
            from labkit.vulkan.device import Device

            observer = observe(Device(arguments[0] or None))
        except LabError:
            pass  # the run itself says what is wrong with the device
    watch = Watch(observer, period_s=SETTLE_S).start()
    time.sleep(3 * SETTLE_S)
    print(watch.stop().model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
