"""A small HTTP server over the bindings of the PyPI package cyllama-vulkan (llama.cpp on Vulkan), which has none that
streams: it speaks the part of llama-server's API that is asked here. Its batches are this file's own: every step decodes one
token for each open request, and a prompt is read whole when it comes, before that; llama-server's scheduler is not in it, so
rates of many streams are those of llama.cpp's kernels under a plainer scheduler. Run by its path, with the interpreter that
has the package: `python -P cyllama_server.py --model FILE.gguf --port 8080 ...`; it needs nothing else."""

import argparse
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FLASH_ON = 1
KINDS = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8}  # numbers of ggml's types
NEVER = float("-inf")


@dataclass
class Call:
    """A completion under way: what was asked, and where its events go; None ends it."""

    prompt: list[int]
    tokens: int
    ignore_eos: bool
    temperature: float
    seed: int
    events: "queue.SimpleQueue[dict[str, Any] | None]" = field(default_factory=queue.SimpleQueue)
    gone: bool = False  # the client left
    made: list[int] = field(default_factory=list)
    sampler: Any = None
    slot: int = -1
    row: int = -1  # of the last batch, whose logits its next token is drawn from
    began_s: float = 0.0
    first_s: float = 0.0


class Decoder:
    """The model with its context, and the one thread that runs it."""

    def __init__(self, given: argparse.Namespace) -> None:
        from cyllama.llama import llama_cpp as llama

        self.llama, self.given = llama, given
        llama.ggml_backend_load_all()
        found = [each for each in llama.ggml_backend_dev_info() if each["name"].startswith("Vulkan")]
        if not found:
            sys.exit(
                "cyllama-vulkan sees no Vulkan device; a software driver is seen where GGML_VK_VISIBLE_DEVICES names it"
            )
        self.device = f"{found[0]['name']}: {found[0]['description']}"
        print(f"llama.cpp runs on {self.device}", flush=True)
        model = llama.LlamaModelParams()
        model.n_gpu_layers, model.devices = 99, [found[0]["name"]]
        self.model = llama.LlamaModel(given.model, model, verbose=False)
        self.vocabulary = self.model.get_vocab()
        context = llama.LlamaContextParams()
        context.n_ctx, context.n_seq_max = given.slots * given.context, given.slots
        context.n_ubatch, context.n_batch = given.ub, max(given.ub, 512)
        context.type_k = context.type_v = KINDS[given.kv]
        context.flash_attn_type, context.kv_unified = FLASH_ON, False
        self.context = llama.LlamaContext(self.model, context)
        self.batch = llama.LlamaBatch(n_tokens=context.n_batch, embd=0, n_seq_max=given.slots)
        self.positions = int(self.context.n_ctx_seq)
        size = self.vocabulary.n_vocab
        self.size = int(size() if callable(size) else size)
        self.ends = [i for i in range(self.size) if self.vocabulary.is_eog(i)]
        self.waiting: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self.open: list[Call] = []
        self.free = list(range(given.slots))
        self.totals = {"prompt_tokens_total": 0, "tokens_predicted_total": 0, "n_decode_total": 0}

    def run(self) -> None:
        """Admit, decode, hand out, for ever. An error of llama.cpp ends the process: its state is not known any more."""
        try:
            while True:
                while self.free and (not self.open or not self.waiting.empty()):
                    self.begin(self.waiting.get())
                self.step()
        except BaseException as error:
            print(f"error: llama.cpp failed: {error}", flush=True)
            os._exit(1)

    def begin(self, call: Call) -> None:
        """Read a prompt into a free slot, as many tokens at once as a batch takes."""
        if call.gone:
            return
        llama = self.llama
        call.sampler = llama.LlamaSampler(llama.LlamaSamplerChainParams())
        if call.ignore_eos and self.ends:  # as llama-server does: an end token is never drawn
            call.sampler.add_logit_bias(self.size, [(each, NEVER) for each in self.ends])
        if call.temperature > 0:
            call.sampler.add_temp(call.temperature)
            call.sampler.add_dist(call.seed)
        else:
            call.sampler.add_greedy()
        call.slot, call.began_s = self.free.pop(0), time.perf_counter()
        chunk = max(self.given.ub, 512)
        for start in range(0, len(call.prompt), chunk):
            part = call.prompt[start : start + chunk]
            self.batch.clear()
            for offset, token in enumerate(part):
                self.batch.add(token, start + offset, [call.slot], start + offset == len(call.prompt) - 1)
            self.decode()
            call.row = len(part) - 1
        self.totals["prompt_tokens_total"] += len(call.prompt)
        self.open.append(call)
        self.draw(call)
        call.first_s = time.perf_counter()
        self.sweep()

    def step(self) -> None:
        """One token for each open request."""
        self.batch.clear()
        for row, call in enumerate(self.open):
            self.batch.add(call.made[-1], len(call.prompt) + len(call.made) - 1, [call.slot], True)
            call.row = row
        if self.open:
            self.decode()
        for call in self.open:
            self.draw(call)
        self.sweep()

    def decode(self) -> None:
        """Run the batch."""
        self.context.decode(self.batch)
        self.totals["n_decode_total"] += 1

    def draw(self, call: Call) -> None:
        """The next token of a request, told at once."""
        token = int(call.sampler.sample(self.context, call.row))
        call.made.append(token)
        self.totals["tokens_predicted_total"] += 1
        ended = token in self.ends
        text = "" if ended else self.vocabulary.token_to_piece(token, 0, True)
        call.events.put(
            {"content": text, "tokens": [token], "stop": False, "tokens_predicted": len(call.made),
             "tokens_evaluated": len(call.prompt)}
        )  # fmt: skip

    def sweep(self) -> None:
        """Let go of the requests that have ended, or whose client has left."""
        for call in list(self.open):
            ended = call.made[-1] in self.ends and not call.ignore_eos
            full = len(call.prompt) + len(call.made) > self.positions
            if not (call.gone or ended or full or len(call.made) >= call.tokens):
                continue
            now = time.perf_counter()
            self.open.remove(call)
            self.context.memory_seq_rm(call.slot, -1, -1)
            self.free.append(call.slot)
            timings = {
                "cache_n": 0, "prompt_n": len(call.prompt), "prompt_ms": ((call.first_s or now) - call.began_s) * 1e3,
                "predicted_n": len(call.made), "predicted_ms": (now - (call.first_s or now)) * 1e3,
            }  # fmt: skip
            call.events.put(
                {"content": "", "tokens": [], "stop": True, "stop_type": "eos" if ended else "limit",
                 "tokens_predicted": len(call.made), "tokens_evaluated": len(call.prompt), "timings": timings}
            )  # fmt: skip
            call.events.put(None)

    def tokenize(self, text: str, special: bool, bos: bool) -> list[int]:
        """Token ids of a text."""
        return [int(each) for each in self.vocabulary.tokenize(text, bos, special)]

    def call_of(self, body: dict[str, Any]) -> Call:
        """A request from its body. ValueError, in one line, for what cannot be."""
        prompt = body.get("prompt")
        ids = self.tokenize(prompt, True, True) if isinstance(prompt, str) else prompt
        if not isinstance(ids, list) or not ids or not all(type(i) is int and 0 <= i < self.size for i in ids):
            raise ValueError("prompt is a text or a list of token ids, and not empty")
        if len(ids) >= self.positions:
            raise ValueError(f"the request has {len(ids)} tokens and exceeds the context of {self.positions} of a slot")
        count = body.get("n_predict", -1)
        wanted = count if isinstance(count, int) and count > 0 else self.positions
        temperature, seed = float(body.get("temperature", 0.8)), body.get("seed")
        return Call(ids, wanted, bool(body.get("ignore_eos")), temperature, seed if isinstance(seed, int) else 0)


