"""The diagnosis of a machine's Vulkan: for each way a GPU can be unusable, the reason and the remedy."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from labkit.errors import DeviceError
from labkit.vulkan import device, host

pytestmark = pytest.mark.quick

AMD, NVIDIA, INTEL = 0x1002, 0x10DE, 0x8086


@dataclass(frozen=True)
class Listed:
    """A device as the loader lists it."""

    vendor_id: int
    is_cpu: bool = False
    usable: bool = True
    name: str = "a device"
    reason: str = ""


LAVAPIPE = Listed(0x10005, is_cpu=True)


class Tree:
    """A file system with a PCI bus, device nodes and driver manifests."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def gpu(self, vendor: int, driver: str = "", node: str = "", kind: int = 0x030000, slot: str = "01") -> host.PciGpu:
        """Plug in a card; the one found there."""
        folder = self.root / f"sys/bus/pci/devices/0000:{slot}:00.0"
        folder.mkdir(parents=True)
        for name, value in {"vendor": vendor, "device": 0x7551, "class": kind}.items():
            (folder / name).write_text(f"{value:#06x}\n")
        if driver:
            (self.root / "sys/drivers" / driver).mkdir(parents=True, exist_ok=True)
            (folder / "driver").symlink_to(self.root / "sys/drivers" / driver)
        if node:
            (folder / "drm" / node).mkdir(parents=True)
        return next(iter(host.pci_gpus(self.root)), None)  # type: ignore[return-value]

    def node(self, path: str, mode: int = 0o660) -> Path:
        """A device node (a plain file stands in)."""
        there = self.root / path
        there.parent.mkdir(parents=True, exist_ok=True)
        there.touch()
        there.chmod(mode)
        return there

    def manifest(self, name: str) -> None:
        """A driver manifest in the usual folder."""
        folder = self.root / "usr/share/vulkan/icd.d"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps({"ICD": {"library_path": "lib.so", "api_version": "1.4.0"}}))

    def why(self, gpu: host.PciGpu, *devices: Listed, **environ: str) -> str | None:
        """The diagnosis in this tree."""
        return host.why_unusable(gpu, devices, environ, self.root)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """An empty file system."""
    return Tree(tmp_path)


def test_virtual_displays_and_other_devices_are_not_gpus(tree: Tree):
    assert tree.gpu(0x1234, "bochs", slot="00") is None
    assert tree.gpu(0x1AF4, "virtio-pci", slot="01") is None
    assert tree.gpu(INTEL, "e1000e", kind=0x020000, slot="02") is None
    assert tree.gpu(NVIDIA, "vfio-pci", slot="03") is None
    gpu = tree.gpu(NVIDIA, "nvidia", kind=0x030200, slot="04")  # a 3D controller without a display
    assert (gpu.vendor_id, gpu.driver, gpu.address) == (NVIDIA, "nvidia", "0000:04:00.0")


def test_a_gpu_that_a_usable_device_stands_for_needs_no_words(tree: Tree):
    assert tree.why(tree.gpu(AMD, "amdgpu", "renderD128"), LAVAPIPE, Listed(AMD)) is None


def test_a_device_without_a_needed_feature_is_named_with_it(tree: Tree):
    listed = Listed(AMD, usable=False, name="AMD RADV X", reason="it lacks a compute queue")
    said = tree.why(tree.gpu(AMD, "amdgpu", "renderD128"), LAVAPIPE, listed)
    assert said is not None
    assert "AMD RADV X" in said
    assert "it lacks a compute queue" in said


@pytest.mark.parametrize(("vendor", "module"), [(AMD, "amdgpu"), (NVIDIA, "nvidia"), (INTEL, "i915")])
def test_a_gpu_without_a_kernel_driver_names_the_module(tree: Tree, vendor: int, module: str):
    assert f"no kernel driver is bound to it; load {module}" in str(tree.why(tree.gpu(vendor)))


def test_in_a_container_the_missing_node_is_named(tree: Tree):
    said = str(tree.why(tree.gpu(AMD, "amdgpu", "renderD129"), LAVAPIPE))
    assert "/dev/dri/renderD129 does not exist here" in said
    assert "docker run --device /dev/dri" in said


def test_a_node_of_a_group_one_is_not_in_names_the_group_and_the_command(tree: Tree, monkeypatch):
    node = tree.node("dev/dri/renderD128")
    gpu = tree.gpu(AMD, "amdgpu", "renderD128")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(os, "getgroups", lambda: [12345])
    monkeypatch.setattr(os, "getegid", lambda: 12345)
    monkeypatch.setattr(host, "group_names", lambda gid: "render")
    assert node.stat().st_gid != 12345
    said = str(tree.why(gpu, LAVAPIPE))
    assert "/dev/dri/renderD128 is open to group render only" in said
    assert "sudo usermod -aG render $USER" in said


def test_a_node_without_group_rights_shows_its_mode(tree: Tree, monkeypatch):
    tree.node("dev/dri/renderD128", 0o600)
    gpu = tree.gpu(AMD, "amdgpu", "renderD128")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "has mode 600 and cannot be opened" in str(tree.why(gpu))


