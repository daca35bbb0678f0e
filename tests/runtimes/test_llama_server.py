"""llama-server as a process: found, started, asked, stopped whatever happens; against an imitation of it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labkit.errors import ParameterError, RunError
from labkit.runtimes.llama_server import LlamaServer, arguments, find_binary


def start(imitation: Path, **more: object) -> LlamaServer:
    options = {"slots": 4, "context": 256, "log": imitation.parent / "log.txt"} | more
    return LlamaServer(find_binary(imitation), Path("model.gguf"), **options)  # type: ignore[arg-type]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_the_binary_is_the_one_given_then_the_variable_then_the_path(
    imitation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("LABKIT_LLAMA_SERVER", raising=False)
    with pytest.raises(ParameterError, match="give --llama-server PATH or set LABKIT_LLAMA_SERVER"):
        find_binary()
    monkeypatch.setenv("LABKIT_LLAMA_SERVER", str(imitation))
    assert find_binary().path == imitation
    assert find_binary().version == "version: 0.1 (imitation)"
    monkeypatch.delenv("LABKIT_LLAMA_SERVER")
    monkeypatch.setenv("PATH", str(imitation.parent))
    assert find_binary().path == imitation
    with pytest.raises(ParameterError, match="is not a program that can be run"):
        find_binary(imitation.parent)


def test_only_flags_that_the_build_knows_are_given(imitation: Path) -> None:
    binary = find_binary(imitation)
    given = arguments(binary, Path("m.gguf"), port=80, slots=8, context=512, ub=1024, kv="f32")
    assert given[given.index("-ctk") + 1] == given[given.index("-ctv") + 1] == "f32"
    assert given[given.index("-c") + 1] == "4096"
    assert given[given.index("-ub") + 1] == "1024"
    assert given[given.index("-fa") + 1] == "on"
    assert {"--no-webui", "--no-kv-unified"} <= set(given)
    assert not {"--cache-ram", "--ctx-checkpoints"} & set(given)


def test_streams_come_back_with_a_time_a_token(imitation: Path) -> None:
    waits: list[float] = []
    with start(imitation, waiting=waits.append) as server:
        answers = server.complete([[1, 2, 3], [4, 5]], 6)
        assert [answer.prompt for answer in answers] == [3, 2]
        for answer in answers:
            assert len(answer.times) == 6
            assert answer.submit_s < answer.times[0] < answer.times[-1]
            assert answer.timings["prompt_ms"] == 1.0
            assert "model" not in answer.timings
        overlap = min(a.times[-1] for a in answers) - max(a.times[0] for a in answers)
        assert overlap > 0  # they ran at once
        asked = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]
        assert {tuple(body["prompt"]) for body in asked} == {(1, 2, 3), (4, 5)}
        assert all(body["ignore_eos"] and body["cache_prompt"] is False and body["temperature"] == 0 for body in asked)
    assert waits  # it was told of while it loaded


def test_it_is_gone_when_it_is_closed(imitation: Path) -> None:
    server = start(imitation)
    pid = server.process.pid
    assert alive(pid)
    server.close()
    server.close()
    assert not alive(pid)


def test_it_dies_with_the_process_that_started_it(imitation: Path) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\n"
        "from labkit.runtimes.llama_server import LlamaServer, find_binary\n"
        "s = LlamaServer(find_binary(sys.argv[1]), Path('m'), slots=1, context=256, log=Path(sys.argv[2]))\n"
        "print(s.process.pid, flush=True)\ntime.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(imitation), str(imitation.parent / "log")], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    end = time.monotonic() + 20
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert not alive(pid)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("refuse", "400 .*exceeds the available context size"),
        ("die", "died with code 9: the GPU is lost"),
        ("short", "asked for 6 tokens, it sent 5"),
    ],
)
def test_a_failure_while_it_answers_says_what_happened(
    how: str, said: str, imitation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMITATION", how)
    with start(imitation) as server, pytest.raises(RunError, match=said):
        server.complete([[1, 2, 3]], 6)


def test_a_model_it_cannot_load_ends_in_its_last_words(imitation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMITATION", "broken")
    with pytest.raises(RunError, match="ended with code 3 while loading: error: unknown model architecture"):
        start(imitation)