def handler(decoder: Decoder) -> type[BaseHTTPRequestHandler]:
    """What answers HTTP requests."""
    gets: dict[str, Callable[[], Any]] = {
        "/health": lambda: {"status": "ok"},
        "/props": lambda: {
            "total_slots": decoder.given.slots, "model_path": decoder.given.model, "build_info": "cyllama-vulkan",
            "default_generation_settings": {"n_ctx": decoder.positions},
        },
        "/v1/models": lambda: {"object": "list", "data": [{"id": os.path.basename(decoder.given.model), "object": "model"}]},
        "/metrics": lambda: "".join(
            f"# TYPE llamacpp:{name} counter\nllamacpp:{name} {value}\n" for name, value in decoder.totals.items()
        ),
    }  # fmt: skip

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: its output is llama.cpp's log."""

        def do_GET(self) -> None:
            """A small question."""
            found = gets.get(self.path)
            self.tell(found() if found else {"error": {"code": 404, "message": "not here"}}, 200 if found else 404)

        def do_POST(self) -> None:
            """A text, token ids, or a completion."""
            try:
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
                if self.path == "/tokenize":
                    flags = bool(body.get("parse_special", True)), bool(body.get("add_special"))
                    self.tell({"tokens": decoder.tokenize(body["content"], *flags)})
                elif self.path == "/detokenize":
                    self.tell({"content": decoder.vocabulary.detokenize(body["tokens"], 1 << 20, False, True)})
                elif self.path == "/completion":
                    self.complete(decoder.call_of(body), bool(body.get("stream")))
                else:
                    self.tell({"error": {"code": 404, "message": "not here"}}, 404)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                self.tell({"error": {"code": 400, "message": str(error)[:300]}}, 400)

        def complete(self, call: Call, streaming: bool) -> None:
            """The events of a completion as they come, or the last with the whole text."""
            decoder.waiting.put(call)
            if not streaming:
                events = list(iter(call.events.get, None))
                self.tell({**events[-1], "content": "".join(each["content"] for each in events), "tokens": call.made})
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for event in iter(call.events.get, None):
                    self.chunk(f"data: {json.dumps(event)}\n\n".encode())
                self.chunk(b"")
            except OSError:
                call.gone = True
                self.close_connection = True

        def chunk(self, raw: bytes) -> None:
            """One piece of a body of unknown length; an empty one ends it."""
            self.wfile.write(f"{len(raw):x}\r\n".encode() + raw + b"\r\n")
            self.wfile.flush()

        def tell(self, data: Any, status: int = 200) -> None:
            """A whole answer: JSON, or text as it is."""
            raw = (data if isinstance(data, str) else json.dumps(data)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain" if isinstance(data, str) else "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

    return Handler


class Server(ThreadingHTTPServer):
    """A thread a connection, as many waiting as the system allows."""

    request_queue_size = 512
    daemon_threads = True


def main() -> None:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--context", type=int, required=True, help="positions of a slot")
    parser.add_argument("--ub", type=int, required=True)
    parser.add_argument("--kv", required=True, choices=list(KINDS))
    given = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    decoder = Decoder(given)
    threading.Thread(target=decoder.run, daemon=True).start()
    Server((given.host, given.port), handler(decoder)).serve_forever()


if __name__ == "__main__":
    main()
