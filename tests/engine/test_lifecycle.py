"""Engines open, close, share, leak nothing, survive interrupts, and fail in one line; what a step costs the host."""

import gc
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import replace

import numpy as np
import pytest
from tiny_models import TINY, words

from labkit.engine import weights as resident
from labkit.engine.engine import Engine
from labkit.engine.executor import Executor
from labkit.errors import DeviceError, EngineError, LabError, ModelError, OutOfDeviceMemory, ParameterError
from labkit.models.model import Model
from labkit.models.shapes import ShapeModel
from labkit.vulkan.device import Device

SMALL = {"slots": 2, "context": 128}


def blocks(device: Device) -> int:
    """Blocks of memory the device holds."""
    return sum(len(pool.blocks) for pool in device._pools)


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "labkit-engine"}


# settings


@pytest.mark.quick
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"slots": 0}, "slots=0 is not a whole number from 1 to 256"),
        ({"slots": 257}, "slots=257"),
        ({"slots": float("nan")}, "slots=nan"),
        ({"slots": -2}, "slots=-2"),
        ({"slots": 1.5}, "slots=1.5"),
        ({"context": 7}, "context=7 is not a whole number from 8"),
        ({"context": 2049}, "context=2049 is more than the 2048 positions llama-q4_1 was made for"),
        ({"kv": "q8"}, "kv='q8' is not one of f16, f32"),
        ({"arithmetic": "wild"}, "arithmetic='wild' is not one of exact, fast"),
    ],
)
def test_a_wrong_setting_is_refused_and_leaves_nothing_allocated(tiny, device, options, said):
    before = blocks(device)
    with pytest.raises(ParameterError) as caught:
        Engine(tiny("llama-q4_1").model, device, **SMALL | options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert blocks(device) == before


def test_a_model_that_is_not_there_is_refused(device):
    with pytest.raises(ModelError):
        Engine("/nowhere/at-all.gguf", device)


def test_an_unknown_device_is_refused_with_those_there_are(tiny):
    with pytest.raises(ParameterError, match=r"no Vulkan device matches 'quantum'; there are 0: "):
        Engine(tiny("llama-q4_1").model, "quantum")


def test_more_than_the_memory_is_refused_with_the_arithmetic_before_anything_is_allocated(tiny, device, monkeypatch):
    truth = tiny("llama-q4_1")
    monkeypatch.setattr(device, "memory_free", lambda: 60_000_000)
    before = blocks(device)
    with pytest.raises(OutOfDeviceMemory) as caught:
        Engine(truth.model, device, slots=256, context=2048)
    said = str(caught.value)
    cache = 256 * 2048 * 2 * 3 * 2 * 32 * 2  # slots, positions, K and V, layers, KV heads, head size, float16
    assert f"{cache:,} KV cache at 768 a token" in said
    assert "60,000,000 free" in said
    assert "\n" not in said
    assert blocks(device) == before
    fits = int(said.rsplit("slots=", 1)[1].split()[0])
    assert 1 <= fits < 256
    with Engine(truth.model, device, slots=fits, context=2048) as engine:  # the remedy is one
        assert sum(engine.memory.values()) > 0
    monkeypatch.setattr(device, "memory_free", lambda: 1000)
    with pytest.raises(OutOfDeviceMemory, match=r"the model itself does not fit"):
        Engine(tiny("odd-q4_1").model, device, **SMALL)


def test_a_cache_over_the_largest_allocation_is_refused(tiny, device, monkeypatch):
    monkeypatch.setattr(device, "info", replace(device.info, max_allocation_bytes=1 << 20))
    with pytest.raises(OutOfDeviceMemory, match=r"the K cache of one layer would take .* use slots=4 or a shorter"):
        Engine(tiny("llama-q4_1").model, device, slots=64, context=2048)


def test_memory_refused_half_way_leaves_nothing_behind(tiny, device, monkeypatch):
    truth = tiny("llama-q4_1")
    before = blocks(device)

    def refuse(self, label, rows, width):
        if label == "logits":
            raise OutOfDeviceMemory("logits needs 1 byte and the device refused it")
        return whole(self, label, rows, width)

    whole = Executor._place
    monkeypatch.setattr(Executor, "_place", refuse)
    with pytest.raises(OutOfDeviceMemory, match=r"^logits needs"):
        Engine(truth.model, device, **SMALL)
    assert blocks(device) == before
    monkeypatch.undo()
    with Engine(truth.model, device, **SMALL) as engine:
        assert engine.generate([truth.prompt], max_tokens=1).tokens == 1


def test_the_plan_of_memory_is_what_is_held(tiny, device):
    from labkit.engine.cache import plan_memory
    from labkit.engine.executor import working_bytes

    model = tiny("llama-q8_0").model
    with Engine(model, device, slots=32, context=512) as engine:
        plan = plan_memory(
            model, device, slots=32, context=512, kv="f16", loaded=False,
            working=working_bytes(model.config, device, 32, 512, engine.ub),
        )  # fmt: skip
        held = engine.memory
        asked = sum(buffer.nbytes for buffer in engine.executor.pool.buffers)
        assert plan.kv_cache == held["kv cache"] == 32 * 512 * engine.kv_bytes_per_token
        assert plan.weights <= held["weights"]
        # what the plan leaves out (tables, rows, rings, the sampler's space) is small beside a real model's logits
        assert asked - plan.kv_cache - plan.counts < 4 * plan.working


# sharing, closing, leaking


def test_engines_over_one_model_share_its_weights(tiny, device):
    truth = tiny("llama-f16")
    with Engine(truth.model, device, **SMALL) as one:
        before = blocks(device)
        two = Engine(Model(truth.path), device, slots=1, context=64, kv="f32", arithmetic="exact")
        assert two.weights is one.weights
        assert blocks(device) - before == len(two.executor.pool.blocks)
        want = two.generate([truth.prompt], max_tokens=5, ignore_eos=True)[0].token_ids
        two.close()
        assert one.generate([truth.prompt], max_tokens=5, ignore_eos=True)[0].token_ids == want
    assert not resident.is_loaded(truth.model, device)


def test_twenty_engines_one_after_another_leave_nothing(tiny, device):
    truth = tiny("odd-q8_0")
    with Engine(truth.model, device, **SMALL) as engine:
        engine.generate([truth.prompt], max_tokens=2)  # whatever is made once is made now
    gc.collect()
    memory, running, programs = blocks(device), threads(), len(device._made)
    for number in range(20):
        with Engine(truth.model, device, slots=1 + number % 3, context=128) as engine:
            engine.generate([truth.prompt], max_tokens=2, temperature=float(number % 2))
    gc.collect()
    assert blocks(device) == memory
    assert threads() == running
    assert len(device._made) <= programs + 30, "programs stay behind"  # kernels of other widths are kept


def test_an_engine_that_is_let_go_of_frees_its_memory_and_thread(tiny, device):
    truth = tiny("odd-f32")
    memory, running = blocks(device), threads()
    engine = Engine(truth.model, device, **SMALL)
    engine.generate([truth.prompt], max_tokens=2)
    [thread] = threads() - running
    gone = weakref.ref(engine)
    del engine
    for _ in range(50):
        gc.collect()
        if gone() is None and not thread.is_alive():
            break
        time.sleep(0.1)
    assert gone() is None
    assert not thread.is_alive()
    assert blocks(device) == memory


@pytest.mark.quick
def test_a_closed_engine_says_so_and_closes_again(tiny, device):
    truth = tiny("llama-q4_1")
    engine = Engine(truth.model, device, **SMALL)
    engine.close()
    engine.close()
    assert "closed" in repr(engine)
    for use in (lambda: engine.generate([truth.prompt]), lambda: engine.stream(truth.prompt)):
        began = time.monotonic()
        with pytest.raises(EngineError, match=r"^the engine is closed; open a new one$"):
            use()
        assert time.monotonic() - began < 1
    with pytest.raises(LabError, match=r"closed|freed"):
        engine.dispatches(1)


def test_closing_cancels_what_runs_and_what_waits(tiny, device):
    truth = tiny("llama-q4_1")
    engine = Engine(truth.model, device, slots=1, context=2048)
    running, waiting = (engine.stream(truth.prompt, max_tokens=2000, ignore_eos=True) for _ in range(2))
    next(running)
    engine.close()
    assert len(list(running)) < 1999
    assert list(waiting) == []
    assert [stream.completion.finish for stream in (running, waiting)] == ["cancelled", "cancelled"]


def test_a_device_closed_under_an_engine_is_one_line(tiny):
    truth = tiny("llama-q4_1")
    opened = Device(poison=False)
    engine = Engine(truth.model, opened, **SMALL)
    engine.generate([truth.prompt], max_tokens=2)
    opened.close()
    with pytest.raises(DeviceError, match=r"is closed; open it again"):
        engine.generate([truth.prompt], max_tokens=2)
    with pytest.raises(DeviceError, match=r"is closed; open it again"):
        engine.stream(truth.prompt)
    engine.close()


def test_a_device_lost_while_decoding_reaches_every_caller_and_none_hangs(tiny):
    truth = tiny("llama-q4_1")
    opened = Device(poison=False)
    engine = Engine(truth.model, opened, **SMALL)
    engine.generate([truth.prompt], max_tokens=2)
    real, told = opened.lib, []

    class Losing:
        def __getattr__(self, name):
            if name == "vkQueueSubmit" and len(told) == 0 and engine.scheduler.busy:
                return lambda *_: -4
            return getattr(real, name)

    def ask() -> None:
        try:
            engine.generate([truth.prompt], max_tokens=50)
        except LabError as error:
            told.append(str(error))

    opened.lib = Losing()
    callers = [threading.Thread(target=ask) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(20)
    assert not any(caller.is_alive() for caller in callers)
    assert len(told) == 4
    assert all("lost" in text and "\n" not in text for text in told)
    engine.close()
    opened.close()


@pytest.mark.quick
def test_an_error_inside_the_engine_is_one_line_and_is_not_a_hang(tiny, device, monkeypatch):
    truth = tiny("llama-q4_1")
    with Engine(truth.model, device, **SMALL) as engine:
        monkeypatch.setattr(engine.executor, "prepare", lambda *a, **k: 1 / 0)
        with pytest.raises(EngineError, match=r"^the engine failed: ZeroDivisionError: division by zero$"):
            engine.generate([truth.prompt])
        with pytest.raises(EngineError, match=r"^the engine stopped after an error"):
            engine.generate([truth.prompt])


def test_an_interrupt_cancels_the_call_and_leaves_the_engine_usable(tiny, device):
    truth = tiny("llama-q4_1")
    with Engine(truth.model, device, slots=2, context=2048) as engine:
        want = engine.generate([truth.prompt], max_tokens=4, ignore_eos=True)[0].token_ids
        for _ in range(3):
            timer = threading.Timer(0.1, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT))
            timer.start()
            began = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                engine.generate([truth.prompt] * 3, max_tokens=1900, ignore_eos=True)
            assert time.monotonic() - began < 5
            assert not engine.scheduler.busy
            assert not engine.scheduler.waiting
            assert engine.generate([truth.prompt], max_tokens=4, ignore_eos=True)[0].token_ids == want


def test_an_interrupt_while_streaming_leaves_the_engine_usable(tiny, device):
    truth = tiny("llama-q4_1")
    with Engine(truth.model, device, slots=1, context=2048) as engine:
        stream = engine.stream(truth.prompt, max_tokens=1900, ignore_eos=True)
        timer = threading.Timer(0.1, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT))
        timer.start()

        def read() -> None:
            with stream:
                assert len(list(stream)) == 0  # not reached: the interrupt comes first

        with pytest.raises(KeyboardInterrupt):
            read()
        assert engine.generate([truth.prompt], max_tokens=4, ignore_eos=True).tokens == 4


