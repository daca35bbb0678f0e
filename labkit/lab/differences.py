"""What differs between the conditions of two runs: device, driver, build, model, parameters, clocks, load, machine."""

import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from labkit.lab.conditions import driver_words
from labkit.lab.lab import StoredRun
from labkit.lab.record import IMPORTED, RunRecord
from labkit.lab.scope import NOT_SHAPE, model_words
from labkit.lab.scope import driver_words as driver_of
from labkit.measure.neighbours import BUSY_SHARE

Kind = Literal["device", "driver", "build", "model", "parameters", "clocks", "load", "machine", "session"]
CLOCKS = ("core_mhz", "memory_mhz")
CLOCK_SHARE = 0.02  # clocks nearer than this are the same
BUSY = 0.5  # readings under load are those above this share of the run's highest power or utilisation
MOST_NAMES = 4
RUNTIME = "runtime "  # how the label of a fingerprint begins that is a runtime's own word on its version


@dataclass(frozen=True)
class Difference:
    """One condition that is not the same, in words. `bounds` tells whether a claim about the ratio must name it."""

    kind: Kind
    name: str
    old: str
    new: str
    bounds: bool = True

    def words(self) -> str:
        """`driver: NVIDIA 580.1 → NVIDIA 590.2`."""
        return f"{self.name}: {self.old} → {self.new}" if self.old or self.new else self.name


def differences(old: StoredRun, new: StoredRun) -> list[Difference]:
    """Every condition that the two records do not have alike; what neither describes is not listed."""
    a, b = old.record, new.record
    return [
        *device_differences(a, b),
        *build_differences(a, b),
        *told("model", "model", model_words(a.model), model_words(b.model)),
        *parameter_differences(a.parameters, b.parameters),
        *clock_differences(old, new),
        *load_differences(old, new),
        *machine_differences(a, b),
    ]


def told(kind: Kind, name: str, old: Any, new: Any, bounds: bool = True) -> Iterator[Difference]:
    """A difference where there is one."""
    if old != new:
        yield Difference(kind, name, plain(old), plain(new), bounds)


def plain(value: Any) -> str:
    """A value as a reader writes it."""
    if value is None:
        return "not known"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def device_differences(a: RunRecord, b: RunRecord) -> Iterator[Difference]:
    """The card and its driver."""
    one, other = a.device or {}, b.device or {}
    yield from told("device", "device", one.get("name"), other.get("name"))
    if one.get("name") == other.get("name"):
        yield from told("device", "device UUID", one.get("uuid"), other.get("uuid"))
    yield from told("driver", "driver", driver_words(driver_of(a.device)), driver_words(driver_of(b.device)))
    cards: list[Mapping[str, Any]] = [device.get("card") or {} for device in (one, other)]
    for name in sorted(cards[0].keys() & cards[1].keys()):
        yield from told("clocks", f"card {name}", cards[0][name], cards[1][name])


def build_differences(a: RunRecord, b: RunRecord) -> Iterator[Difference]:
    """What was executed: version, kernels, programs; and the commit, which may hold more than the records tell."""
    for name in build_packages(a, b):
        yield from told("build", name, a.packages.get(name), b.packages.get(name))
    shaders = changed_names(a.shaders, b.shaders)
    if shaders:
        yield Difference("build", f"{len(shaders)} shaders ({few(shaders)})", "", "")
    both = a.program_fingerprints.keys() & b.program_fingerprints.keys()
    programs = [name for name in sorted(both) if a.program_fingerprints[name] != b.program_fingerprints[name]]
    for name in [name for name in programs if name.startswith(RUNTIME)]:  # the version that another program reports
        programs.remove(name)
        yield Difference("build", name, a.program_fingerprints[name], b.program_fingerprints[name])
    if programs:
        yield Difference("build", f"{len(programs)} programs ({few(programs)})", "", "", bounds=False)
    commits = [(record.git.commit[:12], record.git.diff_sha256) if record.git else None for record in (a, b)]
    if commits[0] != commits[1]:
        words = [f"{found[0]}{' with edits' * (found[1] is not None)}" if found else None for found in commits]
        yield Difference("build", "commit", plain(words[0]), plain(words[1]), bounds=False)
    yield from told("build", "notebook's code", (a.notebook_sha256 or "")[:12], (b.notebook_sha256 or "")[:12], False)


def build_packages(a: RunRecord, b: RunRecord) -> list[str]:
    """The packages whose version is that of what was executed: labkit's, and of two imported runs all they name."""
    theirs = a.experiment == b.experiment == IMPORTED
    return sorted({"labkit", *a.packages, *b.packages}) if theirs else ["labkit"]


