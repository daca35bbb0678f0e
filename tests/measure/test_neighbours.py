"""Neighbours on a device: fake `/proc` trees and a fake card, whose arithmetic is known, then a real process."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.measure.neighbours import Neighbours, Process, together
from labkit.measure.processes import Client, cpu_seconds, drm_clients, family, process_seconds, read_fdinfo, size
from labkit.measure.watch import Look, Observer, Watch, others_load

PCI = "0000:03:00.0"
TICKS = os.sysconf("SC_CLK_TCK")

AMD_FILE = """pos:\t0
flags:\t02100002
drm-driver:\tamdgpu
drm-client-id:\t31
drm-pdev:\t0000:03:00.0
drm-engine-compute:\t4000000000 ns
drm-engine-gfx:\t1000000000 ns
drm-memory-vram:\t2097152 KiB
drm-memory-gtt: \t1024 KiB
amd-evicted-vram:\t512 MiB
amd-requested-vram:\t2621440 KiB
"""
XE_FILE = """drm-driver:\txe
drm-client-id:\t5
drm-pdev:\t0000:03:00.0
drm-total-vram0:\t800 MiB
drm-resident-vram0:\t600 MiB
drm-total-system:\t4 MiB
drm-resident-system:\t4 MiB
"""
I915_FILE = """drm-driver:\ti915
drm-client-id:\t7
drm-pdev:\t0000:03:00.0
drm-engine-render:\t250000000 ns
drm-engine-capacity-video:\t2
drm-total-local0:\t64 MiB
drm-resident-local0:\t64 MiB
drm-total-system0:\t10 MiB
"""


class Proc:
    """A `/proc` of our making."""

    def __init__(self, root: Path, cores_s: float = 0.0) -> None:
        self.root = root
        root.mkdir(exist_ok=True)
        self.load(cores_s)

    def load(self, cores_s: float) -> None:
        """All processors have worked so many seconds; what they idled is left out."""
        worked = int(cores_s * TICKS)
        (self.root / "stat").write_text(f"cpu  {worked - 2} 0 1 999999 77 0 1 0 0 0\ncpu0 1 1 1 1\n")

    def process(
        self, pid: int, name: str, parent: int = 1, ran_s: float = 0.0, started_as: str = "", **files: str
    ) -> None:
        """A process; `files` are the texts of its open files of a device, by number."""
        folder = self.root / str(pid)
        for sub in ("fd", "fdinfo"):
            (folder / sub).mkdir(parents=True, exist_ok=True)
        (folder / "comm").write_text(name + "\n")
        (folder / "cmdline").write_text(started_as.replace(" ", "\0"))
        middle = " ".join(["0"] * 9)
        (folder / "stat").write_text(
            f"{pid} ({name} x) S {parent} {middle} {int(ran_s * TICKS)} 0 0 0 20 0 1 0 5 0 0\n"
        )
        for number, text in files.items():
            link = folder / "fd" / number.removeprefix("f")
            link.unlink(missing_ok=True)
            link.symlink_to("/dev/dri/renderD128" if text else "/dev/null")
            (folder / "fdinfo" / number.removeprefix("f")).write_text(text)


class FakeCard:
    """A card that tells of its processes, memory and limits."""

    name = "NVML"

    def __init__(self, listed: list[tuple[int, int | None]] | None = None, limited: str = "") -> None:
        self.listed, self.limits = listed, limited
        self.shares: dict[int, float] | None = None
        self.watts: float | None = 300.0

    def cap(self) -> float | None:
        return self.watts

    def busy(self) -> dict[int, float] | None:
        return self.shares

    def processes(self) -> list[tuple[int, int | None]] | None:
        return self.listed

    def memory(self) -> tuple[int, int] | None:
        return 98_000, 100_000

    def limited(self) -> str:
        return self.limits


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("1024 KiB", 1 << 20), ("7", 7), ("2 MiB", 2 << 20), ("1 GiB", 1 << 30), ("", None), ("many", None), (None, None)],
)
def test_a_size_is_read_with_its_unit(text: str | None, nbytes: int | None) -> None:
    assert size(text) == nbytes


@pytest.mark.parametrize(
    ("text", "held", "spilled", "engines"),
    [
        (AMD_FILE, 2 << 30, 512 << 20, {"compute": 4.0, "gfx": 1.0}),
        (XE_FILE, 600 << 20, 200 << 20, {}),
        (I915_FILE, 64 << 20, 0, {"render": 0.25}),
    ],
    ids=["amdgpu", "xe", "i915"],
)
def test_each_driver_says_memory_spills_and_engine_time_in_its_own_keys(
    text: str, held: int, spilled: int, engines: dict[str, float]
) -> None:
    assert read_fdinfo(9, "peer", [text], PCI) == Client(9, "peer", held, spilled, engines)


def test_a_client_open_twice_counts_once_two_clients_twice_and_another_card_not_at_all() -> None:
    again = AMD_FILE.replace("client-id:\t31", "client-id:\t32")
    both = read_fdinfo(9, "peer", [AMD_FILE, AMD_FILE, again, AMD_FILE.replace(PCI, "0000:44:00.0")], PCI)
    assert both is not None
    assert (both.memory_bytes, both.engine_s["compute"]) == (4 << 30, 8.0)
    assert read_fdinfo(9, "peer", [AMD_FILE], "0000:44:00.0") is None
    assert read_fdinfo(9, "peer", [], PCI) is None


def test_processes_with_the_device_open_are_found_and_those_that_may_not_be_read_are_counted(tmp_path: Path) -> None:
    proc = Proc(tmp_path / "proc")
    proc.process(20, "editor", f3="")
    proc.process(21, "peer", f4=AMD_FILE)
    (tmp_path / "proc" / "22").mkdir()  # gone in the middle
    found, hidden = drm_clients(proc.root, PCI)
    assert [(one.pid, one.name) for one in found] == [(21, "peer")]
    assert hidden == 0
    if os.getuid() != 0:
        (proc.root / "21" / "fd").chmod(0)
        assert drm_clients(proc.root, PCI) == ([], 1)
        (proc.root / "21" / "fd").chmod(0o700)


def test_a_run_is_its_process_what_it_started_and_the_labkit_that_started_it(tmp_path: Path) -> None:
    proc = Proc(tmp_path / "proc")
    proc.process(2, "terminal", started_as="terminal")
    proc.process(3, "lab", parent=2, started_as="python -m labkit.cli run")
    proc.process(4, "runner", parent=3, started_as="python -m labkit.lab.runner")
    proc.process(5, "kernel", parent=4)
    proc.process(6, "llama-server", parent=5)
    proc.process(7, "another", parent=3)
    assert family(proc.root, 5) == {3, 4, 5, 6}


def test_the_load_of_others_is_what_the_processors_worked_less_what_the_run_did(tmp_path: Path) -> None:
    proc = Proc(tmp_path / "proc", cores_s=100.0)
    proc.process(5, "kernel", ran_s=10.0)
    assert cpu_seconds(proc.root) == pytest.approx(100.0)
    assert process_seconds(proc.root, 5) == 10.0
    cores = os.cpu_count() or 1
    before = Look(at=0.0, cpu_all_s=100.0, cpu_own_s=10.0)
    after = Look(at=2.0, cpu_all_s=100.0 + 2.0 * cores, cpu_own_s=10.0 + 1.5 * cores)
    assert others_load(before, after) == pytest.approx(0.25)
    assert others_load(None, after) is None
    assert others_load(replace(before, cpu_all_s=None), after) is None


def test_a_watch_sees_who_came_who_worked_what_spilled_and_what_held_the_card_back(tmp_path: Path) -> None:
    proc = Proc(tmp_path / "proc")
    proc.process(5, "kernel", f3=AMD_FILE)
    proc.process(8, "desktop", f3=I915_FILE)
    card = FakeCard()
    told: list[Neighbours] = []
    watch = Watch(Observer(PCI, card, proc=proc.root, own=5), told.append, period_s=0.05).start()
    proc.process(9, "peer", f3=I915_FILE.replace("client-id:\t7", "client-id:\t8"))
    card.limits = "heat"
    deadline = time.monotonic() + 10
    while not (watch.seen().throttled and len(watch.seen().processes) == 2) and time.monotonic() < deadline:
        time.sleep(0.01)
    proc.process(9, "peer", f3=I915_FILE.replace("250000000 ns", "99250000000 ns"))  # it works at once and much
    while not (watch.seen().processes[1].busy or 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    seen = watch.stop()
    desktop, peer = seen.processes
    assert (desktop.pid, desktop.name, desktop.when, desktop.memory_bytes, desktop.busy) == (
        *(8, "desktop", ("before", "during", "after"), 64 << 20, 0.0),
    )
    assert (peer.name, peer.when, peer.busy) == ("peer", ("during", "after"), 1.0)
    assert seen.spilled_bytes == 512 << 20
    assert (seen.memory_used_bytes, seen.memory_total_bytes) == (98_000, 100_000)
    assert 0 < seen.throttled["heat"] <= 1
    assert seen.busy == (peer,)
    assert told[-1] == seen
    assert watch.latest["others"] == 2
    troubles = " | ".join(seen.troubles)
    for word in ("peer (process 9) on the device during and after", "held back by heat", "537 MB", "98% full"):
        assert word in troubles
    assert "desktop" not in troubles
    assert seen.power_caps_w == (300.0,)
    assert "power cap" not in troubles
    assert watch.stop() == seen
    assert Neighbours.model_validate_json(seen.model_dump_json()) == seen


def test_a_power_cap_that_is_changed_while_a_run_measures_is_told(tmp_path: Path) -> None:
    proc = Proc(tmp_path / "proc")
    proc.process(5, "kernel")
    card = FakeCard([])
    watch = Watch(Observer(PCI, card, proc=proc.root, own=5), period_s=5.0).start()
    card.watts = 250.0
    seen = watch.stop()
    assert seen.power_caps_w == (300.0, 250.0)
    assert "its power cap changed: 300, then 250 W" in seen.troubles
    again = together(seen, Neighbours(power_caps_w=(250.0, 300.0)))
    assert again.power_caps_w == (300.0, 250.0, 300.0)
    card.watts = None
    untold = Watch(Observer(PCI, card, proc=proc.root, own=5), period_s=5.0).start().stop()
    assert untold.power_caps_w == ()


def test_a_card_that_lists_processes_has_this_one_left_out_by_its_number_or_as_the_one_not_seen_here(
    tmp_path: Path,
) -> None:
    proc = Proc(tmp_path / "proc")
    proc.process(5, "kernel")
    proc.process(9, "peer")
    observer = Observer(PCI, FakeCard([(5, 10), (9, 20)]), proc=proc.root, own=5)
    look = observer.look()
    assert [(one.pid, one.memory_bytes) for one in look.clients if one.pid not in observer.ours()] == [(9, 20)]
    inside = Observer(PCI, FakeCard([(70001, 10), (70002, 20)]), proc=proc.root, own=5)
    assert [one.name for one in inside.look().clients] == ["not named here"]
    assert any("outside this container" in text for text in inside.unseen)


def test_a_card_that_tells_who_works_clears_the_desktop_that_only_shows_a_picture(tmp_path: Path) -> None:
    proc = Proc(tmp_path / "proc")
    for pid, name in ((5, "kernel"), (8, "desktop"), (9, "peer")):
        proc.process(pid, name)
    card = FakeCard([(5, 10), (8, 30), (9, 20)])
    card.shares = {5: 0.9, 9: 0.4}
    seen = Watch(Observer(PCI, card, proc=proc.root, own=5), period_s=5.0).start().stop()
    assert [(one.name, one.busy) for one in seen.processes] == [("desktop", 0.0), ("peer", 0.4)]
    assert [one.name for one in seen.busy] == ["peer"]
    card.shares = None  # an older driver: either may have worked
    unknown = Watch(Observer(PCI, card, proc=proc.root, own=5), period_s=5.0).start().stop()
    assert [one.name for one in unknown.busy] == ["desktop", "peer"]


def test_alone_on_an_idle_device_there_is_nothing_to_say_and_what_was_not_looked_at_is_named(tmp_path: Path) -> None:
    proc = Proc(tmp_path / "proc")
    proc.process(5, "kernel")
    (proc.root / "stat").unlink()
    watch = Watch(Observer(None, proc=proc.root, own=5), period_s=0.02).start()
    seen = watch.stop()
    assert (seen.processes, seen.troubles, seen.cpu_others, seen.throttled) == ((), (), None, {})
    assert seen.unseen == (f"CPU load: {proc.root / 'stat'} cannot be read",)
    assert Neighbours().troubles == ()


def test_what_was_seen_before_a_break_and_after_it_is_one_run_s() -> None:
    peer = Process(pid=9, name="peer", when=("during",), memory_bytes=10, busy=0.2)
    first = Neighbours(
        looks=10, sources=("NVML",), processes=(peer,), throttled={"heat": 0.5}, spilled_bytes=7, cpu_others=0.2
    )
    again = peer.model_copy(update={"when": ("before", "during"), "memory_bytes": 30, "busy": None})
    then = Neighbours(
        looks=30, sources=("NVML", "CPU load"), processes=(again,), throttled={"power cap": 1.0}, cpu_others=0.4
    )
    both = together(first, then)
    assert both.looks == 40
    assert both.sources == ("NVML", "CPU load")
    assert both.processes == (Process(pid=9, name="peer", when=("during", "before"), memory_bytes=30, busy=0.2),)
    assert both.throttled == {"heat": 0.125, "power cap": 0.75}
    assert (both.spilled_bytes, both.cpu_others) == (7, 0.35)
    assert together(None, then) == then


def test_a_process_whose_work_is_not_told_may_have_worked() -> None:
    quiet, unknown = Process(pid=1, name="a", when=("during",), busy=0.0), Process(pid=2, name="b", when=("during",))
    assert Neighbours(processes=(quiet, unknown)).busy == (unknown,)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
def test_another_process_that_works_is_seen_as_load_and_a_child_of_the_run_is_not() -> None:
    spin = "import time; end = time.time() + 30\nwhile time.time() < end: pass"
    detached = (
        f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {spin!r}], stdout=-3, stderr=-3).pid)"
    )
    made = subprocess.run([sys.executable, "-c", detached], capture_output=True, text=True, check=True)
    other = int(made.stdout)
    child = subprocess.Popen([sys.executable, "-c", spin])
    try:
        observer = Observer(None)
        assert child.pid in observer.ours()
        assert other not in observer.ours()
        before = observer.look()
        time.sleep(1.0)
        load = others_load(before, observer.look())
    finally:
        os.kill(other, 9)
        child.kill()
        child.wait()
    assert load is not None
    assert load > 0.3 / (os.cpu_count() or 1)  # a core that is shared with others at worst