ENDS = """
import sys
from labkit.engine.engine import Engine
engine = Engine(sys.argv[1], 0, slots=2, context=2048)
stream = engine.stream("def main", max_tokens=2000, ignore_eos=True)
next(stream)
other = engine.stream("class", max_tokens=2000, ignore_eos=True)
print("leaving", flush=True)
"""


@pytest.mark.parametrize("ending", ["", "raise SystemExit(0)", "del engine, stream, other"])
def test_a_process_may_end_while_streams_run(ending, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", ENDS + ending, str(TINY / "llama-q4_1.gguf")],
        capture_output=True, text=True, timeout=60, check=False, env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "leaving\n", "")
    assert list((tmp_path / "labkit" / "pipelines").glob("*.bin")), "the shared device kept its pipelines"


# what a step costs


@pytest.mark.quick
@pytest.mark.parametrize("name", ["llama-q4_1", "odd24-f32"])
def test_dispatches_hardly_depend_on_the_width(engines, name):
    engine = engines(name, slots=32, context=128)
    counts = {width: engine.dispatches(width) for width in (1, 2, 8, 32)}
    print(f"{name}: dispatches a step by width {counts}")
    layers = engine.model.config.layers
    # on a GPU one stream's products norm and round by themselves: others may need two norms and two roundings a layer
    assert max(counts.values()) - min(counts.values()) <= (4 if engine.device.is_cpu else 4 * layers)
    assert counts[2] == counts[8]
    assert counts[1] <= 9 * layers + 12


