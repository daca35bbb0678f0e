"""labkit's own engine as a runtime: closed loops and moments, what is refused before anything is sent, a lost device."""

import _thread
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.engine.engine import Engine
from labkit.errors import DeviceError, ParameterError
from labkit.models.model import Model
from labkit.models.shapes import ShapeModel
from labkit.runtimes.labkit_engine import LabkitEngine
from labkit.runtimes.load import Load, at_once
from labkit.runtimes.runtime import Ask
from labkit.vulkan.device import Device

TINY = Path(__file__).parents[1] / "data" / "tiny" / "llama-q8_0.gguf"


@pytest.fixture(scope="module")
def engine(device: Device) -> Iterator[Engine]:
    with Model(TINY) as model, Engine(model, device, slots=4, context=64, arithmetic="exact") as opened:
        yield opened


@pytest.fixture
def runtime(engine: Engine) -> LabkitEngine:
    return LabkitEngine(engine)


def most_open(answers: list) -> int:
    """The most requests that were between submit and end at one moment."""
    edges = sorted([(a.submit_s, 1) for a in answers] + [(a.end_s, -1) for a in answers])
    at, most = 0, 0
    for _, step in edges:
        at += step
        most = max(most, at)
    return most


def test_answers_are_those_of_the_engine_in_the_order_of_the_requests(runtime: LabkitEngine, engine: Engine) -> None:
    prompts = [(5, 6, 7), (9,), (3, 1, 4, 1, 5), (2, 7), (8, 8)]
    seen: list[tuple[int, int]] = []
    answers = runtime.stream([Ask(p, 6) for p in prompts], at_once(3), lambda *done: seen.append(done))
    alone = engine.generate([list(p) for p in prompts], max_tokens=6, ignore_eos=True)
    assert [a.token_ids for a in answers] == alone.token_ids
    assert [a.text for a in answers] == alone.texts
    assert [a.prompt_tokens for a in answers] == [3, 1, 5, 2, 2]
    assert seen == [(done, 5) for done in range(1, 6)]
    for answer in answers:
        assert answer.good
        assert len(answer.times) == answer.completion_tokens == 6
        assert answer.submit_s < answer.times[0] < answer.times[-1] == answer.end_s
        assert (answer.cached_tokens, answer.due_s, answer.finish) == (0, None, "length")


def test_a_closed_loop_has_no_more_open_than_its_streams(runtime: LabkitEngine) -> None:
    for streams in (1, 2):
        answers = runtime.stream([Ask((5, 6), 4)] * 6, Load("concurrent", streams=streams))
        assert most_open(answers) == streams


def test_open_loops_send_when_due_whatever_is_still_open(runtime: LabkitEngine) -> None:
    load = Load("poisson", rate=200.0, seed=1)
    began = time.perf_counter()
    answers = runtime.stream([Ask((5, 6), 20)] * 8, load)
    dues = list(load.moments(8))
    for answer, due in zip(answers, dues, strict=True):
        assert answer.due_s is not None
        assert answer.due_s - began >= due
        assert answer.submit_s >= answer.due_s
    gaps = [answer.due_s - answers[0].due_s for answer in answers]  # type: ignore[operator]
    assert gaps == pytest.approx([due - dues[0] for due in dues])


def test_without_a_fixed_length_the_end_token_ends_it(runtime: LabkitEngine, engine: Engine) -> None:
    asks = [Ask((n, n + 1), 40, fixed=False) for n in range(3, 30)]
    answers = runtime.stream(asks, at_once(8))
    alone = engine.generate([list(ask.prompt) for ask in asks], max_tokens=40)
    assert [a.token_ids for a in answers] == alone.token_ids
    assert {a.finish for a in answers} <= {"stop", "length"}


