"""Speech through the gateway: native forms, OpenAI's formats, streaming, prices, batches, refusals."""

import base64
import io
import wave

import httpx
import pytest

from tests.gateway.process import MELODY, PARROT, READER
from tests.gateway.site import Running

TEXT = "Good morning. How are you?"


def run(client: httpx.Client, running: Running, model: str = READER, **body) -> httpx.Response:
    return client.post(f"{running.account_url}/ai/run/{model}", json=body)


def speak(client: httpx.Client, running: Running, **body) -> httpx.Response:
    body = {"model": READER, "input": TEXT, "voice": "alloy"} | body
    return client.post(f"{running.account_url}/ai/v1/audio/speech", json=body)


def test_native_speech_is_bytes_with_their_type(client: httpx.Client, running: Running):
    response = run(client, running, text=TEXT, speaker="angus")
    assert (response.status_code, response.headers["content-type"]) == (200, "audio/mpeg")
    assert response.content == TEXT.encode()
    assert running.site.execute_of(response).task.voice == "angus"


def test_json_model_returns_the_whole_speech_in_base64_and_charges_its_seconds(client: httpx.Client, running: Running):
    response = run(client, running, MELODY, prompt=TEXT, lang="en")
    assert base64.b64decode(response.json()["result"]["audio"]) == TEXT.encode()
    assert response.headers["cf-ai-neurons"] == "2.00"


@pytest.mark.parametrize(
    ("options", "media_type"),
    [
        ({}, "audio/mpeg"),
        ({"encoding": "mp3", "container": "none"}, "audio/mpeg"),
        ({"encoding": "linear16"}, "audio/wav"),
        ({"container": "wav"}, "audio/wav"),
        ({"encoding": "linear16", "container": "none"}, "audio/pcm"),
    ],
)
def test_encoding_and_container_select_the_format(
    client: httpx.Client, running: Running, options: dict, media_type: str
):
    assert run(client, running, text=TEXT, **options).headers["content-type"] == media_type


def test_openai_speech_streams_a_wav_file(client: httpx.Client, running: Running):
    response = speak(client, running, response_format="wav")
    assert response.headers["content-type"] == "audio/wav"
    assert "content-length" not in response.headers
    with wave.open(io.BytesIO(response.content)) as recording:
        assert (recording.getframerate(), recording.getnchannels(), recording.getsampwidth()) == (24_000, 1, 2)
    assert len(response.content) == 44 + 48_000


def test_openai_speech_in_samples_has_no_header(client: httpx.Client, running: Running):
    response = speak(client, running, response_format="pcm", speed=2)
    assert (response.headers["content-type"], len(response.content)) == ("audio/pcm", 48_000)
    assert running.site.execute_of(response).task.speed == 2


def test_batch_has_speech_in_base64(client: httpx.Client, running: Running):
    requests = [{"text": "one", "encoding": "linear16"}, {"text": "two"}]
    response = client.post(f"{running.account_url}/ai/run/{READER}", json={"requests": requests})
    first, second = (item["result"]["audio"] for item in response.json()["result"]["responses"])
    with wave.open(io.BytesIO(base64.b64decode(first))) as recording:
        assert recording.getnframes() == 24_000
    assert base64.b64decode(second) == b"two"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"response_format": "flac"}, "flac is not supported"),
        ({"response_format": "opus"}, "opus is not supported"),
        ({"stream_format": "sse"}, "sse is not supported"),
        ({"speed": 9}, "speed"),
        ({"input": ""}, "input"),
        ({"input": "  "}, "must not be blank"),
        ({"input": "x" * 5001}, "input"),
        ({"instructions": "whisper"}, "instructions"),
    ],
)
def test_unsupported_openai_field_gets_a_400_that_names_it(
    client: httpx.Client, running: Running, body: dict, message: str
):
    response = speak(client, running, **body)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"text": TEXT, "encoding": "opus"}, "opus is not supported"),
        ({"text": TEXT, "encoding": "mp3", "container": "ogg"}, "ogg with mp3 is not supported"),
        ({"text": TEXT, "sample_rate": 11_111}, "'/sample_rate' must be one of 8000"),
        ({"prompt": TEXT}, "text"),
    ],
)
def test_unsupported_native_field_gets_a_400_that_names_it(
    client: httpx.Client, running: Running, body: dict, message: str
):
    response = run(client, running, **body)
    assert response.status_code == 400
    assert message in response.json()["errors"][0]["message"]


def test_text_model_does_not_speak(client: httpx.Client, running: Running):
    assert speak(client, running, model=PARROT).status_code == 400
