"""Looks at a device before, during and after a run: its processes, what holds it back, memory, the processor's load."""

import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from labkit.measure.neighbours import Neighbours, Process, When
from labkit.measure.processes import Client, cpu_seconds, drm_clients, family, process_name, process_seconds

PERIOD_S = 2.0  # between two looks while a run measures
SETTLE_S = 0.2  # between the two looks whose difference is the load before a run
TOLD_S = 10.0  # between two times the record is told


@dataclass(frozen=True)
class Look:
    """One look at the device: its clients (this run's own among them), limits, memory and the processor's load."""

    at: float
    clients: tuple[Client, ...] = ()
    limited: str = ""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    cpu_all_s: float | None = None  # core-seconds that ran, since boot
    cpu_own_s: float = 0.0  # of them, this run's own
    power_cap_w: float | None = None


class Card(Protocol):
    """What a telemetry source adds: its processes as (pid, bytes or None), memory as (used, total), its limits."""

    name: str

    def processes(self) -> list[tuple[int, int | None]] | None:
        """None where it does not tell."""
        ...

    def busy(self) -> dict[int, float] | None:
        """Shares of the device by process since the last call; None where it does not tell."""
        ...

    def memory(self) -> tuple[int, int] | None:
        """None where it does not tell."""
        ...

    def limited(self) -> str:
        """What holds the clocks back, joined by `+`."""
        ...

    def cap(self) -> float | None:
        """The power cap in force, in watts; None where it does not tell."""
        ...


class Observer:
    """Looks at one device. `pci` is its place on the bus ("0000:03:00.0"), None for a device on the CPU; `card` its
    telemetry source, if it has one. `proc` is the process file system, for tests; `own` this run's process."""

    def __init__(
        self, pci: str | None, card: Card | None = None, *, proc: Path = Path("/proc"), own: int | None = None
    ) -> None:
        self.pci, self.card, self.proc = pci, card, proc
        self.own = os.getpid() if own is None else own
        self.sources: list[str] = []
        self.unseen: list[str] = []

    def look(self) -> Look:
        """The present."""
        self.sources, self.unseen = [], []
        tree = family(self.proc, self.own)
        clients = {one.pid: one for one in self._drm()} if self.pci else {}
        listed = self._listed()
        shares = self.card.busy() if self.card is not None and listed else None
        for pid, used in listed:
            known = clients.get(pid)
            if known is None:
                known = Client(pid, process_name(self.proc, pid), used)
            elif known.memory_bytes is None:
                known = replace(known, memory_bytes=used)
            clients[pid] = known if shares is None else replace(known, busy=shares.get(pid, 0.0))
        memory = self.card.memory() if self.card is not None else None
        ran = cpu_seconds(self.proc)
        if ran is None:
            self.unseen.append(f"CPU load: {self.proc / 'stat'} cannot be read")
        else:
            self.sources.append("CPU load")
        return Look(
            at=time.monotonic(),
            clients=tuple(clients[pid] for pid in sorted(clients)),
            limited=self.card.limited() if self.card is not None else "",
            memory_used_bytes=memory[0] if memory else None,
            memory_total_bytes=memory[1] if memory else None,
            cpu_all_s=ran,
            cpu_own_s=sum(process_seconds(self.proc, pid) for pid in tree),
            power_cap_w=self.card.cap() if self.card is not None else None,
        )

    def ours(self) -> set[int]:
        """This run's own processes: itself, what started it, and what it started."""
        return family(self.proc, self.own)

    def _drm(self) -> list[Client]:
        found, hidden = drm_clients(self.proc, str(self.pci))
        self.sources.append("fdinfo")
        if hidden:
            self.unseen.append(f"fdinfo of {hidden} processes that belong to other users")
        return found

    def _listed(self) -> list[tuple[int, int | None]]:
        if self.card is None:
            if self.pci:
                self.unseen.append("the card's own list of processes: it has none that is read")
            return []
        listed = self.card.processes()
        if listed is None:
            return []
        self.sources.append(self.card.name)
        here = [(pid, used) for pid, used in listed if (self.proc / str(pid)).is_dir()]
        away = len(listed) - len(here)
        ours = self.ours()
        if away and not any(pid in ours for pid, _ in here):
            away -= 1  # in a container the card counts this process by a number that is not seen here
            listed = [one for one in listed if one in here] + [one for one in listed if one not in here][1:]
        if away:
            self.unseen.append(f"the names of {away} processes on the device outside this container")
        return listed


@dataclass
class _Told:
    """What is known so far of one process."""

    name: str
    when: list[When]
    memory_bytes: int | None = None
    busy: float | None = None