def test_programs_have_names_for_a_record(engines):
    engine = engines("llama-q4_1", slots=32, context=128)
    prints = engine.fingerprints([1, 8, 32])
    assert set(prints) == {"decode 1", "decode 8", "decode 32"}
    assert len(set(prints.values())) == 3
    assert engine.fingerprints([1, 8, 32]) == prints


def test_fingerprints_are_the_same_in_another_engine(tiny, device):
    prints = []
    for _ in range(2):
        with Engine(tiny("odd24-f32").model, device, **SMALL) as engine:
            prints.append(engine.fingerprints([1, 2]))
            device.buffer(12345)  # what follows lies elsewhere
    assert prints[0] == prints[1]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("width", [1, 32])
def test_a_step_costs_the_host_little(engines, width, streaming):
    """CPU time of the engine's thread, detokenising and handing out included: the median, and the best of three.

    The aim is 0.5 ms and what was measured is printed. The bound leaves room for a machine with other work on it, where
    caches are cold and reading threads take the interpreter's lock; Python on the hot path would cost several ms.
    """
    engine = engines("llama-q4_1", slots=32, context=128)
    prompts = [words(i, 8) for i in range(width)]

    def median() -> float:
        before = len(engine.steps)
        if streaming:
            streams = [engine.stream(p, max_tokens=90, ignore_eos=True) for p in prompts]
            for stream in streams:
                list(stream)
        else:
            engine.generate(prompts, max_tokens=90, ignore_eos=True)
        full = [step for step in engine.steps[before:] if step.decode_only and step.decoding == width]
        assert sum(step.steps for step in full) >= 40
        return statistics.median(step.host_s / step.steps for step in full)

    costs = [median()]
    while costs[-1] >= 0.5e-3 and len(costs) < 3:  # other work on the machine empties the caches, and it costs
        costs.append(median())
    shown = ", ".join(f"{cost * 1e3:.3f}" for cost in costs)
    print(f"host CPU a step at width {width}, {'streamed' if streaming else 'generated'}: {shown} ms")
    assert min(costs) < 1.5e-3


