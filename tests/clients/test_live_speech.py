"""Live speech with the real models, as docs/tasks.md describes it: words, delays, and other sample rates."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import threading
import time
import wave
from pathlib import Path
from typing import Any

import pytest

from tests.platform import Platform
from tests.web_socket import WebSocketClient, speak

pytestmark = pytest.mark.full

MODELS = ("@cf/snakers4/silero-vad", "@cf/usefulsensors/moonshine-tiny")
ADD_TIMEOUT_S = 600


@pytest.fixture(scope="module")
def listening(platform: Platform) -> Platform:
    """The platform with both models added by the command."""
    for model in MODELS:
        command = [sys.executable, "-m", "cli.main", "model", "add", model, "--data", str(platform.data)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=ADD_TIMEOUT_S, check=False, env=os.environ
        )
        if "could not be downloaded" in done.stderr:
            pytest.skip(f"the packages of the model cannot be downloaded: {done.stderr.strip()[-200:]}")
        assert done.returncode == 0, done.stderr
    return platform


@pytest.fixture(scope="module")
def speech(test_data: Path) -> bytes:
    with wave.open(str(test_data / "speech/jfk.wav")) as file:
        return file.readframes(file.getnframes())


class Listening(threading.Thread):
    """Receives events with their times until the WebSocket closes."""

    def __init__(self, client: WebSocketClient) -> None:
        super().__init__(daemon=True)
        self._client = client
        self.events: list[tuple[float, dict[str, Any]]] = []
        self.start()

    def run(self) -> None:
        while (event := self._client.receive()) is not None:
            if isinstance(event, dict):
                self.events.append((time.monotonic(), event))

    def of_type(self, kind: str) -> list[tuple[float, dict[str, Any]]]:
        return [(at, event) for at, event in self.events if event["type"] == kind]


def listen(platform: Platform, audio: bytes, *, sample_rate: int = 16_000, **query: Any) -> Listening:
    url = f"{platform.ai_url()}/run/{MODELS[1]}"
    with WebSocketClient(url, platform.api_token, {"sample_rate": sample_rate, **query}) as client:
        client.receive_until("session.started")
        listening = Listening(client)
        speak(client, audio, sample_rate=sample_rate)
        client.send({"type": "close"})
        listening.join(60)
        assert client.closed == (1000, "closed as requested")
    return listening


def words(texts: list[str]) -> list[str]:
    return re.findall(r"[a-z]+", " ".join(texts).lower())


@pytest.mark.parametrize("sample_rate", [16_000, 8_000, 48_000])
def test_spoken_words_arrive_while_they_are_spoken(listening: Platform, speech: bytes, sample_rate: int):
    audio = resampled(speech, sample_rate)
    found = listen(listening, audio, sample_rate=sample_rate, silence_ms=800)
    text = words([event["text"] for _, event in found.of_type("transcript.final")])
    for phrase in ("my fellow americans", "your country can do for you", "what you can do for your country"):
        assert phrase in " ".join(text)
    assert len(found.of_type("transcript.partial")) >= 8
    charged_ms = sum(event["audio_ms"] for _, event in found.of_type("usage"))
    assert 6_000 <= charged_ms <= 11_500


def test_partial_transcripts_arrive_twice_a_second_and_the_final_one_soon(listening: Platform, speech: bytes):
    found = listen(listening, speech, silence_ms=500)
    gaps = []
    for number in {event["utterance"] for _, event in found.of_type("speech.started")}:
        times = [at for at, event in found.events if event.get("utterance") == number and event["type"] != "usage"]
        gaps += [later - earlier for earlier, later in itertools.pairwise(times)]
    gaps.sort()
    assert gaps[len(gaps) // 2] <= 0.5
    assert gaps[-1] <= 2.0  # machines that run tests are busy


def resampled(audio: bytes, sample_rate: int) -> bytes:
    """Return 16 kHz samples at another rate: every second sample, or each three times."""
    if sample_rate == 16_000:
        return audio
    samples = [audio[i : i + 2] for i in range(0, len(audio), 2)]
    return b"".join(samples[::2]) if sample_rate == 8_000 else b"".join(sample * 3 for sample in samples)
