"""`lab serve` as a runtime of its own process: the engine's answers over HTTP, its settings, and its end."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.engine.engine import Engine
from labkit.errors import ParameterError, RunError
from labkit.models.model import Model
from labkit.runtimes.labkit_serve import LabkitServe, find_program
from labkit.runtimes.load import at_once
from labkit.runtimes.opening import open_runtime
from labkit.runtimes.runtime import Ask, Runtime
from labkit.vulkan.device import Device

TINY = Path(__file__).parents[1] / "data" / "tiny" / "llama-q8_0.gguf"
OPTIONS = {"slots": 2, "context": 64, "ub": 32, "flags": ["--arithmetic", "exact"]}


@pytest.fixture(scope="module")
def served(device: Device, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_API_KEY", "a key of another server")  # a person's own is not this one's
        folder = tmp_path_factory.mktemp("logs")
        with open_runtime("labkit-serve", TINY, device=device, log_folder=folder, **OPTIONS) as runtime:  # type: ignore[arg-type]
            yield runtime


def test_its_answers_are_the_engines(served: Runtime, device: Device) -> None:
    prompts = [(5, 6, 7), (9,), (3, 1, 4)]
    answers = served.stream([Ask(prompt, 6) for prompt in prompts], at_once(2))
    with Model(TINY) as model, Engine(model, device, slots=2, context=64, arithmetic="exact") as engine:
        alone = engine.generate([list(prompt) for prompt in prompts], max_tokens=6, ignore_eos=True)
    assert [answer.text for answer in answers] == alone.texts
    for answer in answers:
        assert answer.good, answer.error
        assert (answer.completion_tokens, len(answer.times), answer.finish) == (6, 6, "length")
        assert answer.submit_s < answer.times[0] <= answer.times[-1]


def test_it_reports_the_settings_of_the_running_process(served: Runtime) -> None:
    assert served.settings() == {
        "slots": 2, "context": 64, "ub": 32, "kv": "f16", "arithmetic": "exact", "model": "llama-q8_0", "quant": "q8_0",
        "draft": 0,
    }  # fmt: skip
    told = served.describe()
    assert told["kind"] == "labkit-serve"
    assert "--slots" in told["arguments"]
    assert served.can.own_process
    assert served.can.fixed_length


def test_its_tokenizer_is_the_models(served: Runtime) -> None:
    with Model(TINY) as model:
        assert served.tokenize("the cat") == model.tokenizer.encode("the cat")
    assert served.detokenize(served.tokenize("the cat")) == "the cat"


def test_a_prompt_that_does_not_fit_is_its_own_failure(served: Runtime) -> None:
    long, short = served.stream([Ask(tuple(range(1, 65)), 4), Ask((5,), 4)], at_once(2))
    assert long.failed == "status"
    assert "maximum context length is 64" in str(long.error)
    assert short.good


def test_one_that_dies_says_so_and_one_that_cannot_start_ends_in_its_last_words(device: Device, tmp_path: Path) -> None:
    with LabkitServe(TINY, slots=1, context=32, log=tmp_path / "a.log") as runtime:
        pid = runtime.process.pid
        assert runtime.origin == {"process": pid}
        os.kill(pid, signal.SIGKILL)
        runtime.process.popen.wait()
        (answer,) = runtime.stream([Ask((5,), 4)], at_once(1))
    assert not answer.good
    assert "labkit-serve died with code -9" in str(answer.error)
    runtime.close()
    with pytest.raises(
        RunError, match=r"labkit-serve ended with code 2 while loading: lab: context=99999 is more than"
    ):
        LabkitServe(TINY, slots=1, context=99999, log=tmp_path / "b.log")


def test_another_interpreter_or_checkout_is_named_behind_it_and_reports_its_own_version(tmp_path: Path) -> None:
    for name in ("python3", "lab"):
        program = tmp_path / "other" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            '#!/bin/sh\ncase "$*" in *pathlib*) echo /nowhere;; *) echo lab, version 9.8.7$PYTHONPATH;; esac\n'
        )
        program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", "/mine")  # is not another's
        there, checkout = (find_program(str(tmp_path / "other" / name)) for name in ("python3", "lab"))
    assert (there.version, there.command[1:]) == ("9.8.7", ("-P", "-m", "labkit"))
    assert (checkout.version, checkout.command[1:]) == ("9.8.7", ())
    assert there.build is None
    assert find_program().command[1:] == ("-m", "labkit")


def test_what_is_no_labkit_is_refused_with_what_would_be_one(tmp_path: Path) -> None:
    with pytest.raises(
        ParameterError, match=r"give the Python of an environment that has labkit, or the lab of another"
    ):
        find_program(str(tmp_path))
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\necho No module named labkit >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(ParameterError, match=r"python3 has no labkit that runs: No module named labkit"):
        find_program(str(broken))
