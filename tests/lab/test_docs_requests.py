"""The code that docs/engines.md shows runs as it stands, with a tiny model in the place of its own."""

from pathlib import Path
from typing import Any

import pytest
from command_lines import fences

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "tests" / "data" / "tiny" / "llama-q4_1.gguf"


def test_the_requests_that_are_shown_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (code,) = fences((ROOT / "docs" / "engines.md").read_text(encoding="utf-8"), "python")
    assert '"smollm2-135m"' in code
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    exec(compile(code.replace('"smollm2-135m"', repr(str(TINY))), "engines.md", "exec"), scope)
    assert scope["metrics"]["failed_share"] == 0
    assert (scope["metrics"]["prompt_tokens"], scope["metrics"]["completion_tokens"]) == (64, 16)
    assert scope["metrics"]["resident_most"] <= 4