class Watch:
    """Looks before, during and after a run: `start` takes the first look, a thread the others, `stop` the last.

    `tell` is called now and then, and at the end, with what was seen so far, so that a killed run keeps it."""

    def __init__(
        self, observer: Observer, tell: Callable[[Neighbours], None] | None = None, period_s: float = PERIOD_S
    ) -> None:
        self.observer, self.tell, self.period_s = observer, tell, period_s
        self.latest: dict[str, Any] = {}  # of the newest look, as telemetry has it
        self._looks = 0
        self._during = 0
        self._last: Look | None = None
        self._processes: dict[int, _Told] = {}
        self._limits: dict[str, int] = {}
        self._spilled: int | None = None
        self._used: int | None = None
        self._total: int | None = None
        self._caps: list[float] = []  # each power cap, as it came to be
        self._loads: list[tuple[float, float]] = []  # (seconds, share of all cores) while it ran
        self._sources: dict[str, None] = {}
        self._unseen: dict[str, None] = {}
        self._told = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._mutex = threading.Lock()

    def start(self) -> "Watch":
        """The look before, twice, since load is a difference; then the thread."""
        if self._thread is None and not self._stop.is_set():
            self._take("before")
            self._stop.wait(SETTLE_S)
            self._take("before")
            self._thread = threading.Thread(target=self._run, name="labkit-neighbours", daemon=True)
            self._thread.start()
        return self

    def stop(self) -> Neighbours:
        """The look after; what was seen. A second time only says it again."""
        if not self._stop.is_set():
            self._stop.set()
            if self._thread is not None:
                self._thread.join()
                self._take("after")
            if self.tell is not None:
                self.tell(self.seen())
        return self.seen()

    def seen(self) -> Neighbours:
        """What was seen so far."""
        with self._mutex:
            seconds = sum(took for took, _ in self._loads)
            shared = sum(took * share for took, share in self._loads)
            return Neighbours(
                looks=self._looks,
                sources=tuple(self._sources),
                unseen=tuple(self._unseen),
                processes=tuple(
                    Process(pid=pid, name=one.name, when=tuple(one.when), memory_bytes=one.memory_bytes, busy=one.busy)
                    for pid, one in sorted(self._processes.items())
                ),
                throttled={
                    name: round(n / self._during, 4) for name, n in sorted(self._limits.items()) if self._during
                },
                spilled_bytes=self._spilled,
                memory_used_bytes=self._used,
                memory_total_bytes=self._total,
                power_caps_w=tuple(self._caps),
                cpu_others=round(shared / seconds, 4) if seconds else None,
                cpu_others_most=round(max(share for _, share in self._loads), 4) if self._loads else None,
            )

    def _run(self) -> None:
        while not self._stop.wait(self.period_s):
            try:
                self._take("during")
                if self.tell is not None and time.monotonic() - self._told >= TOLD_S:
                    self._told = time.monotonic()
                    self.tell(self.seen())
            except Exception as error:  # what watches a run must not end it
                self._unseen[f"anything later: the watch ended by {type(error).__name__}: {error}"] = None
                return

    def _take(self, when: When) -> None:
        look = self.observer.look()
        ours = self.observer.ours()
        with self._mutex:
            before, self._last = self._last, look
            self._looks += 1
            self._sources |= dict.fromkeys(self.observer.sources)
            self._unseen |= dict.fromkeys(re.sub(r"\d+ processes", "processes", text) for text in self.observer.unseen)
            own = [client for client in look.clients if client.pid in ours]
            others = [client for client in look.clients if client.pid not in ours]
            shares = [self._note(client, before, look.at, when) for client in others]
            spills = [client.spilled_bytes for client in own if client.spilled_bytes is not None]
            if spills:
                self._spilled = max(self._spilled or 0, sum(spills))
            if look.power_cap_w is not None and self._caps[-1:] != [look.power_cap_w]:
                self._caps.append(look.power_cap_w)
            if look.memory_used_bytes is not None:
                self._used = max(self._used or 0, look.memory_used_bytes)
                self._total = look.memory_total_bytes
            if when == "during":
                self._during += 1
                for reason in filter(None, look.limited.split("+")):
                    self._limits[reason] = self._limits.get(reason, 0) + 1
            load = others_load(before, look)
            if load is not None and when != "before":
                self._loads.append((look.at - before.at if before else 0.0, load))
            self.latest = {
                "others": float(len(others)) if self.observer.pci else None,
                "others_busy": max((share for share in shares if share is not None), default=None),
                "cpu_others": load,
                "memory_used_bytes": None if look.memory_used_bytes is None else float(look.memory_used_bytes),
                "spilled_bytes": float(sum(spills)) if spills else None,
            }

    def _note(self, client: Client, before: Look | None, at: float, when: When) -> float | None:
        """Adds one sight of another process; the largest share of an engine it took since the look before."""
        known = self._processes.setdefault(client.pid, _Told(client.name, []))
        if when not in known.when:
            known.when.append(when)
        if client.memory_bytes is not None:
            known.memory_bytes = max(known.memory_bytes or 0, client.memory_bytes)
        if client.busy is not None:
            known.busy = max(known.busy or 0.0, round(client.busy, 4))
            return client.busy
        earlier = next((one for one in before.clients if one.pid == client.pid), None) if before else None
        if earlier is None or before is None or not client.engine_s:
            return None
        elapsed = max(at - before.at, 1e-6)
        share = max(spent - earlier.engine_s.get(name, spent) for name, spent in client.engine_s.items()) / elapsed
        known.busy = max(known.busy or 0.0, round(min(max(share, 0.0), 1.0), 4))
        return known.busy


def others_load(before: Look | None, now: Look) -> float | None:
    """The share of all cores that processes other than this run's took between two looks, None where it is unknown."""
    if before is None or now.cpu_all_s is None or before.cpu_all_s is None or now.at <= before.at:
        return None
    others = (now.cpu_all_s - before.cpu_all_s) - max(0.0, now.cpu_own_s - before.cpu_own_s)
    return min(1.0, max(0.0, others / (now.at - before.at) / (os.cpu_count() or 1)))


def observe(device: Any) -> Observer:
    """The observer of a `labkit.Device`."""
    from labkit.measure.telemetry import find_source
    from labkit.vulkan.hardware import pci_address

    source, _ = find_source(device)
    card = source if source is not None and hasattr(source, "processes") else None
    return Observer(None if device.is_cpu else pci_address(device), card)  # type: ignore[arg-type]
