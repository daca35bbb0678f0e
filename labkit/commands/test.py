"""`lab test`: run the project's tests with pytest, those of GPUs where there is one, those of matrix units everywhere."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from labkit.errors import DeviceError, LabError

APART = (
    "LABKIT_COOPMAT_APART"  # names the file in which tests/conftest.py notes the tests it left to the second process
)
WHY_NOT = "LABKIT_COOPMAT_WHY_NOT"  # why there are no cooperative matrices here, for the cause of a skip
PASSED, FAILED, NOTHING_RAN = 0, 1, 5  # pytest's exit codes


def without_gpu(arguments: tuple[str, ...]) -> list[str]:
    """pytest's arguments with `not gpu` joined to whatever marker expression they hold."""
    kept, expressions = [], ["not gpu"]
    words = iter(arguments)
    for word in words:
        if word == "-m":
            expressions.append(f"({next(words, '')})")
        elif word.startswith("-m") and not word.startswith("--"):
            expressions.append(f"({word[2:].removeprefix('=')})")
        else:
            kept.append(word)
    return ["-m", " and ".join(expressions), *kept]


def has_gpu(devices: Sequence[dict[str, Any]]) -> bool:
    """Whether some Vulkan device that labkit can use is not the CPU."""
    return any(device["usable"] and device["type"] != "cpu" for device in devices)


def has_coopmat(devices: Sequence[dict[str, Any]]) -> bool:
    """Whether the device that the tests take has cooperative matrices; True where they take none and say so."""
    from labkit.vulkan.device import DeviceInfo, select

    try:
        chosen = select([DeviceInfo(**device) for device in devices], os.environ.get("LABKIT_DEVICE") or None)
    except LabError:
        return True
    return {"coopmat", "fp16", "storage16"} <= set(chosen.features)


def _wait(command: list[str], environment: dict[str, str]) -> int:
    """Run a command to its end, handing on what would end this process; its exit code as a shell gives it."""
    process = subprocess.Popen(command, env=environment)
    # an interrupt from the keyboard reaches both: pytest ends by it in good order, and this process waits for that
    handlers: dict[int, Any] = {signal.SIGINT: lambda number, frame: None}
    for number in (signal.SIGTERM, signal.SIGHUP):
        handlers[number] = lambda number, frame: process.send_signal(number)
    before = [(sent, signal.signal(sent, handler)) for sent, handler in handlers.items()]
    try:
        code = process.wait()
    finally:
        for sent, handler in before:
            signal.signal(sent, handler)
    return code if code >= 0 else 128 - code


def _second(noted: dict[str, Any], folder: Path) -> int:
    """Run the tests set apart on Mesa 26's driver; without it they skip, and say why."""
    from labkit.vulkan import mesa26

    (folder / "tests").write_text("\n".join(noted["tests"]))
    words = ["-m", "pytest", *noted["options"], f"@{folder / 'tests'}"]
    if noted["junit"]:
        path = Path(noted["junit"])
        words.append(f"--junitxml={path.with_name(f'{path.stem}-coopmat{path.suffix}')}")
    try:
        mesa = mesa26.fetch(lambda line: click.echo(f"lab: {line}", err=True))
        if why := mesa.trouble():
            raise DeviceError(why)
        command, environment = mesa.start(words)
        where = f"on the software driver of Mesa {mesa.version}"
    except LabError as error:
        command, environment = [sys.executable, *words, "-rs"], {**os.environ, WHY_NOT: str(error)}
        where = "without a driver that has them"
    many = len(noted["tests"])
    click.echo(f"\nlab: {many} test{'s' * (many > 1)} of cooperative matrices, {where}")
    sys.stdout.flush()
    return _wait(command, environment)


def _in_two(words: list[str]) -> int:
    """Run the tests here, and then those of cooperative matrices apart; the exit code of both together."""
    with tempfile.TemporaryDirectory(prefix="labkit-test-") as name:
        note = Path(name) / "apart.json"
        first = _wait([sys.executable, "-m", "pytest", *words], {**os.environ, APART: str(note)})
        if first not in (PASSED, FAILED, NOTHING_RAN) or not note.is_file():
            return first
        noted = json.loads(note.read_text())
        if not noted["tests"] or (first == FAILED and noted["stop"]):
            return first
        second = _second(noted, Path(name))
    return second if first in (PASSED, NOTHING_RAN) and second != NOTHING_RAN else first


@click.command(
    name="test",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": ["--help"]},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Run pytest over the repository's tests; ARGUMENTS are passed on to it (`lab test -m quick`).

    Where the Vulkan driver has no cooperative matrices, the tests of kernels that use them run in a second process on
    Mesa 26's software driver, fetched once with apt on Debian (63 MB); elsewhere they skip and say why.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / "tests").is_dir():
        raise LabError(f"there are no tests beside {root / 'labkit'}: run `./lab test` in a checkout of the repository")
    if importlib.util.find_spec("pytest") is None:
        raise LabError(
            f"pytest is not installed for {sys.executable}: use `./lab test`, or `pip install -e '.[lab,dev]'`"
        )
    from labkit.diagnosis.listing import list_apart

    words, devices = list(arguments), list_apart().devices
    if not has_gpu(devices):
        words = without_gpu(arguments)
        # no GPU can be used here, so the CPU is meant even if the PCI bus shows one
        os.environ.setdefault("LABKIT_DEVICE", "cpu")
        click.echo("no GPU can be used here: the tests that need one are left out", err=True)
    os.chdir(root)
    sys.stdout.flush()
    if has_coopmat(devices):
        os.execv(sys.executable, [sys.executable, "-m", "pytest", *words])
    sys.exit(_in_two(words))
