"""Speech recognition with a real model, added as docs/tasks.md says, by the official clients."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cloudflare import Cloudflare
from openai import OpenAI

from tests.clients.added_models import add_model
from tests.platform import Platform

pytestmark = pytest.mark.full

MODEL = "@cf/usefulsensors/moonshine-tiny"
SPEECH = "and so my fellow americans ask not what your country can do for you ask what you can do for your country"


@pytest.fixture(scope="module")
def recognizing(platform: Platform) -> Platform:
    """The platform with the model added by the command."""
    add_model(platform, MODEL)
    return platform


@pytest.fixture(scope="module")
def recording(test_data: Path) -> Path:
    return test_data / "speech" / "jfk.wav"


@pytest.fixture
def openai_client(recognizing: Platform) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{recognizing.ai_url()}/v1", api_key=recognizing.api_token, timeout=120) as client:
        yield client


def words(text: str) -> str:
    return " ".join(re.findall(r"[a-z]+", text.lower()))


@pytest.mark.parametrize("name", ["jfk.wav", "jfk.flac", "jfk.mp3"])
def test_openai_client_gets_every_word(openai_client: OpenAI, recording: Path, name: str):
    with recording.with_name(name).open("rb") as file:
        transcript = openai_client.audio.transcriptions.create(model=MODEL, file=file)
    assert words(transcript.text) == SPEECH


def test_openai_client_gets_text_subtitles_and_times(openai_client: OpenAI, recording: Path):
    verbose = openai_client.audio.transcriptions.create(
        model=MODEL, file=recording, response_format="verbose_json", timestamp_granularities=["word", "segment"]
    )
    assert verbose.duration == pytest.approx(11.0)
    assert words(" ".join(word.word for word in verbose.words or ())) == SPEECH
    assert words(" ".join(segment.text for segment in verbose.segments or ())) == SPEECH
    subtitles = openai_client.audio.transcriptions.create(model=MODEL, file=recording, response_format="srt")
    assert subtitles.startswith("1\n00:00:00,000 --> ")


def test_cloudflare_client_sends_an_array_of_bytes(recognizing: Platform, recording: Path):
    with Cloudflare(base_url=recognizing.base_url, api_token=recognizing.api_token, timeout=120) as client:
        result = client.ai.run(MODEL, account_id=recognizing.account_id, audio=list(recording.read_bytes()))
    assert words(dict(result)["text"]) == SPEECH  # type: ignore[call-overload]


def test_transcription_is_faster_than_the_recording(recognizing: Platform, recording: Path):
    with recognizing.client() as client:
        url = f"{recognizing.ai_url()}/run/{MODEL}"
        content = recording.read_bytes()
        assert client.post(url, content=content).status_code == 200
        started_s = time.monotonic()
        assert client.post(url, content=content).status_code == 200
    assert time.monotonic() - started_s < 11
