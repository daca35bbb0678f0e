"""Models other programs keep: found in the layouts of Hugging Face, llama.cpp, LM Studio and Ollama."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from crafted_gguf import TINY

from labkit.commands.models import command
from labkit.models.elsewhere import find_elsewhere
from labkit.models.gguf import peek_architecture

CONTENT = (TINY / "odd-q4_1.gguf").read_bytes()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of the test's own in which nothing is configured."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("HF_HOME", "HF_HUB_CACHE", "LLAMA_CACHE", "OLLAMA_MODELS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def put(path: Path, content: bytes = CONTENT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.fixture
def filled(home: Path) -> Path:
    """Every program's folder with one model in it, and things that are no models."""
    digest = "a" * 64
    blob = put(home / ".cache/huggingface/hub/models--owner--name/blobs/abc")
    link = home / ".cache/huggingface/hub/models--owner--name/snapshots/123/file.gguf"
    link.parent.mkdir(parents=True)
    link.symlink_to(blob)
    put(home / ".cache/llama.cpp/owner_name.gguf")
    put(home / ".cache/llama.cpp/broken.gguf", b"not a model")
    (home / ".cache/llama.cpp/dangling.gguf").symlink_to(home / "nowhere")
    put(home / ".lmstudio/models/owner/name/file.gguf")
    ollama = home / ".ollama/models"
    put(ollama / f"blobs/sha256-{digest}")
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}
    manifest = json.dumps({"layers": [layer, {"mediaType": "application/vnd.ollama.image.license", "digest": "x"}]})
    put(ollama / "manifests/registry.ollama.ai/library/tiny/latest", manifest.encode())
    put(ollama / "manifests/registry.ollama.ai/library/gone/latest", manifest.replace("a" * 64, "b" * 64).encode())
    escape = manifest.replace(f"sha256:{digest}", "../../../etc/passwd")
    put(ollama / "manifests/registry.ollama.ai/library/escape/latest", escape.encode())
    put(ollama / "manifests/registry.ollama.ai/library/broken/latest", b"{")
    return home


def test_each_programs_models_are_found_by_name(filled: Path) -> None:
    found = [(each.program, each.name, each.nbytes, each.architecture) for each in find_elsewhere()]
    size = len(CONTENT)
    assert found == [
        ("Hugging Face", "owner/name/file.gguf", size, "llama"),
        ("LM Studio", "owner/name/file", size, "llama"),
        ("Ollama", "tiny:latest", size, "llama"),
        ("llama.cpp", "owner_name", size, "llama"),
    ]


def test_environment_variables_name_other_folders(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_CACHE", str(home / "elsewhere"))
    path = put(home / "elsewhere/model.gguf")
    put(home / ".cache/llama.cpp/unused.gguf")
    assert [each.path for each in find_elsewhere()] == [path]


def test_nothing_is_found_in_an_empty_home(home: Path) -> None:
    assert find_elsewhere() == []


def test_a_head_tells_the_architecture_or_nothing() -> None:
    assert peek_architecture(CONTENT[:4096]) == "llama"
    for head in (b"", b"GGUF", CONTENT[:40], b"PK" + CONTENT[2:4096], CONTENT[:24] + b"x" + CONTENT[25:4096]):
        assert peek_architecture(head) is None


def test_the_command_lists_the_catalogue_the_lab_and_the_rest(filled: Path, models_folder: Path) -> None:
    put(models_folder / "mine.gguf")
    run = CliRunner().invoke(command, ["--json"], catch_exceptions=False)
    listing = json.loads(run.stdout)
    assert run.exit_code == 0
    assert listing["models_folder"] == str(models_folder)
    entry = next(each for each in listing["catalogue"] if each["name"] == "smollm2-135m")
    assert (entry["state"], entry["bytes"], entry["licence"]) == ("not fetched", 98_362_432, "Apache-2.0")
    assert [each["name"] for each in listing["stored"]] == ["mine"]
    assert len(listing["elsewhere"]) == 4
    text = CliRunner().invoke(command, ["list"], catch_exceptions=False).stdout
    assert "smollm2-135m" in text
    assert "Fetch one with `lab models pull smollm2-135m`." in text
    assert str(models_folder / "mine.gguf") in text


def test_pull_and_verify_print_json_on_request(models_folder: Path) -> None:
    source = str(TINY / "odd-q4_1.gguf")
    pulled = json.loads(CliRunner().invoke(command, ["pull", source, "--json"], catch_exceptions=False).stdout)
    assert pulled == {"path": str(models_folder / "odd-q4_1.gguf"), "fetched": True, "how": "a copy"}
    again = CliRunner().invoke(command, ["pull", source], catch_exceptions=False)
    assert "(already here)" in again.stdout
    found = json.loads(
        CliRunner().invoke(command, ["verify", "odd-q4_1.gguf", "--json"], catch_exceptions=False).stdout
    )
    assert found["sha256"] == found["expected"]
    text = CliRunner().invoke(command, ["verify", "odd-q4_1.gguf"], catch_exceptions=False).stdout
    assert "as expected" in text
