"""A small imitation of llama-server for tests: its command line, /health, and streamed /completion."""

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HELP = """usage: llama-server
-fa,   --flash-attn [on|off|auto]       set Flash Attention use
-m,    --model FNAME
--ui,  --webui, --no-ui, --no-webui     whether to enable the Web UI
-kvu,  --kv-unified, -no-kvu, --no-kv-unified
-fit,  --fit [on|off]                   whether to adjust unset arguments
"""
LOADING_S = 0.3
STEP_S = 0.005
started = time.monotonic()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        ready = time.monotonic() - started > LOADING_S
        body = b'{"status":"ok"}' if ready else b'{"error":{"message":"Loading model"}}'
        self.send_response(200 if ready else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        os.write(1, (json.dumps(body) + "\n").encode())  # tests read it in the log; whole lines, whoever else writes
        if os.environ.get("IMITATION") == "refuse":
            text = b'{"error":{"code":400,"message":"the request exceeds the available context size"}}'
            self.send_response(400)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
            return
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
            time.sleep(STEP_S)
            self.event({"content": f" w{number}", "tokens": [300], "stop": False, "tokens_predicted": number})
        cached = len(body["prompt"]) - 1 if os.environ.get("IMITATION") == "cache" else 0
        self.event(
            {
                "content": "",
                "stop": True,
                "tokens_predicted": count,
                "timings": {"cache_n": cached, "prompt_n": len(body["prompt"]), "prompt_ms": 1.0, "model": "text"},
            }
        )
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
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
