"""The process that renders one chat template: JSON lines in, JSON lines out, inside memory and time limits.

A template comes with a model file from anywhere. Jinja's sandbox keeps it from reaching Python objects; this process,
which the kernel ends when a rendering takes too long or too much memory, keeps it from stalling or filling the host.
Run as a script by `labkit.models.chat`; it imports jinja2 and the standard library only.
"""

import contextlib
import json
import signal
import sys
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY_BYTES = 1 << 29
MAX_CHARACTERS = 1 << 24  # of one rendered prompt


class Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks what the assistant wrote, for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Refusal(TemplateError):
    """The template called `raise_exception`."""


def environment() -> ImmutableSandboxedEnvironment:
    """The environment Hugging Face templates expect (transformers' `chat_template_utils`)."""

    def raise_exception(message: object) -> None:
        raise Refusal(str(message))

    def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made


def limit_resources() -> None:
    """Bound the memory of this process, where the system can."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def answer(request: dict[str, Any]) -> dict[str, str]:
    """{"text": …}, or {"template": why it is broken}, or {"refused": what it said about the messages}."""
    try:
        text = environment().from_string(request["template"]).render(**request["values"])
    except Refusal as error:
        return {"refused": str(error)[:200]}
    except MemoryError:
        return {"template": f"it asks for more than {MEMORY_BYTES >> 20} MiB"}
    except Exception as error:  # whatever a template can make Jinja or Python raise
        return {"template": f"{type(error).__name__}: {error}"[:200]}
    if len(text) > MAX_CHARACTERS:
        return {"template": f"it renders {len(text)} characters, more than {MAX_CHARACTERS}"}
    return {"text": text}


def main() -> None:
    """Answer requests until the pipe closes; the argument is how many seconds of the processor one may take, which are the
    same on a busy machine."""
    seconds = float(sys.argv[1])
    limit_resources()
    for line in sys.stdin:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends the process, even inside C code
        reply = json.dumps(answer(json.loads(line)))
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, 0)
        print(reply, flush=True)


if __name__ == "__main__":
    main()
