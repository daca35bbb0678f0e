"""64 clients at once, a third of them hanging up midway: no slot lost, no wrong text, memory flat."""

import json
import os
import random
import socket
import threading
import time
from collections import Counter
from pathlib import Path
from statistics import mean

import pytest
from running_server import NAME, Served

from labkit.engine.engine import Engine
from labkit.serve.limits import Limits

MINUTES = "LABKIT_SOAK_MINUTES"

CLIENTS, SLOTS, QUEUE, CASES = 64, 8, 80, 40
HEAD = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "


def resident() -> int:
    """Bytes of memory this process holds (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def cases(engine: Engine) -> list[tuple[dict, str]]:
    """Requests with the text each must have: of the engine alone, before the server is busy."""
    made = []
    for i in range(CASES):
        prompt = f"def function_{i}(" + "value, " * (i % 7)
        settings = {
            "max_tokens": 4 + 3 * (i % 9),
            "temperature": (0.0, 0.8, 1.2)[i % 3],
            "seed": i,
            "ignore_eos": i % 2 == 0,
        }
        text = engine.generate([prompt], **settings)[0].text
        made.append(({"model": NAME, "prompt": prompt, "stream": i % 4 != 0} | settings, text))
    return made


class Soak:
    """The clients: each asks, compares or hangs up, and asks again until the time is up."""

    def __init__(self, running: Served, seconds: float) -> None:
        self.running, self.cases = running, cases(running.engine)
        self.end = time.monotonic() + seconds
        self.counts: Counter[str] = Counter()
        self.wrong: list[object] = []
        self.lock = threading.Lock()

    def run(self) -> None:
        threads = [threading.Thread(target=self._client, args=(i,), daemon=True) for i in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, self.end - time.monotonic()) + 60)
        assert not any(thread.is_alive() for thread in threads), "a client hangs"

    def _client(self, number: int) -> None:
        draw = random.Random(number)
        leaves = number % 3 == 0
        while time.monotonic() < self.end:
            body, want = draw.choice(self.cases)
            try:
                kind = self._leave(body, draw) if leaves else self._compare(body, want)
            except Exception as error:  # an answer that is none
                kind = "broken"
                self.wrong.append((body, repr(error)))
            with self.lock:
                self.counts[kind] += 1

    def _open(self, body: dict) -> socket.socket:
        data = json.dumps(body).encode()
        return self.running.open(f"{HEAD}{len(data)}\r\nConnection: close\r\n\r\n".encode() + data)

    def _leave(self, body: dict, draw: random.Random) -> str:
        """Hang up before the answer, at its beginning, or with a reset."""
        connection = self._open(body | {"max_tokens": 200, "ignore_eos": True})
        if draw.random() < 0.6:
            connection.recv(400)
        else:
            time.sleep(draw.random() * 0.05)
        if draw.random() < 0.3:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        connection.close()
        return "left"

    def _compare(self, body: dict, want: str) -> str:
        status, text, _ = self.running.ask("POST", "/v1/completions", body)
        if status == 429:
            time.sleep(0.05)
            return "429"
        if body["stream"] and status == 200:
            events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
            assert events.pop() == "[DONE]"
            got = "".join(json.loads(event)["choices"][0]["text"] for event in events)
        else:
            got = text["choices"][0]["text"]
        if got != want:
            self.wrong.append((body, got, want))
        return "whole"

    def check(self) -> None:
        """No slot lost, no wrong text, and a prompt answer afterwards."""
        assert self.wrong == []
        assert self.running.idle(30), "every slot and place is free again"
        counters = self.running.app.counters
        assert self.counts["whole"] > 50
        assert self.counts["left"] > 20
        assert counters.finishes["cancelled"] > 10
        body, want = self.cases[1]
        assert self.running.ask("POST", "/v1/completions", body | {"stream": False})[1]["choices"][0]["text"] == want
        assert self.running.engine.scheduler.slots == [type(s)(s.index) for s in self.running.engine.scheduler.slots]


@pytest.fixture
def soaked(device, tiny_model):
    with Engine(tiny_model, device, slots=SLOTS, context=256, arithmetic="exact") as engine:
        running = Served(engine, Limits(queue=QUEUE))
        yield running
        running.stop()


def test_64_clients_a_third_hanging_up_midway_lose_no_slot_and_get_no_wrong_text(soaked):
    soak = Soak(soaked, 4.0)
    soak.run()
    soak.check()


@pytest.mark.slow
@pytest.mark.skipif(MINUTES not in os.environ, reason=f"takes the minutes that {MINUTES} says, ten for a proof")
def test_a_long_soak_loses_no_slot_gives_no_wrong_text_and_its_memory_is_flat(soaked):
    minutes = float(os.environ[MINUTES])
    Soak(soaked, 10.0).run()  # what is made once is made
    soaked.idle(30)
    before, began = resident(), time.monotonic()
    soak = Soak(soaked, 60 * minutes)
    samples: list[int] = []
    thread = threading.Thread(target=soak.run, daemon=True)
    thread.start()
    while thread.is_alive():
        samples.append(resident())
        thread.join(5)
    soak.check()
    counters = soaked.app.counters
    grown = resident() - before
    print(
        f"\n{time.monotonic() - began:.0f} s: {dict(soak.counts)}, {counters.completion_tokens} tokens, "
        f"{dict(counters.finishes)}, {counters.hangups} hang-ups seen, memory {before / 1e6:.1f} MB "
        f"{grown / 1e6:+.2f} MB; through it {' '.join(f'{each / 1e6:.1f}' for each in samples[:: len(samples) // 10 or 1])}"
    )
    later = samples[len(samples) // 3 :]  # its halves are a third of the time apart
    grew = mean(later[len(later) // 2 :]) - mean(later[: len(later) // 2])
    slope = grew / ((soak.counts["whole"] + soak.counts["left"]) / 3)
    assert slope < 512, (
        f"every request leaves {slope:.0f} bytes"
    )  # programs still recorded, arenas; a kept request is over 2 kB
    assert grown < 16 << 20
