"""What `/proc` says of the processes of a machine: whose they are, what they run, and what they hold of a device.

The `drm-` keys of `/proc/<pid>/fdinfo` are those of the kernel's Documentation/gpu/drm-usage-stats.rst, as amdgpu, i915
and xe give them; `amd-evicted-vram` is amdgpu's own.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


@dataclass(frozen=True)
class Client:
    """A process on the device at one moment; `engine_s` are seconds of engine time since it began, by engine."""

    pid: int
    name: str
    memory_bytes: int | None = None
    spilled_bytes: int | None = None
    engine_s: dict[str, float] = field(default_factory=dict)
    busy: float | None = None  # its share of the device since the look before, where the card itself tells


def family(proc: Path, own: int) -> set[int]:
    """A process, all it started, and the processes of labkit that started it; a terminal or a server is not of them."""
    parents = {}
    for entry in processes(proc):
        fields = stat_fields(proc, entry)
        if fields:
            parents[entry] = int(fields[1])
    found, pid = {own}, own
    while (pid := parents.get(pid, 0)) > 0 and pid not in found and b"labkit" in command_line(proc, pid):
        found.add(pid)
    down, fresh = {own}, True
    while fresh:
        more = {pid for pid, parent in parents.items() if parent in down and pid not in down}
        fresh = bool(more)
        down |= more
    return found | down


def processes(proc: Path) -> list[int]:
    """The process ids there are."""
    try:
        return [int(name) for name in os.listdir(proc) if name.isdigit()]
    except OSError:
        return []


def stat_fields(proc: Path, pid: int) -> list[str]:
    """The fields of `/proc/<pid>/stat` after the name: state, parent, ...; empty when the process is gone."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    fields = text.rpartition(")")[2].split()
    return fields if len(fields) >= 15 else []


def process_name(proc: Path, pid: int) -> str:
    """A process's short name; `not named here` where it is outside this container or gone."""
    try:
        return (proc / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip() or "unnamed"
    except OSError:
        return "not named here"


def command_line(proc: Path, pid: int) -> bytes:
    """How a process was started; empty when it is gone or another's."""
    try:
        return (proc / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""


def process_seconds(proc: Path, pid: int) -> float:
    """Core-seconds a process has run, its ended children's included."""
    fields = stat_fields(proc, pid)
    return sum(map(int, fields[11:15])) / ticks() if fields else 0.0


def ticks() -> int:
    """Clock ticks a second of `/proc`."""
    return int(os.sysconf("SC_CLK_TCK"))


def cpu_seconds(proc: Path) -> float | None:
    """Core-seconds all processors have worked since boot, idle and waiting left out."""
    try:
        first = (proc / "stat").read_text(encoding="ascii").splitlines()[0].split()
    except (OSError, IndexError):
        return None
    if not first or first[0] != "cpu" or len(first) < 5:
        return None
    user, nice, system, _, _, *rest = [int(part) for part in first[1:]] + [0, 0]
    return (user + nice + system + sum(rest[:3])) / ticks()  # irq, softirq, steal


def drm_clients(proc: Path, pci: str) -> tuple[list[Client], int]:
    """Every process that has the device at `pci` open, and of how many processes the files may not be read."""
    found, hidden = [], 0
    for pid in processes(proc):
        folder = proc / str(pid)
        try:
            names = os.listdir(folder / "fd")
        except PermissionError:
            hidden += 1
            continue
        except OSError:
            continue
        texts = []
        for name in names:
            try:
                if not os.readlink(folder / "fd" / name).startswith("/dev/dri/"):
                    continue
                texts.append((folder / "fdinfo" / name).read_text(encoding="ascii", errors="replace"))
            except OSError:  # closed a moment ago
                continue
        client = read_fdinfo(pid, process_name(proc, pid), texts, pci)
        if client is not None:
            found.append(client)
    return found, hidden


def read_fdinfo(pid: int, name: str, texts: Iterable[str], pci: str) -> Client | None:
    """What a process's open files of a device say together; a client open twice (`drm-client-id`) counts once."""
    clients: dict[str, dict[str, str]] = {}
    for number, text in enumerate(texts):
        keys = dict(
            (key.strip(), value.strip()) for key, colon, value in (line.partition(":") for line in text.splitlines())
        )
        if keys.get("drm-pdev", "").lower() == pci.lower():
            clients[keys.get("drm-client-id", f"file {number}")] = keys
    if not clients:
        return None
    memory = spilled = None
    engines: dict[str, float] = {}
    for keys in clients.values():
        held, away = memory_of(keys)
        memory = held if memory is None else memory + (held or 0)
        spilled = away if spilled is None else spilled + (away or 0)
        for key, value in keys.items():
            if key.startswith("drm-engine-") and not key.startswith("drm-engine-capacity-"):
                engine = key.removeprefix("drm-engine-")
                engines[engine] = engines.get(engine, 0.0) + int(value.split()[0]) / 1e9
    return Client(pid, name, memory, spilled, engines)


def memory_of(keys: dict[str, str]) -> tuple[int | None, int | None]:
    """(bytes in the device's own memory, bytes meant for it that lie elsewhere) of one client; None where not told."""
    regions = {key.rpartition("-")[2] for key in keys if key.startswith(("drm-total-", "drm-resident-", "drm-memory-"))}
    held = away = None
    for region in sorted(regions):
        if not region.startswith(("vram", "local")):
            continue
        resident = size(keys.get(f"drm-resident-{region}", keys.get(f"drm-memory-{region}")))
        total = size(keys.get(f"drm-total-{region}"))
        if resident is not None:
            held = (held or 0) + resident
        if resident is not None and total is not None and f"drm-resident-{region}" in keys:
            away = (away or 0) + max(0, total - resident)
    evicted = size(keys.get("amd-evicted-vram"))
    return held, evicted if evicted is not None else away


def size(text: str | None) -> int | None:
    """`1024 KiB` in bytes; None for what is not a size."""
    found = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", (text or "").strip())
    unit = _UNITS.get(found.group(2).lower()) if found else None
    return int(found.group(1)) * unit if found and unit else None
