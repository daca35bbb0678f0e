"""`lab serve` as a process: what it says, what it refuses before it loads anything, and how it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from running_server import NAME, TINY

MODEL = str(TINY / f"{NAME}.gguf")


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "labkit", "serve", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environment,
    )  # fmt: skip


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_on_a_free_port_and_ends_cleanly_when_told_to(end):
    process = start(MODEL, "--device", "0", "--port", "0", "--slots", "2", "--context", "512")
    try:
        said = process.stderr.readline()
        assert f"{NAME} on " in said
        assert "this machine alone" in said
        url = said.partition(" at ")[2].partition("/v1")[0]
        body = json.dumps(
            {"model": NAME, "prompt": "x", "stream": True, "ignore_eos": True, "max_tokens": 500}
        ).encode()
        request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.readline().startswith(b"data: ")
            began = time.monotonic()
            process.send_signal(end)
            answer.read()
            assert process.wait(20) == 0
        assert time.monotonic() - began < 8
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["--host", "0.0.0.0"], {}, "clients need a key: set LABKIT_API_KEY or --api-key"),
        (["--host", "::"], {}, "clients need a key"),
        (["--host", "0.0.0.0"], {"LABKIT_API_KEY": "short"}, "the API key has 5 characters: give 16 or more"),
        (["--queue", "-1"], {}, "queue=-1 is not a whole number from 0"),
        (["--slots", "0"], {}, "slots=0 is not a whole number from 1 to 256"),
    ],
)
def test_what_it_refuses_it_refuses_in_one_line(arguments, environment, said):
    process = start(MODEL, "--device", "0", "--port", "0", *arguments, **environment)
    out, told = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert told.startswith("lab: ")
    assert told.count("\n") == 1
    assert said in told
    assert all(value not in told for value in environment.values())


def test_a_port_in_use_is_told_before_the_model_is_loaded():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = start("no-such-model", "--port", str(port))
        _, told = process.communicate(timeout=60)
    assert process.returncode == 2
    assert (
        told
        == f"lab: cannot listen on 127.0.0.1 port {port}: Address already in use; give another --port, or 0 for any\n"
    )
