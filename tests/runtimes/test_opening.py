"""Runtimes by name and address: what is known, what is refused, where logs go, one file a runtime."""

import os
import sys
from pathlib import Path

import pytest

from labkit.errors import ParameterError
from labkit.runtimes import registry
from labkit.runtimes.labkit_engine import LabkitEngine
from labkit.runtimes.load import at_once
from labkit.runtimes.opening import new_log, open_runtime
from labkit.runtimes.registry import Wanted, kinds, opener
from labkit.runtimes.runtime import Ask, Runtime

TINY = Path(__file__).parents[1] / "data" / "tiny" / "llama-q8_0.gguf"


def test_each_runtime_is_declared_by_a_file_of_its_own_and_says_what_it_is() -> None:
    assert list(kinds()) == ["cyllama-vulkan", "labkit", "labkit-serve", "llama-server", "xllamacpp"]
    for kind in kinds().values():
        assert kind.about.endswith((".", ":")) or len(kind.about) > 20
        assert kind.module.startswith("labkit.runtimes.")


def test_a_new_one_is_one_decorated_function(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry, "_found", dict(registry._found))
    seen: list[Wanted] = []

    @opener("echo", missing=lambda argument: "never")
    def open_echo(wanted: Wanted) -> Runtime:
        """Says nothing."""
        seen.append(wanted)
        return None  # type: ignore[return-value]

    open_runtime("echo:aloud", TINY, slots=3, context=99, ub=7, kv="q8_0", draft=4, flags=["--x"], log_folder=tmp_path)
    (wanted,) = seen
    assert (wanted.kind, wanted.argument, wanted.model) == ("echo", "aloud", TINY)
    assert (wanted.slots, wanted.context, wanted.ub, wanted.kv, wanted.draft) == (3, 99, 7, "q8_0", 4)
    assert wanted.log == tmp_path / "echo.log"
    with pytest.raises(ParameterError, match=r"'labkit' is declared twice, in labkit.runtimes.labkit_engine and in"):
        opener("labkit", missing=lambda argument: None)(open_echo)


def test_the_engine_of_this_process_is_opened_and_closed_with_its_model(device: object, tmp_path: Path) -> None:
    with open_runtime(
        "labkit", TINY, slots=2, context=32, flags=["--arithmetic=exact"], log_folder=tmp_path
    ) as runtime:
        assert isinstance(runtime, LabkitEngine)
        assert runtime.settings()["arithmetic"] == "exact"
        assert runtime.stream([Ask((5, 6), 3)], at_once(1))[0].good
    assert "closed" in repr(runtime.engine)


@pytest.mark.parametrize(
    ("spec", "options", "said"),
    [
        ("vllm", {}, "the runtime 'vllm' is not known: use cyllama-vulkan, labkit, .*, or an address http"),
        ("labkit", {"model": None}, "labkit is started with a model"),
        ("labkit", {"model": "/none/such.gguf"}, "/none/such.gguf is not there"),
        ("labkit", {"slots": 0}, "slots=0 is not a whole number from 1"),
        ("labkit", {"context": 7.5}, "context=7.5 is not a whole number"),
        ("labkit", {"ub": True}, "ub=True is not a whole number"),
        ("labkit", {"kv": "q8_0"}, "kv='q8_0' is not one of f16, f32"),
        ("labkit", {"draft": 4}, "draft=4: labkit drafts nothing; leave it out"),
        ("labkit:x", {}, "nothing goes behind labkit"),
        ("labkit", {"flags": ["--fast"]}, r"labkit does not take the flag --fast: --arithmetic VALUE"),
        ("labkit", {"flags": ["--arithmetic", "loose"]}, "arithmetic='loose' is not one of exact, fast"),
        ("llama-server:/none/such", {}, "/none/such is not a program that can be run"),
        ("http://u:p@127.0.0.1", {}, "an address holds no name, password"),
        ("http://127.0.0.1:1/v1", {"flags": ["-x"]}, "runs already and takes no flags: -x"),
    ],
)
def test_what_cannot_be_opened_is_one_clear_line(spec: str, options: dict, said: str, tmp_path: Path) -> None:
    given = {"model": TINY, "slots": 2, "context": 32, "log_folder": tmp_path} | options
    with pytest.raises(ParameterError, match=said) as refused:
        open_runtime(spec, given.pop("model"), **given)
    assert "\n" not in str(refused.value)


def test_llama_server_is_opened_by_its_path_and_told_its_settings(
    imitation: Path, device: object, tmp_path: Path
) -> None:
    spec = f"llama-server:{imitation}"
    with open_runtime(spec, TINY, slots=3, context=64, ub=16, kv="f32", label="peer a", log_folder=tmp_path) as runtime:
        said = runtime.describe()["arguments"]
        assert (said[said.index("-np") + 1], said[said.index("-c") + 1], said[said.index("-ub") + 1]) == (
            "3",
            "192",
            "16",
        )
        assert (runtime.label, runtime.can.own_process) == ("peer a", True)
        with (tmp_path / "peer-a.log").open("a") as log:
            log.write("loaded /home/someone/models/m.gguf with key sk-abcdefghijklmnopqrstuv\n")
    kept = (tmp_path / "peer-a.log").read_text()
    assert "loaded" in kept
    assert "sk-abc" not in kept  # what is kept with a run holds no secret


def test_a_log_takes_no_other_ones_place(tmp_path: Path) -> None:
    names = []
    for _ in range(3):
        path = new_log(tmp_path / "deep" / "logs", "http://x/../y")
        path.touch()
        names.append(path.name)
    assert names == ["http-x-..-y.log", "http-x-..-y-2.log", "http-x-..-y-3.log"]


def test_asking_what_there_is_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("LABKIT_LLAMA_SERVER", raising=False)
    monkeypatch.delenv("LABKIT_PEERS_PYTHON", raising=False)
    why = {name: kind.missing() for name, kind in kinds().items()}
    assert why["labkit"] is None
    assert why["labkit-serve"] is None
    assert "no llama-server on the PATH" in str(why["llama-server"])
    monkeypatch.setenv("LABKIT_PEERS_PYTHON", "/bin/false")
    assert "is no Python from 3.11 on" in str(kinds()["xllamacpp"].missing())
    monkeypatch.setenv("LABKIT_PEERS_PYTHON", "/none/python")
    assert "does not run" in str(kinds()["xllamacpp"].missing())
    assert os.path.exists(sys.executable)
