"""`hearth pilot`: profiles, a replay against an OpenAI endpoint, and the figures."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cli.main import run
from cli.pilot import CallOutcome, read_profile, summarize


class Endpoint(BaseHTTPRequestHandler):
    """Streams two words; refuses the model `busy`, and ends the stream of `broken` early."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if body["model"] == "busy":
            self.send_error(429)
            return
        self.send_response(200)
        self.end_headers()
        events = [{"choices": [{"delta": {"content": word}}]} for word in ("two", "words")]
        events.append({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 2}})
        for event in events:
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        if body["model"] != "broken":
            self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def base_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def replayed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert run(["pilot", *arguments, "--json"]) == 0
    report: dict = json.loads(capsys.readouterr().out)
    return report


def test_replay_reports_latencies_and_the_cost_of_a_useful_response(base_url: str, capsys: pytest.CaptureFixture[str]):
    prices = ("--input-price", "1", "--output-price", "10")
    report = replayed(capsys, base_url, "--model", "good", "--calls", "8", "--rate", "200", *prices)
    assert (report["calls"], report["useful"], report["failed"], report["output_tokens"]) == (8, 8, 0, 16)
    assert 0 < report["ttft_p50_ms"] <= report["ttft_p95_ms"] <= report["ttft_p99_ms"]
    assert report["ttft_p50_ms"] <= report["total_p99_ms"]
    assert report["cost_per_useful_response_usd"] == pytest.approx(30e-6)


def test_failed_calls_are_counted_by_their_error(base_url: str, capsys: pytest.CaptureFixture[str]):
    report = replayed(capsys, base_url, "--model", "good,busy,broken", "--calls", "9", "--rate", "200")
    assert report["errors"] == {"HTTP 429": 3, "the stream ended without [DONE]": 3}
    assert (report["useful"], report["failed"]) == (3, 6)


def test_endpoint_that_does_not_respond_is_an_error_of_each_call(capsys: pytest.CaptureFixture[str]):
    report = replayed(capsys, "http://127.0.0.1:9/v1", "--model", "m", "--calls", "2", "--rate", "100")
    assert report["errors"] == {"ConnectError": 2}
    assert report["ttft_p50_ms"] is report["cost_per_useful_response_usd"] is None


def test_profile_is_replayed_from_its_first_call_with_limited_lengths(
    base_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    rows = [{"timestamp": 5000 + 20 * number, "input_length": 9000, "output_length": 3} for number in range(5)]
    profile = tmp_path / "calls.jsonl"
    profile.write_text("\n".join(map(json.dumps, rows)))
    assert read_profile(profile, 3, 2.0, ["m"])[-1].at_s == pytest.approx(0.02)
    assert replayed(capsys, base_url, "--model", "m", "--profile", str(profile))["useful"] == 5


def test_unreadable_profile_names_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    profile = tmp_path / "calls.jsonl"
    profile.write_text('{"timestamp": 1, "input_length": 5, "output_length": 5}\n{"timestamp": "x"}\n')
    assert run(["pilot", "http://127.0.0.1:9/v1", "--model", "m", "--profile", str(profile)]) == 2
    assert "line 2" in capsys.readouterr().err
    assert run(["pilot", "ftp://x", "--model", "m"]) == 2


def test_cold_start_and_swap_are_told_from_the_order_of_calls():
    def outcome(model: str, at_s: float, ttft_s: float) -> CallOutcome:
        return CallOutcome(model, at_s, ttft_s, ttft_s + 1, 1, 1)

    calls = [
        outcome("a", 0, 9.0),
        outcome("a", 1, 0.1),
        outcome("b", 2, 0.5),
        outcome("b", 3, 0.1),
        outcome("a", 4, 0.5),
    ]
    report = summarize(calls, 0, 0)
    assert (report["cold_start_ms"], report["swap_ms"]) == (9000.0, 400.0)
    warm = summarize([outcome("a", number, 0.1) for number in range(5)], 0, 0)
    assert warm["cold_start_ms"] is warm["swap_ms"] is None
