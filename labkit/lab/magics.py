"""What `%load_ext labkit` adds to a notebook: `%lab VERB` and `%%glsl NAME`, and the lab's look for its plots."""

import argparse
import importlib.util
import keyword
import shlex
import sys
from typing import Any, NoReturn

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class

from labkit.errors import LabError, ParameterError, ShaderError

TIMED = ("run", "sweep", "rerun", "bench", "tune")  # verbs that wait until the device is free
ASKING = {"-h", "--help", "--help-parameters", "--list"}  # with these they measure nothing
ENDED = {
    1: "a cell failed, or it was stopped",
    2: "it was given what it cannot use",
    3: "the audit withheld the finding",
    4: "the kernel died",
    5: "it took too long",
}
SHADER_USAGE = "%%glsl NAME [--set CONSTANT=VALUE ...] [--device VARIABLE] [--subgroup N]"
SHOWN_ERRORS = 3


class CellError(LabError):
    """What ends a cell in a few lines of plain text: the cell fails, and nobody has to read a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def load(shell: Any) -> None:
    """Adds the magics to IPython's `shell`, and makes the lab's plotly template the default where plotly is installed."""
    shell.register_magics(LabMagics)
    if importlib.util.find_spec("plotly") is not None:
        from labkit.lab.template import register

        register()


@magics_class
class LabMagics(Magics):
    """The magics of labkit."""

    @line_magic
    def lab(self, line: str) -> Any:
        """%lab VERB ... runs the command `lab VERB ...` on this notebook's lab and shows its output; `%lab` alone lists the
        verbs. An interrupt stops the command. The cell fails when the command does. `%lab ledger` and `%lab runs` alone
        show what they list as a table."""
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise CellError(f"%lab {line}: {error}") from None
        if words in (["ledger"], ["runs"]):
            return self.listed(words[0])
        self.command(words or ["--help"])
        return None

    def listed(self, what: str) -> Any:
        """The lab's ledger or its runs, as objects that show themselves."""
        from labkit.lab.lab import Lab

        try:
            lab = Lab()
            return lab.ledger() if what == "ledger" else lab.runs()
        except LabError as error:
            raise CellError(str(error)) from None

    def command(self, words: list[str]) -> None:
        """Runs a verb to its end. CellError when it fails, is interrupted, or could never begin."""
        from labkit.lab.lock import held_here
        from labkit.lab.verb_process import run_verb

        verb = " ".join(["lab", words[0]])
        if words[0] == "notebook":
            raise CellError("%lab notebook: this is a notebook already; start another JupyterLab from a terminal")
        if words[0] in TIMED and ASKING.isdisjoint(words) and (holder := held_here()):
            raise CellError(
                f"{verb} would wait for ever: this notebook holds the device for {holder}; end that run first "
                f"(run.conclude(...) or run.close())"
            )

        def write(text: str) -> None:
            sys.stdout.write(text)
            sys.stdout.flush()

        try:
            code = run_verb(words, write)
        except KeyboardInterrupt:
            raise CellError(f"{verb} was interrupted") from None
        except (OSError, ValueError) as error:
            raise CellError(f"{verb} cannot be started: {error}") from None
        if code:
            why = f"a signal ended it ({-code})" if code < 0 else ENDED.get(code, "an error of its own")
            raise CellError(f"{verb} ended with {code}: {why}")

    @cell_magic
    def glsl(self, line: str, cell: str) -> Any:
        """%%glsl NAME [--set CONSTANT=VALUE ...] [--device VARIABLE] [--subgroup N] compiles the cell, a compute shader, into
        a Kernel called NAME. Errors stand at their lines of the cell. The kernel is made for the notebook's one open Device
        (or that of its engines), else for the best one; `--device` names another by its variable."""
        from labkit.vulkan.compile import compile_glsl
        from labkit.vulkan.kernel import Kernel

        try:
            asked = read_shader_line(line)
            device = self.device(asked.device)
            # the magic's own line is the first of the cell
            source = compile_glsl("\n" + cell, name=asked.name)
            kernel = Kernel(device, source, name=asked.name, constants=asked.constants, subgroup=asked.subgroup)
        except ShaderError as error:
            raise CellError(at_their_lines(str(error), asked.name, ["", *cell.split("\n")])) from None
        except LabError as error:
            raise CellError(str(error)) from None
        self.names[asked.name] = kernel
        return kernel

    @property
    def names(self) -> dict[str, Any]:
        """The notebook's variables."""
        assert self.shell is not None
        found: dict[str, Any] = self.shell.user_ns
        return found

    def device(self, variable: str) -> Any:
        """The device that a cell's kernel is for. ParameterError where it cannot be told."""
        from labkit.engine.engine import Engine, default_device
        from labkit.vulkan.device import Device

        if variable:
            found = self.names.get(variable)
            found = found.device if isinstance(found, Engine) else found
            if not isinstance(found, Device):
                raise ParameterError(f"--device {variable}: there is no Device or Engine of that name in this notebook")
            return found
        hidden = getattr(self.shell, "user_ns_hidden", {})
        known: dict[int, tuple[str, Device]] = {}
        for name, thing in self.names.items():
            device = thing.device if isinstance(thing, Engine) else thing
            if isinstance(device, Device) and not device.closed and not name.startswith("_") and name not in hidden:
                known.setdefault(id(device), (name, device))
        if len(known) > 1:
            choices = ", ".join(name for name, _ in known.values())
            raise ParameterError(
                f"there are several devices ({choices}): name one, as --device {choices.split(', ')[0]}"
            )
        return next(iter(known.values()))[1] if known else default_device()


