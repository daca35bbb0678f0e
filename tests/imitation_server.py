"""A small imitation of llama-server for tests: its command line, /health and what tells of it, and streamed answers."""

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HELP = """usage: llama-server
-fa,   --flash-attn [on|off|auto]       set Flash Attention use
-m,    --model FNAME
--ui,  --webui, --no-ui, --no-webui     whether to enable the Web UI
-kvu,  --kv-unified, -no-kvu, --no-kv-unified
-fit,  --fit [on|off]                   whether to adjust unset arguments
--metrics                               enable prometheus compatible metrics endpoint
--foo N                                 a flag of a person's own
"""
LOADING_S = 0.3
STEP_S = 0.005
started = time.monotonic()
serving = threading.Event()  # it has begun to hang
sent = []  # a one for each token


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        how = os.environ.get("IMITATION")
        if how == "stuck" and serving.is_set():
            time.sleep(60)
        if time.monotonic() - started <= LOADING_S:
            self.answer(503, {"error": {"message": "Loading model"}})
        elif self.path == "/props":
            settings = {"n_ctx": 256, "params": {"speculative.types": "none"}}
            self.answer(200, {
                "total_slots": 4, "model_alias": "/models/a.gguf", "model_path": "/models/a.gguf", "model_ftype": "Q8_0",
                "build_info": "b1-imitation", "default_generation_settings": settings, "modalities": {"vision": False},
            })  # fmt: skip
        elif self.path == "/slots":
            self.answer(200, [{"id": i, "n_ctx": 256, "speculative": False} for i in range(4)])
        elif self.path == "/metrics" and "--metrics" in sys.argv:
            self.answer(200, f"# TYPE x counter\nllamacpp:tokens_predicted_total {sum(sent)}\n")
        elif self.path == "/health":
            self.answer(200, {"status": "ok"})
        else:
            self.answer(404, {"error": {"message": "File Not Found"}})

    def answer(self, status, body):
        raw = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        os.write(1, (json.dumps(body) + "\n").encode())  # tests read it in the log; whole lines, whoever else writes
        if self.path == "/tokenize":
            return self.answer(200, {"tokens": [ord(each) for each in body["content"]]})
        if self.path == "/detokenize":
            return self.answer(200, {"content": "".join(map(chr, body["tokens"]))})
        if os.environ.get("IMITATION") == "refuse":
            said = {"code": 400, "message": "the request exceeds the available context size"}
            return self.answer(400, {"error": said})
        if self.path == "/v1/chat/completions":
            return self.chat(body)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.chunk(":\n\n")  # a comment, as the real one sends while a prompt is read
        count = body["n_predict"] - (os.environ.get("IMITATION") == "short")
        for number in range(1, count + 1):
            if os.environ.get("IMITATION") == "die" and number == 3:
                print("the GPU is lost", flush=True)
                os._exit(9)
            if os.environ.get("IMITATION") == "stuck" and number == 3:
                print("waiting for the GPU", flush=True)
                serving.set()
                time.sleep(60)
            time.sleep(STEP_S)
            sent.append(1)
            self.event({"content": f" w{number}", "tokens": [300], "stop": False, "tokens_predicted": number})
        cached = len(body["prompt"]) - 1 if os.environ.get("IMITATION") == "cache" else 0
        self.event(
            {
                "content": "",
                "stop": True,
                "stop_type": "limit",
                "tokens_predicted": count,
                "tokens_evaluated": len(body["prompt"]),
                "timings": {"cache_n": cached, "prompt_n": len(body["prompt"]), "prompt_ms": 1.0, "model": "text"},
            }
        )
        self.wfile.write(b"0\r\n\r\n")

    def chat(self, body):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        count = body["max_tokens"]
        for number in range(1, count + 1):
            choice = {"index": 0, "delta": {"content": f" c{number}"}, "finish_reason": None}
            self.event({"choices": [choice], "timings": {"cache_n": 1, "predicted_n": number}})
        self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        usage = {"completion_tokens": count, "prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 1}}
        self.event({"choices": [], "usage": usage, "timings": {"cache_n": 1, "predicted_n": count, "draft_n": 4}})
        self.chunk("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, data):
        self.chunk(f"data: {json.dumps(data)}\n\n")

    def chunk(self, text):
        raw = text.encode()
        self.wfile.write(f"{len(raw):x}\r\n".encode() + raw + b"\r\n")
        self.wfile.flush()


def main():
    if "--version" in sys.argv:
        print("version: 0.1 (imitation)")
        return
    if "--help" in sys.argv:
        print(HELP)
        return
    if os.environ.get("IMITATION") == "broken":
        print("error: unknown model architecture", flush=True)
        sys.exit(3)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError:
        print(f"couldn't bind HTTP server socket, hostname: 127.0.0.1, port: {port}", flush=True)
        sys.exit(1)
    server.serve_forever()


if __name__ == "__main__":
    main()
