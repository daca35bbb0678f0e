"""What labkit takes from Debian with apt: the pinned shader compiler and the software Vulkan driver."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from labkit.errors import DeviceError, LabError, ShaderError
from labkit.vulkan import host
from labkit.vulkan.toolchain import (
    PINNED_FOLDER,
    PINNED_VERSION,
    Compiler,
    cache_root,
    describe_compiler,
    find_compiler,
    unpacked_command,
)

Say = Callable[[str], None]
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
COMPILER_PACKAGES = ("glslc", "libshaderc1", "libc6", "libgcc-s1", "libstdc++6")
DRIVER_PACKAGES = ("mesa-vulkan-drivers", "libvulkan1")
_ONE_LINE = re.compile(r"^\s*deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+(\S+)\s", re.MULTILINE)
_SUITES = re.compile(r"(bullseye|bookworm|trixie|forky|oldstable|stable|testing|sid|unstable)(-updates)?")


def mirrors(etc: Path = Path("/etc/apt")) -> list[str]:
    """URIs of the Debian archives that apt's own sources name, in order; security and third-party ones left out."""
    found: list[tuple[str, str]] = []
    for path in sorted({etc / "sources.list", *(etc / "sources.list.d").glob("*.list")}):
        if path.is_file():
            found += _ONE_LINE.findall(path.read_text(errors="replace"))
    for path in sorted((etc / "sources.list.d").glob("*.sources")):
        for stanza in re.split(r"\n\s*\n", path.read_text(errors="replace")):
            fields = dict(re.findall(r"^(URIs|Suites|Enabled):[ \t]*(.*)$", stanza, re.MULTILINE))
            if fields.get("Enabled", "yes").strip().lower() != "no":
                found += [(u, s) for u in fields.get("URIs", "").split() for s in fields.get("Suites", "").split()]
    return list(dict.fromkeys(uri for uri, suite in found if _SUITES.fullmatch(suite)))


