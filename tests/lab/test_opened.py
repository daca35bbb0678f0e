"""A runtime open for a stretch of a run says what it is, is timed, and is closed whatever happens."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.lab import opened as module
from labkit.lab.opened import identity_of, opened, runnable
from labkit.runtimes.registry import kinds

pytestmark = pytest.mark.quick


class Told:
    """A runtime that only says what it is."""

    name = "llama-server"

    def __init__(self, **told: Any) -> None:
        self.told, self.closed = told, False

    def describe(self) -> dict[str, Any]:
        return self.told

    def settings(self) -> dict[str, Any]:
        return {"ub": 64}

    def __enter__(self) -> "Told":
        return self

    def __exit__(self, *exc: object) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("told", "flags", "said"),
    [
        ({"kind": "llama-server", "version": "9000", "build": "b9000-ab12"}, (), "llama-server 9000 (b9000-ab12)"),
        ({"kind": "xllamacpp", "version": "xllamacpp 2026.10", "build": "b0-unknown"}, (), "xllamacpp 2026.10"),
        ({"kind": "labkit", "version": "0.1.0"}, ["--arithmetic", "exact"], "labkit 0.1.0 --arithmetic exact"),
        ({}, (), "llama-server"),
    ],
    ids=["build", "nothing in a build", "flags", "says nothing"],
)  # fmt: skip
def test_an_engine_is_its_kind_version_build_and_flags(told: dict[str, Any], flags: Any, said: str) -> None:
    assert identity_of(Told(**told), flags) == said  # type: ignore[arg-type]


def test_it_is_closed_whatever_happens_and_its_log_is_kept_only_where_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders: list[Path] = []
    runtime = Told(kind="labkit", version="1")

    def start(*args: Any, log_folder: Path, **more: Any) -> Told:
        folders.append(log_folder)
        return runtime

    monkeypatch.setattr(module, "start_runtime", start)
    run: Any = SimpleNamespace(folder=tmp_path, progress=lambda *told: None)
    with opened(run, "labkit", "tiny", name="a", flags=["--x"]) as one:
        assert (one.identity, one.settings) == ("labkit 1 --x", {"ub": 64})
        assert not runtime.closed
    assert one.load_s >= 0
    assert runtime.closed
    runtime.closed = False
    with opened(run, "labkit", "tiny", name="a", keep_log=True):
        pass
    runtime.closed = False
    with pytest.raises(ZeroDivisionError):
        fail_inside(run)
    assert folders[1] == tmp_path
    assert runtime.closed
    assert not folders[0].exists()


def fail_inside(run: Any) -> None:
    """Something goes wrong while a runtime is open."""
    with opened(run, "labkit", "tiny", name="a"):
        raise ZeroDivisionError


def test_labkits_own_come_first_of_those_that_can_run_here() -> None:
    found = runnable()
    own = [name for name in found if name.startswith("labkit")]
    assert found[: len(own)] == own
    assert set(found) <= set(kinds())
