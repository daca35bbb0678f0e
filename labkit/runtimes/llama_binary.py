"""The llama-server of llama.cpp on this machine: found, what its build knows, and the command line made of that."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import ParameterError
from labkit.runtimes.server_process import HOST

NAME = "llama-server"
VARIABLE = "LABKIT_LLAMA_SERVER"
CHUNK = 2048  # rows of a prompt chunk, -ub and -b
# a person's flags do not say these again
FIXED = (
    "-m",
    "--model",
    "--host",
    "--port",
    "--api-key",
    "--api-key-file",
    "--api-prefix",
    "--ssl-key-file",
    "--ssl-cert-file",
)


@dataclass(frozen=True)
class Binary:
    """A llama-server on this machine: its path, what `--version` says, and the text of its `--help`."""

    path: Path
    version: str
    help: str

    def knows(self, flag: str) -> bool:
        """Whether this build has `flag`."""
        words = self.help.replace(",", " ").split()
        return flag in words

    def command(
        self,
        model: Path,
        *,
        port: int,
        slots: int,
        context: int,
        ub: int = CHUNK,
        kv: str = "f16",
        flags: Sequence[str] = (),
    ) -> list[str]:
        """The command line of a server: all layers on the device, flash attention, `context` positions for each of `slots` streams.

        `flags` are a person's, behind ours, of which theirs win. ParameterError for one that says where it listens or what it
        loads, and for a flag that this build does not know."""
        for flag in flags:
            name = flag.partition("=")[0]
            if name in FIXED:
                raise ParameterError(f"{name} is given to {NAME} already; leave it out of the flags")
            if name.startswith("--") and not self.knows(name):
                raise ParameterError(f"{name} is not a flag of this {NAME} ({self.version}); see {self.path} --help")
        given = [
            str(self.path), "-m", str(model), "--host", HOST, "--port", str(port), "-ngl", "99", "-np", str(slots),
            "-c", str(slots * context), "-ub", str(ub), "-b", str(max(ub, CHUNK)),
            "-ctk", kv, "-ctv", kv,
        ]  # fmt: skip
        given += ["-fa", "on"] if "[on|off|auto]" in self.help.partition("--flash-attn")[2][:40] else ["-fa"]
        # each stream its own cache, nothing kept from an earlier request, no settings guessed: what is measured is asked for
        optional = (
            ["--metrics"],
            ["--slots"],
            ["--no-webui"],
            ["--no-kv-unified"],
            ["--cache-ram", "0"],
            ["--ctx-checkpoints", "0"],
            ["--fit", "off"],
        )
        for chosen in optional:
            if self.knows(chosen[0]):
                given += chosen
        if "4: trace" in self.help:  # it then writes what its context came to, and some lines a request
            given += ["--verbosity", "4"]
        return [*given, *flags]


def find_binary(given: str | os.PathLike[str] | None = None) -> Binary:
    """The binary named by `given`, the environment's LABKIT_LLAMA_SERVER, or the PATH. ParameterError without one."""
    named = os.fspath(given) if given else os.environ.get(VARIABLE, "")
    found = named or shutil.which(NAME)
    if not found:
        raise ParameterError(
            f"no {NAME} on the PATH: give --llama-server PATH or set {VARIABLE}; releases of llama.cpp hold one"
        )
    path = Path(found).expanduser().resolve()
    if not path.is_file() or not os.access(path, os.X_OK):
        raise ParameterError(f"{path} is not a program that can be run; give the path of {NAME} itself")
    version = _said(path, "--version")
    line = next((line for line in version.splitlines() if "version" in line), version.strip()[:80])
    return Binary(path, line.strip(), _said(path, "--help"))


def environment(path: Path, device_index: int | None = None) -> dict[str, str]:
    """The environment it runs in: its own folder first among the libraries, one device to be seen."""
    made = dict(os.environ)
    folders = [str(path.parent), made.get("LD_LIBRARY_PATH", "")]
    made["LD_LIBRARY_PATH"] = ":".join(folder for folder in folders if folder)
    if device_index is not None:
        made["GGML_VK_VISIBLE_DEVICES"] = str(device_index)
    return made


def _said(path: Path, flag: str) -> str:
    try:
        done = subprocess.run(
            [path, flag], capture_output=True, text=True, errors="replace", timeout=60, env=environment(path)
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ParameterError(f"{path} {flag} does not run: {error}") from None
    if done.returncode != 0 and not done.stdout:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ParameterError(f"{path} {flag} ends with code {done.returncode}: {last[:200]}")
    return done.stdout + done.stderr
