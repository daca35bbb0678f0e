"""A runtime by its name or address, opened with the same model and settings as the others."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urldefrag

from labkit.errors import ParameterError
from labkit.runtimes.registry import LOG_SUFFIX, Loading, Wanted, kinds, not_told
from labkit.runtimes.runtime import Runtime
from labkit.vulkan.device import Device

MOST_SLOTS, MOST_CONTEXT = 4096, 1 << 22
SILENCE_S = 300.0  # a server that sends nothing for so long is taken for hung


def open_runtime(
    spec: str,
    model: str | os.PathLike[str] | None = None,
    *,
    device: Device | int | str | None = None,
    slots: int = 4,
    context: int = 1024,
    ub: int | None = None,
    kv: str = "f16",
    draft: str | int | None = None,
    log_folder: Path,
    flags: Sequence[str] = (),
    label: str | None = None,
    progress: Loading = not_told,
) -> Runtime:
    """The runtime that `spec` names, running and ready to be asked; it is a context manager, and leaving it stops it.

    `spec`: one of `kinds()`, such as `labkit`, `llama-server` or `llama-server:/path/to/binary`, `xllamacpp:/path/to/python`
    of another environment, `labkit-serve:/path/to/lab` of another checkout; or the address of an
    OpenAI-compatible server, `http://127.0.0.1:8000/v1`, with `#name` for one of several models. For an address the model
    and the settings are its own, whatever is given here. `model`: a catalogue name or the path of a GGUF file, the same for
    all that are started here. `slots` streams of `context` positions each. `label` tells two of a kind apart. What a server
    writes goes to a file of `log_folder`, named after it. `progress(seconds)` is called while it loads.

    ParameterError for a name that is not known, and for settings that the runtime does not have; RunError, with the last
    line it wrote, when it does not come up."""
    spec = spec.strip()
    if is_address(spec):
        return open_address(spec, label=label, flags=flags)
    name, _, argument = spec.partition(":")
    known = kinds()
    if name not in known:
        raise ParameterError(
            f"the runtime {spec[:80]!r} is not known: use {', '.join(known)}, or an address http://..."
        )
    if model is None:
        raise ParameterError(f"{name} is started with a model: give a catalogue name or the path of a GGUF file")
    for what, value, most in (
        ("slots", slots, MOST_SLOTS),
        ("context", context, MOST_CONTEXT),
        ("ub", ub, MOST_CONTEXT),
    ):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most):
            raise ParameterError(f"{what}={value!r} is not a whole number from 1 to {most}")
    from labkit.models.catalogue import locate

    path = locate(model)
    if path.is_dir():
        raise ParameterError(f"{path} is a folder; runtimes are asked over one file: give the path of a GGUF file")
    if not path.is_file():
        raise ParameterError(f"{path} is not there; give a catalogue name or the path of a GGUF file")
    wanted = Wanted(
        kind=name, argument=argument, model=path.absolute(), log=new_log(log_folder, label or name), slots=slots,
        context=context, device=device, ub=ub, kv=kv, draft=draft, flags=tuple(flags), label=label, loading=progress,
    )  # fmt: skip
    return known[name].open(wanted)


def is_address(spec: str) -> bool:
    """Whether a spec is the address of a server."""
    return spec.lower().startswith(("http://", "https://"))


def open_address(
    spec: str, *, label: str | None = None, flags: Sequence[str] = (), silence_s: float = SILENCE_S
) -> Runtime:
    """The server at an address; nothing is started. See `open_runtime`."""
    from labkit.runtimes.openai_endpoint import OpenAiEndpoint

    if flags:
        raise ParameterError(f"{spec} runs already and takes no flags: {' '.join(flags)[:80]}")
    url, fragment = urldefrag(spec)
    return OpenAiEndpoint(url, model=fragment or None, label=label, silence_s=silence_s)


def new_log(folder: Path, label: str) -> Path:
    """A file of `folder` that is not there yet, named after a runtime: `llama-server.log`, then `llama-server-2.log`."""
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.") or "runtime"
    number = 1
    while True:
        path = folder / f"{name}{'' if number == 1 else f'-{number}'}{LOG_SUFFIX}"
        if not path.exists():
            return path
        number += 1