def run_command(command: list[str], folder: Path | None = None) -> None:
    """Run a command quietly; LabError with the last line of what it said when it fails."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )
    except OSError as error:
        raise LabError(f"{command[0]} does not run: {error.strerror}") from None
    if done.returncode:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in said if line.startswith("E:")] or said[-1:] or ["no message"]
        shown = [word for word in command if not word.startswith("-") and "::" not in word]
        raise LabError(f"`{' '.join(shown)}` failed: {errors[0]}")


def private_apt(folder: Path, mirror: str, suites: Iterable[str], *, system_packages: bool) -> list[str]:
    """apt-get options for sources of its own kept under `folder`; the system's lists and sources stay as they are.

    `system_packages`: whether it sees (and may change) the packages installed on this system.
    """
    for name in ("parts", "lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    source = f"Types: deb\nURIs: {mirror}\nSuites: {' '.join(suites)}\nComponents: main\nSigned-By: {KEYRING}\n"
    (folder / "parts" / "labkit.sources").write_text(source)
    options = {
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": str(folder / "parts"),
        "Dir::State::Lists": str(folder / "lists"),
        "Dir::Cache": str(folder / "cache"),
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled": "false",
    }
    if not system_packages:
        (folder / "status").touch()
        options["Dir::State::status"] = str(folder / "status")
    return [part for key, value in options.items() for part in ("-o", f"{key}={value}")]


def fetch_compiler(say: Say = print) -> Compiler:
    """The pinned glslc: as found, else fetched from Debian 13 with apt and unpacked into the user's cache.

    Needs apt, Debian's keyring and a Debian mirror among apt's sources, but no root. Raises ShaderError otherwise.
    """
    if compiler := find_compiler(pinned=True):
        return compiler
    where = mirrors()
    if not shutil.which("apt-get") or not where or not KEYRING.is_file():
        raise ShaderError(
            f"the pinned compiler ({PINNED_VERSION.split(';')[0]}) is fetched with Debian's apt, which is not set up "
            "here; use a Debian 12 or 13 machine to build shaders (running them needs no compiler)"
        )
    target = cache_root() / PINNED_FOLDER
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="glslc-", dir=target.parent) as name:
        folder = Path(name)
        options = private_apt(folder, where[0], ["trixie"], system_packages=False)
        (folder / "debs").mkdir()
        try:
            say(f"fetching {', '.join(COMPILER_PACKAGES)} of Debian 13 with apt into {target}")
            run_command(["apt-get", *options, "-q", "update"])
            run_command(["apt-get", *options, "-q", "download", *COMPILER_PACKAGES], folder / "debs")
            for package in sorted((folder / "debs").glob("*.deb")):
                run_command(["dpkg-deb", "-x", str(package), str(folder / "root")])
        except LabError as error:
            raise ShaderError(f"the pinned compiler could not be fetched: {error}") from None
        command = unpacked_command(folder / "root")
        compiler = describe_compiler(command, "glslc") if command else None
        if compiler is None or not compiler.pinned:
            raise ShaderError(
                f"Debian 13 now serves {compiler.version if compiler else 'a glslc that does not run'}, "
                f"not the pinned {PINNED_VERSION}"
            )
        if not target.exists():
            (folder / "root").rename(target)
    found = find_compiler(pinned=True)
    if found is None:
        raise ShaderError(f"the compiler fetched into {target} does not run: remove that folder and fetch it again")
    return found


def _install_stock(say: Say) -> None:
    say(f"installing the software Vulkan driver: apt-get install {' '.join(DRIVER_PACKAGES)}")
    try:
        run_command(["apt-get", "-q", "update"])
    except LabError as error:
        say(f"apt-get update was not complete ({error}); going on with the lists there are")
    run_command(["apt-get", "-q", "install", "-y", "--no-install-recommends", *DRIVER_PACKAGES])


def _install_backport(codename: str, mirror: str, say: Say) -> None:
    say(f"installing the software Vulkan driver: apt-get install -t {codename}-backports {' '.join(DRIVER_PACKAGES)}")
    with tempfile.TemporaryDirectory(prefix="labkit-apt-") as name:
        suites = [codename, f"{codename}-updates", f"{codename}-backports"]
        options = private_apt(Path(name), mirror, suites, system_packages=True)
        run_command(["apt-get", *options, "-q", "update"])
        release = f"{codename}-backports"
        run_command(
            ["apt-get", *options, "-q", "install", "-y", "--no-install-recommends", "-t", release, *DRIVER_PACKAGES]
        )


def install_driver(say: Say = print) -> None:
    """Make sure a Vulkan driver is installed: nothing when there is one, else Mesa's software driver with apt.

    On Debian 12 the backported Mesa 25 is preferred over the stock 22.3. Raises DeviceError with the exact command
    where apt is not there or this is not root, and where a GPU's own driver is what is missing.
    """
    if host.loader() and host.manifests():
        return
    nvidia = [gpu for gpu in host.pci_gpus() if gpu.driver == "nvidia"]
    if nvidia and os.environ.get("LABKIT_DEVICE") != "cpu":
        raise DeviceError(f"{nvidia[0].label} is not usable: {host.why_unusable(nvidia[0], [])}; {host.CPU_ANYWAY}")
    named = os.environ.get("VK_DRIVER_FILES") or os.environ.get("VK_ICD_FILENAMES")
    if named and host.loader():
        raise DeviceError(f"VK_DRIVER_FILES={named} names no driver that can be read: unset it")
    if os.geteuid() != 0 or not shutil.which("apt-get") or os.environ.get("CONDA_PREFIX"):
        raise DeviceError(f"no Vulkan driver is installed; install one with {host.install_commands()}")
    release = host.os_release()
    where = mirrors()
    installed = False
    if release.get("VERSION_CODENAME") == "bookworm" and where and KEYRING.is_file():
        try:
            _install_backport("bookworm", where[0], say)
            installed = True
        except LabError as error:
            say(f"the backported driver could not be had ({error}); taking the stock one")
    try:
        if not installed:
            _install_stock(say)
    except LabError as error:
        raise DeviceError(f"no Vulkan driver is installed and apt could not install it: {error}") from None
    if not (host.loader() and host.manifests()):
        raise DeviceError(f"no Vulkan driver is found after installing {' '.join(DRIVER_PACKAGES)}; see `lab doctor`")
