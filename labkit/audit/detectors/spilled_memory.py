"""Spilled memory: part of what belongs on the device lay in the host's memory, and was read over the bus."""

from collections.abc import Iterator

from labkit.audit.evidence import Evidence
from labkit.audit.notice import Notice
from labkit.audit.physics import number
from labkit.audit.registry import detector
from labkit.measure.neighbours import NEARLY_FULL

LEAST_BYTES = 1 << 20  # less is a driver's own bookkeeping
FOLLOWS = ("repetitions", "power-against-bandwidth")


@detector("spilled-memory", 19, version=1, title="Memory spilled to the host", explains=FOLLOWS)
def spilled_memory(evidence: Evidence) -> Iterator[Notice]:
    """How much of the run's device memory lay in the host's, by the driver's account of the process. Over 1 MiB warns:
    it is read at the bus's rate. A device whose memory was full and whose spills are not told cannot be judged."""
    record = evidence.record
    if record is None:
        return
    seen = record.neighbours
    readings = [row["spilled_bytes"] for row in evidence.telemetry if row.get("spilled_bytes") is not None]
    known = [
        float(value) for value in (*readings, seen.spilled_bytes if seen is not None else None) if value is not None
    ]
    if not known:
        used, total = (seen.memory_used_bytes, seen.memory_total_bytes) if seen is not None else (None, None)
        if used is not None and total and used < NEARLY_FULL * total:
            share = f"{used / 1e9:.1f} of {total / 1e9:.1f} GB"
            text = f"{evidence.name} had room on its device: {share} were in use at the most"
            yield Notice(outcome="ok", text=text, subject=evidence.name)
            return
        text = f"whether memory of {evidence.name} was spilled to the host is not known"
        missing = ("the driver's account of the process's memory",)
        yield Notice(outcome="not assessable", text=text, subject=evidence.name, missing=missing)
        return
    most = max(known)
    if most <= LEAST_BYTES:
        text = f"nothing of {evidence.name} was spilled to the host"
        yield Notice(outcome="ok", text=text, subject=evidence.name)
        return
    lines = [
        f"{number(most / 1e6)} MB of this run's device memory lay in the host's, of {LEAST_BYTES / 1e6:.0f} MB at the most"
    ]
    if seen is not None and seen.memory_used_bytes and seen.memory_total_bytes:
        used, total = seen.memory_used_bytes, seen.memory_total_bytes
        lines.append(f"device memory in use: {used / 1e9:.1f} of {total / 1e9:.1f} GB = {used / total:.0%}")
    text = f"{evidence.name} kept {number(most / 1e6)} MB of its device memory in the host's, and read it over the bus"
    yield Notice(outcome="warn", text=text, subject=evidence.name, arithmetic=tuple(lines))
