"""Mesa 26's software driver beside the system's: it has cooperative matrices, which older ones lack.

The kernels that use matrix units are tested with it where no GPU is there. Its packages are Debian 13's backport,
unpacked into the user's cache; a Python process is started with its C library where the system's is older, so the
system keeps its own driver. `python -m labkit.vulkan.mesa26 ARGUMENTS` starts Python that way.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import DeviceError, LabError
from labkit.vulkan.debian import DRIVER_PACKAGES, KEYRING, Say, mirrors, private_apt, run_command
from labkit.vulkan.toolchain import cache_root

FOLDER = "mesa-26"
SUITES = ("trixie", "trixie-backports")
TIMEOUT_S = 120
# what belongs to the C and C++ library: used only where the system's own is older
_SYSTEM_PACKAGES = ("libc6", "libgcc-s1", "libstdc++6")
_PROBE = "from labkit.vulkan.device import Device; d = Device(); print(d.coopmat_size, d.info.driver_info, sep='\\n')"


@dataclass(frozen=True)
class Mesa:
    """The unpacked packages: `drivers/` (Mesa and what it needs), `system/` (the C and C++ library), `versions.json`."""

    root: Path

    @property
    def version(self) -> str:
        """Mesa's version as Debian's package gives it."""
        return str(json.loads((self.root / "versions.json").read_text())["mesa-vulkan-drivers"])

    def _folder(self, part: str, pattern: str) -> Path:
        found = sorted((self.root / part / "usr" / "lib").glob(f"*/{pattern}"))
        if not found:
            raise DeviceError(f"{self.root} lacks {pattern}: remove that folder, it is fetched again when needed")
        return found[0]

    def start(self, arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """The command and the environment that start this Python with `arguments` on Mesa 26's software driver."""
        libraries = self._folder("drivers", "libvulkan_lvp.so").parent
        loader = self._folder("system", "ld-linux-*.so.*")
        c_library = json.loads((self.root / "versions.json").read_text())["libc6"]
        environment = {**os.environ, "VK_DRIVER_FILES": str(self.root / "lvp.json"), "LABKIT_DEVICE": "cpu"}
        for name in ("VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES"):
            environment.pop(name, None)
        if _numbers(_system_c_library()) >= _numbers(c_library):
            paths = [str(libraries), environment.get("LD_LIBRARY_PATH", "")]
            environment["LD_LIBRARY_PATH"] = ":".join(filter(None, paths))
            return [sys.executable, *arguments], environment
        python = os.path.realpath(sys.executable)
        paths = [str(loader.parent), str(libraries)]
        if any((Path(sys.base_prefix) / "lib").glob("libpython*.so*")):
            paths.append(str(Path(sys.base_prefix) / "lib"))
        # the name it is called by, argv[0], leads Python to its virtual environment
        command = [str(loader), "--library-path", ":".join(paths), "--argv0", sys.executable, python]
        return [*command, *arguments], environment

    def trouble(self) -> str | None:
        """Why a process started this way has no cooperative matrices, in one clause; None when it has them."""
        command, environment = self.start(["-c", _PROBE])
        source = str(Path(__file__).resolve().parents[2])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [source, environment.get("PYTHONPATH")]))
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT_S,
                check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"Python does not start with Mesa {self.version} of {self.root} ({error})"
        said = done.stdout.splitlines()
        if done.returncode == 0 and len(said) == 2 and said[0].isdigit():
            return None if int(said[0]) else f"{said[1]} of {self.root} has no cooperative matrices"
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return f"Python does not start with Mesa {self.version} of {self.root} ({last})"


def _numbers(version: str) -> tuple[int, ...]:
    """Major and minor of a C library's version: "2.41-12+deb13u5" -> (2, 41)."""
    return tuple(int(part) for part in version.split("-")[0].split(".")[:2])


def _system_c_library() -> str:
    """The version of the C library this process runs on, "0.0" where it is not glibc."""
    try:
        said = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        said = ""
    return said.rpartition(" ")[2] or "0.0"


def find() -> Mesa | None:
    """Mesa 26 if it was fetched before."""
    root = cache_root() / FOLDER
    return Mesa(root) if (root / "versions.json").is_file() else None


