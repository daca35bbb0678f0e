"""What this machine offers Vulkan: loader, driver manifests, GPUs on the PCI bus, and why one is not usable."""

import ctypes
import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from labkit.errors import DeviceError

VENDORS = {0x1002: "AMD", 0x10DE: "NVIDIA", 0x8086: "Intel"}
_MANIFESTS = {0x1002: ("radeon", "amd_icd"), 0x10DE: ("nvidia", "nouveau"), 0x8086: ("intel",)}
CPU_ANYWAY = "or set LABKIT_DEVICE=cpu to accept the CPU"
# how each package manager installs the Vulkan loader and Mesa's drivers, the software one (lavapipe) among them
INSTALL = {
    "apt": "sudo apt-get install mesa-vulkan-drivers libvulkan1",
    "dnf": "sudo dnf install mesa-vulkan-drivers vulkan-loader",
    "pacman": "sudo pacman -S vulkan-swrast vulkan-icd-loader",
    "conda": "conda install -c conda-forge lavapipe libvulkan-loader",
}


class VulkanDevice(Protocol):
    """The part of `DeviceInfo` that the diagnosis reads."""

    @property
    def vendor_id(self) -> int: ...
    @property
    def is_cpu(self) -> bool: ...
    @property
    def usable(self) -> bool: ...
    @property
    def name(self) -> str: ...
    @property
    def reason(self) -> str: ...


@dataclass(frozen=True)
class PciGpu:
    """A display or 3D controller on the PCI bus: address, vendor and device ids, bound kernel driver, render node."""

    address: str
    vendor_id: int
    device_id: int
    driver: str  # "" when no kernel driver is bound
    render_node: str  # "/dev/dri/renderD128", or "" when the kernel made none

    @property
    def label(self) -> str:
        """How messages name it."""
        return f"the {VENDORS[self.vendor_id]} GPU at {self.address}"


@dataclass(frozen=True)
class Manifest:
    """A driver manifest (ICD file) the loader would read, and the API version it announces."""

    path: Path
    library: str
    api_version: str


def _hex(path: Path) -> int:
    try:
        return int(path.read_text().strip(), 16)
    except (OSError, ValueError):
        return 0


def pci_gpus(root: Path = Path("/")) -> list[PciGpu]:
    """GPUs of AMD, NVIDIA and Intel on the PCI bus, less virtual displays and those handed to a virtual machine."""
    found = []
    for folder in sorted((root / "sys/bus/pci/devices").glob("*")):
        vendor = _hex(folder / "vendor")
        if _hex(folder / "class") >> 16 != 0x03 or vendor not in VENDORS:
            continue
        driver = os.path.basename(os.readlink(folder / "driver")) if (folder / "driver").is_symlink() else ""
        if driver in ("vfio-pci", "pci-stub"):
            continue
        nodes = sorted(path.name for path in (folder / "drm").glob("renderD*"))
        node = f"/dev/dri/{nodes[0]}" if nodes else ""
        found.append(PciGpu(folder.name, vendor, _hex(folder / "device"), driver, node))
    return found


