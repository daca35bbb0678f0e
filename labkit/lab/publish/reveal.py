"""What a site tells whoever reads it, in lines: the kinds of files in it, and the devices, machines and models it names."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from labkit.lab.publish.pages import size_text
from labkit.lab.publish.read import RunView

FILES = {  # in the order they are told
    "run.json": "device with its UUID, driver, processor, system, packages, parameters, commit",
    "notebook.ipynb": "code, text and every output",
    "plan.json": "belief, reasons and rule",
    "conclusion.json": "claims",
    "measurements.csv": "every sample with its time",
    "starts.csv": "when each process was started",
    "requests.jsonl": "each request's lengths and times, and a hash of its prompt",
    "telemetry.csv": "power, clocks, temperature and load, and how many other processes used the device",
    "steps.jsonl": "each step's times",
    "ops.jsonl": "each operation's times",
    "figure.json": "the main figure's points",
}
MOST_NAMES = 6


def revealed(runs: Sequence[RunView], written: Iterable[Path]) -> tuple[str, ...]:
    """The lines: `6 notebook.ipynb, 210.4 kB: code, text and every output`, then the names."""
    sizes: dict[str, list[int]] = {}
    for path in written:
        sizes.setdefault(path.name, []).append(path.stat().st_size)
    lines = [
        f"{len(sizes[name])} {name}, {size_text(sum(sizes[name]))}: {says}"
        for name, says in FILES.items()
        if name in sizes
    ]
    named = {
        "devices": [run.device for run in runs],
        "processors": [run.record.host.cpu for run in runs if run.record.host.cpu != "unknown"],
        "systems": [run.record.host.os for run in runs if run.record.host.os != "unknown"],
        "models": [run.model for run in runs],
        "commits": [run.record.git.commit[:7] for run in runs if run.record.git],
    }
    return (*lines, *(names(what, found) for what, found in named.items() if any(found)))


def names(what: str, found: Iterable[str]) -> str:
    """`devices: NVIDIA H200; Intel Arc B580`."""
    known = sorted({name for name in found if name})
    more = f" and {len(known) - MOST_NAMES} more" if len(known) > MOST_NAMES else ""
    return f"{what}: {'; '.join(known[:MOST_NAMES])}{more}"
