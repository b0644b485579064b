"""Listener: from the samples of a stream to utterances, with a voice activity model on a node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from engine.protocol.speech_detector import FRAME_SAMPLES, SpeechDetector
from engine.protocol.tasks.automatic_speech_recognition import BYTES_PER_SAMPLE, SAMPLE_RATE
from engine.protocol.tasks.voice_activity_detection import LiveChunk, VoiceActivityDetection
from gateway.speech.utterance import MAX_UTTERANCE_S, Utterance

CHUNK_MS = 96  # three frames
MAX_CHUNK_S = 1
_FRAME_BYTES = FRAME_SAMPLES * BYTES_PER_SAMPLE
_LEAD_FRAMES = 10  # kept before the start of speech
_TRAIL_FRAMES = 6  # kept after its end
_PAUSE_FRAMES = 3  # silence after which the utterance may have ended

FindSpeech = Callable[[VoiceActivityDetection], Awaitable[LiveChunk]]


class Listener:
    """The state of one stream. `on_start` is called with each utterance when it starts."""

    def __init__(
        self,
        sample_rate: int,
        silence_frames: int,
        find_speech: FindSpeech,
        on_start: Callable[[Utterance], None],
    ) -> None:
        self._sample_rate = sample_rate
        self._find_speech = find_speech
        self._on_start = on_start
        self._detector = SpeechDetector(silence_frames)
        self._unread = bytearray()  # samples as received
        self._state = b""
        self._recent: list[bytes] = []  # the latest frames outside of speech
        self.num_utterances = 0
        self.utterance: Utterance | None = None

    async def push(self, audio: bytes) -> None:
        """Add samples. Raises what `find_speech` raises."""
        self._unread += audio
        bytes_per_s = self._sample_rate * BYTES_PER_SAMPLE
        while len(self._unread) >= bytes_per_s * CHUNK_MS // 1000:
            chunk = bytes(self._unread[: MAX_CHUNK_S * bytes_per_s])
            del self._unread[: len(chunk)]
            await self._process(chunk)

    async def finish(self) -> None:
        """Process the samples that do not fill a chunk, and end a running utterance."""
        if self._unread:
            chunk = bytes(self._unread)
            self._unread.clear()
            await self._process(chunk)
        if self.utterance is not None:
            self._detector.end()
            self._end(len(self.utterance.audio))

    async def _process(self, chunk: bytes) -> None:
        task = VoiceActivityDetection(audio=chunk, sample_rate=self._sample_rate, is_live=True, state=self._state)
        found = await self._find_speech(task)
        self._state = found.state
        for number, probability in enumerate(found.probabilities):
            self._add_frame(found.samples[number * _FRAME_BYTES : (number + 1) * _FRAME_BYTES], probability)

    def _add_frame(self, frame: bytes, probability: float) -> None:
        detector, utterance = self._detector, self.utterance
        has_changed = detector.push(probability)
        if utterance is None:
            self._recent.append(frame)
            del self._recent[: -_LEAD_FRAMES - _PAUSE_FRAMES]
            if has_changed:
                self._start()
            return
        utterance.audio += frame
        if has_changed:
            self._end(len(utterance.audio) - max(0, detector.num_quiet - _TRAIL_FRAMES) * _FRAME_BYTES)
        elif detector.num_quiet == _PAUSE_FRAMES:
            utterance.pause(len(utterance.audio))
        elif not detector.num_quiet and utterance.pause_end:
            utterance.resume()
        elif utterance.duration_s >= MAX_UTTERANCE_S:
            detector.end()
            self._end(len(utterance.audio))

    def _start(self) -> None:
        self.num_utterances += 1
        first_frame = self._detector.num_frames - len(self._recent)
        start_s = first_frame * FRAME_SAMPLES / SAMPLE_RATE
        self.utterance = Utterance(self.num_utterances, start_s, bytearray(b"".join(self._recent)))
        self._recent.clear()
        self._on_start(self.utterance)

    def _end(self, end: int) -> None:
        assert self.utterance is not None
        utterance, self.utterance = self.utterance, None
        utterance.end(end)
