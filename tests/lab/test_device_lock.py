"""One timed run at a time on a device, whatever starts it: runs, benches and the tuner share one lock."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from run_harness import ThrowawayLab

from labkit.lab import lock
from labkit.lab.bench import BenchRun
from labkit.lab.lab import Lab
from labkit.lab.lock import device_lock, device_lock_path
from labkit.lab.record import read_record
from labkit.vulkan.device import Device

TINY = ("--shape", "tiny", "--quant", "f16", "--batch", "1")


@pytest.fixture
def lab(tmp_path: Path) -> ThrowawayLab:
    return ThrowawayLab(tmp_path / "lab")


def test_a_bench_and_the_tuner_wait_for_the_device_and_say_for_whom_since_when(
    lab: ThrowawayLab, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", lab.environment["XDG_RUNTIME_DIR"])
    uuid, mine = str(device.info.uuid or device.name), f"in use by batch-decode (process {os.getpid()}, since 20"
    selector = ("--device", str(device.info.index))
    with device_lock(uuid, "batch-decode", wait=False):
        refused = lab.lab("tune", *TINY, *selector, "--no-wait")
        assert refused.returncode == 2
        assert mine in refused.stderr
        bench = subprocess.Popen(
            lab.command("bench", *TINY, "--prompt", "none", "--no-record", *selector),
            env=lab.environment, cwd=lab.root, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert bench.stderr is not None
        assert mine in bench.stderr.readline()
        time.sleep(0.3)
        assert bench.poll() is None
        bench.send_signal(signal.SIGTERM)
        bench.communicate(timeout=15)


def test_a_job_without_the_session_s_variable_finds_the_session_s_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = tmp_path / "user"
    (sessions / str(os.getuid())).mkdir(parents=True)
    monkeypatch.setattr(lock, "SESSIONS", sessions)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(sessions / str(os.getuid())))
    of_a_desktop = device_lock_path("u-1")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert device_lock_path("u-1") == of_a_desktop
    monkeypatch.setattr(lock, "SESSIONS", tmp_path / "none")
    monkeypatch.setattr(lock.tempfile, "gettempdir", lambda: str(tmp_path))
    assert device_lock_path("u-1") == tmp_path / f"labkit-{os.getuid()}" / "device-u-1.lock"


@pytest.mark.parametrize("kind", ["bench", "notebook"])
def test_a_run_on_a_device_keeps_who_shared_it_and_an_older_record_has_none(
    lab: ThrowawayLab, device: Device, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", lab.environment["XDG_RUNTIME_DIR"])
    monkeypatch.setenv("LABKIT_LAB", str(lab.root))
    if kind == "bench":
        with BenchRun("bench", {}, device, 1) as bench:
            bench.store({"width": 1}, 0, {"decode_tok_s": 1.0}, [])
    else:
        run = Lab().run("by-hand")
        run.describe(device=device)
        run.measure({"width": 1}, 0, decode_tok_s=1.0)
        run.conclude()
    stored, folder = lab.only_run()
    record = read_record(folder)
    assert record.neighbours is not None
    assert record.neighbours.looks >= 3  # two before, one after
    assert "CPU load" in record.neighbours.sources
    assert record.neighbours.cpu_others is not None
    assert (stored["schema"], stored.pop("neighbours")["looks"]) == (1, record.neighbours.looks)
    (folder / "run.json").write_text(json.dumps(stored))
    assert read_record(folder).neighbours is None