def test_a_chat_goes_through_the_models_template(runtime: LabkitEngine, engine: Engine) -> None:
    (answer,) = runtime.stream([Ask("hi", 4, chat=True)], at_once(1))
    assert answer.text == engine.chat("hi", max_tokens=4, ignore_eos=True).text
    assert answer.prompt_tokens == len(engine.encode(engine.model.chat([{"role": "user", "content": "hi"}])))  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (Ask(tuple(range(1, 65)), 1), r"has 64 tokens and 1 are to follow; a slot of labkit holds 64 positions"),
        (Ask(tuple(range(1, 41)), 26), r"has 40 tokens and 26 are to follow"),
        (Ask(tuple(range(1, 65)), 1, fixed=False), r"has 64 tokens; a slot"),
        (Ask((1 << 20,), 1), "outside the vocabulary"),
        (Ask((4,), 1, temperature=300.0), "temperature=300.0 is out of range"),
        (Ask("a picture", 1, images=(b"x",)), "takes no images"),
    ],
)
def test_what_the_engine_refuses_is_an_error_before_anything_is_sent(
    runtime: LabkitEngine, ask: Ask, said: str
) -> None:
    before = len(runtime.engine.steps)
    with pytest.raises(ParameterError, match=said):
        runtime.stream([Ask((5, 6), 4), ask], at_once(2))
    assert len(runtime.engine.steps) == before
    assert not runtime.engine.scheduler.busy


def test_the_longest_that_fits_comes_whole(runtime: LabkitEngine) -> None:
    (answer,) = runtime.stream([Ask(tuple(range(1, 41)), 25)], at_once(1))
    assert answer.good
    assert len(answer.token_ids) == 25


def test_settings_and_counters_are_those_of_the_engine(runtime: LabkitEngine, engine: Engine) -> None:
    before = runtime.counters()
    runtime.stream([Ask((5, 6, 7), 4)] * 2, at_once(2))
    after = runtime.counters()
    assert {name: after[name] - before[name] for name in ("requests", "prompt_tokens", "completion_tokens")} == {
        "requests": 2, "prompt_tokens": 6, "completion_tokens": 8,
    }  # fmt: skip
    assert after["steps"] - before["steps"] >= 4
    assert runtime.settings() == {
        "slots": 4, "context": 64, "ub": engine.ub, "kv": "f16", "arithmetic": "exact", "model": "llama-q8_0",
        "quant": "q8_0", "draft": 0,
    }  # fmt: skip
    assert runtime.describe()["settings"] == runtime.settings()
    assert runtime.origin == engine.origin


def test_texts_and_ids_go_through_the_models_tokenizer(runtime: LabkitEngine, engine: Engine) -> None:
    ids = runtime.tokenize("the cat")
    assert ids == engine.tokenizer.encode("the cat")
    assert runtime.detokenize(ids) == "the cat"


def test_an_interrupt_cancels_what_is_open_and_leaves_the_engine_usable(runtime: LabkitEngine, engine: Engine) -> None:
    threading.Timer(0.3, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        runtime.stream([Ask((5, 6), 60)] * 4000, Load("concurrent", streams=4))
    assert not engine.scheduler.busy
    assert runtime.stream([Ask((5, 6), 2)], at_once(1))[0].good


def test_a_lost_device_fails_the_open_requests_and_those_to_come(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Model(TINY) as model, Engine(model, device, slots=2, context=64) as engine:
        runs = iter(range(100))
        real = engine.executor.run

        def run(*args: object) -> object:
            if next(runs) == 5:
                raise DeviceError("the device was lost; open it again\nand more")
            return real(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(engine.executor, "run", run)
        answers = LabkitEngine(engine).stream([Ask((5, 6), 30)] * 4, Load("concurrent", streams=2))
    assert [answer.failed for answer in answers] == ["engine"] * 4
    assert answers[0].error == "the device was lost; open it again"
    assert answers[0].times
    assert "the engine stopped after an error" in str(answers[3].error)
    assert "\n" not in str(answers[3].error)


def test_closing_closes_what_it_owns_and_nothing_else(device: Device) -> None:
    with Model(TINY) as model:
        engine = Engine(model, device, slots=1, context=32)
        LabkitEngine(engine).close()
        engine.alive()
        with LabkitEngine(engine, own=(engine,)) as runtime:
            runtime.close()
        assert "closed" in repr(engine)


def test_a_shape_has_no_texts_to_ask_with(device: Device) -> None:
    refused = pytest.raises(ParameterError, match="is a shape without a tokenizer's texts")
    with Engine(ShapeModel("tiny", "f16"), device, slots=1, context=32) as engine, refused:
        LabkitEngine(engine)
