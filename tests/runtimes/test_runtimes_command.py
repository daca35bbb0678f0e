"""`lab runtimes`: what can run here and why not, what an address can do, and addresses that never answer."""

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from labkit.cli import main
from labkit.engine.engine import Engine
from labkit.models.model import Model
from labkit.serve.app import App
from labkit.serve.limits import Limits
from labkit.serve.server import Server, address_of, bind
from labkit.vulkan.device import Device

TINY = Path(__file__).parents[1] / "data" / "tiny" / "llama-q8_0.gguf"
Verb = Callable[..., tuple[int, str, str]]


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Verb:
    """Runs `lab runtimes ARGUMENTS` in this process: (exit code, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["lab", "runtimes", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capfd.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


@pytest.fixture
def served(device: Device) -> Iterator[str]:
    """The address of a server over the tiny model."""
    with Model(TINY) as model, Engine(model, device, slots=2, context=64) as engine, bind("127.0.0.1", 0) as bound:
        up = threading.Event()
        server = Server(App(engine, Limits.for_engine(2, 64, 8)), up.set)
        thread = threading.Thread(target=server.serve_on, args=(bound,))
        thread.start()
        assert up.wait(20)
        yield address_of(bound)
        server.should_exit = True
        thread.join(20)


def test_every_kind_is_listed_with_why_it_cannot_run_here(verb: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("LABKIT_LLAMA_SERVER", raising=False)
    code, out, _ = verb()
    assert code == 0
    lines = out.splitlines()
    assert any(line.startswith("labkit ") and " here " in line for line in lines)
    place = next(i for i, line in enumerate(lines) if line.startswith("llama-server "))
    assert "not here" in lines[place]
    assert "no llama-server on the PATH" in lines[place + 1]
    code, out, _ = verb("--json")
    rows = {row["name"]: row for row in json.loads(out)["runtimes"]}
    assert set(rows) == {"labkit", "labkit-serve", "llama-server", "xllamacpp", "cyllama-vulkan"}
    assert rows["labkit"] == {"name": "labkit", "about": rows["labkit"]["about"], "here": True, "why_not": None}


def test_named_ones_alone_are_shown_and_unknown_ones_refused(verb: Verb) -> None:
    _, out, _ = verb("labkit", "labkit", "--json")
    assert [row["name"] for row in json.loads(out)["runtimes"]] == ["labkit"]
    _, out, _ = verb("llama-server:/none/such")
    assert "/none/such is not a program that can be run" in out
    code, _, err = verb("vllm")
    assert code == 2
    assert err.startswith("lab: the runtime 'vllm' is not known: use cyllama-vulkan, labkit,")


def test_an_address_tells_what_it_can_do_and_its_settings(verb: Verb, served: str) -> None:
    code, out, _ = verb(served)
    assert code == 0
    assert f"{served}: llama-q8_0 (labkit" in out
    assert "  can      token prompts, fixed length, token count" in out
    assert "slots 2" in out
    code, out, _ = verb(f"{served}/v1#llama-q8_0", "--json")
    (found,) = json.loads(out)["addresses"]
    assert code == 0
    assert found["can"]["fixed_length"] is True
    assert found["settings"]["context"] == 64
    assert found["settings"]["kv"] == "f16"


def test_addresses_that_do_not_answer_end_with_2_and_in_time(verb: Verb) -> None:
    with socket.socket() as silent:  # takes connections and never says a word
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        deaf = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        began = time.monotonic()
        code, out, _ = verb("http://127.0.0.1:1", deaf, "http://u:hush@127.0.0.1:1/?key=hush", "--timeout", "0.5")
        assert time.monotonic() - began < 5
    assert code == 2
    assert "http://127.0.0.1:1: http://127.0.0.1:1/v1 did not answer: connection refused" in out
    assert f"{deaf}: it gave no whole answer within 0.5 s" in out or f"{deaf}: {deaf}" in out
    assert "an address holds no name, password or ?query" in out
    assert "hush" not in out


def test_one_that_answers_is_shown_beside_one_that_does_not(verb: Verb, served: str) -> None:
    code, out, _ = verb(served, "http://127.0.0.1:1", "--json")
    assert code == 2
    assert [found["here"] for found in json.loads(out)["addresses"]] == [True, False]