def test_a_shape_without_a_file_decodes_random_weights(device):
    with Engine(ShapeModel("tiny", "q4_1"), device, slots=2, context=64) as engine:
        done = engine.generate([[1, 2, 3], [4, 5]], max_tokens=5)
        assert [len(c.token_ids) for c in done] == [5, 5]
        assert all(np.isfinite(c.logprobs).all() for c in done)
    with pytest.raises(ParameterError, match=r"shape 'huge' is not one of"):
        ShapeModel("huge")


def test_a_micro_batch_is_asked_for_or_the_devices_own(device, tiny):
    model = tiny("llama-q4_1").model
    with Engine(model, device, slots=2, context=256, ub=16) as small:
        assert small.ub == 16
        assert [small.micro_batches(n) for n in (1, 16, 17, 100)] == [1, 1, 2, 7]
        words = list(range(3, 60))
        steps = len(small.steps)
        ids = small.generate([words], max_tokens=4)[0].token_ids
        assert sum(not s.decode_only for s in small.steps[steps:]) == small.micro_batches(len(words))
    with Engine(model, device, slots=2, context=256, arithmetic="exact") as usual:
        assert usual.ub == (32 if device.is_cpu else usual.ub)
        assert len(usual.generate([words], max_tokens=4)[0].token_ids) == len(ids)
    for wrong in (0, 15, 8192, 48, True, "32"):
        with pytest.raises(ParameterError, match="not a power of two from 16 to 4096"):
            Engine(model, device, slots=2, context=256, ub=wrong)


def test_a_step_is_profiled_between_requests_and_disturbs_none(engines):
    """Rows are active and stay within the context, even where the step asked for is its last."""
    engine = engines("llama-q4_1", slots=4, context=128)
    asked = {"max_tokens": 20, "ignore_eos": True}
    before = engine.generate(["def main"], **asked)
    for width, depth in ((1, 40), (3, 128), (4, 1)):
        profile = engine.profile(width, depth)
        assert len(profile) == len(engine.executor.decode_program(width, depth).dispatches)
        if engine.device.info.timestamp_bits:
            assert all(seconds >= 0 for _, seconds in profile)
            assert sum(seconds for _, seconds in profile) > 0
    engine.executor.pool.check_guards()
    assert engine.generate(["def main"], **asked)[0].token_ids == before[0].token_ids
    with engine.stream("def main", max_tokens=100, ignore_eos=True) as stream:
        next(stream)
        with pytest.raises(EngineError, match="profiled between requests"):
            engine.profile(1, 40)
    for wrong in ((0, 40), (5, 40), (1, 0), (1, 129)):
        with pytest.raises(ParameterError):
            engine.profile(*wrong)


def test_the_steps_of_a_request_are_on_record_when_it_is_given_back(engines, monkeypatch):
    """However long the engine's thread takes to write them down."""

    class Slow(list):
        def append(self, step):
            time.sleep(0.02)
            super().append(step)

    engine = engines("llama-q4_1", slots=2, context=128)
    monkeypatch.setattr(engine, "steps", Slow())
    for streams in (1, 2):
        before = len(engine.steps)
        made = engine.generate(["def main", "class"][:streams], max_tokens=9, ignore_eos=True)
        steps = engine.steps[before:]
        assert sum(step.steps for step in steps if step.decode_only) == 8  # the prompt's step gave the first token
        assert all(done.last_token_s <= steps[-1].end_s + 1e-9 for done in made)
