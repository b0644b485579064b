"""`hearth chat`: one question, a conversation in a terminal, and how it fails."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cli import main
from tests.cli.test_up import Up
from tests.waiting import wait_until_blocking

MODEL = "@cf/acme/chat"
TEXT = "Hello there"


class Gateway:
    """A gateway whose model answers TEXT in two pieces, and "forever" with an endless stream."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.num_cancelled = 0
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                gateway.requests.append(body | {"path": self.path, "token": self.headers["authorization"]})
                gateway.respond(self, body["messages"][-1]["content"])

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/client/v4"

    def respond(self, handler: BaseHTTPRequestHandler, question: str) -> None:
        if question == "refuse":
            handler.send_response(404)
            handler.end_headers()
            handler.wfile.write(b'{"error": {"message": "there is no such model"}}')
            return
        handler.send_response(200)
        handler.end_headers()

        def send(choice: dict[str, Any]) -> None:
            handler.wfile.write(b"data: %s\n\n" % json.dumps({"choices": [choice]}).encode())
            handler.wfile.flush()

        if question == "break":
            handler.wfile.write(b'data: {"error": {"message": "the node failed"}}\n\n')
            return
        if question == "forever":
            with contextlib.suppress(OSError):
                while True:
                    send({"delta": {"content": "again "}})
            self.num_cancelled += 1
            return
        for piece in TEXT[:5], TEXT[5:]:
            send({"delta": {"content": piece}})
        send({"delta": {}, "finish_reason": "length" if question == "long" else "stop"})
        handler.wfile.write(b"data: [DONE]\n\n")


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    gateway = Gateway()
    thread = threading.Thread(target=gateway.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield gateway
    gateway.server.shutdown()
    gateway.server.server_close()
    thread.join(5)


@pytest.fixture
def chat(
    gateway: Gateway, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Run `hearth chat MODEL ...` with this standard input; return the exit status and the printed text."""

    def run(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        options = ["--url", gateway.url, "--account", "ab" * 16, "--token", "secret"]
        status = main.run(["chat", *arguments, *options])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_single_question_gets_a_response_and_the_command_exits(chat: Callable[..., Any], gateway: Gateway) -> None:
    assert chat(MODEL, "Hi", "--system", "Be kind.", "--max-tokens", "7") == (0, f"{TEXT}\n", "")
    (request,) = gateway.requests
    assert request["path"] == f"/client/v4/accounts/{'ab' * 16}/ai/v1/chat/completions"
    assert (request["token"], request["model"], request["max_tokens"]) == ("Bearer secret", MODEL, 7)
    system = {"role": "system", "content": "Be kind."}
    assert request["messages"] == [system, {"role": "user", "content": "Hi"}]


def test_piped_input_is_the_question_or_follows_it(chat: Callable[..., Any], gateway: Gateway) -> None:
    assert chat(MODEL, stdin="a text\n")[0] == 0
    assert chat(MODEL, "Summarize:", stdin="a text\n")[0] == 0
    questions = [request["messages"][-1]["content"] for request in gateway.requests]
    assert questions == ["a text", "Summarize:\n\na text"]
    status, _, err = chat(MODEL)
    assert (status, "standard input is empty" in err) == (2, True)


def test_response_is_printed_as_json_on_request(chat: Callable[..., Any]) -> None:
    status, out, err = chat(MODEL, "long", "--json")
    assert (status, err) == (0, "")
    assert json.loads(out) == {"model": MODEL, "content": TEXT, "finish_reason": "length"}
    assert "--max-tokens raises the limit" in chat(MODEL, "long")[2]


def test_failure_is_one_line_with_the_reason(chat: Callable[..., Any], gateway: Gateway, tmp_path: Path) -> None:
    assert chat(MODEL, "refuse", "--json")[::2] == (
        1,
        '{"error": {"message": "there is no such model", "exit_code": 1}}\n',
    )
    assert chat(MODEL, "break")[2] == "hearth: the node failed\n"
    assert "give a MODEL together with --url" in chat()[2]
    gateway.server.server_close()
    assert "does not respond" in chat(MODEL, "Hi")[2]


def test_without_a_platform_the_error_names_hearth_up(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main.run(["chat", "--data", str(tmp_path)]) == 1
    assert "hearth up" in capsys.readouterr().err


class Terminal:
    """`hearth chat` on a terminal."""

    def __init__(self, url: str) -> None:
        self._terminal, device = pty.openpty()
        options = ["--url", url, "--account", "ab" * 16, "--token", "secret"]
        command = [sys.executable, "-m", "cli.main", "chat", MODEL, *options]
        # A session of its own with this terminal, so that Ctrl-C in the terminal interrupts the process.
        files = {"stdin": device, "stdout": device, "stderr": device}
        self.process = subprocess.Popen(["setsid", "--ctty", *command], env={**os.environ, "TERM": "dumb"}, **files)
        os.close(device)
        self.output = ""

    def wait_for(self, text: str) -> None:
        """Read until `text` is printed, and forget the output so far."""
        while text not in self.output:
            assert select.select([self._terminal], [], [], 60.0)[0], f"no {text!r} in {self.output!r}"
            self.output += os.read(self._terminal, 1 << 16).decode(errors="replace")
        self.output = self.output.partition(text)[2]

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def close(self) -> int:
        self.process.kill()
        os.close(self._terminal)
        return self.process.wait(10)


@pytest.fixture
def terminal(gateway: Gateway) -> Iterator[Terminal]:
    terminal = Terminal(gateway.url)
    yield terminal
    terminal.close()


def test_conversation_has_history_and_commands(terminal: Terminal, gateway: Gateway) -> None:
    for line, expected in (
        ("one", TEXT),
        ("two", TEXT),
        ("refuse", "there is no such model"),
        ("/system Be kind.", ""),
        ("three", TEXT),
        ("/clear", ""),
        ("four", TEXT),
        ("/what", "unknown command /what"),
    ):
        terminal.wait_for(">>> ")
        terminal.type(line + "\n")
        terminal.wait_for(line)
        if expected:
            terminal.wait_for(expected)
    terminal.wait_for(">>> ")
    terminal.type("/bye\n")
    assert terminal.process.wait(30) == 0
    contents = [[message["content"] for message in request["messages"]] for request in gateway.requests]
    assert contents == [
        ["one"],
        ["one", TEXT, "two"],
        ["one", TEXT, "two", TEXT, "refuse"],
        ["Be kind.", "one", TEXT, "two", TEXT, "three"],
        ["Be kind.", "four"],
    ]


def test_ctrl_c_stops_the_response_and_the_conversation_goes_on(terminal: Terminal, gateway: Gateway) -> None:
    terminal.wait_for(">>> ")
    terminal.type("forever\n")
    terminal.wait_for("again again")
    terminal.type("\x03")
    terminal.wait_for(">>> ")
    wait_until_blocking(lambda: gateway.num_cancelled == 1)
    terminal.type("next\n")
    terminal.wait_for(TEXT)
    assert [message["role"] for message in gateway.requests[-1]["messages"]] == ["user", "assistant", "user"]
    terminal.wait_for(">>> ")
    terminal.type("\x04")  # Ctrl-D
    assert terminal.process.wait(30) == 0


def test_default_model_is_the_chat_model_of_the_platform(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with tempfile.TemporaryDirectory(prefix="hearth-chat-") as name:  # short enough for Unix sockets
        up = Up(Path(name) / "p", "--no-starter").wait_ready()
        try:
            assert main.run(["chat", "", "Hello!", "--max-tokens", "4", "--data", str(up.data), "--json"]) == 0
            response = json.loads(capsys.readouterr().out)
            assert (response["model"], response["finish_reason"]) == ("@cf/hearth/spark", "length")
            assert response["content"]
            assert main.run(["chat", "@cf/hearth/none", "Hi", "--data", str(up.data)]) == 1
            assert "@cf/hearth/none" in capsys.readouterr().err
        finally:
            up.stop()