def changed_names(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The names whose values are not the same; none where either side has no values at all."""
    if not old or not new:
        return []
    return sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))


def few(names: list[str]) -> str:
    """The first few names."""
    return ", ".join(names[:MOST_NAMES]) + (", …" if len(names) > MOST_NAMES else "")


def parameter_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    """Each parameter. Those that say what is believed or how often it is tried bound nothing, nor do lists of numbers:
    they are what the cells took their values from."""
    for name in [*old, *(name for name in new if name not in old)]:
        values = old.get(name), new.get(name)
        yield from told("parameters", name, *values, bounds=name not in NOT_SHAPE and not all(map(is_grid, values)))


def is_grid(value: Any) -> bool:
    """Whether a parameter is a list of numbers."""
    return isinstance(value, list) and all(isinstance(item, int | float) for item in value)


def clock_differences(old: StoredRun, new: StoredRun) -> Iterator[Difference]:
    """The clocks under load, by the telemetry, where they are over 2 % apart."""
    a, b = clocks_of(old.folder), clocks_of(new.folder)
    for name in CLOCKS:
        if name in a and name in b and not math.isclose(a[name], b[name], rel_tol=CLOCK_SHARE):
            yield Difference("clocks", name, f"{a[name]:.0f} MHz", f"{b[name]:.0f} MHz")


def load_differences(old: StoredRun, new: StoredRun) -> Iterator[Difference]:
    """What disturbed either: two loads are never alike, so one on both sides is a difference too."""
    loads = [load_of(run) for run in (old, new)]
    if any(loads):
        then, now = (
            load or ("none seen" if run.record.neighbours else "not known")
            for load, run in zip(loads, (old, new), strict=True)
        )
        yield Difference("load", "load beside the run", then, now)


def load_of(run: StoredRun) -> str:
    """The other users of a run's device and processor, and what held the device back, as the audit warns of them; empty
    where nothing was seen."""
    seen = run.record.neighbours
    troubles = list(seen.troubles) if seen is not None else []
    most = max((number(row.get("others_busy")) or 0.0 for row in readings(run.folder)), default=0.0)
    if most >= BUSY_SHARE and not (seen is not None and any((one.busy or 0.0) >= BUSY_SHARE for one in seen.processes)):
        troubles.append(f"in one reading another process took {most:.0%} of an engine of the device")
    return ", ".join(troubles)


def readings(folder: Path) -> list[dict[str, str]]:
    """The rows of a run's telemetry, as they are written; none without it."""
    path = folder / "telemetry.csv"
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        return list(csv.DictReader(file))


def clocks_of(folder: Path) -> dict[str, float]:
    """The mean clocks of a run while it was busy, by name; empty without telemetry. Damaged readings are passed over."""
    rows = readings(folder)
    load = [number(row.get("power_w")) or number(row.get("utilisation")) or 0.0 for row in rows]
    top = max(load, default=0.0)
    busy = [row for row, at in zip(rows, load, strict=True) if at >= BUSY * top]
    found: dict[str, float] = {}
    for name in CLOCKS:
        values = [value for row in busy if (value := number(row.get(name)))]
        if values:
            found[name] = fmean(values)
    return found


def number(text: str | None) -> float | None:
    """A reading as a finite number, None for what is not one."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def machine_differences(a: RunRecord, b: RunRecord) -> Iterator[Difference]:
    """The machine around the card, and whether it was started anew."""
    yield from told("machine", "processor", a.host.cpu, b.host.cpu)
    yield from told("machine", "system", a.host.os, b.host.os)
    packages = [name for name in changed_names(a.packages, b.packages) if name not in build_packages(a, b)]
    if len(packages) <= MOST_NAMES:
        for name in packages:
            yield from told("machine", f"package {name}", a.packages.get(name), b.packages.get(name), bounds=False)
    else:
        yield Difference("machine", f"{len(packages)} packages ({few(packages)})", "", "", bounds=False)
    if a.host.boot_id != b.host.boot_id and a.host.boot_id and b.host.boot_id:
        yield Difference("session", "another boot of the machine", "", "", bounds=False)


def bound_words(found: list[Difference], paired: bool) -> str:
    """What the ratio can be put to, given what differs."""
    names = list(dict.fromkeys(one.words() if one.kind == "parameters" else one.kind for one in found if one.bounds))
    also = "" if paired else " Each side is one session."
    if not names:
        code = [one for one in found if one.kind == "build"]
        but = f" The {' and '.join(one.name for one in code)} differ, which may or may not matter." if code else ""
        return f"No condition that bounds a claim differs: the ratio is that of two sessions.{but}{also}"
    if names == ["load"]:
        return (
            "Only the load beside the runs differs of what the records tell: the ratio may be its doing, and can be put to "
            f"nothing else.{also}"
        )
    if len(names) == 1:
        return f"Only the {names[0]} differs of what the records tell, so the ratio may be put to it.{also}"
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{listed} differ at once: the ratio is that of all of them together, and of none of them alone.{also}"
