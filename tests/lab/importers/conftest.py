"""What the tests of importers share: a lab of their own, the sample files, and what a folder of runs holds."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.cli import main

SAMPLES = Path(__file__).resolve().parents[2] / "data" / "imported"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lab without runs, which the commands find."""
    root = tmp_path / "lab"
    root.mkdir()
    for name in ("FINDINGS.md", "lab.toml"):
        (root / name).touch()
    monkeypatch.setenv("LABKIT_LAB", str(root))
    return root


@pytest.fixture
def samples() -> Path:
    """The folder of sample files."""
    return SAMPLES


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., SimpleNamespace]:
    """The command line, in this process: its exit code, what it wrote on stdout, and on stderr."""

    def run(*words: object) -> SimpleNamespace:
        monkeypatch.setattr(sys, "argv", ["lab", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return SimpleNamespace(exit_code=ended.value.code or 0, stdout=said.out, stderr=said.err)

    return run


@pytest.fixture
def altered(tmp_path: Path) -> Callable[..., Path]:
    """A sample file with a change made to its JSON: `altered("vllm.json", lambda value: value.pop("date"))`."""

    def alter(name: str, change: Callable[[Any], Any]) -> Path:
        value = json.loads((SAMPLES / name).read_text())
        change(value)
        path = tmp_path / f"altered-{name}"
        path.write_text(json.dumps(value))
        return path

    return alter
