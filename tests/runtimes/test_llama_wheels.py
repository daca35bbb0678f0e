"""llama.cpp from PyPI: found or told how to install; where the packages are installed, the same answers from each."""

import importlib.metadata
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.engine.engine import Engine
from labkit.errors import ParameterError, RunError
from labkit.models.model import Model
from labkit.runtimes.declared import compare_settings
from labkit.runtimes.llama_wheels import SERVERS, Wheel, find_wheel, version_said
from labkit.runtimes.load import at_once
from labkit.runtimes.opening import open_runtime
from labkit.runtimes.runtime import Ask, Runtime
from labkit.vulkan.device import Device

TINY = Path(__file__).parents[1] / "data" / "tiny" / "llama-f32.gguf"


def here(package: str) -> str | None:
    """Why a package's tests cannot run here."""
    try:
        find_wheel(package)
    except ParameterError as error:
        return str(error)
    return None


def test_one_that_is_not_installed_is_a_line_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LABKIT_PEERS_PYTHON", raising=False)

    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    with pytest.raises(ParameterError, match=r"-m pip install 'xllamacpp>=2026.10', or set LABKIT_PEERS_PYTHON"):
        find_wheel("xllamacpp")


def test_another_environments_interpreter_is_asked_and_its_link_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "peers" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    link = tmp_path / "link"
    link.symlink_to(python)
    monkeypatch.setenv("LABKIT_PEERS_PYTHON", str(link))
    with pytest.raises(ParameterError, match="is no Python from 3"):
        find_wheel("xllamacpp")
    python.write_text("#!/bin/sh\necho none\n")
    with pytest.raises(ParameterError, match=f"cyllama-vulkan is not installed for {link}: {link} -m pip install"):
        find_wheel("cyllama-vulkan")
    python.write_text("#!/bin/sh\necho version 9.1\n")
    found = find_wheel("cyllama-vulkan")
    assert (found.path, found.version) == (link, "cyllama-vulkan 9.1")
    python.write_text("#!/bin/sh\necho version 9.2\n")
    monkeypatch.setenv("LABKIT_PEERS_PYTHON", "/none/python")
    assert find_wheel("cyllama-vulkan", str(link)).version == "cyllama-vulkan 9.2"  # named for this one alone
    with pytest.raises(ParameterError, match="xllamacpp:/none/other does not run"):
        find_wheel("xllamacpp", "/none/other")
    with pytest.raises(ParameterError, match="LABKIT_PEERS_PYTHON=/none/python does not run"):
        find_wheel("xllamacpp")


def test_the_version_is_what_the_running_process_wrote(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert version_said(log) is None
    log.write_text("loading 2026.1\nxllamacpp 2026.10.11549 listens on http://127.0.0.1:80\n")
    assert version_said(log) == "2026.10.11549"


@pytest.mark.parametrize("package", list(SERVERS))
def test_its_server_is_run_by_path_and_says_at_once_what_it_lacks(package: str) -> None:
    command = Wheel(Path(sys.executable), "", "", package).command(Path("m.gguf"), port=80, slots=8, context=512, ub=64)
    script = Path(command[2])
    assert script.is_file()
    assert command[:2] == [sys.executable, "-P"]
    assert command[command.index("--context") + 1] == "512"
    assert ("--threads" in command) == (package == "xllamacpp")
    imported = [line for line in script.read_text().splitlines() if line.startswith(("import ", "from "))]
    names = {line.split()[1].partition(".")[0] for line in imported}
    assert names <= set(sys.stdlib_module_names)  # its interpreter need not have labkit


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"draft": 3}, "draft=3: xllamacpp drafts nothing"),
        ({"flags": ["--fa", "off"]}, "xllamacpp does not take the flag --fa off: --threads VALUE"),
    ],
)
def test_what_it_does_not_have_is_refused(options: dict, said: str, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=said):
        open_runtime("xllamacpp", TINY, slots=1, context=32, log_folder=tmp_path, **options)


@pytest.fixture(scope="module")
def xllamacpp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    if why := here("xllamacpp"):
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("logs")
    with open_runtime("xllamacpp", TINY, slots=2, context=256, ub=64, kv="f32", log_folder=folder) as runtime:
        yield runtime


def test_xllamacpp_answers_as_labkit_does(xllamacpp: Runtime, device: Device) -> None:
    prompts = [(5, 6, 7), (9, 30), (3, 1, 4)]
    answers = xllamacpp.stream([Ask(prompt, 6) for prompt in prompts], at_once(2))
    with Model(TINY) as model, Engine(model, device, slots=2, context=64, arithmetic="exact", kv="f32") as engine:
        alone = engine.generate([list(prompt) for prompt in prompts], max_tokens=6, ignore_eos=True)
    assert [answer.text for answer in answers] == alone.texts
    assert [answer.completion_tokens for answer in answers] == [6, 6, 6]


def test_xllamacpp_reports_what_its_context_came_to(xllamacpp: Runtime) -> None:
    declared = {"slots": 2, "context": 256, "ub": 64, "kv": "f32", "model": str(TINY), "quant": "f32", "draft": 0}
    assert compare_settings(declared, xllamacpp.settings(), list(declared)) == []
    assert xllamacpp.describe()["kind"] == "xllamacpp"


def test_xllamacpp_that_cannot_load_ends_in_a_line(tmp_path: Path) -> None:
    if why := here("xllamacpp"):
        pytest.skip(why)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(64))
    with pytest.raises(RunError, match="xllamacpp ended with code"):
        open_runtime("xllamacpp", broken, slots=1, context=32, log_folder=tmp_path)


@pytest.mark.slow  # llama.cpp compiles its pipelines: 20 s on a software driver
def test_cyllama_vulkan_answers_as_labkit_does(device: Device, tmp_path: Path) -> None:
    if why := here("cyllama-vulkan"):
        pytest.skip(why)
    prompts = [(5, 6, 7), (9, 30), (3, 1, 4)]
    options = {"slots": 2, "context": 256, "ub": 32, "kv": "f32"}
    with open_runtime("cyllama-vulkan", TINY, device=device, log_folder=tmp_path, **options) as runtime:  # type: ignore[arg-type]
        answers = runtime.stream([Ask(prompt, 6) for prompt in prompts], at_once(3))
        assert compare_settings(options, runtime.settings(), list(options)) == []
        ids = runtime.tokenize("the cat")
        assert runtime.detokenize(ids) == "the cat"
        with pytest.raises(ParameterError, match="has no chat template"):
            runtime.stream([Ask("hello", 2, chat=True)], at_once(1))
    with Model(TINY) as model, Engine(model, device, slots=2, context=64, arithmetic="exact", kv="f32") as engine:
        alone = engine.generate([list(prompt) for prompt in prompts], max_tokens=6, ignore_eos=True)
        assert ids == engine.tokenizer.encode("the cat")
    assert [answer.token_ids for answer in answers] == alone.token_ids
    assert os.path.getsize(tmp_path / "cyllama-vulkan.log")
