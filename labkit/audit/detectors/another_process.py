"""Another process on the GPU: what else worked on the device while the run was measured."""

from collections.abc import Iterator

from labkit.audit.evidence import Evidence
from labkit.audit.notice import Notice
from labkit.audit.registry import detector
from labkit.measure.neighbours import BUSY_SHARE, LOADED_SHARE, Neighbours

FOLLOWS = ("repetitions", "faster-than-solo", "power-against-bandwidth")


@detector("another-process", 17, version=1, title="Another process on the GPU", explains=FOLLOWS)
def another_process(evidence: Evidence) -> Iterator[Notice]:
    """Other processes that took over 2 % of an engine of the device, seen before, during or after the run; where the
    device is the processor, others that took over 10 % of it. Warns: what they took, the run did not have."""
    if evidence.record is None:
        return
    seen, name = evidence.record.neighbours, evidence.name
    readings = [float(row["others_busy"]) for row in evidence.telemetry if row.get("others_busy") is not None]
    if readings and max(readings) >= BUSY_SHARE and (seen is None or not any(busy_lines(seen))):
        line = f"in one of {len(readings)} readings another took {max(readings):.0%} of an engine, of {BUSY_SHARE:.0%} at the most"
        text = f"{name} shared its device with another process"
        yield Notice(outcome="warn", text=text, subject=name, arithmetic=(line,))
        return
    if seen is None or not seen.sources:
        why = f": {'; '.join(seen.unseen)}" if seen is not None and seen.unseen else ""
        text = f"whether {name} had its device to itself is not known{why}"
        yield Notice(outcome="not assessable", text=text, subject=name, missing=("a look at the device's other users",))
        return
    lines = tuple(busy_lines(seen)) + tuple(processor_lines(evidence, seen))
    if lines:
        who = ", ".join(dict.fromkeys(one.name for one in seen.processes if (one.busy or 0.0) >= BUSY_SHARE))
        text = f"{name} shared its device with {who or 'other programs on the processor'}"
        yield Notice(outcome="warn", text=text, subject=name, arithmetic=lines)
        return
    if unknown := [one.name for one in seen.processes if one.busy is None]:
        text = f"{', '.join(dict.fromkeys(unknown))} had the device of {name} open, and what it did there is not told"
        yield Notice(outcome="not assessable", text=text, subject=name, missing=("the share of the device each took",))
        return
    text = f"{name} had its device to itself in {seen.looks} looks ({', '.join(seen.sources)})"
    yield Notice(outcome="ok", text=text, subject=name)


def busy_lines(seen: Neighbours) -> Iterator[str]:
    """A line for each process that is known to have worked on the device."""
    for one in seen.processes:
        if one.busy is not None and one.busy >= BUSY_SHARE:
            when = " and ".join(one.when)
            yield f"{one.name} (process {one.pid}): {one.busy:.0%} of an engine {when}, of {BUSY_SHARE:.0%} at the most"


def processor_lines(evidence: Evidence, seen: Neighbours) -> Iterator[str]:
    """A line where the device is the processor, and others worked on that."""
    kind = str((evidence.record.device or {}).get("type", "")) if evidence.record is not None else ""
    if "cpu" in kind.lower() and seen.cpu_others is not None and seen.cpu_others >= LOADED_SHARE:
        yield f"others took {seen.cpu_others:.0%} of the processor, which is the device, of {LOADED_SHARE:.0%} at the most"
