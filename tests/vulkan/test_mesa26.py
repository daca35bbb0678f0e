"""Mesa 26 beside the system's driver: fetched whole or not at all, started with its C library where the system's is old."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.errors import DeviceError, LabError
from labkit.vulkan import debian, mesa26

pytestmark = pytest.mark.quick
VERSIONS = {
    "mesa-vulkan-drivers": "26.1.6-1~bpo13+1", "libvulkan1": "1.4.309.0-1", "libc6": "2.41-12+deb13u5",
    "libgcc-s1": "14.2.0-19", "libstdc++6": "14.2.0-19", "libllvm19": "1:19.1.7-3+b1",
}  # fmt: skip


class Apt:
    """apt and dpkg-deb played: packages are empty files, unpacking makes what the package would hold."""

    def __init__(self, patch: pytest.MonkeyPatch, cache: Path) -> None:
        self.commands: list[str] = []
        self.failing = ""
        self.packages = dict(VERSIONS)
        patch.setenv("XDG_CACHE_HOME", str(cache))
        patch.setattr(mesa26, "run_command", self.run)
        patch.setattr(mesa26, "_run_for_output", lambda command: Path(command[-1]).read_text())
        patch.setattr(mesa26, "mirrors", lambda: ["http://mirror.example/debian"])
        patch.setattr(mesa26, "KEYRING", Path(__file__))
        patch.setattr(mesa26.shutil, "which", lambda name: f"/usr/bin/{name}")

    def run(self, command: list[str], folder: Path | None = None) -> None:
        line = " ".join(command)
        self.commands.append(line)
        if self.failing and self.failing in line:
            raise LabError("`apt-get update` failed: E: no network")
        if "--download-only" in command:
            cache = next(word for word in command if word.startswith("Dir::Cache=")).partition("=")[2]
            for name, version in self.packages.items():
                (Path(cache) / "archives" / f"{name}.deb").write_text(f"{name} {version}")
        if command[0] == "dpkg-deb":
            name, library = Path(command[2]).stem, Path(command[3]) / "usr" / "lib" / "some-linux-gnu"
            library.mkdir(parents=True, exist_ok=True)
            (Path(command[3]) / "usr" / "share").mkdir(exist_ok=True)
            made = {"libc6": ["ld-linux-some.so.1"], "mesa-vulkan-drivers": ["libvulkan_lvp.so", "libvulkan_radeon.so"]}
            for file in made.get(name, [f"{name}.so"]):
                (library / file).touch()


@pytest.fixture
def apt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Apt:
    return Apt(monkeypatch, tmp_path / "cache")


def test_it_is_fetched_once_without_the_drivers_of_gpus_and_with_a_manifest_that_finds_it(apt: Apt, tmp_path: Path):
    said: list[str] = []
    mesa = mesa26.fetch(said.append)
    assert mesa.version == "26.1.6-1~bpo13+1"
    assert "63 MB" in said[0]
    assert not list(mesa.root.rglob("libvulkan_radeon.so"))
    assert not list(mesa.root.rglob("share"))
    manifest = json.loads((mesa.root / "lvp.json").read_text())
    assert (mesa.root / manifest["ICD"]["library_path"]).is_file()
    assert [path.name for path in mesa.root.parent.iterdir()] == [mesa26.FOLDER]  # nothing left beside it
    count = len(apt.commands)
    assert mesa26.fetch(said.append) == mesa
    assert (len(apt.commands), len(said)) == (count, 1)
    assert "-t trixie-backports mesa-vulkan-drivers libvulkan1" in " ".join(apt.commands)


@pytest.mark.parametrize("failing", ["update", "--download-only", "dpkg-deb"])
def test_a_fetch_that_fails_says_so_in_one_line_and_leaves_nothing(apt: Apt, tmp_path: Path, failing: str):
    apt.failing = failing
    with pytest.raises(DeviceError, match=r"Mesa 26 could not be fetched: .*no network"):
        mesa26.fetch(lambda line: None)
    assert not list((tmp_path / "cache" / "labkit").iterdir())
    assert mesa26.find() is None


def test_packages_that_lack_the_software_driver_are_refused(apt: Apt, tmp_path: Path):
    del apt.packages["libc6"]
    with pytest.raises(DeviceError, match="apt did not bring libc6"):
        mesa26.fetch(lambda line: None)


def test_a_machine_without_debians_apt_is_told_what_else_would_do(apt: Apt, monkeypatch):
    monkeypatch.setattr(mesa26, "mirrors", list)
    with pytest.raises(DeviceError, match="Debian's apt, which is not set up here; a Mesa of 26 or later"):
        mesa26.fetch(lambda line: None)


def test_a_full_disk_is_one_line(apt: Apt, monkeypatch):
    def full(*_: object) -> list[Path]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mesa26, "_download", full)
    with pytest.raises(DeviceError, match=r"could not be kept in .*No space left"):
        mesa26.fetch(lambda line: None)


@pytest.mark.parametrize(("system", "own"), [("2.36", True), ("2.40", True), ("2.41", False), ("2.100", False)])
def test_its_c_library_is_used_only_where_the_systems_is_older(apt: Apt, monkeypatch, system: str, own: bool):
    monkeypatch.setattr(mesa26, "_system_c_library", lambda: system)
    monkeypatch.setenv("VK_ICD_FILENAMES", "/elsewhere.json")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/mine")
    mesa = mesa26.fetch(lambda line: None)
    command, environment = mesa.start(["-m", "pytest"])
    assert command[-2:] == ["-m", "pytest"]
    assert environment["VK_DRIVER_FILES"] == str(mesa.root / "lvp.json")
    assert environment["LABKIT_DEVICE"] == "cpu"
    assert "VK_ICD_FILENAMES" not in environment
    if own:
        assert command[0].endswith("system/usr/lib/some-linux-gnu/ld-linux-some.so.1")
        assert command[command.index("--argv0") + 1] == sys.executable
        assert environment["LD_LIBRARY_PATH"] == "/mine"
    else:
        assert command[0] == sys.executable
        drivers = mesa.root / "drivers" / "usr" / "lib" / "some-linux-gnu"
        assert environment["LD_LIBRARY_PATH"] == f"{drivers}:/mine"


def test_a_damaged_folder_is_named(apt: Apt):
    mesa = mesa26.fetch(lambda line: None)
    next(mesa.root.rglob("libvulkan_lvp.so")).unlink()
    with pytest.raises(DeviceError, match=r"lacks libvulkan_lvp\.so: remove that folder"):
        mesa.start([])


def test_a_python_that_does_not_start_is_a_cause(apt: Apt):
    mesa = mesa26.fetch(lambda line: None)
    assert "Python does not start with Mesa 26.1.6" in str(mesa.trouble())  # the libraries here are empty files


def test_names_of_private_settings_stay_out_of_a_failed_commands_message(tmp_path: Path):
    with pytest.raises(LabError, match=r"^`sh exit 3` failed: no message$"):
        debian.run_command(["sh", "-c", "exit 3", "Dir::Cache=/x"])


@pytest.mark.skipif(mesa26.find() is None, reason="Mesa 26 was not fetched: `lab test` does so where it is needed")
def test_where_it_was_fetched_it_starts_this_python_with_cooperative_matrices():
    mesa = mesa26.find()
    assert mesa is not None
    assert mesa.trouble() is None
    command, environment = mesa.start(["-c", "import sys; print(sys.executable, sys.prefix, sep='|')"])
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{sys.executable}|{sys.prefix}"
