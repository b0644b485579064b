"""Voice activity: the reference probabilities of the real model, live streams in chunks, and resampling."""

from __future__ import annotations

import itertools
import json
import shutil
import wave
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from engine.processes.zygote import Zygote
from engine.protocol.events import Event, Failed, Finished, Result
from engine.protocol.outcome import Outcome
from engine.protocol.speech_detector import SpeechDetector, speech_spans
from engine.protocol.tasks.voice_activity_detection import LiveChunk, VoiceActivityDetection
from engine.tasks.loading import ModelLoadError
from engine.tasks.voice_activity_detection import VoiceActivityDetector, load, resample
from engine.tasks.work import Refused, Work
from tests.fakes.one_pass import load_request
from tests.waiting import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def model_dir(test_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("silero")
    shutil.copyfile(test_data / "models/silero_vad_16k/silero_vad_16k_op15.onnx", folder / "model.onnx")
    (folder / "config.json").write_text(json.dumps({"architectures": ["SileroVad"], "model_type": "silero_vad"}))
    return folder


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def detector(zygote: Zygote, model_dir: Path) -> AsyncIterator[VoiceActivityDetector]:
    detector = await load(load_request(zygote, model_dir))
    yield detector
    await detector.close()


@pytest.fixture(scope="module")
def speech(test_data: Path) -> bytes:
    with wave.open(str(test_data / "speech/jfk.wav")) as file:
        return file.readframes(file.getnframes())


@pytest.fixture(scope="module")
def reference(test_data: Path) -> list[float]:
    return json.loads((test_data / "models/silero_vad_16k/reference.json").read_text())["probabilities"]


async def run(detector: VoiceActivityDetector, task: VoiceActivityDetection) -> list[Event]:
    events: list[Event] = []
    await detector.start(Work(task, bytes(32), 1), events.append)
    await wait_until(lambda: bool(events) and isinstance(events[-1], Finished | Failed))
    return events


def result_of(events: list[Event]) -> Result:
    return next(event for event in events if isinstance(event, Result))


async def test_probabilities_of_a_recording_are_those_of_the_reference(
    detector: VoiceActivityDetector, speech: bytes, reference: list[float]
):
    task = VoiceActivityDetection(audio=speech)
    events = await run(detector, task)
    found = result_of(events).fields["probabilities"]
    assert np.abs(np.array(found) - reference[: len(found)]).max() < 1e-3
    assert len(found) == len(speech) // 1024
    assert events[-1].usage.audio_ms == 11_000
    outcome = Outcome()
    for event in events:
        outcome.add(event)
    rendered = json.loads(task.native_renderer().whole(outcome))
    assert [round(span["start"]) for span in rendered["speech"]] == [0, 3, 5, 8]
    assert rendered["duration"] == 11.0


@pytest.mark.parametrize("sizes", [(1600,), (777, 3000, 2), (70_000,)])
async def test_chunks_of_a_stream_give_the_probabilities_of_the_whole(
    detector: VoiceActivityDetector, speech: bytes, reference: list[float], sizes: tuple[int, ...]
):
    state, position, probabilities, samples = b"", 0, [], b""
    for size in itertools.cycle(sizes):
        chunk = speech[position : position + 2 * size]
        if not chunk:
            break
        position += len(chunk)
        task = VoiceActivityDetection(audio=chunk, is_live=True, state=state)
        live = LiveChunk.of_result(result_of(await run(detector, task)))
        probabilities += live.probabilities
        samples += live.samples
        state = live.state
        if position > 3 * 32_000:
            break
    assert np.abs(np.array(probabilities) - reference[: len(probabilities)]).max() < 1e-3
    assert samples == speech[: len(samples)]
    assert len(samples) == 1024 * len(probabilities)


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000])
async def test_resampling_keeps_a_tone_and_does_not_depend_on_the_chunks(rate: int):
    tone = (10_000 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate)).astype("<i2").tobytes()
    whole, _ = resample(tone, rate, b"", 0)
    expected = 10_000 * np.sin(2 * np.pi * 440 * np.arange(len(whole) // 2) / 16_000)
    found = np.frombuffer(whole, "<i2")
    assert len(found) > 15_900
    assert np.abs(found[100:] - expected[100:]).max() < 100
    parts, tail, position = b"", b"", 0
    for size in itertools.cycle((1, 441, 1000)):
        chunk = tone[position : position + 2 * size]
        if not chunk:
            break
        part, tail = resample(chunk, rate, tail, position // 2)
        position += len(chunk)
        parts += part
    assert parts == whole


async def test_frequencies_above_the_new_limit_are_removed():
    tone = (10_000 * np.sin(2 * np.pi * 15_000 * np.arange(48_000) / 48_000)).astype("<i2").tobytes()
    found = np.frombuffer(resample(tone, 48_000, b"", 0)[0], "<i2")
    assert np.abs(found[200:]).max() < 100


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (VoiceActivityDetection(audio=b""), "no samples"),
        (VoiceActivityDetection(audio=b"123"), "no samples"),
        (VoiceActivityDetection(audio=b"12", is_live=True, sample_rate=100), "sample rate"),
        (VoiceActivityDetection(audio=b"12", is_live=True, state=b"nonsense"), "state"),
        (VoiceActivityDetection(audio=bytes(400_000), is_live=True), "at most 5 seconds"),
    ],
)
async def test_invalid_audio_is_refused(detector: VoiceActivityDetector, task: VoiceActivityDetection, message: str):
    with pytest.raises(Refused, match=message):
        await detector.start(Work(task, bytes(32), 1), lambda _event: None)


async def test_other_models_are_refused_when_they_are_loaded(zygote: Zygote, tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "other"}))
    with pytest.raises(ModelLoadError, match="voice activity models are silero_vad"):
        await load(load_request(zygote, tmp_path))


async def test_speech_starts_after_three_loud_frames_and_ends_where_the_silence_began():
    quiet, loud = [0.1] * 10, [0.9] * 20
    assert speech_spans([*quiet, *loud, *quiet], 5) == [(10, 30)]
    assert speech_spans([*quiet, 0.9, 0.9, *quiet], 5) == []
    assert speech_spans([*loud, *quiet[:4], *loud, *quiet], 5) == [(0, 44)]
    assert speech_spans([*loud], 5) == [(0, 20)]


async def test_running_speech_can_be_ended_early():
    detector = SpeechDetector(5)
    for _ in range(10):
        detector.push(0.9)
    detector.end()
    assert (detector.is_speaking, detector.end_frame) == (False, 10)
    assert not detector.push(0.9)
