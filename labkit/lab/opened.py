"""A runtime open for a stretch of a run: its load timed, what it says it is, and stopped whatever happens in between."""

import contextlib
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.lab.asking import start_runtime
from labkit.runtimes.registry import kinds
from labkit.runtimes.runtime import Runtime

if TYPE_CHECKING:
    from labkit.lab.run import Run


@dataclass(frozen=True)
class Opened:
    """A runtime that is ready, `load_s` after it was begun; `settings` are those that its process reports, and `identity`
    is what it says it is: kind, version, build, and the flags it was given."""

    runtime: Runtime
    load_s: float
    settings: Mapping[str, Any]
    identity: str


@contextlib.contextmanager
def opened(
    run: "Run", spec: str, model: str, *, name: str, knobs: Collection[str] = (), keep_log: bool = False, **settings: Any
) -> Iterator[Opened]:  # fmt: skip
    """The runtime of a spec, as `start_runtime` starts it, for as long as the `with` lasts.

    What a server writes is kept in the run's folder with `keep_log`; of the many starts of a night it is not. LabError
    where it does not come up, with its last words."""

    def loading(seconds: float) -> None:
        run.progress(0, 0, f"{name} loads, for {seconds:.0f} s")

    with contextlib.ExitStack() as stack:
        folder = run.folder if keep_log else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="labkit-")))
        began = time.perf_counter()
        runtime = stack.enter_context(
            start_runtime(run, spec, model, name=name, knobs=knobs, log_folder=folder, progress=loading, **settings)
        )
        load_s = time.perf_counter() - began
        yield Opened(runtime, load_s, runtime.settings(), identity_of(runtime, settings.get("flags") or ()))


def identity_of(runtime: Runtime, flags: Sequence[str] = ()) -> str:
    """What a runtime says it is."""
    told = runtime.describe()
    version, build = (str(told.get(name) or "").strip() for name in ("version", "build"))
    kind = str(told.get("kind") or runtime.name)
    parts = [version if version.startswith(kind) else f"{kind} {version}".strip()]
    parts += [f"({build})"] if build and build not in version and "unknown" not in build else []
    return " ".join([*parts, *flags])


def runnable() -> list[str]:
    """The kinds of runtimes that can run here, labkit's own first."""
    found = [name for name, kind in kinds().items() if kind.missing("") is None]
    return sorted(found, key=lambda name: (not name.startswith("labkit"), name))
