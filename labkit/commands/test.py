"""`lab test`: run the project's tests with pytest, those of GPUs where there is one, those of matrix units everywhere."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from labkit.errors import DeviceError, LabError

APART = (
    "LABKIT_COOPMAT_APART"  # names the file in which tests/conftest.py notes the tests it left to the second process
)
WHY_NOT = "LABKIT_COOPMAT_WHY_NOT"  # why there are no cooperative matrices here, for the cause of a skip
PASSED, FAILED, NOTHING_RAN = 0, 1, 5  # pytest's exit codes
MOST_SHARDS, SHARD_OF = 4, 8  # processes for the tests set apart, each of so many tests at least


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


def _wait(processes: "Sequence[subprocess.Popen[bytes]]", ended: Callable[[int], None] = lambda number: None) -> int:
    """Wait for all to end, handing on what would end this process; the worst exit code, as a shell gives it.

    `ended` is told the number of each, in their order, once it and those before it have ended.
    """

    def hand_on(number: int, frame: object) -> None:
        for process in processes:
            process.send_signal(number)

    # an interrupt from the keyboard reaches all: pytest ends by it in good order, and this process waits for that
    handlers: dict[int, Any] = {
        signal.SIGINT: lambda number, frame: None,
        signal.SIGTERM: hand_on,
        signal.SIGHUP: hand_on,
    }
    before = [(sent, signal.signal(sent, handler)) for sent, handler in handlers.items()]
    codes = []
    try:
        for number, process in enumerate(processes):
            code = process.wait()
            codes.append(code if code >= 0 else 128 - code)
            ended(number)
    finally:
        for sent, handler in before:
            signal.signal(sent, handler)
    return max(codes, key=lambda code: (code not in (PASSED, NOTHING_RAN), code != FAILED, code))


def _second(noted: dict[str, Any], folder: Path) -> int:
    """Run the tests set apart on Mesa 26's driver; without it they skip, and say why."""
    from labkit.vulkan import mesa26

    tests, words, shards = noted["tests"], ["-m", "pytest", *noted["options"]], 1
    try:
        mesa = mesa26.fetch(lambda line: click.echo(f"lab: {line}", err=True))
        if why := mesa.trouble():
            raise DeviceError(why)
        command, environment = mesa.start(words)
        where = f"on the software driver of Mesa {mesa.version}"
        # it takes seconds to compile a kernel, on one core: the tests go in turns to as many processes as there are cores
        cores = os.cpu_count() or 1
        shards = max(1, min(cores, MOST_SHARDS, len(tests) // SHARD_OF))
        environment["LP_NUM_THREADS"] = str(max(1, cores // shards))
    except LabError as error:
        command, environment = [sys.executable, *words, "-rs"], {**os.environ, WHY_NOT: str(error)}
        where = "without a driver that has them"
    at_once = f", {shards} processes" if shards > 1 else ""
    click.echo(f"\nlab: {len(tests)} test{'s' * (len(tests) > 1)} of cooperative matrices, {where}{at_once}")
    sys.stdout.flush()
    with contextlib.ExitStack() as open_files:
        outputs = [open_files.enter_context((folder / f"output{i}").open("w+")) for i in range(shards)]
        processes = []
        for i, output in enumerate(outputs):
            (folder / f"tests{i}").write_text("\n".join(tests[i::shards]))
            files = [f"@{folder / f'tests{i}'}", *_junit(noted["junit"], f"-{i + 1}" if shards > 1 else "")]
            shown: Any = (
                output if i else None
            )  # the first writes to where this process does, the others wait their turn
            processes.append(
                subprocess.Popen([*command, *files], env=environment, stdout=shown, stderr=shown and subprocess.STDOUT)
            )

        def ended(number: int) -> None:
            outputs[number].seek(0)
            click.echo(outputs[number].read(), nl=False)
            sys.stdout.flush()

        return _wait(processes, ended)


def _junit(path: str | None, number: str) -> list[str]:
    """pytest's option for a report beside the one asked for."""
    if not path:
        return []
    asked = Path(path)
    return [f"--junitxml={asked.with_name(f'{asked.stem}-coopmat{number}{asked.suffix}')}"]


def _in_two(words: list[str]) -> int:
    """Run the tests here, and then those of cooperative matrices apart; the exit code of both together."""
    with tempfile.TemporaryDirectory(prefix="labkit-test-") as name:
        note = Path(name) / "apart.json"
        command, environment = [sys.executable, "-m", "pytest", *words], {**os.environ, APART: str(note)}
        first = _wait([subprocess.Popen(command, env=environment)])
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
            f"pytest is not installed for {sys.executable}: use `./lab test`, or `pip install -e '.[lab,serve,fleet,dev]'`"
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
