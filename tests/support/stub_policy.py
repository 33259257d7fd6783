"""A policy server without a model: its reply depends on (messages, seed) only."""

import hashlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAULT = sys.argv[2] if len(sys.argv) > 2 else ""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet, or the second waits 40 ms for the first to be acknowledged

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        served = {
            "id": "another" if FAULT == "another-model" else "stub",
            "object": "model",
            "max_model_len": 512,
        }
        self.answer({"status": "ok", "object": "list", "data": [] if FAULT == "no-model" else [served]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        drawn = hashlib.sha256(json.dumps([body["messages"], body.get("seed")]).encode()).hexdigest()
        tokens = [int(drawn[i], 16) for i in range(min(4, body["max_tokens"]))]
        choice: dict[str, Any] = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": drawn[:16]},
        }
        if FAULT == "surrogate":
            choice["message"]["content"] = "\ud83d\ude00 \udce9"  # a character, and half of one
        answer = {"object": "chat.completion", "model": body["model"], "choices": [choice]}
        if FAULT != "no-token-ids":
            answer["prompt_token_ids"] = [1, 2, 3]
            choice["token_ids"] = tokens
        if body.get("logprobs"):
            choice["logprobs"] = {"content": [{"token": "", "logprob": -1.0} for _ in tokens]}
        self.answer(answer)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
