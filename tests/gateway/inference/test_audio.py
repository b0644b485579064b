"""Speech recognition through the gateway: bodies in every form, OpenAI's formats, decoding, price."""

import base64

import httpx
import pytest

from tests.fakes.recordings import tone
from tests.gateway.process import LISTENER, PARROT
from tests.gateway.site import Running

SECOND = tone(1.0)
TEXT = "16000 samples in any."


def run(client: httpx.Client, running: Running, **options) -> httpx.Response:
    return client.post(f"{running.account_url}/ai/run/{LISTENER}", **options)


def transcribe(client: httpx.Client, running: Running, file: bytes = SECOND, **fields) -> httpx.Response:
    return client.post(
        f"{running.account_url}/ai/v1/audio/transcriptions",
        data={"model": LISTENER} | fields,
        files={"file": ("speech.wav", file, "audio/wav")},
    )


@pytest.mark.parametrize(
    "body",
    [
        {"content": SECOND, "headers": {"content-type": "audio/wav"}},
        {"content": SECOND, "headers": {"content-type": "application/octet-stream"}},
        {"content": SECOND},  # as `curl --data-binary` sends it
        {"json": {"audio": base64.b64encode(SECOND).decode()}},
        {"json": {"audio": "data:audio/wav;base64," + base64.b64encode(SECOND).decode()}},
        {"json": {"audio": list(SECOND)}},
    ],
)
def test_recording_is_accepted_as_bytes_base64_and_array(client: httpx.Client, running: Running, body: dict):
    response = run(client, running, **body)
    assert response.status_code == 200, response.text
    result = response.json()["result"]
    assert (result["text"], result["word_count"]) == (TEXT, 1)
    assert result["vtt"] == f"WEBVTT\n\n00:00:00.000 --> 00:00:01.000\n{TEXT}\n"
    assert result["transcription_info"] == {"language": None, "duration": 1.0}


def test_array_of_many_bytes_is_accepted(client: httpx.Client, running: Running):
    response = run(client, running, json={"audio": list(tone(10.0))})
    assert response.json()["result"]["transcription_info"]["duration"] == 10.0


def test_array_that_takes_long_to_decode_is_refused_with_the_remedy(client: httpx.Client, running: Running):
    content = b'{"audio":[' + b"0," * 1_000_000 + b"0]}"
    response = run(client, running, content=content)
    assert response.status_code == 400
    assert "base64" in response.json()["errors"][0]["message"]


def test_node_receives_decoded_samples_and_never_the_file(client: httpx.Client, running: Running):
    response = run(client, running, content=tone(0.5, rate=48_000, channels=2))
    task = running.site.execute_of(response).task
    assert not task.audio.startswith(b"RIFF")
    assert abs(len(task.audio) // 2 - 8000) < 200


def test_seconds_of_audio_are_charged(client: httpx.Client, running: Running):
    response = run(client, running, content=tone(3.0))
    assert response.headers["cf-ai-neurons"] == "6.00"


@pytest.mark.parametrize(
    ("format_", "media_type", "expected"),
    [
        ("json", "application/json", None),
        ("text", "text/plain; charset=utf-8", TEXT + "\n"),
        ("srt", "text/plain; charset=utf-8", f"1\n00:00:00,000 --> 00:00:01,000\n{TEXT}\n"),
        ("vtt", "text/plain; charset=utf-8", f"WEBVTT\n\n00:00:00.000 --> 00:00:01.000\n{TEXT}\n"),
    ],
)
def test_transcription_in_each_of_openais_formats(
    client: httpx.Client, running: Running, format_: str, media_type: str, expected: str | None
):
    response = transcribe(client, running, response_format=format_)
    assert (response.status_code, response.headers["content-type"]) == (200, media_type)
    if expected is None:
        assert response.json() == {"text": TEXT, "usage": {"type": "duration", "seconds": 1}}
    else:
        assert response.text == expected


def test_verbose_transcription_has_segments_words_and_duration(client: httpx.Client, running: Running):
    body = transcribe(client, running, response_format="verbose_json", language="en").json()
    assert (body["text"], body["language"], body["duration"]) == ("16000 samples in en.", "en", 1.0)
    assert body["segments"][0] | {"id": 0} == body["segments"][0]
    assert body["words"][0]["end"] == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"content": b"this is no recording"}, "the recording is damaged"),
        ({"json": {"audio": "%%%"}}, "must be base64"),
        ({"json": {"audio": [1, 2, 300]}}, "audio"),
        ({"json": {"audio": ""}}, "audio"),
        ({"json": {}}, "audio"),
        ({"json": {"audio": base64.b64encode(SECOND).decode(), "task": "translate"}}, "translation of speech"),
    ],
)
def test_bad_recording_gets_a_400_that_names_the_field(
    client: httpx.Client, running: Running, options: dict, message: str
):
    response = run(client, running, **options)
    assert response.status_code == 400
    assert message in response.json()["errors"][0]["message"]


def test_form_without_a_file_and_refused_options_get_a_400(client: httpx.Client, running: Running):
    url = f"{running.account_url}/ai/v1/audio/transcriptions"
    for fields, files in (
        ({"model": LISTENER}, {"other": b"x"}),
        ({"model": LISTENER, "stream": "true"}, {"file": SECOND}),
    ):
        assert client.post(url, data=fields, files=files).status_code == 400
    assert client.post(url, json={"model": LISTENER}).status_code == 400


def test_text_model_does_not_transcribe_and_takes_no_bytes(client: httpx.Client, running: Running):
    assert transcribe(client, running, model=PARROT).json()["errors"][0]["code"] == 5007
    response = client.post(f"{running.account_url}/ai/run/{PARROT}", content=SECOND)
    assert (response.status_code, response.json()["errors"][0]["code"]) == (400, 5004)
