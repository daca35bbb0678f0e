"""The levers: each declared once with its values, how it acts, what it comes to at a workload, and its witness.

A lever that comes to the same whatever it is set to cannot act there: `ub` on prompts no longer than it, more slots than
streams. A plan or a sweep over such a lever, or over one that nobody declared, is refused before it runs, unless it is
declared a negative control. Nor may a lever that acts by restart be measured in turns: each says what must be made anew.
A person's own levers stand in `data/levers.toml` (one that acts by "restart" may say what it `needs`, an engine if not):

    [pause_s]
    about = "seconds between two measurements"
    acts = "schedule"
    values = "seconds"
    witness = "workload"
    read = "the times in measurements.csv"
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from labkit.errors import ParameterError

Act = Literal["program", "data", "schedule", "restart"]
Kind = Literal["fingerprint", "counter", "workload", "readback"]
Needs = Literal["", "engine", "weights", "device", "process", "driver"]
At = Mapping[str, Any]  # the rest of the workload: what each other lever is set to, by the lever's own name
Effect = Callable[[Any, At], tuple[Any, str]]  # value, workload → what it comes to there, and why not the value itself

OWN_FILE = Path("data") / "levers.toml"
ANEW: dict[Needs, str] = {  # what a restart is, by what must be made anew for another value to take
    "": "nothing",
    "engine": "a new Engine, whose cache and programs find their place in memory when it is made",
    "weights": "weights loaded anew: a new Engine while no other of that model is open, since those share the weights",
    "device": "a Device opened anew, which is where its switches are read, and a new Engine on it",
    "process": "a new process",
    "driver": "another driver or build: a new process at least, and a reboot where the kernel's part changes",
}
CONSTANT = re.compile(r"[A-Z][A-Z0-9_]*")


@dataclass(frozen=True)
class Witness:
    """What must move when the lever does: a program's fingerprint, a counter (`name` is the metric or the column of
    requests.jsonl), the workload (a column of requests.jsonl), or a readback (a field of run.json, by dots). `read` says
    how to find it in a record."""

    kind: Kind
    name: str
    read: str


@dataclass(frozen=True)
class Lever:
    """One thing that can be set. `acts` says what a change of it changes: the recorded program, the data, the schedule
    of requests, or something that needs a restart: then `needs` says what must be made anew (see `ANEW`), and `in_turns`
    why not even that at a workload, if so. `comes_to` gives what a value amounts to at a workload."""

    name: str
    names: tuple[str, ...]
    about: str
    values: str
    acts: Act
    witness: Witness
    comes_to: Effect
    needs: Needs = ""
    in_turns: Callable[[At], str] = lambda at: ""

    def needs_at(self, at: At) -> Needs:
        """What must be made anew at a workload for another value to take; empty where values can take turns."""
        return "" if self.needs and self.in_turns(at) else self.needs

    @property
    def cheap(self) -> bool:
        """Whether two values can be measured in turns, without a restart between them."""
        return self.acts != "restart"


LEVERS: dict[str, Lever] = {}


def lever(
    *names: str, values: str, acts: Act, witness: tuple[Kind, str, str], needs: Needs = "",
    in_turns: Callable[[At], str] = lambda at: "",
) -> Callable[[Effect], Effect]:  # fmt: skip
    """Declares the decorated function as what a lever comes to: (value, workload) → (what it is there, why).

    The first of `names` is the lever's own, the others are what parameters call it; the docstring says what it is.
    ParameterError for a lever that acts by restart and does not say what it needs, or the other way about."""
    if (acts == "restart") != bool(needs):
        raise ParameterError(
            f"the lever {names[0]!r} acts by {acts} and needs {ANEW[needs]} made anew: say which it is"
        )

    def declare(effect: Effect) -> Effect:
        about = " ".join((effect.__doc__ or "").split())
        made = Lever(names[0], names, about, values, acts, Witness(*witness), effect, needs, in_turns)
        for name in names:
            if name in LEVERS:
                raise ParameterError(f"the lever {name!r} is declared twice")
            LEVERS[name] = made
        return effect

    return declare


# What a lever needs to know of the workload


def at_most(at: At, *names: str) -> float | None:
    """The largest number these levers are set to; a list gives its largest; None when unknown."""
    found = [
        item
        for name in names
        for item in (at[name] if isinstance(at.get(name), list | tuple) else [at.get(name)])
        if isinstance(item, int | float) and not isinstance(item, bool)
    ]
    return max(found, default=None)


def workload(*settings: At, levers: Mapping[str, Lever] | None = None) -> dict[str, Any]:
    """What each lever is set to, by its own name; the later of `settings` win. Names nobody declared stay as they are."""
    known = LEVERS if levers is None else levers
    found: dict[str, Any] = {}
    for each in settings:
        found |= {known[name].name if name in known else name: value for name, value in each.items()}
    return found


def capped(value: Any, cap: float | None, why: str) -> tuple[Any, str]:
    """A number, or the cap where it lies above it, and then why."""
    if cap is None or not isinstance(value, int | float) or isinstance(value, bool) or value <= cap:
        return value, ""
    return cap, why.format(cap=f"{cap:g}")


# An Engine has one `ub`, yet engines that differ in it alone share the resident weights and keep nothing from one prompt
# to the next: they stand side by side, and what moves is the piece of the prompt that a step is given.
@lever(
    "ub", "ubs", "micro_batch", "ubatch", values="powers of two from 16 to 4096", acts="data",
    witness=("counter", "submits", "the metric `submits` in measurements.csv: steps a prompt took"),
)  # fmt: skip
def ub(value: Any, at: At) -> tuple[Any, str]:
    """Rows of a prompt that one step reads."""
    if at.get("phase") == "decode":
        return None, "decoding reads no prompt"
    return capped(value, at_most(at, "prompt"), "a prompt of {cap} tokens is read in one step of {cap} rows")


@lever(
    "width", "widths", "streams", "batch", "concurrency", values="whole numbers from 1 to 256", acts="data",
    witness=("workload", "slot", "requests.jsonl: requests of one block that decode at the same time"),
)  # fmt: skip
def width(value: Any, at: At) -> tuple[Any, str]:
    """Streams that decode at once."""
    if at.get("phase") == "prefill":
        return None, "a prompt is read alone"
    return capped(value, at_most(at, "slots"), "with {cap} slots, {cap} streams run and the rest wait")


@lever(
    "slots", values="whole numbers from 1 to 256", acts="restart", needs="engine",
    witness=("counter", "slot", "requests.jsonl: different slots in use at once"),
)  # fmt: skip
def slots(value: Any, at: At) -> tuple[Any, str]:
    """Streams an engine has room for."""
    return capped(value, at_most(at, "width"), "{cap} streams are offered, and the other slots stay empty")


@lever(
    "context", values="positions of a slot, from 8", acts="restart", needs="engine",
    witness=("readback", "parameters.context", "run.json: the parameter as the engine took it"),
)  # fmt: skip
def context(value: Any, at: At) -> tuple[Any, str]:
    """Positions a slot holds."""
    used, emitted = at_most(at, "depth", "prompt"), at_most(at, "tokens")
    if at.get("phase") != "decode" or used is None or emitted is None:
        return value, ""
    return capped(value, used + emitted, "a step reads the {cap} positions in use, however many are reserved")


@lever(
    "kv", "cache_type", "kv_type", values="f16, f32", acts="restart", needs="engine",
    witness=("fingerprint", "program_fingerprints", "run.json: fingerprints of the programs that attend"),
)  # fmt: skip
def kv(value: Any, at: At) -> tuple[Any, str]:
    """Type of the KV cache."""
    seen, emitted = at_most(at, "depth", "prompt"), at_most(at, "tokens")
    if seen is not None and emitted is not None and seen <= 1 and emitted <= 1:
        return None, "one token attends to itself alone, and no cache is read"
    if "matrices" in at or at.get("operation") in ("linear", "rms_norm", "embedding", "argmax", "softmax"):
        return None, "a matrix product reads no cache"
    return value, ""


def as_set(value: Any, at: At) -> tuple[Any, str]:
    """The value itself: it acts at every workload."""
    return value, ""


def by_itself(at: At) -> str:
    """Why the type of the weights can take turns where one product is measured by itself."""
    alone = any(name in at for name in ("matrices", "kernel", "rows"))
    return "a product by itself has its own matrix for each type, and no engine" if alone else ""


def declare(
    *names: str, about: str, values: str, acts: Act, witness: tuple[Kind, str, str], effect: Effect = as_set,
    needs: Needs = "", in_turns: Callable[[At], str] = lambda at: "",
) -> None:  # fmt: skip
    """Declares a lever that acts wherever it is set, or as `effect` says."""

    def of(value: Any, at: At) -> tuple[Any, str]:
        return effect(value, at)

    of.__doc__ = about
    lever(*names, values=values, acts=acts, witness=witness, needs=needs, in_turns=in_turns)(of)


FINGERPRINT: tuple[Kind, str, str] = (
    "fingerprint", "program_fingerprints", "run.json: fingerprints of the recorded programs",
)  # fmt: skip
CELLS: tuple[Kind, str, str] = ("workload", "cell", "measurements.csv: the cells that were measured")

declare(
    "arithmetic", about="Order and precision of sums", values="exact, fast", acts="restart", needs="engine",
    witness=FINGERPRINT,
)  # fmt: skip
declare(
    "quant", "quants", "quantisation", about="Type of the weights", values="f16, bf16, q8_0, q4_0, q4_k, ...",
    acts="restart", needs="weights", in_turns=by_itself,
    witness=("readback", "model", "run.json: model.bytes_by_type, or the cells that were measured"),
)  # fmt: skip
declare(
    "model", "models", "shape", about="The model, or the shape of random weights", values="a name or a file",
    acts="restart", needs="weights", in_turns=by_itself, witness=("readback", "model", "run.json: model.name and model.sha256"),
)  # fmt: skip
declare(
    "device", "devices", about="The device that runs it", values="an index, a name, cpu or gpu", acts="restart", needs="device",
    witness=("readback", "device.uuid", "run.json: device.uuid"),
)  # fmt: skip
declare(
    "driver", "build", about="The device's driver, or labkit's build", values="what is installed", acts="restart", needs="driver",
    witness=("readback", "device.driver_info", "run.json: device.driver_info, git, packages"),
)  # fmt: skip
declare(
    "prompt", "prompts", "prompt_tokens", "pp", about="Prompts, by length or by text", values="tokens or texts",
    acts="data", witness=("workload", "prompt_tokens", "requests.jsonl: prompt_tokens and prompt_sha256"),
)  # fmt: skip
declare(
    "pieces",
    about="Prompts, by length in micro-batches",
    values="whole numbers from 1",
    acts="data",
    witness=("workload", "prompt_tokens", "requests.jsonl: prompt_tokens"),
)
declare(
    "depth", "depths", about="Positions before the measured ones", values="tokens from 0", acts="data",
    witness=("workload", "prompt_tokens", "requests.jsonl: prompt_tokens of the streams that decode"),
)  # fmt: skip
declare(
    "tokens", "generate", "tg", "max_tokens", about="Tokens a stream emits", values="whole numbers from 1", acts="data",
    witness=("workload", "completion_tokens", "requests.jsonl: completion_tokens"),
)  # fmt: skip
declare(
    "runtime", "runtimes", "against", about="The program that runs the model", values="a name of `lab runtimes`, or an address",
    acts="restart", needs="engine", witness=CELLS,
)  # fmt: skip
declare(
    "version", about="The program before and after its upgrade", values="before, after", acts="restart", needs="engine",
    witness=FINGERPRINT,
)  # fmt: skip
declare("phase", about="Reading prompts or decoding", values="prefill, decode", acts="data", witness=CELLS)
declare(
    "policy", about="Where each request is sent", values="routed, or one runtime for all", acts="data", witness=CELLS
)
declare(
    "disable", about="Faster paths turned off (LABKIT_DISABLE)", values="coopmat, intdot, fp16, ... with commas",
    acts="restart", needs="device", witness=FINGERPRINT,
)  # fmt: skip
declare("rows", about="Activation rows of a product", values="whole numbers from 1 to 256", acts="data", witness=CELLS)
declare(
    "kernel", "kernels", "cut", "cuts", about="The kernel or cut that computes a product", values="those of the layout",
    acts="program", witness=("readback", "cell", "measurements.csv: the cells, named by the kernel that was recorded"),
)  # fmt: skip
declare(
    "matrices",
    "matrix",
    "operation",
    about="Which product or operation",
    values="of a layer",
    acts="data",
    witness=CELLS,
)
declare(
    "seed", about="Seed of prompts, sampling and order", values="whole numbers", acts="data",
    witness=("workload", "prompt_sha256", "requests.jsonl: prompt_sha256"),
)  # fmt: skip
declare(
    "constant", about="A specialisation constant of a kernel, by its own name in capitals", values="what it takes",
    acts="program", witness=FINGERPRINT,
)  # fmt: skip
declare(
    "draft", "drafts", "k", "speculation", about="Tokens drafted before each verification", values="whole numbers from 0",
    acts="schedule", witness=("counter", "acceptance", "the metric `acceptance` in measurements.csv"),
)  # fmt: skip
declare(
    "temperature", "top_k", "top_p", "min_p", "sampling", about="How tokens are drawn", values="numbers", acts="data",
    witness=("workload", "completion_sha256", "requests.jsonl: the texts that came of it"),
)  # fmt: skip

# The questions a lever must answer


def known_levers(root: Path | None = None) -> dict[str, Lever]:
    """Every lever by each of its names, those of the lab's own `data/levers.toml` included. ParameterError for a fault
    in that file, with its place."""
    path = root / OWN_FILE if root is not None else None
    if path is None or not path.is_file():
        return LEVERS
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ParameterError(f"{path} cannot be read: {error}") from None
    return LEVERS | {name: own_lever(path, name, fields) for name, fields in document.items()}


def own_lever(path: Path, name: str, fields: Any) -> Lever:
    """A lever as a person's file declares it. ParameterError for what is missing or not one of the choices."""
    needed = ("about", "values", "acts", "witness", "read")
    if not isinstance(fields, dict) or any(not isinstance(fields.get(each), str) for each in needed):
        raise ParameterError(f"{path}: [{name}] needs {', '.join(needed)}, each a text")
    if more := sorted(set(fields) - {*needed, "field", "needs"}):
        raise ParameterError(f"{path}: [{name}] has {more[0]!r}, which is not a part of a lever")
    for each, choices in (("acts", get_args(Act)), ("witness", get_args(Kind))):
        if fields[each] not in choices:
            raise ParameterError(f"{path}: [{name}] {each} is {fields[each]!r}, not one of {', '.join(choices)}")
    needs: Needs = fields.get("needs", "engine" if fields["acts"] == "restart" else "")
    if fields["acts"] != "restart" and needs:
        raise ParameterError(
            f"{path}: [{name}] acts by {fields['acts']}, and only a lever that acts by restart needs {needs!r}"
        )
    if fields["acts"] == "restart" and needs not in (restarts := [each for each in ANEW if each]):
        raise ParameterError(f"{path}: [{name}] needs is {needs!r}, not one of {', '.join(restarts)}")
    if name in LEVERS:
        raise ParameterError(f"{path}: [{name}] is declared by labkit already; give yours another name")
    witness = Witness(fields["witness"], str(fields.get("field", name)), fields["read"])
    return Lever(name, (name,), fields["about"], fields["values"], fields["acts"], witness, as_set, needs)


def find_lever(name: str, levers: Mapping[str, Lever] = LEVERS) -> Lever | None:
    """The lever called `name`, None where nobody declared one; a name in capitals is a specialisation constant."""
    return levers.get(name) or (levers["constant"] if CONSTANT.fullmatch(name) else None)