def manifest_folders(environ: Mapping[str, str], root: Path = Path("/")) -> list[Path]:
    """Folders the Vulkan loader searches for driver manifests, in its order."""
    home = Path(environ.get("HOME") or "/nonexistent")
    config = [environ.get("XDG_CONFIG_HOME") or str(home / ".config")]
    config += [*(environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":"), "/usr/local/etc", "/etc"]
    data = [environ.get("XDG_DATA_HOME") or str(home / ".local/share")]
    data += [*(environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share").split(":"), "/usr/share"]
    if environ.get("CONDA_PREFIX"):
        data.append(environ["CONDA_PREFIX"] + "/share")
    places = [Path(entry) / "vulkan/icd.d" for entry in config + data if entry]
    return list(dict.fromkeys(root / place.relative_to("/") if place.is_absolute() else place for place in places))


def manifests(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> list[Manifest]:
    """Driver manifests the loader reads: those VK_DRIVER_FILES (or VK_ICD_FILENAMES) names, else the system's."""
    environ = os.environ if environ is None else environ
    named = environ.get("VK_DRIVER_FILES") or environ.get("VK_ICD_FILENAMES")
    entries = [Path(item) for item in named.split(":")] if named else manifest_folders(environ, root)
    if not named and environ.get("VK_ADD_DRIVER_FILES"):
        entries = [Path(item) for item in environ["VK_ADD_DRIVER_FILES"].split(":")] + entries
    found = []
    for entry in entries:
        for path in sorted(entry.glob("*.json")) if entry.is_dir() else [entry]:
            try:
                icd = json.loads(path.read_text())["ICD"]
                found.append(Manifest(path, str(icd["library_path"]), str(icd.get("api_version", "unknown"))))
            except (OSError, ValueError, KeyError, TypeError):
                continue  # the loader skips what it cannot read; `lab doctor` shows what is left
    return found


def loader() -> str | None:
    """Name of the Vulkan loader library that can be opened, or None."""
    for name in ("libvulkan.so.1", "libvulkan.so"):
        try:
            ctypes.CDLL(name)
            return name
        except OSError:
            continue
    return None


def group_names(gid: int) -> str:
    """The name of a group id, or the number where it has none."""
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def node_trouble(path: Path, shown: str) -> str | None:
    """Why a device node cannot be opened by this process, with the remedy; None when it can."""
    if not path.exists():
        return f"{shown} does not exist here; in a container pass it in (docker run --device {os.path.dirname(shown)})"
    if os.access(path, os.R_OK | os.W_OK):
        return None
    status = path.stat()
    group = group_names(status.st_gid)
    if status.st_mode & 0o060 == 0o060 and status.st_gid not in (*os.getgroups(), os.getegid()):
        return (
            f"{shown} is open to group {group} only, which this session is not in; "
            f"`sudo usermod -aG {group} $USER`, then log in again"
        )
    return f"{shown} has mode {status.st_mode & 0o777:o} and cannot be opened for reading and writing"


def why_unusable(
    gpu: PciGpu, devices: Iterable[VulkanDevice], environ: Mapping[str, str] | None = None, root: Path = Path("/")
) -> str | None:
    """Why no Vulkan device stands for a GPU of the PCI bus, with the remedy, in one clause; None when one does.

    `devices`: what the loader lists. `root` stands for the file system's, for tests.
    """
    environ = os.environ if environ is None else environ
    same = [d for d in devices if d.vendor_id == gpu.vendor_id and not d.is_cpu]
    if any(d.usable for d in same):
        return None
    if same:
        return f"its driver lists {same[0].name}, which labkit cannot use: {same[0].reason}; a newer driver may help"
    if not gpu.driver:
        module = {0x1002: "amdgpu", 0x10DE: "nvidia", 0x8086: "i915 or xe"}[gpu.vendor_id]
        return f"no kernel driver is bound to it; load {module} (`lspci -k`, `dmesg`)"
    proprietary = gpu.driver == "nvidia"
    node = "/dev/nvidiactl" if proprietary else gpu.render_node
    if not node:
        return f"its kernel driver {gpu.driver} made no render node (/dev/dri/renderD*); see `dmesg`"
    if trouble := node_trouble(root / node.lstrip("/"), node):
        return trouble
    names = [manifest.path.name for manifest in manifests(environ, root)]
    wanted = ("nvidia",) if proprietary else _MANIFESTS[gpu.vendor_id]
    if not any(name.startswith(wanted) for name in names):
        for variable in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
            if environ.get(variable):
                return f"{variable}={environ[variable]} leaves its driver out; unset it"
        if proprietary:
            return (
                "its Vulkan driver's manifest nvidia_icd.json is missing; install the driver's Vulkan package "
                "(nvidia-vulkan-icd on Debian; in a container NVIDIA_DRIVER_CAPABILITIES=all)"
            )
        return f"its Vulkan driver's manifest {wanted[0]}_icd*.json is missing; {install_commands(root, environ)}"
    return "its driver is installed but lists no device; `VK_LOADER_DEBUG=error,driver vulkaninfo` says more"


def unusable_gpus(devices: Iterable[VulkanDevice]) -> list[str]:
    """One sentence for each GPU of the PCI bus that no usable Vulkan device stands for."""
    listed = list(devices)
    reasons = [(gpu, why_unusable(gpu, listed)) for gpu in pci_gpus()]
    return [f"{gpu.label} is not usable: {reason}" for gpu, reason in reasons if reason]


def refuse_quiet_cpu(devices: Iterable[VulkanDevice]) -> None:
    """Raise DeviceError when the machine has a GPU but only a CPU device is usable, with the reason and the remedy.

    To be called where a device is picked without having been asked for, so that nobody measures the CPU unaware.
    """
    listed = list(devices)
    if any(d.usable and not d.is_cpu for d in listed):
        return
    if found := unusable_gpus(listed):
        raise DeviceError(f"{'; '.join(found)}; {CPU_ANYWAY}")


def os_release(root: Path = Path("/")) -> dict[str, str]:
    """The fields of /etc/os-release, or nothing where there is none."""
    try:
        return platform.freedesktop_os_release() if root == Path("/") else _parse_release(root / "etc/os-release")
    except OSError:
        return {}


def _parse_release(path: Path) -> dict[str, str]:
    pairs = (line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)
    return {key: value.strip("\"'") for key, value in pairs}


def install_commands(root: Path = Path("/"), environ: Mapping[str, str] | None = None) -> str:
    """The commands that install a Vulkan loader and Mesa's drivers, this system's package manager first."""
    environ = os.environ if environ is None else environ
    release = os_release(root)
    family = {release.get("ID", ""), *release.get("ID_LIKE", "").split()}
    systems = {"apt": {"debian", "ubuntu"}, "dnf": {"fedora", "rhel"}, "pacman": {"arch"}}
    first = "conda" if environ.get("CONDA_PREFIX") else next((m for m, ids in systems.items() if family & ids), "apt")
    return "; ".join(f"{name}: `{INSTALL[name]}`" for name in sorted(INSTALL, key=lambda name: name != first))
