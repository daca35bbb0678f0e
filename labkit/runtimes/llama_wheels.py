"""llama.cpp as PyPI gives it: the packages xllamacpp (on the CPU) and cyllama-vulkan, each a server in a process of its own.

They may be installed beside labkit, or in another environment whose interpreter LABKIT_PEERS_PYTHON names; `xllamacpp:PYTHON`
names one for this runtime alone, so that two versions can stand side by side.
"""

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import ParameterError
from labkit.runtimes.llama_binary import Binary
from labkit.runtimes.llama_log import HEAD_BYTES
from labkit.runtimes.llama_server import LlamaServer
from labkit.runtimes.load import Load
from labkit.runtimes.registry import Wanted, opener, unless
from labkit.runtimes.runtime import Answer, Ask, Progress, Runtime, no_progress
from labkit.runtimes.server_process import HOST

VARIABLE = "LABKIT_PEERS_PYTHON"
XLLAMACPP, CYLLAMA = "xllamacpp", "cyllama-vulkan"
SERVERS = {XLLAMACPP: "xllamacpp_server.py", CYLLAMA: "cyllama_server.py"}  # run by path: labkit need not be there
REQUIREMENTS = {XLLAMACPP: "xllamacpp>=2026.10", CYLLAMA: "cyllama-vulkan>=0.2.18"}
DEFAULT_UB = 512  # llama.cpp's own


@dataclass(frozen=True)
class Wheel(Binary):
    """A package as a program: `path` is the interpreter that has it."""

    package: str = ""

    def command(
        self,
        model: Path,
        *,
        port: int,
        slots: int,
        context: int,
        ub: int = DEFAULT_UB,
        kv: str = "f16",
        flags: Sequence[str] = (),
    ) -> list[str]:
        """See `Binary`. xllamacpp computes on `--threads N` of the processor, by default all that this process may use."""
        script = Path(__file__).with_name(SERVERS[self.package])
        given = [
            str(self.path), "-P", str(script), "--model", str(model), "--host", HOST, "--port", str(port),
            "--slots", str(slots), "--context", str(context), "--ub", str(ub), "--kv", kv,
        ]  # fmt: skip
        if self.package == XLLAMACPP and "--threads" not in flags:
            given += ["--threads", str(len(os.sched_getaffinity(0)))]
        return [*given, *flags]


def find_wheel(package: str, given: str = "") -> Wheel:
    """The interpreter `given`, else the one that LABKIT_PEERS_PYTHON names, else this one, if it has the package.
    ParameterError, with the command that installs it, if it has not."""
    named = given.strip() or os.environ.get(VARIABLE, "").strip()
    source = f"{package}:" if given.strip() else f"{VARIABLE}="
    python = Path(os.path.abspath(Path(named or sys.executable).expanduser()))  # not resolved: a link is an environment
    version = installed(package) if not named else asked_version(python, package, source)
    if version is None:
        another = "" if named else f", or set {VARIABLE} to the interpreter of another environment that has it"
        raise ParameterError(
            f"{package} is not installed for {python}: {python} -m pip install '{REQUIREMENTS[package]}'{another}"
        )
    return Wheel(python, f"{package} {version}", "", package)


def installed(package: str) -> str | None:
    """The version of a package of this interpreter, None where it has none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def asked_version(python: Path, package: str, source: str = "") -> str | None:
    """The version of a package of another interpreter, None where it has none. ParameterError, after where it was named
    (`source`), when it does not run."""
    program = (
        "import sys\nfrom importlib import metadata\ntry: print('version', metadata.version(sys.argv[1]))\n"
        "except metadata.PackageNotFoundError: print('none')"
    )
    try:
        done = subprocess.run(
            [python, "-P", "-c", program, package], capture_output=True, text=True, errors="replace", timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ParameterError(f"{source}{python} does not run: {error}") from None
    words = done.stdout.split()
    if done.returncode != 0 or not words:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ParameterError(f"{source}{python} is no Python from 3.11 on: {last[:200]}")
    return words[1] if words[0] == "version" else None


class XLlamaCpp(LlamaServer):
    """llama-server as it is in the package xllamacpp, on the CPU."""

    name = XLLAMACPP

    def describe(self) -> dict[str, Any]:
        """See `Runtime`; the version is what the running process said of itself."""
        told = super().describe()
        said = version_said(self.log)
        return told | ({"version": f"{XLLAMACPP} {said}"} if said else {})


def version_said(log: Path) -> str | None:
    """The package's version as the server wrote it when it came up; None where it wrote none."""
    try:
        with log.open("rb") as file:
            found = re.search(rb"^xllamacpp (\S+) listens on ", file.read(HEAD_BYTES), re.MULTILINE)
    except OSError:
        return None
    return found[1].decode(errors="replace") if found else None


class CyllamaVulkan(LlamaServer):
    """llama.cpp's Vulkan kernels of the package cyllama-vulkan behind a small server of labkit's own, since the package has
    none that streams. Its scheduler is not llama-server's: see `labkit/runtimes/cyllama_server.py`. No chat."""

    name = CYLLAMA

    def stream(self, asks: Sequence[Ask], load: Load, progress: Progress = no_progress) -> list[Answer]:
        """See `Runtime`."""
        if any(ask.chat for ask in asks):
            raise ParameterError(
                f"{self.label} has no chat template; give the text of the whole prompt, with chat=False"
            )
        return super().stream(asks, load, progress)


def start(
    kind: type[LlamaServer], wanted: Wanted, *, device_index: int | None, known: Sequence[str] = ()
) -> LlamaServer:
    """A server of one of the packages."""
    wanted.refuse_draft()
    flags = [word for name, value in wanted.options(known).items() for word in (f"--{name}", value)]
    return kind(
        find_wheel(wanted.kind, wanted.argument), wanted.model, slots=wanted.slots, context=wanted.context, log=wanted.log,
        ub=wanted.ub or DEFAULT_UB, kv=wanted.kv, device_index=device_index, waiting=wanted.loading, flags=flags,
        label=wanted.label or wanted.kind,
    )  # fmt: skip


@opener(XLLAMACPP, missing=lambda python: unless(lambda: find_wheel(XLLAMACPP, python)))
def open_xllamacpp(wanted: Wanted) -> Runtime:
    """llama-server on the CPU, of the PyPI package xllamacpp."""
    return start(XLlamaCpp, wanted, device_index=None, known=["threads"])


@opener(CYLLAMA, missing=lambda python: unless(lambda: find_wheel(CYLLAMA, python)))
def open_cyllama(wanted: Wanted) -> Runtime:
    """llama.cpp on Vulkan, of the PyPI package cyllama-vulkan, behind a small server of labkit's own."""
    return start(CyllamaVulkan, wanted, device_index=wanted.device_index)
