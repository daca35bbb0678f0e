"""llama-server as a process: found, started, asked, stopped whatever happens; against an imitation of it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labkit.errors import ParameterError, RunError
from labkit.runtimes import llama_server, pulse, server_process
from labkit.runtimes.client import Limits
from labkit.runtimes.llama_binary import find_binary
from labkit.runtimes.llama_server import LlamaServer
from labkit.runtimes.load import at_once
from labkit.runtimes.runtime import Ask


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
    given = binary.command(Path("m.gguf"), port=80, slots=8, context=512, ub=1024, kv="f32")
    assert given[given.index("-ctk") + 1] == given[given.index("-ctv") + 1] == "f32"
    assert given[given.index("-c") + 1] == "4096"
    assert given[given.index("-ub") + 1] == "1024"
    assert given[given.index("-fa") + 1] == "on"
    assert {"--no-webui", "--no-kv-unified"} <= set(given)
    assert not {"--cache-ram", "--ctx-checkpoints"} & set(given)


def test_a_persons_flags_come_last_and_are_known_to_the_build(imitation: Path) -> None:
    binary = find_binary(imitation)
    given = binary.command(Path("m.gguf"), port=80, slots=1, context=256, flags=("--foo", "1"))
    assert given[-2:] == ["--foo", "1"]
    with pytest.raises(ParameterError, match=r"--bar is not a flag of this llama-server \(version: 0\.1"):
        binary.command(Path("m.gguf"), port=80, slots=1, context=256, flags=("--bar",))
    with pytest.raises(ParameterError, match="--port is given to llama-server already"):
        binary.command(Path("m.gguf"), port=80, slots=1, context=256, flags=("--port", "1"))


def test_streams_come_back_with_a_time_a_token(imitation: Path) -> None:
    waits: list[float] = []
    ends: list[tuple[int, int]] = []
    with start(imitation, waiting=waits.append) as server:
        answers = server.stream([Ask((1, 2, 3), 6), Ask((4, 5), 6)], at_once(2), lambda *done: ends.append(done))
        assert [answer.prompt_tokens for answer in answers] == [3, 2]
        for answer in answers:
            assert answer.good
            assert len(answer.times) == answer.completion_tokens == 6
            assert answer.submit_s < answer.times[0] < answer.times[-1] <= answer.end_s
            assert answer.timings["prompt_ms"] == 1.0
            assert "model" not in answer.timings
            assert (answer.text, answer.token_ids, answer.finish) == (" w1 w2 w3 w4 w5 w6", (300,) * 6, "length")
            assert answer.cached_tokens == 0
        overlap = min(a.times[-1] for a in answers) - max(a.times[0] for a in answers)
        assert overlap > 0  # they ran at once
        asked = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]
        assert {tuple(body["prompt"]) for body in asked} == {(1, 2, 3), (4, 5)}
        assert all(body["ignore_eos"] and body["cache_prompt"] is False and body["temperature"] == 0 for body in asked)
        assert server.counters() == {"completion_tokens": 12.0}
    assert ends == [(1, 2), (2, 2)]
    assert waits  # it was told of while it loaded


def test_a_chat_goes_through_its_template_and_counts_by_its_timings(imitation: Path) -> None:
    with start(imitation) as server:
        answer = server.stream([Ask("Say hi", 4, chat=True)], at_once(1))[0]
        assert (answer.text, answer.finish, answer.drafted, answer.cached_tokens) == (" c1 c2 c3 c4", "length", 4, 1)
        assert (len(answer.times), answer.completion_tokens, answer.prompt_tokens) == (4, 4, 9)
        asked = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")][-1]
        assert asked["messages"] == [{"role": "user", "content": "Say hi"}]
        with pytest.raises(ParameterError, match="takes no images"):
            server.stream([Ask("See", 4, chat=True, images=(b"x",))], at_once(1))


def test_it_tells_of_itself_what_the_running_process_reports(imitation: Path) -> None:
    with start(imitation, flags=("--foo", "1"), label="mine") as server:
        told = server.describe()
        assert told["settings"] == {"slots": 4, "context": 256, "model": "a.gguf", "quant": "Q8_0", "draft": "none"}
        assert (told["kind"], told["label"], told["build"]) == ("llama-server", "mine", "b1-imitation")
        assert told["arguments"][-2:] == ["--foo", "1"]
        assert "--metrics" in told["arguments"]
        assert server.model == "a.gguf"
        assert server.can.counters
        assert not server.can.drafts
        assert server.tokenize("hé") == [104, 233]
        assert server.detokenize([104, 233]) == "hé"


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
        "from labkit.runtimes.llama_binary import find_binary\nfrom labkit.runtimes.llama_server import LlamaServer\n"
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
    ("how", "failed", "said"),
    [
        ("refuse", "status", "answered 400 Bad Request: the request exceeds the available context size"),
        ("die", "closed", "llama-server died with code 9: the GPU is lost"),
        ("short", "short", "asked for 6 tokens, it sent 5"),
    ],
)
def test_a_failure_while_it_answers_says_what_happened(
    how: str, failed: str, said: str, imitation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMITATION", how)
    with start(imitation) as server:
        answer = server.stream([Ask((1, 2, 3), 6)], at_once(1))[0]
        assert (answer.failed, answer.times) == (failed, ())
        assert str(answer.error).startswith(said)


def test_a_server_that_stops_answering_is_found_by_its_heartbeat(
    imitation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMITATION", "stuck")
    monkeypatch.setattr(pulse, "EVERY_S", 0.1)
    monkeypatch.setattr(pulse, "WAIT_S", 0.2)
    with start(imitation, limits=Limits(silence_s=1.0)) as server:
        answer = server.stream([Ask((1, 2, 3), 6)], at_once(1))[0]
        assert answer.failed == "silent"
        said = r"it sent nothing for 1 s, after 2 tokens; llama-server has not answered /health for \d+ s, "
        assert re.fullmatch(said + "and its log ends: waiting for the GPU", str(answer.error))
        assert server.beats
        assert not server.beats[-1].ok
        assert server.beats[-1].ms >= 200


def test_a_port_in_use_is_one_clear_line(imitation: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ParameterError, match=rf"port {port} of 127\.0\.0\.1 cannot be taken \(address already in use\)"
        ):
            start(imitation, port=port)
    with pytest.raises(ParameterError, match="a port is from 1 to 65535"):
        start(imitation, port=70000)


def test_a_port_taken_by_another_meanwhile_is_told_in_its_last_words(
    imitation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(llama_server, "free_port", lambda: taken.getsockname()[1])
        monkeypatch.setattr(server_process, "check_port", lambda port: port)
        monkeypatch.setattr(server_process.ServerProcess, "healthy", lambda self: False)
        with pytest.raises(RunError, match="ended with code 1 while loading: couldn't bind HTTP server socket"):
            start(imitation)


def test_a_model_it_cannot_load_ends_in_its_last_words(imitation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMITATION", "broken")
    with pytest.raises(RunError, match="ended with code 3 while loading: error: unknown model architecture"):
        start(imitation)


def test_of_its_last_lines_the_first_that_tells_of_an_error_is_given(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = server_process.ServerProcess.__new__(server_process.ServerProcess)
    process.log = log
    assert process.complaint() == "it wrote nothing"
    log.write_text(
        "0.00.068.435 I srv    load_model: loading model\n"
        "0.00.068.442 E gguf_init_from_reader: invalid magic characters: 'root', expected 'GGUF'\n"
        "0.00.068.453 E srv    load_model: failed to load model, '/etc/passwd'\n\n"
        "0.00.068.805 E srv  llama_server: exiting due to model loading error\n"
    )
    assert process.complaint() == "gguf_init_from_reader: invalid magic characters: 'root', expected 'GGUF'"
    assert process.last_words() == "srv llama_server: exiting due to model loading error"
    log.write_text("all is well\n" * 100_000 + "waiting for the GPU\n")
    assert process.complaint() == "waiting for the GPU"