class ShaderLine(argparse.ArgumentParser):
    """Reads the line of `%%glsl`; a fault is a ParameterError."""

    def error(self, message: str) -> NoReturn:
        raise ParameterError(f"{message}; write {SHADER_USAGE}")


def read_shader_line(line: str) -> argparse.Namespace:
    """The name, the constants by name, the device's variable ("" for none) and the subgroup size of a `%%glsl` line."""
    parser = ShaderLine(prog="%%glsl", add_help=False, allow_abbrev=False)
    parser.add_argument("name")
    parser.add_argument("--set", dest="assigned", action="append", default=[])
    parser.add_argument("--device", default="")
    parser.add_argument("--subgroup", type=int, default=0)
    try:
        asked = parser.parse_args(shlex.split(line))
    except ValueError as error:
        raise ParameterError(f"{error}; write {SHADER_USAGE}") from None
    if not asked.name.isidentifier() or keyword.iskeyword(asked.name):
        raise ParameterError(f"{asked.name!r} cannot be a kernel's name: it becomes a variable; write {SHADER_USAGE}")
    asked.constants = {}
    for text in asked.assigned:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ParameterError(f"--set {text}: write CONSTANT=VALUE, such as --set LOCAL=64")
        if name in asked.constants:
            raise ParameterError(f"--set {text}: {name} is set twice")
        asked.constants[name] = constant(name, value)
    return asked


def constant(name: str, text: str) -> int | float | bool:
    """A specialisation constant as written: true, false, a whole number (0x10 too) or a number."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (lambda: int(text, 0), lambda: float(text)):
        try:
            value: int | float = kind()
        except (ValueError, OverflowError):
            continue
        return value
    raise ParameterError(f"--set {name}={text}: {text!r} is not a number, true or false")


def at_their_lines(message: str, name: str, lines: list[str]) -> str:
    """The compiler's errors, each with its line of the cell; `lines` begins with the magic's own."""
    from labkit.vulkan.compile import faults

    shown = []
    for number, text in faults(message, name)[:SHOWN_ERRORS]:
        shown.append(f"{name}, line {number} of the cell: {text}")
        if 0 < number <= len(lines) and (code := lines[number - 1].strip()):
            shown.append(f"    {code}")
    return "\n".join(shown) or message
