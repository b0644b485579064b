"""One utterance: transcribe it while it is being spoken, and once more when it has ended.

Each transcription begins where the last pause was, after a few seconds of speech, so that the cost of a partial
transcript does not grow with the utterance. In a short pause the transcription of a possible end begins at once; if
the pause becomes the end, the final transcript is already there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from engine.protocol.tasks.automatic_speech_recognition import BYTES_PER_SAMPLE, SAMPLE_RATE, Segment

PARTIAL_INTERVAL_S = 0.35
MAX_UTTERANCE_S = 60
MIN_PART_S = 5.0  # seconds of speech after which a pause ends a part
MAX_PART_S = 10.0  # seconds of speech after which a part ends without a pause
_MIN_PARTIAL_S = 0.3
_BYTES_PER_S = SAMPLE_RATE * BYTES_PER_SAMPLE

Transcribe = Callable[[bytes, float], Awaitable[list[Segment]]]
"""Transcribes samples that begin at a time of the stream, in seconds."""


@dataclass
class Utterance:
    """The audio of an utterance as it grows. `start_s` is its position in the stream. `pause_end` is the length in
    bytes up to which the audio would count if the present pause became the end; 0 without a pause."""

    number: int
    start_s: float
    audio: bytearray = field(default_factory=bytearray)
    pause_end: int = 0
    has_ended: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def duration_s(self) -> float:
        return len(self.audio) / _BYTES_PER_S

    def pause(self, end: int) -> None:
        """Note that speech pauses; its audio would end at `end`."""
        self.pause_end = min(end, len(self.audio))
        self._changed.set()

    def resume(self) -> None:
        """Note that speech goes on after a pause."""
        self.pause_end = 0

    def end(self, end: int) -> None:
        """End the utterance at `end` bytes."""
        if self.pause_end:
            end = self.pause_end
        del self.audio[end:]
        self.has_ended = True
        self._changed.set()

    async def wait_change(self, timeout_s: float) -> None:
        """Wait for a pause or the end, at most for a time."""
        try:
            async with asyncio.timeout(max(0.0, timeout_s)):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()


class Transcription:
    """The transcripts of one utterance."""

    def __init__(
        self,
        utterance: Utterance,
        transcribe: Transcribe,
        on_partial: Callable[[Sequence[Segment]], Awaitable[None]] | None,
    ) -> None:
        self._utterance = utterance
        self._transcribe = transcribe
        self._on_partial = on_partial
        self._loop = asyncio.get_running_loop()
        self._done: list[Segment] = []  # segments of completed parts
        self._part_start = 0  # bytes
        self._latest_end = 0
        self._latest: list[Segment] = []  # segments of the audio from `_part_start` to `_latest_end`

    async def run(self) -> list[Segment]:
        """Return the segments of the whole utterance, once it has ended. Raises what `transcribe` raises."""
        utterance, due_s = self._utterance, self._loop.time() + PARTIAL_INTERVAL_S
        while not utterance.has_ended:
            await utterance.wait_change(due_s - self._loop.time())
            if utterance.has_ended:
                break
            is_pause = utterance.pause_end > 0
            is_partial_due = self._on_partial is not None and self._loop.time() >= due_s
            if is_pause or is_partial_due or self._part_s >= MAX_PART_S:
                due_s = self._loop.time() + PARTIAL_INTERVAL_S
                await self._update(utterance.pause_end or len(utterance.audio), ends_part=is_pause)
        await self._transcribe_to(len(utterance.audio))
        return self._done + self._latest

    @property
    def _part_s(self) -> float:
        return (len(self._utterance.audio) - self._part_start) / _BYTES_PER_S

    async def _update(self, end: int, *, ends_part: bool) -> None:
        """Transcribe up to `end`, report that, and begin a new part if this one is long enough."""
        if (end - self._part_start) / _BYTES_PER_S < _MIN_PARTIAL_S:
            return
        await self._transcribe_to(end)
        if self._on_partial is not None and not self._utterance.has_ended:
            await self._on_partial(self._done + self._latest)
        part_s = (end - self._part_start) / _BYTES_PER_S
        if part_s >= MAX_PART_S or (ends_part and part_s >= MIN_PART_S):
            self._done += self._latest
            self._part_start, self._latest = end, []

    async def _transcribe_to(self, end: int) -> None:
        if end <= self._latest_end or end <= self._part_start:
            return
        audio = bytes(self._utterance.audio[self._part_start : end])
        start_s = self._utterance.start_s + self._part_start / _BYTES_PER_S
        self._latest = await self._transcribe(_padded(audio), start_s)
        self._latest_end = end


def _padded(audio: bytes) -> bytes:
    """Return audio that is long enough for a speech model."""
    return audio + bytes(max(0, _BYTES_PER_S // 2 - len(audio)))