def fetch(say: Say = print) -> Mesa:
    """Mesa 26 as found, else fetched with apt (63 MB, once) from Debian 13's backports into the user's cache.

    apt checks every package against the signed index. Needs apt, Debian's keyring and a Debian mirror among apt's
    sources, but no root, and installs nothing. Raises DeviceError in one line otherwise; nothing is left half-made.
    """
    if mesa := find():
        return mesa
    where = mirrors()
    if not shutil.which("apt-get") or not where or not KEYRING.is_file():
        raise DeviceError(
            "Mesa 26 is fetched with Debian's apt, which is not set up here; a Mesa of 26 or later installed by other "
            "means does as well"
        )
    target = cache_root() / FOLDER
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="mesa-", dir=target.parent) as name:
            say(f"fetching Mesa 26 of Debian 13's backports with apt into {target} (63 MB, once)")
            made = _unpack(_download(Path(name), where[0]), Path(name) / "made")
            if not target.exists():
                made.rename(target)
    except LabError as error:
        raise DeviceError(f"Mesa 26 could not be fetched: {error}") from None
    except OSError as error:
        raise DeviceError(f"Mesa 26 could not be kept in {target}: {error}") from None
    return Mesa(target)


def _download(folder: Path, mirror: str) -> list[Path]:
    """Mesa's packages and all they depend on, as apt finds them for a system that has none."""
    options = private_apt(folder, mirror, SUITES, system_packages=False)
    for setting in ("Debug::NoLocking=true", "APT::Update::Error-Mode=any", "Acquire::http::Timeout=15"):
        options += ["-o", setting]
    run_command(["apt-get", *options, "-q", "update"])
    release = ["--no-install-recommends", "-t", SUITES[-1]]
    run_command(["apt-get", *options, "-q", "install", "-y", "--download-only", *release, *DRIVER_PACKAGES])
    return sorted((folder / "cache" / "archives").glob("*.deb"))


def _unpack(packages: Sequence[Path], folder: Path) -> Path:
    """Unpack into `folder`, less the drivers of GPUs and what is no library, and write manifest and versions."""
    versions = {}
    for package in packages:
        fields = _run_for_output(["dpkg-deb", "--show", "--showformat=${Package} ${Version}", str(package)]).split()
        versions[fields[0]] = fields[1].rpartition(":")[2]
        part = folder / ("system" if fields[0] in _SYSTEM_PACKAGES else "drivers")
        part.mkdir(parents=True, exist_ok=True)
        run_command(["dpkg-deb", "-x", str(package), str(part)])
    lacking = {"mesa-vulkan-drivers", "libvulkan1", *_SYSTEM_PACKAGES} - set(versions)
    if lacking:
        raise DeviceError(f"apt did not bring {', '.join(sorted(lacking))}")
    for part in (folder / "drivers", folder / "system"):
        for entry in [*part.iterdir(), *(part / "usr").iterdir()]:
            if entry.name not in ("usr", "lib", "lib64"):
                shutil.rmtree(entry)
    found = sorted(folder.glob("drivers/usr/lib/*/libvulkan_*.so"))
    driver = [path for path in found if path.name == "libvulkan_lvp.so"]
    if not driver:
        raise DeviceError(f"Debian's Mesa {versions['mesa-vulkan-drivers']} has no software driver libvulkan_lvp.so")
    for other in set(found) - set(driver):
        other.unlink()
    # a path beside the manifest, so that the folder may be moved
    icd = {"library_path": f"./{driver[0].relative_to(folder)}", "api_version": "1.4.0"}
    (folder / "lvp.json").write_text(json.dumps({"file_format_version": "1.0.1", "ICD": icd}))
    (folder / "versions.json").write_text(json.dumps(versions, indent=1))
    return folder


def _run_for_output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise DeviceError(f"`{' '.join(command)}` failed: {error}") from None


def main() -> None:
    """Become Python with the arguments given, on Mesa 26's software driver."""
    try:
        mesa = fetch(lambda line: print(line, file=sys.stderr))
        command, environment = mesa.start(sys.argv[1:])
    except LabError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    os.execve(command[0], command, environment)


if __name__ == "__main__":
    main()
