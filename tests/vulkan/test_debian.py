"""Installing with apt: only what is missing, only where it may, from mirrors the system already uses."""

from pathlib import Path

import pytest

from labkit.errors import DeviceError, LabError, ShaderError
from labkit.vulkan import debian, host

pytestmark = pytest.mark.quick

BOOKWORM = """Types: deb
# a remark
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main

Types: deb
URIs: http://security.example/debian-security
Suites: bookworm-security
Components: main

Types: deb
Enabled: no
URIs: http://off.example/debian
Suites: bookworm
"""


def test_mirrors_are_the_debian_archives_of_the_systems_sources(tmp_path: Path):
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(
        "# deb http://remark.example/debian bookworm main\n"
        "deb [arch=amd64 signed-by=/k.gpg] http://old.example/debian trixie main contrib\n"
        "deb http://security.example/debian-security trixie-security main\n"
    )
    (tmp_path / "sources.list.d" / "other.list").write_text("deb http://other.example/tools nodistro main\n")
    (tmp_path / "sources.list.d" / "debian.sources").write_text(BOOKWORM)
    assert debian.mirrors(tmp_path) == ["http://old.example/debian", "http://mirror.example/debian"]


def test_private_sources_leave_the_systems_lists_alone(tmp_path: Path):
    options = debian.private_apt(tmp_path, "http://mirror.example/debian", ["trixie"], system_packages=False)
    assert f"Dir::State::Lists={tmp_path / 'lists'}" in options
    assert f"Dir::State::status={tmp_path / 'status'}" in options
    assert "Dir::Etc::SourceList=/dev/null" in options
    text = (tmp_path / "parts" / "labkit.sources").read_text()
    assert "URIs: http://mirror.example/debian\nSuites: trixie\n" in text
    assert f"Signed-By: {debian.KEYRING}" in text


class Machine:
    """A machine without a driver, on which commands are noted instead of run."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.commands: list[str] = []
        self.failing = ""
        self.driver = False
        for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "CONDA_PREFIX", "LABKIT_DEVICE"):
            patch.delenv(name, raising=False)
        patch.setattr(debian, "run_command", self.run)
        patch.setattr(host, "loader", lambda: "libvulkan.so.1" if self.driver else None)
        patch.setattr(host, "manifests", lambda *_: ["lvp_icd.json"] if self.driver else [])
        patch.setattr(host, "pci_gpus", list)
        patch.setattr(host, "os_release", lambda *_: {"ID": "debian", "VERSION_CODENAME": "bookworm"})
        patch.setattr(debian, "mirrors", lambda: ["http://mirror.example/debian"])
        patch.setattr(debian, "KEYRING", Path(__file__))
        patch.setattr(debian.shutil, "which", lambda name: f"/usr/bin/{name}")
        patch.setattr(debian.os, "geteuid", lambda: 0)

    def run(self, command: list[str], folder: Path | None = None) -> None:
        line = " ".join(command)
        self.commands.append(line)
        if self.failing and self.failing in line:
            raise LabError("E: it failed")
        self.driver = self.driver or " install " in line


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Debian 12, root, no driver, no GPU."""
    return Machine(monkeypatch)


def test_nothing_is_installed_where_a_driver_is_found(machine: Machine):
    machine.driver = True
    debian.install_driver()
    assert machine.commands == []


def test_debian_12_gets_the_backported_driver_and_is_told_so(machine: Machine):
    said: list[str] = []
    debian.install_driver(said.append)
    assert "-t bookworm-backports mesa-vulkan-drivers libvulkan1" in machine.commands[-1]
    assert "bookworm-backports" in said[0]


def test_without_the_backport_the_stock_driver_is_taken(machine: Machine):
    machine.failing = "-t bookworm-backports"
    said: list[str] = []
    debian.install_driver(said.append)
    assert machine.commands[-1].endswith("install -y --no-install-recommends mesa-vulkan-drivers libvulkan1")
    assert "taking the stock one" in " ".join(said)


def test_debian_13_gets_the_stock_driver(machine: Machine, monkeypatch):
    monkeypatch.setattr(host, "os_release", lambda *_: {"ID": "debian", "VERSION_CODENAME": "trixie"})
    debian.install_driver(lambda _: None)
    assert not any("backports" in line for line in machine.commands)


def test_an_apt_that_fails_ends_in_one_line(machine: Machine):
    machine.failing = "install"
    with pytest.raises(DeviceError, match="apt could not install it: E: it failed"):
        debian.install_driver(lambda _: None)


@pytest.mark.parametrize("lack", ["root", "apt", "conda"])
def test_where_it_may_not_install_it_prints_the_commands_and_stops(machine: Machine, monkeypatch, lack: str):
    if lack == "root":
        monkeypatch.setattr(debian.os, "geteuid", lambda: 1000)
    elif lack == "apt":
        monkeypatch.setattr(debian.shutil, "which", lambda name: None)
    else:
        monkeypatch.setenv("CONDA_PREFIX", "/opt/conda")
    with pytest.raises(DeviceError) as caught:
        debian.install_driver()
    assert all(command in str(caught.value) for command in host.INSTALL.values())
    assert machine.commands == []


def test_a_machine_with_an_nvidia_gpu_is_not_quietly_given_the_cpu(machine: Machine, monkeypatch):
    gpu = host.PciGpu("0000:03:00.0", 0x10DE, 1, "nvidia", "")
    monkeypatch.setattr(host, "pci_gpus", lambda: [gpu])
    with pytest.raises(DeviceError, match=r"NVIDIA GPU at 0000:03:00\.0 is not usable.*LABKIT_DEVICE=cpu"):
        debian.install_driver()
    assert machine.commands == []
    monkeypatch.setenv("LABKIT_DEVICE", "cpu")
    debian.install_driver(lambda _: None)
    assert machine.driver


def test_the_compiler_is_not_fetched_where_there_is_no_debian_mirror(machine: Machine, monkeypatch):
    monkeypatch.setattr(debian, "find_compiler", lambda pinned: None)
    monkeypatch.setattr(debian, "mirrors", list)
    with pytest.raises(ShaderError, match="fetched with Debian's apt, which is not set up here"):
        debian.fetch_compiler()
