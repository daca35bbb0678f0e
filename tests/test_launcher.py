"""The launcher `./lab`: set-up once and whole, whatever interrupts it, and close to nothing afterwards.

A stand-in for `uv` makes the environments, so that every path is walked in seconds and without a network; the real
set-up is what `.ci/run` starts from.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the launcher and its stand-ins are for Linux")

# `uv venv ... PATH` makes a folder with a Python, `uv pip install` notes what it is given; both obey two switch files
UV = """#!/bin/sh
echo "$*" >>"$UV_LOG"
case $1 in
venv)
    for target; do :; done
    mkdir -p "$target/bin"
    ln -sf "$REAL_PYTHON" "$target/bin/python"
    [ ! -e "$SLOW" ] || sleep 30 ;;
pip)
    [ ! -e "$FAIL" ] || { echo "error: no such package" >&2; exit 1; }
    echo ' + a-package' ;;
esac
"""


class Checkout:
    """A copy of the launcher with a package that only prints how it was started, and a PATH with the stand-in uv."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "my lab"
        self.place = Path("/")  # where it is called from
        self.tools = folder / "tools"
        (self.root / "labkit").mkdir(parents=True)
        self.tools.mkdir()
        shutil.copy2(REPOSITORY / "lab", self.root / "lab")
        (self.root / "requirements.lock").write_text("numpy==2.4.6\n")
        (self.root / "labkit" / "__init__.py").touch()
        (self.root / "labkit" / "cli.py").write_text(
            "import os, sys\nprint(sys.executable, os.environ['LABKIT_LAB'], os.getcwd(), *sys.argv[1:], sep='|')\n"
        )
        self.tool("uv", UV)
        self.log, self.slow, self.fail = folder / "uv.log", folder / "slow", folder / "fail"
        self.environment = {
            "PATH": f"{self.tools}:/usr/bin:/bin",
            "HOME": str(folder),
            "UV_LOG": str(self.log),
            "SLOW": str(self.slow),
            "FAIL": str(self.fail),
            "REAL_PYTHON": os.path.realpath(sys.executable),
        }

    def tool(self, name: str, text: str) -> None:
        """Put a program on the PATH."""
        (self.tools / name).write_text(text)
        (self.tools / name).chmod(0o755)

    def start(self, *words: str, launcher: Path | None = None, **settings: str) -> "subprocess.Popen[str]":
        """Start the launcher in a session of its own."""
        command = [str(launcher or self.root / "lab"), *words]
        pipe, environment = subprocess.PIPE, {**self.environment, **settings}
        return subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, cwd=self.place, env=environment, start_new_session=True
        )

    def call(self, *words: str, launcher: Path | None = None, **settings: str) -> "subprocess.CompletedProcess[str]":
        """Run the launcher to its end."""
        process = self.start(*words, launcher=launcher, **settings)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def made(self) -> int:
        """How many times an environment was made."""
        return self.log.read_text().count("venv -q") if self.log.exists() else 0

    def wait_for(self, path: Path) -> None:
        """Until a file is there."""
        end = time.monotonic() + 20
        while not path.exists():
            assert time.monotonic() < end, f"{path} never came"
            time.sleep(0.02)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A fresh checkout whose path holds a space."""
    return Checkout(tmp_path)


def test_in_a_lab_of_ones_own_that_lab_is_meant_and_elsewhere_the_checkout(checkout: Checkout, tmp_path: Path):
    own = tmp_path / "own lab"
    (own / "notebooks").mkdir(parents=True)
    for name in ("lab.toml", "FINDINGS.md"):
        (own / name).touch()
    for place, meant in ((own, own), (own / "notebooks", own), (tmp_path, checkout.root)):
        checkout.place = place
        assert checkout.call("runs").stdout.split("|")[1] == str(meant)
    checkout.place = own
    assert checkout.call("runs", LABKIT_LAB="/elsewhere").stdout.split("|")[1] == "/elsewhere"


@pytest.mark.quick
def test_the_first_use_sets_up_and_the_next_only_starts_python_with_the_words_as_given(checkout: Checkout):
    first = checkout.call("ledger", "a b", "*")
    python = checkout.root / ".venv" / "bin" / "python"
    assert first.stdout == f"{python}|{checkout.root}|/|ledger|a b|*\n"
    assert "setting up .venv" in first.stderr
    second = checkout.call("runs")
    assert (second.returncode, second.stderr) == (0, "")
    assert checkout.made() == 1
    installs = [line for line in checkout.log.read_text().splitlines() if line.startswith("pip")]
    assert "requirements.lock" in installs[0]
    assert "--no-deps" in installs[1]


def test_it_works_through_a_chain_of_links_from_another_folder(checkout: Checkout, tmp_path: Path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "one").symlink_to("../my lab/lab")
    (tmp_path / "two").symlink_to(tmp_path / "bin" / "one")
    done = checkout.call("runs", launcher=tmp_path / "two")
    assert done.stdout == f"{checkout.root}/.venv/bin/python|{checkout.root}|/|runs\n"


def test_a_module_in_the_working_folder_does_not_get_in_the_way(checkout: Checkout, tmp_path: Path):
    (tmp_path / "os.py").write_text("raise SystemExit('the wrong os')\n")
    checkout.call("runs")
    done = subprocess.run(
        [str(checkout.root / "lab"), "runs"], cwd=tmp_path, env=checkout.environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda how: how.name)
def test_an_interrupted_set_up_starts_afresh_next_time(checkout: Checkout, how: signal.Signals):
    checkout.slow.touch()
    process = checkout.start("runs")
    checkout.wait_for(checkout.root / ".venv" / "bin" / "python")
    os.killpg(process.pid, how)
    process.communicate(timeout=60)
    assert process.returncode in (130, -how)
    assert not (checkout.root / ".venv" / "labkit-ready").exists()
    checkout.slow.unlink()
    (checkout.root / ".venv" / "left-over").touch()
    assert checkout.call("runs").returncode == 0
    assert not (checkout.root / ".venv" / "left-over").exists()
    assert checkout.made() == 2


def test_two_first_uses_at_once_set_up_one_environment(checkout: Checkout):
    both = [checkout.start("runs", str(i)) for i in range(2)]
    outputs = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert checkout.made() == 1


def test_a_changed_lock_makes_the_environment_anew_and_a_failure_keeps_the_old_one(checkout: Checkout):
    checkout.call("runs")
    lock = checkout.root / "requirements.lock"
    lock.write_text("numpy==2.5.0\n")
    checkout.fail.touch()
    checkout.tool("python3.13", "#!/bin/sh\nexit 1\n")
    for name in ("python3.12", "python3.11", "python3", "python"):
        checkout.tool(name, "#!/bin/sh\nexit 1\n")
    failed = checkout.call("runs")
    assert failed.returncode == 2
    assert "error: no such package" in failed.stderr
    assert "could not be set up" in failed.stderr
    assert (checkout.root / ".venv" / "labkit-ready").exists()
    lock.write_text("numpy==2.4.6\n")
    assert checkout.call("runs").returncode == 0  # the old environment fits the old lock again, untouched
    assert checkout.made() == 2
    checkout.fail.unlink()
    lock.write_text("numpy==2.5.0\n")
    assert checkout.call("runs").returncode == 0
    assert checkout.made() == 3
    assert not (checkout.root / ".venv.old").exists()


def test_a_moved_checkout_sets_up_again_for_its_new_place(checkout: Checkout, tmp_path: Path):
    checkout.call("runs")
    checkout.root.rename(tmp_path / "moved")
    done = checkout.call("runs", launcher=tmp_path / "moved" / "lab")
    assert done.stdout == f"{tmp_path}/moved/.venv/bin/python|{tmp_path}/moved|/|runs\n"
    assert checkout.made() == 2


def test_a_venv_that_a_person_made_is_left_alone(checkout: Checkout):
    (checkout.root / ".venv").mkdir()
    done = checkout.call("runs")
    assert done.returncode == 2
    assert "was not made by this launcher" in done.stderr
    assert os.listdir(checkout.root / ".venv") == []


def environment_with(folder: Path, entry_points: str) -> Path:
    """A virtual or conda environment that holds a distribution called labkit."""
    info = folder / "lib" / "python3.12" / "site-packages" / "labkit-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "entry_points.txt").write_text(entry_points)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    return folder


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_an_active_environment_with_labkit_is_used_and_nothing_is_made(
    checkout: Checkout, tmp_path: Path, variable: str
):
    active = environment_with(tmp_path / "active", "[console_scripts]\nlab = labkit.cli:main\n")
    done = checkout.call("runs", **{variable: str(active)})
    assert done.stdout.startswith(f"{active}/bin/python|{checkout.root}|")
    assert checkout.made() == 0


def test_an_active_environment_with_the_namesake_of_pypi_is_not_used(checkout: Checkout, tmp_path: Path):
    active = environment_with(tmp_path / "active", "[console_scripts]\nlabkit = labkit.main:run\n")
    done = checkout.call("runs", VIRTUAL_ENV=str(active))
    assert done.stdout.startswith(f"{checkout.root}/.venv/bin/python|")


def test_a_python_that_is_too_old_is_named_with_what_is_needed(checkout: Checkout):
    (checkout.tools / "uv").unlink()
    for name in ("python3.13", "python3.12", "python3.11", "python3", "python"):
        checkout.tool(name, "#!/bin/sh\ncase $2 in *print*) echo 3.9.2 ;; *) exit 1 ;; esac\n")
    done = checkout.call("runs")
    assert done.returncode == 2
    assert "labkit needs Python 3.11 or newer" in done.stderr
    assert "python3 (3.9.2)" in done.stderr
    assert not (checkout.root / ".venv").exists()


def test_once_set_up_it_adds_under_three_tenths_of_a_second_to_python(checkout: Checkout):
    checkout.call("runs")
    python = checkout.root / ".venv" / "bin" / "python"

    def fastest(command: list[str]) -> float:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            subprocess.run(command, env=checkout.environment, check=True, capture_output=True)
            times.append(time.perf_counter() - start)
        return min(times)

    added = fastest([str(checkout.root / "lab"), "run"]) - fastest([str(python), "-c", "pass"])
    assert added < 0.3, f"{added:.3f} s"


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed here")
def test_the_launcher_is_clean_for_shellcheck():
    done = subprocess.run(["shellcheck", "lab", ".ci/run"], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