@pytest.mark.parametrize(
    ("vendor", "driver", "node", "manifest"),
    [
        (AMD, "amdgpu", "dev/dri/renderD128", "radeon_icd"),
        (INTEL, "xe", "dev/dri/renderD128", "intel_icd"),
        (NVIDIA, "nvidia", "dev/nvidiactl", "nvidia_icd"),
    ],
    ids=["amd", "intel", "nvidia"],
)
def test_a_missing_manifest_is_named_and_once_there_the_loader_is_what_remains(
    tree: Tree, vendor: int, driver: str, node: str, manifest: str
):
    tree.node(node, 0o666)
    tree.manifest("lvp_icd.json")
    gpu = tree.gpu(vendor, driver, "renderD128")
    said = str(tree.why(gpu, LAVAPIPE))
    assert f"manifest {manifest}" in said
    assert "install" in said
    tree.manifest(f"{manifest}.x86_64.json")
    assert "installed but lists no device" in str(tree.why(gpu, LAVAPIPE))
    lavapipe_only = str(tree.root / "usr/share/vulkan/icd.d/lvp_icd.json")
    assert "leaves its driver out; unset it" in str(tree.why(gpu, LAVAPIPE, VK_DRIVER_FILES=lavapipe_only))


def test_only_a_machine_with_a_gpu_refuses_the_cpu(monkeypatch):
    gpu = host.PciGpu("0000:03:00.0", AMD, 0x7551, "amdgpu", "/dev/dri/renderD128")
    monkeypatch.setattr(host, "pci_gpus", list)
    host.refuse_quiet_cpu([LAVAPIPE])
    monkeypatch.setattr(host, "pci_gpus", lambda: [gpu])
    monkeypatch.setattr(host, "why_unusable", lambda gpu, devices: "reason; remedy")
    host.refuse_quiet_cpu([LAVAPIPE, Listed(INTEL)])
    with pytest.raises(
        DeviceError, match=r"AMD GPU at 0000:03:00\.0 is not usable: reason; remedy; or set LABKIT_DEVICE=cpu"
    ):
        host.refuse_quiet_cpu([LAVAPIPE])


def test_manifests_come_from_the_variable_if_set_and_broken_ones_are_skipped(tree: Tree, tmp_path: Path):
    tree.manifest("lvp_icd.json")
    (tree.root / "usr/share/vulkan/icd.d/broken.json").write_text("{")
    assert [m.path.name for m in host.manifests({}, tree.root)] == ["lvp_icd.json"]
    mine = tmp_path / "mine.json"
    mine.write_text(json.dumps({"ICD": {"library_path": "mine.so"}}))
    found = host.manifests({"VK_DRIVER_FILES": f"{mine}:{tmp_path / 'gone.json'}"}, tree.root)
    assert [(m.path, m.library) for m in found] == [(mine, "mine.so")]
    assert {m.path.name for m in host.manifests({"VK_ADD_DRIVER_FILES": str(mine)}, tree.root)} == {
        "mine.json",
        "lvp_icd.json",
    }


@pytest.mark.parametrize(
    ("release", "first"),
    [
        ("ID=debian\n", "apt"),
        ("ID=pop\nID_LIKE='ubuntu debian'\n", "apt"),
        ("ID=fedora\n", "dnf"),
        ('ID=almalinux\nID_LIKE="rhel centos fedora"\n', "dnf"),
        ("ID=arch\n", "pacman"),
    ],
    ids=["debian", "pop", "fedora", "alma", "arch"],
)
def test_the_commands_name_all_four_managers_this_systems_first(tree: Tree, release: str, first: str):
    (tree.root / "etc").mkdir()
    (tree.root / "etc/os-release").write_text(release)
    said = host.install_commands(tree.root, {})
    assert said.startswith(f"{first}: `")
    assert all(f"{name}: `{command}`" in said for name, command in host.INSTALL.items())
    assert host.install_commands(tree.root, {"CONDA_PREFIX": "/opt/conda"}).startswith("conda: `conda install")


def test_opening_a_device_unasked_refuses_the_cpu_and_asking_for_it_does_not(monkeypatch):
    cpu = [listed for listed in device.list_devices() if listed.is_cpu]
    if not cpu:
        pytest.skip("there is no CPU device here (lavapipe is not installed)")
    gpu = host.PciGpu("0000:03:00.0", NVIDIA, 0x2330, "", "")
    monkeypatch.setattr(host, "pci_gpus", lambda: [gpu])
    monkeypatch.setattr(device, "list_devices", lambda: cpu)
    monkeypatch.delenv("LABKIT_DEVICE", raising=False)
    with pytest.raises(DeviceError, match="no kernel driver is bound to it; load nvidia"):
        device.Device()
    monkeypatch.setenv("LABKIT_DEVICE", "cpu")
    with device.Device() as opened:
        assert opened.is_cpu
