"""Sweeps over a fleet, with real processes: every point comes home whole, once, and only the home lab writes ledgers."""

import compileall
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from run_harness import SOURCE, ThrowawayLab, eventually, read

from labkit.lab.capture import sha256_file
from labkit.lab.record import RunRecord, read_record

PLANNED = ("-p", "repetitions", "2", "-p", "planned", "true", "--no-page")
BARE = ("-p", "repetitions", "2", "--no-page", "--no-ledger")


class Cluster:
    """A home lab, workers' labs, and the processes between them; labkit is a copy, so that nobody edits it meanwhile."""

    def __init__(self, root: Path, source: Path) -> None:
        self.root, self.source = root, source
        self.processes: list[subprocess.Popen[bytes]] = []
        self.home = self.lab("home")
        self.tls: tuple[str, ...] = ()

    def lab(self, name: str) -> ThrowawayLab:
        """A lab that runs the copy, made on first use."""
        if (self.root / name).exists():
            return self.labs[name]
        made = ThrowawayLab(self.root / name)
        made.environment |= {"PYTHONPATH": str(self.source), "XDG_RUNTIME_DIR": str(self.root / "home" / "runtime")}
        self.labs = getattr(self, "labs", {}) | {name: made}
        return made

    def start(self, lab: ThrowawayLab, says: str, *arguments: str) -> "tuple[subprocess.Popen[bytes], str]":
        """A process of the lab, once it has said something; and that line."""
        log = self.root / f"log-{len(self.processes)}.txt"
        with log.open("wb") as file:
            process = subprocess.Popen(
                lab.command(*arguments), env=lab.environment, cwd=lab.root, stderr=file, stdout=file
            )
        self.processes.append(process)
        eventually(lambda: re.search(says, log.read_text()) is not None or process.poll() is not None, 60)
        found = re.search(f".*{says}.*", log.read_text())
        assert found, log.read_text()
        return process, found[0]

    def scheduler(self, port: int = 0) -> "subprocess.Popen[bytes]":
        process, line = self.start(self.home, "scheduler at", "scheduler", "--port", str(port), *self.tls)
        self.address = line.split()[2].rstrip(".")
        return process

    def worker(self, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
        process, _ = self.start(
            self.lab(name), f"worker {name} at", "worker", self.address, "--name", name, *self.tls, *arguments
        )
        return process

    def sweep(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`lab sweep` over the fleet, to its end."""
        return self.home.lab("sweep", "sweep", *arguments, *self.tls, "--scheduler", self.address, timeout=120)

    def sweeping(self, *arguments: str) -> "subprocess.Popen[str]":
        """The same as a process."""
        process = subprocess.Popen(
            self.home.command("sweep", "sweep", *arguments, *self.tls, "--scheduler", self.address),
            env=self.home.environment, cwd=self.home.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.processes.append(process)  # type: ignore[arg-type]
        return process

    def end(self) -> None:
        for process in reversed(self.processes):
            if process.poll() is None:
                process.kill()
            process.wait()

    def points(self) -> list[dict[str, Any]]:
        (path,) = (self.home.root / "data" / "sweeps").glob("*.json")
        return list(read(path)["points"])

    def begun(self, name: str) -> bool:
        """Whether a run of a worker has a sample."""
        return any((path / "measurements.csv").exists() for path in self.lab(name).runs.glob(".partial-*"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    shutil.copytree(SOURCE / "labkit", folder / "labkit", ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(folder / "labkit", quiet=2, workers=2)  # once, not in each of many processes
    for name in ("shaders", "data"):
        (folder / name).symlink_to(SOURCE / name)
    return folder


@pytest.fixture
def cluster(tmp_path: Path, source: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, source)
    yield made
    made.end()


def ledger_runs(lab: ThrowawayLab) -> list[str]:
    events = [read(path) for path in (lab.root / "data" / "ledger").glob("*.json")]
    return sorted(event["run"] for event in events if "run" in event)


def names(lab: ThrowawayLab) -> list[str]:
    return [folder.name for folder in lab.folders()]


def seconds(record: RunRecord) -> tuple[float, float]:
    return datetime.fromisoformat(record.started).timestamp(), datetime.fromisoformat(str(record.ended)).timestamp()


@pytest.mark.slow
def test_two_workers_run_a_sweep_at_once_and_the_home_lab_alone_judges_enters_and_knows_what_is_missing(
    cluster: Cluster,
) -> None:
    grid = ("--grid", "widths=[1,2],[1,4],[1,8],[1,16]", "-p", "pause_s", "0.6", *PLANNED)
    cluster.scheduler()
    cluster.worker("one"), cluster.worker("two", "--device", "1")
    done = cluster.sweep(*grid, "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["points"]
    assert [row["state"] for row in rows] == ["completed"] * 4
    assert {row["worker"] for row in rows} == {"one", "two"}
    assert all(row["beside"] for row in rows), "each had the other worker's run beside it"
    assert "[1/4] widths=[1, 2] on " in done.stderr

    assert names(cluster.home) == sorted(row["run"] for row in rows)
    assert names(cluster.home) == sorted(names(cluster.lab("one")) + names(cluster.lab("two")))
    assert ledger_runs(cluster.home) == names(cluster.home)
    for name in ("one", "two"):
        assert not (cluster.lab(name).root / "data" / "ledger").exists(), "a worker writes no ledger"
        assert (cluster.lab(name).root / "FINDINGS.md").read_text() == "# Findings\n"
        for made in cluster.lab(name).folders():
            came = cluster.home.runs / made.name
            record = read_record(came)
            device = "1" if name == "two" else os.environ.get("LABKIT_DEVICE")  # a test run may say which
            assert f"worker: {name}{f', device {device}' if device else ''}" in record.notes
            assert read(came / "import.json")["worker"] == name
            assert record.artefacts == {file: sha256_file(came / file) for file in record.artefacts}
            assert (came / "measurements.csv").read_bytes() == (made / "measurements.csv").read_bytes()
    assert cluster.home.lab("ledger", "verify").returncode == 0

    # One worker would take at least as long as the runs together; two must save a quarter of that.
    spans = [seconds(read_record(folder)) for folder in cluster.home.folders()]
    wall = max(end for _, end in spans) - min(start for start, _ in spans)
    assert wall <= 0.75 * sum(end - start for start, end in spans), spans

    before = names(cluster.home)
    again = cluster.sweep(*grid, "--resume")
    assert (again.returncode, names(cluster.home)) == (0, before)
    lost = before[1]  # as if its worker had finished and the home lab had been killed before it came
    shutil.rmtree(cluster.home.runs / lost)
    fetched = cluster.sweep(*grid, "--resume")
    assert fetched.returncode == 0, fetched.stderr
    assert f"fetching {lost} from " in fetched.stderr
    assert names(cluster.home) == before
    assert len(names(cluster.lab("one"))) + len(names(cluster.lab("two"))) == 4, "it was fetched, not run again"
    assert ledger_runs(cluster.home) == before


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_its_point_which_nobody_repeats_until_resume(cluster: Cluster) -> None:
    grid = ("--grid", "widths=1,2", "-p", "pause_s", "1", *BARE)
    cluster.scheduler()
    killed = cluster.worker("one")
    cluster.worker("two")
    sweep = cluster.sweeping(*grid)
    eventually(lambda: cluster.begun("one"), 60)
    killed.kill()
    _, errors = sweep.communicate(timeout=90)
    assert sweep.returncode == 1, errors
    assert "Traceback" not in errors
    (point,) = [point for point in cluster.points() if point["worker"] == "one"]
    assert "one was lost while it ran it" in point["reason"]
    assert f"failed: {point['reason']}" in errors
    assert "1 of 2 points are missing" in errors
    others = [other["run"] for other in cluster.points() if other is not point and other["worker"] == "two"]
    assert names(cluster.lab("two")) == sorted(others)
    assert names(cluster.home) == sorted(others)
    eventually(lambda: names(cluster.lab("one")) == [point["run"]], 20)  # its process closed the record

    cluster.worker("one")
    done = cluster.sweep(*grid, "--resume")
    assert done.returncode == 0, done.stderr
    assert f"fetching {point['run']} from one" in done.stderr
    states = {folder.name: read_record(folder).state for folder in cluster.home.folders()}
    assert states.pop(point["run"]) == "killed"
    assert sorted(states) == sorted(other["run"] for other in cluster.points())
    assert [*states.values()] == ["completed"] * 2


@pytest.mark.slow
def test_a_scheduler_that_dies_ends_the_sweep_in_one_line_and_what_its_worker_ran_to_the_end_is_fetched(
    cluster: Cluster,
) -> None:
    grid = ("--grid", "widths=1,2", "-p", "pause_s", "0.7", *BARE)
    scheduler = cluster.scheduler()
    worker = cluster.worker("one")
    sweep = cluster.sweeping(*grid)
    eventually(lambda: cluster.begun("one"), 60)
    scheduler.kill()
    _, errors = sweep.communicate(timeout=60)
    assert sweep.returncode == 1, errors
    assert (
        len([line for line in errors.splitlines() if "is gone or out of reach; workers end what they run" in line]) == 1
    )
    assert "Traceback" not in errors
    first, second = cluster.points()
    assert first["reason"] == "the scheduler was lost while one ran it"
    assert second["run"] is None
    assert worker.wait(timeout=60) == 1
    assert [read_record(folder).state for folder in cluster.lab("one").folders()] == ["completed"]

    cluster.scheduler()
    cluster.worker("one")
    done = cluster.sweep(*grid, "--resume")
    assert done.returncode == 0, done.stderr
    assert f"fetching {first['run']} from one" in done.stderr
    assert len(names(cluster.lab("one"))) == 2
    assert names(cluster.home) == names(cluster.lab("one"))


@pytest.mark.slow
def test_a_run_goes_on_when_the_home_lab_is_killed_and_resume_waits_for_it(cluster: Cluster) -> None:
    grid = ("--grid", "widths=1", "-p", "pause_s", "3", *BARE)
    cluster.scheduler()
    cluster.worker("one")
    twin = cluster.home.lab("worker", cluster.address, "--name", "one")
    assert (twin.returncode, "no work for one" in twin.stderr) == (2, True), twin.stderr
    sweep = cluster.sweeping(*grid)
    eventually(lambda: cluster.begun("one"), 60)
    sweep.kill()
    sweep.communicate(timeout=20)
    (before,) = cluster.points()
    done = cluster.sweep(*grid, "--resume")
    assert done.returncode == 0, done.stderr
    assert f"waiting for one, which still runs {before['run']}" in done.stderr
    assert names(cluster.home) == names(cluster.lab("one")) == [before["run"]]


@pytest.mark.slow
def test_under_tls_ctrl_c_stops_the_run_keeps_what_it_has_and_starts_no_other(cluster: Cluster, tmp_path: Path) -> None:
    cluster.tls = certificates(tmp_path / "tls")
    grid = ("--grid", "widths=[1,2],[1,4]", "-p", "pause_s", "2", *BARE)
    cluster.scheduler()
    worker = cluster.worker("one")
    assert cluster.address.startswith("tls://")
    plain = cluster.home.lab("sweep", "sweep", *grid, "--scheduler", cluster.address.removeprefix("tls://"))
    assert (plain.returncode, "no scheduler answers at" in plain.stderr) == (2, True), plain.stderr
    sweep = cluster.sweeping(*grid)
    eventually(lambda: cluster.begun("one"), 60)
    sweep.send_signal(signal.SIGINT)
    _, errors = sweep.communicate(timeout=60)
    assert sweep.returncode == 1, errors
    assert "stopping 1 run" in errors
    assert "2 of 2 points are missing (stopped); --resume runs them" in errors
    assert "Traceback" not in errors
    (folder,) = cluster.home.folders()
    record = read_record(folder)
    assert (record.state, record.reason) == ("killed", "the run was stopped by SIGTERM")
    assert (folder / "measurements.csv").exists()
    assert worker.poll() is None
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(timeout=20) == 0


def test_a_worker_with_other_code_is_refused_in_one_line_or_its_records_say_so(cluster: Cluster) -> None:
    grid = ("--grid", "widths=1", *BARE)
    notebook = cluster.lab("one").root / "notebooks" / "sweep.ipynb"
    notebook.write_text(notebook.read_text().replace("10.0 *", "11.0 *"))
    cluster.scheduler()
    nobody = cluster.sweep(*grid)
    assert (nobody.returncode, "no worker is at" in nobody.stderr) == (2, True)
    cluster.worker("one")
    refused = cluster.sweep(*grid)
    assert refused.returncode == 2
    assert re.fullmatch(r"lab: worker one has other code: the notebook's code \(.*\)\..*\n", refused.stderr)
    assert not (cluster.home.root / "data").exists()
    allowed = cluster.sweep(*grid, "--allow-difference")
    assert allowed.returncode == 0, allowed.stderr
    (folder,) = cluster.home.folders()
    assert any(
        note.startswith("code differs from the home lab's: the notebook's") for note in read_record(folder).notes
    )


def certificates(folder: Path) -> tuple[str, ...]:
    """An authority and one certificate, as options."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificates of this test, and is not installed")
    folder.mkdir()
    made: Callable[[str], Any] = lambda line: subprocess.run(  # noqa: E731
        ["openssl", *line.split()], cwd=folder, check=True, capture_output=True
    )
    made("req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem")
    made("req -newkey rsa:2048 -nodes -subj /CN=lab -keyout me.key -out me.csr")
    made("x509 -req -in me.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -out me.pem")
    return (
        "--tls-ca-file",
        str(folder / "ca.pem"),
        "--tls-cert",
        str(folder / "me.pem"),
        "--tls-key",
        str(folder / "me.key"),
    )
