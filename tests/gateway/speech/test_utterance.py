"""Transcription of an utterance while it grows: partial transcripts, parts, and early final transcripts."""

from __future__ import annotations

import asyncio

from engine.protocol.speech_detector import FRAME_SAMPLES
from engine.protocol.tasks.automatic_speech_recognition import Segment
from engine.protocol.tasks.voice_activity_detection import LiveChunk, VoiceActivityDetection
from gateway.speech.listener import Listener
from gateway.speech.utterance import Transcription, Utterance

SECOND = 32_000
FRAME = bytes(2 * FRAME_SAMPLES)


class Recognizer:
    """Transcribes audio as its bounds in seconds."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    async def transcribe(self, audio: bytes, start_s: float) -> list[Segment]:
        self.lengths.append(len(audio))
        await asyncio.sleep(0)
        end_s = start_s + len(audio) / SECOND
        return [Segment(start_s, end_s, f"{start_s:g}-{end_s:g}")]


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def run(utterance: Utterance, recognizer: Recognizer) -> asyncio.Task[list[Segment]]:
    task = asyncio.create_task(Transcription(utterance, recognizer.transcribe, None).run())
    await turns()
    return task


async def test_transcript_of_a_pause_becomes_the_final_one_if_speech_ends_there():
    utterance, recognizer = Utterance(1, 2.0, bytearray(SECOND)), Recognizer()
    task = await run(utterance, recognizer)
    utterance.pause(SECOND)
    await turns()
    utterance.audio += bytes(SECOND // 2)  # silence
    utterance.end(len(utterance.audio))
    assert [segment.text for segment in await task] == ["2-3"]
    assert recognizer.lengths == [SECOND]
    assert utterance.duration_s == 1.0


async def test_transcript_of_a_pause_is_dropped_if_speech_goes_on():
    utterance, recognizer = Utterance(1, 0.0, bytearray(SECOND)), Recognizer()
    task = await run(utterance, recognizer)
    utterance.pause(SECOND)
    await turns()
    utterance.resume()
    utterance.audio += bytes(SECOND)
    utterance.end(len(utterance.audio))
    assert [segment.text for segment in await task] == ["0-2"]


async def test_long_speech_is_not_transcribed_again_from_its_beginning():
    utterance, recognizer = Utterance(1, 0.0, bytearray(6 * SECOND)), Recognizer()
    task = await run(utterance, recognizer)
    utterance.pause(6 * SECOND)
    await turns()
    utterance.resume()
    utterance.audio += bytes(2 * SECOND)
    utterance.end(len(utterance.audio))
    assert [segment.text for segment in await task] == ["0-6", "6-8"]
    assert recognizer.lengths == [6 * SECOND, 2 * SECOND]


async def listen(pattern: str, silence_frames: int = 15) -> list[Utterance]:
    """Return the utterances of frames that are loud (#) or quiet (.), pushed one by one."""
    position, started = 0, []

    async def find(task: VoiceActivityDetection) -> LiveChunk:
        nonlocal position
        count = len(task.audio) // len(FRAME)
        probabilities = [0.9 if frame == "#" else 0.1 for frame in pattern[position : position + count]]
        position += count
        return LiveChunk(probabilities, task.audio, b"state")

    listener = Listener(16_000, silence_frames, find, started.append)
    for _ in pattern:
        await listener.push(FRAME)
    await listener.finish()
    return started


async def test_utterances_have_some_audio_before_and_after_the_speech():
    (utterance,) = await listen("." * 40 + "#" * 40 + "." * 20)
    assert utterance.has_ended
    assert 30 <= round(utterance.start_s * 1000 / 32) <= 40
    assert 45 <= round(utterance.duration_s * 1000 / 32) <= 60


async def test_short_silences_do_not_end_an_utterance_and_long_ones_do():
    assert len(await listen("#" * 20 + "." * 10 + "#" * 20 + "." * 20)) == 1
    assert len(await listen("#" * 20 + "." * 20 + "#" * 20 + "." * 20)) == 2
    assert await listen("." * 50) == []


async def test_endless_speech_is_divided_into_utterances_of_limited_length():
    utterances = await listen("#" * 2000)
    assert len(utterances) == 2
    assert all(utterance.has_ended and utterance.duration_s <= 60.1 for utterance in utterances)
