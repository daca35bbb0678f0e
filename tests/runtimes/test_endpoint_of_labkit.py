"""`lab serve` asked through the endpoint of others: its counts and texts are those of the engine behind it."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="lab serve needs starlette, which is not installed")
pytest.importorskip("uvicorn", reason="lab serve needs uvicorn, which is not installed")

from labkit.engine.engine import Engine
from labkit.models.model import Model
from labkit.runtimes.load import Load
from labkit.runtimes.openai_endpoint import OpenAiEndpoint
from labkit.runtimes.runtime import Ask
from labkit.serve.app import App
from labkit.serve.limits import Limits
from labkit.serve.server import Server, address_of, bind
from labkit.vulkan.device import Device

MODEL = Path(__file__).resolve().parents[1] / "data" / "tiny" / "llama-q4_1.gguf"


@pytest.fixture(scope="module")
def engine(device: Device) -> Iterator[Engine]:
    with Model(MODEL) as model, Engine(model, device, slots=3, context=128, arithmetic="exact") as opened:
        yield opened


@pytest.fixture(scope="module")
def url(engine: Engine) -> Iterator[str]:
    bound = bind("127.0.0.1", 0)
    server = Server(App(engine, Limits(queue=16), "a-key"))
    thread = threading.Thread(target=server.serve_on, args=(bound,), daemon=True)
    thread.start()
    end = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < end, "the server did not start"
        time.sleep(0.01)
    yield address_of(bound)
    server.should_exit = True
    thread.join(20)


def test_its_counts_and_texts_are_the_engines(engine: Engine, url: str) -> None:
    prompts = [tuple(range(20 + 7 * i, 28 + 9 * i)) for i in range(5)]
    wanted = engine.generate([list(prompt) for prompt in prompts], max_tokens=7, ignore_eos=True)
    with OpenAiEndpoint(url, key="a-key") as endpoint:
        can = {name for name, able in vars(endpoint.can).items() if able}
        assert can == {"token_prompts", "fixed_length", "token_count", "counters"}
        assert endpoint.settings()["slots"] == 3
        assert endpoint.settings()["context"] == 128
        assert endpoint.describe()["server"] == "labkit"
        before = endpoint.counters()
        answers = endpoint.stream([Ask(prompt, 7) for prompt in prompts], Load("concurrent", streams=3))
        after = endpoint.counters()
    for prompt, answer, whole in zip(prompts, answers, wanted, strict=True):
        assert answer.error is None
        assert answer.text == whole.text
        assert answer.prompt_tokens == len(prompt)
        assert answer.completion_tokens == len(answer.times) == len(whole.token_ids) == 7
        assert list(answer.times) == sorted(answer.times)
        assert answer.notes == ()
    moved = {name: after[name] - before[name] for name in before}
    assert moved == {"requests": 5.0, "prompt_tokens": sum(map(len, prompts)), "completion_tokens": 35.0}


def test_an_answer_that_ends_by_itself_has_the_engines_end(engine: Engine, url: str) -> None:
    whole = engine.generate(["def main"], max_tokens=60)[0]
    with OpenAiEndpoint(url, key="a-key") as endpoint:
        answer = endpoint.stream([Ask("def main", 60, fixed=False)], Load("concurrent"))[0]
    assert (answer.text, answer.completion_tokens) == (whole.text, len(whole.token_ids))
    assert answer.finish == whole.finish


def test_a_context_that_is_too_short_is_told_in_its_words(url: str) -> None:
    with OpenAiEndpoint(url, key="a-key") as endpoint:
        answer = endpoint.stream([Ask(tuple(range(3, 120)), 20)], Load("concurrent"))[0]
    assert answer.failed == "status"
    assert "answered 400 Bad Request: This server's maximum context length is 128 tokens" in str(answer.error)
