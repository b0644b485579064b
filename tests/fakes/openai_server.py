"""A small OpenAI-compatible server that responds as its `behavior` says, and records the bodies that it received."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WORDS = ("Hello", " from", " elsewhere", " ✓")


class OpenAiServer:
    """The server. `behavior` is one of: words, tools, garbage, html, stall, hang, other model, cut, no usage, wrong
    usage, late error, or an HTTP status such as "500"."""

    def __init__(self, models: tuple[str, ...] = ("m1",), owner: str = "vllm", api_key: str = "") -> None:
        self.models, self.owner, self.api_key = models, owner, api_key
        self.behavior = "words"
        self.bodies: list[dict[str, Any]] = []
        self.num_disconnects = 0
        self.resume = threading.Event()  # ends a stall
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def start(self) -> OpenAiServer:
        self._thread.start()
        return self

    def stop(self) -> None:
        self.resume.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(_Handler):
            server_of_tests = outer

        return Handler


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of_tests: OpenAiServer

    def log_message(self, *_: object) -> None:
        pass

    def _is_authorized(self) -> bool:
        key = self.server_of_tests.api_key
        if key and self.headers.get("authorization") != f"Bearer {key}":
            self._send(401, {"error": {"message": "no"}})
            return False
        return True

    def _send(self, status: int, document: object, media_type: str = "application/json") -> None:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", media_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self._is_authorized():
            server = self.server_of_tests
            self._send(200, {"data": [{"id": name, "owned_by": server.owner} for name in server.models]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server = self.server_of_tests
        if not self._is_authorized():
            return
        server.bodies.append(body)
        if server.behavior.isdigit():
            self._send(int(server.behavior), {"error": {"message": "the input is too long for me", "code": None}})
        elif self.path.endswith("/embeddings"):
            rows = [{"index": number, "embedding": [0.5, -1.0]} for number in range(len(body["input"]))]
            rows = rows[:-1] if server.behavior == "garbage" else rows
            self._send(200, {"data": rows, "usage": {"prompt_tokens": 7}})
        elif server.behavior == "html":
            self._send(200, b"<html>", "text/html")
        else:
            self._stream(body)

    def _stream(self, body: dict[str, Any]) -> None:
        server = self.server_of_tests
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for document in self._documents(body):
                self.wfile.write(document)
                self.wfile.flush()
            return
        server.num_disconnects += 1

    def _documents(self, body: dict[str, Any]) -> Iterator[bytes]:
        behavior, server = self.server_of_tests.behavior, self.server_of_tests
        if behavior == "hang":
            server.resume.wait(60)
        is_chat = self.path.endswith("/chat/completions")
        for number, word in enumerate(WORDS[: body["max_tokens"]]):
            if number == 1 and behavior == "garbage":
                yield b'data: {"choices": "none"}\n\n'
            if number == 1 and behavior == "late error":
                yield b'data: {"error": {"message": "out of memory"}}\n\n'
            if number == 2 and behavior == "stall":
                yield b": still there\n\n"
                while not server.resume.wait(0.05):
                    yield b": still there\n\n"
            if number == 2 and behavior == "cut":
                return
            piece = {"delta": {"content": word}} if is_chat else {"text": word}
            yield self._chunk(body, {"index": 0, **piece})
        if behavior == "tools":
            yield from self._tool_chunks(body)
        yield self._chunk(body, {"index": 0, "delta": {}, "text": "", "finish_reason": "stop"})
        if behavior != "no usage":
            num_tokens = 10**15 if behavior == "wrong usage" else min(len(WORDS), body["max_tokens"])
            cached = {"prompt_tokens_details": {"cached_tokens": 3}}
            usage = {"prompt_tokens": 11, "completion_tokens": num_tokens, **cached}
            yield b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"

    def _tool_chunks(self, body: dict[str, Any]) -> Iterator[bytes]:
        for function in ({"name": "weather", "arguments": '{"city":'}, {"arguments": '"Lisbon"}'}):
            call = {"index": 0, "id": "call_1", "function": function}
            yield self._chunk(body, {"index": 0, "delta": {"tool_calls": [call]}})

    def _chunk(self, body: dict[str, Any], choice: dict[str, Any]) -> bytes:
        model = "another" if self.server_of_tests.behavior == "other model" else body["model"]
        return b"data: " + json.dumps({"model": model, "choices": [choice]}).encode() + b"\n\n"
