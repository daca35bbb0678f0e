"""An imitation of an OpenAI-compatible server for tests, which takes and tells what it is made to."""

import json
import socket
from collections.abc import Collection
from typing import Any

from scripted_server import HEAD, LAST, ScriptedServer, Told, chunk, plain

METRICS = """# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 7.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 3.0
vllm:generation_tokens_total{engine="0",model_name="a b} c"} 8.0 1796141697
vllm:prefix_cache_hits_total{engine="0"} 2
vllm:request_success_total{finished_reason="stop"} 4.0
vllm:request_success_total{finished_reason="length"} 1.0
vllm:num_preemptions_total 0.0
vllm:spec_decode_num_draft_tokens_total 6.0
vllm:spec_decode_num_accepted_tokens_total 5.0
vllm:e2e_request_latency_seconds_bucket{le="+Inf"} NaN
nonsense
"""


class ImitatedApi:
    """`takes`: of `completions`, `ids`, `ignore_eos`, `total`, `running`, `timings`, `images`, `tokenize`, `metrics`.

    A field that it does not take it refuses, as OpenAI's server does, or with `lenient` passes over. A text of n letters
    comes in n events of a token each, `each` tokens with `several`."""

    def __init__(
        self, takes: Collection[str] = (), *, models: Any = ("m",), key: str | None = None, lenient: bool = False,
        several: int = 1, stops_at: int | None = None,
    ) -> None:  # fmt: skip
        self.takes, self.models, self.key, self.lenient = set(takes), models, key, lenient
        self.several, self.stops_at = several, stops_at
        self.asked: list[dict[str, Any]] = []

    def __call__(self, told: Told, connection: socket.socket) -> None:
        connection.sendall(self.reply(told))

    def reply(self, told: Told) -> bytes:
        if self.key is not None and f"Authorization: Bearer {self.key}\r\n" not in told.head + "\r\n":
            shown = told.head.partition("Bearer ")[2].partition("\r\n")[0]
            return self.error("401 Unauthorized", f"Incorrect API key provided: {shown}")
        if told.path == "/v1/models":
            data = [each if isinstance(each, dict) else {"id": each} for each in self.models]
            return self.json({"object": "list", "data": data})
        if told.path == "/metrics" and "metrics" in self.takes:
            return plain("200 OK", METRICS.encode())
        if told.path == "/version":
            return self.json({"version": "0.12.0"})
        if told.path == "/tokenize" and "tokenize" in self.takes and "prompt" in (told.body or {}):
            return self.json({"count": 1, "tokens": [ord(each) for each in told.body["prompt"]]})
        if told.path == "/detokenize" and "tokenize" in self.takes:
            return self.json({"prompt": "".join(map(chr, told.body["tokens"]))})
        if told.path == "/v1/chat/completions" or (told.path == "/v1/completions" and "completions" in self.takes):
            return self.answer(told.body)
        return self.error("404 Not Found", f"no {told.path}")

    def json(self, data: Any) -> bytes:
        return plain("200 OK", json.dumps(data).encode())

    def error(self, status: str, message: str) -> bytes:
        return plain(status, json.dumps({"error": {"message": message}}).encode())

    def answer(self, body: dict[str, Any]) -> bytes:
        self.asked.append(body)
        options = body.get("stream_options") or {}
        wanted = {
            "ignore_eos": "ignore_eos" in body, "total": "include_usage" in options,
            "running": "continuous_usage_stats" in options, "timings": "timings_per_token" in body,
            "ids": isinstance(body.get("prompt"), list),
        }  # fmt: skip
        content = body.get("messages", [{}])[0].get("content")
        pictures = sum(part["type"] == "image_url" for part in content) if isinstance(content, list) else 0
        wanted["images"] = pictures > 0
        for name, asked in wanted.items():
            if asked and name not in self.takes and not self.lenient:
                return self.error("400 Bad Request", f"Unknown parameter: {name}")
        on = {name for name, asked in wanted.items() if asked and name in self.takes}
        count = body["max_tokens"]
        if self.stops_at is not None and "ignore_eos" not in on:
            count = min(count, self.stops_at)
        prompt = len(body["prompt"]) if "prompt" in body else 5 + 64 * pictures * ("images" in on)
        usage = {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": 1}}
        events, sent = [], 0
        while sent < count:
            step = min(self.several, count - sent)
            sent += step
            delta = {"text": "x" * step} if "prompt" in body else {"delta": {"content": "x" * step}}
            data: dict[str, Any] = {"choices": [{"index": 0, "finish_reason": None, **delta}]}
            if "running" in on:
                data["usage"] = usage | {"completion_tokens": sent}
            if "timings" in on:
                data["timings"] = {"predicted_n": sent}
            events.append(data)
        finish = "length" if count == body["max_tokens"] else "stop"
        events.append({"choices": [{"index": 0, "finish_reason": finish, "delta": {}}]})
        if "total" in on:
            events.append({"choices": [], "usage": usage | {"completion_tokens": count}})
        stream = b"".join(chunk(f"data: {json.dumps(each)}\n\n") for each in events)
        return HEAD + stream + chunk("data: [DONE]\n\n") + LAST

    def serve(self) -> ScriptedServer:
        return ScriptedServer(self)
