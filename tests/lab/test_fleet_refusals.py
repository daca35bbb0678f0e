"""What a fleet refuses, tells apart and takes in, without any process: archives, addresses, code, machines."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from ledger_runs import make_lab, make_run
from run_harness import ThrowawayLab, read

from labkit.cli import lab as lab_command
from labkit.errors import LabError, ParameterError, RunError
from labkit.lab.experiments import load_experiment
from labkit.lab.export import export_run
from labkit.lab.fleet import workplace
from labkit.lab.fleet.code import code_of, other_code, other_packages
from labkit.lab.fleet.delivery import Expected, receive
from labkit.lab.fleet.wire import Tls, check_reach, read_address
from labkit.lab.lab import Lab, StoredRun
from labkit.lab.record import RunRecord, read_record
from labkit.lab.same_time import beside
from labkit.lab.series import How, Night, Series
from labkit.lab.sweep_file import Point, SweepFile, remarks, text_table


@pytest.fixture
def away(tmp_path: Path) -> Path:
    return make_run(make_lab(tmp_path / "away"), 5.0, parameters={"widths": [1, 8]}, notebook_sha256="ab" * 32)


def sent(folder: Path, tmp_path: Path) -> dict[str, Any]:
    packed = export_run(folder, tmp_path / "packed.zip")
    return {"run": folder.name, "worker": "one", "archive": packed.path.read_bytes(), "sha256": packed.sha256}


def expected(folder: Path, **fields: Any) -> Expected:
    known = {"run": folder.name, "experiment": "batch-decode", "code_sha256": "ab" * 32, "values": {"widths": [1, 8]}}
    return Expected(**known | fields)


def test_what_a_worker_sends_comes_in_whole_and_a_second_time_changes_nothing(away: Path, tmp_path: Path) -> None:
    home = make_lab(tmp_path / "home")
    for _ in range(2):
        record, folder = receive(home, sent(away, tmp_path), expected(away), {"worker": "one"})
        assert (record.id, folder) == (away.name, home / "data" / "runs" / away.name)
    assert (folder / "measurements.csv").read_bytes() == (away / "measurements.csv").read_bytes()
    assert read(folder / "import.json")["worker"] == "one"


@pytest.mark.parametrize("what", ["hash", "byte", "run", "other run", "nothing", "code", "values", "experiment"])
def test_a_tampered_or_foreign_archive_is_refused_and_leaves_nothing(away: Path, tmp_path: Path, what: str) -> None:
    home, told, wanted = make_lab(tmp_path / "home"), sent(away, tmp_path), expected(away)
    before = sorted(home.rglob("*"))
    if what in ("hash", "byte"):
        at = told["archive"].index(b"PK\x03\x04", 100) - 20
        told["archive"] = told["archive"][:at] + bytes([told["archive"][at] ^ 1]) + told["archive"][at + 1 :]
        if what == "byte":
            told["sha256"] = hashlib.sha256(told["archive"]).hexdigest()
    elif what == "run":
        told["run"] = away.name[:-1] + "f"
    elif what == "other run":
        wanted = expected(away, run=away.name[:-1] + "f")
        told["run"] = wanted.run
    elif what == "nothing":
        told["archive"] = None
    else:
        others = {
            "code": {"code_sha256": "cd" * 32},
            "values": {"values": {"widths": [1]}},
            "experiment": {"experiment": "x"},
        }
        wanted = expected(away, **others[what])
    says = {
        "hash": "has not the SHA-256", "byte": "one: .*(damaged|was changed)", "run": "instead of", "other run": "holds .* instead",
        "nothing": "one sent", "code": "made by other code", "values": r"widths=\[1, 8\], not \[1\]", "experiment": "not of x",
    }  # fmt: skip
    with pytest.raises(RunError, match=says[what]) as refused:
        receive(home, told, wanted, {})
    assert "\n" not in str(refused.value)
    assert str(tmp_path) not in str(refused.value)
    assert sorted(home.rglob("*")) == before


def test_a_run_that_came_in_is_not_taken_up_again_with_samples_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = make_run(make_lab(tmp_path / "away"), 5.0, state="killed", reason="stopped", parameters={"widths": [1, 8]})
    home = make_lab(tmp_path / "home")
    receive(home, sent(away, tmp_path), expected(away, code_sha256=None), {})
    monkeypatch.setenv("LABKIT_LAB", str(home))
    done = CliRunner().invoke(lab_command, ["run", "--resume", away.name])
    assert isinstance(done.exception, RunError)
    assert "was measured in another lab; its samples would be of two machines" in str(done.exception)


def test_a_sweep_that_goes_on_here_begins_anew_what_another_machine_left_unfinished(tmp_path: Path) -> None:
    away = make_run(make_lab(tmp_path / "away"), 5.0, state="killed", reason="stopped", parameters={"widths": [1, 8]})
    home = make_lab(tmp_path / "home")
    receive(home, sent(away, tmp_path), expected(away, code_sha256=None), {})
    point = Point(values={"widths": [1, 8]}, run=away.name, worker="one")
    file = SweepFile(
        id="s", experiment="batch-decode", notebook="n", notebook_sha256="ab" * 32, definition="d", fixed={}, grid={},
        begun="2026-12-01T00:00:00Z", points=(point,),
    )  # fmt: skip

    class Begun(Exception):
        pass

    class Here(Series[SweepFile]):
        what = "sweep"

        def read(self) -> SweepFile:
            return self.file

        def changed(self, number: int, fields: Mapping[str, Any]) -> SweepFile:
            return self.file.with_point(number, **fields)

        def start(self, number: int, made: Any, limits: Mapping[str, Any]) -> StoredRun:
            raise Begun

        def words(self, number: int) -> str:
            return "a point"

    with pytest.raises(Begun):
        Here(Lab(home), file, home / "data" / "sweeps").run(Night(), How())


# Refusals, code and machines, without any process


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--scheduler", "nowhere:x"), "'nowhere:x' is not the address of a scheduler, such as 127.0.0.1:8786"),
        (("--scheduler", "127.0.0.1:1"), "no scheduler answers at tcp://127.0.0.1:1 (Connection refused)"),
        (("--scheduler", "tls://127.0.0.1:1"), "an address with TLS: give --tls-ca-file"),
        (("--scheduler", "127.0.0.1:1", "--tls-ca-file", "ca.pem"), "TLS needs all of its three files: --tls-cert"),
        (("--scheduler", "127.0.0.1:1", "--require-idle"), "--require-idle looks at this machine"),
        (("--allow-difference",), "go with --scheduler ADDRESS"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: str
) -> None:
    lab = ThrowawayLab(tmp_path / "lab")
    monkeypatch.setenv("LABKIT_LAB", str(lab.root))
    done = CliRunner().invoke(lab_command, ["sweep", "sweep", "--grid", "widths=1,2", *arguments])
    assert isinstance(done.exception, LabError), done.output
    assert says in str(done.exception)
    assert "\n" not in str(done.exception)
    assert not (lab.root / "data").exists()


def call(*arguments: str) -> Result:
    return CliRunner().invoke(lab_command, arguments)


def test_without_tls_only_this_machine_is_listened_to_unless_a_person_says_otherwise() -> None:
    for verb in (("scheduler",), ("worker", "127.0.0.1")):
        done = call(*verb, "--host", "0.0.0.0")
        assert isinstance(done.exception, ParameterError)
        assert "whoever reaches the port without TLS can run any code as you" in str(done.exception)
    far = call("worker", "10.1.2.3:8786")
    assert "must reach this worker: give --host and TLS" in str(far.exception)
    check_reach("0.0.0.0", Tls(), trusted=True)
    check_reach("::1", Tls(), trusted=False)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9000", "tcp://127.0.0.1:9000"), ("gpu-box", "tcp://gpu-box:8786"), ("[::1]:9", "tcp://[::1]:9"),
        ("tcp://h:1", "tcp://h:1"), ("h:70000", None), ("h:", None), ("http://h:1", None), ("", None), ("a b", None),
    ],
)  # fmt: skip
def test_an_address_is_a_host_with_a_port_or_it_is_refused(text: str, address: str | None) -> None:
    if address is None:
        with pytest.raises(ParameterError, match="is not the address of a scheduler"):
            read_address(text, Tls())
    else:
        assert read_address(text, Tls()) == address


def test_a_lab_without_dask_says_what_to_install() -> None:
    lacking = "import sys; sys.modules['distributed'] = None; from labkit.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", lacking, "scheduler"], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert (done.returncode, done.stderr) == (2, done.stderr.splitlines()[0] + "\n")
    assert "pip install 'distributed>=2026.8'" in done.stderr


def test_a_plain_dask_worker_and_a_fault_answer_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert workplace.perform({})["error"] == "it is a plain dask worker; start it with `lab worker`"
    monkeypatch.setattr(workplace, "_here", object())
    assert workplace.answered(lambda here: 1 / 0)["error"] == "the worker failed: ZeroDivisionError: division by zero"
    monkeypatch.setattr(workplace, "_here", workplace.Workplace.__new__(workplace.Workplace))
    assert "validation errors for Task" in workplace.perform({})["error"]


def test_code_is_the_same_whatever_the_prose_and_differs_by_cells_files_beside_and_packages(tmp_path: Path) -> None:
    lab = ThrowawayLab(tmp_path / "lab")
    path = lab.root / "notebooks" / "sweep.ipynb"
    first = code_of(load_experiment(path))
    path.write_text(path.read_text().replace("Does the made-up rate grow", "Does it grow"))
    assert other_code(first, code_of(load_experiment(path))) == []
    (lab.root / "notebooks" / "shared.py").write_text("x = 1\n")
    assert other_code(first, code_of(load_experiment(path))) == ["the Python files beside the notebook"]
    path.write_text(path.read_text().replace("10.0 *", "11.0 *"))
    assert other_code(first, code_of(load_experiment(path)))[0].startswith("the notebook's code (")
    newer = first.model_copy(update={"packages": first.packages | {"numpy": "9.9"}})
    assert other_code(first, newer) == []
    assert other_packages(first, newer) == [f"packages (numpy {first.packages['numpy']}/9.9)"]
    assert other_packages(first, first) == []


def test_runs_that_shared_a_machine_are_told_by_boot_and_overlap(tmp_path: Path) -> None:
    record = read_record(make_run(make_lab(tmp_path / "lab"), 5.0))

    def run(name: str, boot: str | None, start: int, end: int | None) -> RunRecord:
        host = record.host.model_copy(update={"boot_id": boot})
        at = "2026-12-01T10:00:{:02}Z"
        ended = None if end is None else at.format(end)
        return record.model_copy(update={"id": name, "host": host, "started": at.format(start), "ended": ended})

    runs = [
        run("a", "x", 0, 10),
        run("b", "x", 5, 15),
        run("c", "x", 15, 20),
        run("d", "y", 0, 20),
        run("e", None, 0, 20),
    ]
    assert beside([*runs, run("f", "x", 0, None)]) == {"a": ["b"], "b": ["a"]}


def test_a_table_says_who_ran_a_point_why_one_failed_and_which_shared_a_machine() -> None:
    rows = [
        {"values": {"batch": 1}, "state": "completed", "verdict": "", "run": "a", "worker": "one", "beside": ["b"]},
        {"values": {"batch": 8}, "state": "completed", "verdict": "", "run": "b", "worker": "two", "beside": ["a"]},
        {
            "values": {"batch": 9},
            "state": "failed",
            "verdict": "",
            "run": "c",
            "worker": "two",
            "reason": "two was lost",
        },
    ]
    assert text_table(rows).splitlines()[0].split() == ["batch", "state", "verdict", "worker", "run"]
    assert remarks(rows) == [
        "batch=9: two was lost",
        "2 of 3 points ran beside others on one machine (--json says which): batch=1; batch=8",
    ]
    assert remarks([{"values": {"batch": 1}, "state": "completed", "verdict": "", "run": "a"}]) == []
