"""Fixtures of the model tests: crafted files, the SmolLM2 vocabulary, an empty models folder."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crafted_gguf import DATA, craft


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """Writes crafted bytes to a file and returns its path."""

    def write(*arguments: Any, **options: Any) -> Path:
        path = tmp_path / "crafted.gguf"
        path.write_bytes(craft(*arguments, **options))
        return path

    return write


@pytest.fixture(scope="session")
def smollm2_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The metadata of the SmolLM2 file, its 49,152 tokens and chat template, without the tensors."""
    path = tmp_path_factory.mktemp("vocabulary") / "smollm2.gguf"
    path.write_bytes(gzip.decompress((DATA / "smollm2-vocabulary.gguf.gz").read_bytes()))
    return path


@pytest.fixture
def models_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty models folder of the test's own, and no configuration of the machine's."""
    folder = tmp_path / "models"
    monkeypatch.setenv("LABKIT_MODELS", str(folder))
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "HF_ENDPOINT", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return folder
