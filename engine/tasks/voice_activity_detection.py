"""Voice activity detection: resample audio and cut it into frames; the worker
(`one_pass/voice_activity_detection.py`) returns the speech probability of each frame.

A live stream has no state on the node: everything that the next chunk needs travels with the calls.
"""

from __future__ import annotations

import asyncio
import functools
import math
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from engine.protocol.events import Event, Failed, Finished, Result, Started, Usage, total_usage
from engine.protocol.speech_detector import FRAME_SAMPLES
from engine.protocol.tasks.automatic_speech_recognition import BYTES_PER_SAMPLE, SAMPLE_RATE
from engine.protocol.tasks.voice_activity_detection import (
    MAX_SAMPLE_RATE,
    MIN_SAMPLE_RATE,
    LiveChunk,
    VoiceActivityDetection,
)
from engine.report import EngineStatus
from engine.tasks.loading import LoadRequest
from engine.tasks.one_pass.host import Job, OnePassHost
from engine.tasks.work import Emit, ModelDescription, Refused, Run, Work

CONTEXT_SAMPLES = 64
MODEL_STATE_BYTES = 2 * 128 * 4
_MAX_LIVE_S = 5
_MAX_FRAMES = 32 * 60 * 60  # about an hour
_MAX_BATCH_COST = 2000
_PART_FRAMES = 300  # frames per batch of a whole recording
_TAPS = 16  # input samples on each side of a resampled one, times the decimation


class Frames(Struct, frozen=True, array_like=True):
    """Consecutive frames for the worker: 16-bit samples that begin with the CONTEXT_SAMPLES before the first frame,
    and the model's state (float32 [2, 128]), empty for the beginning of a stream."""

    samples: bytes
    state: bytes

    @property
    def cost(self) -> int:
        return max(1, len(self.samples) // (FRAME_SAMPLES * BYTES_PER_SAMPLE))


class FrameOutputs(Struct, frozen=True, array_like=True):
    """The speech probability of each frame, and the model's state after them."""

    probabilities: list[float]
    state: bytes


class StreamState(Struct, frozen=True, array_like=True):
    """State of a stream between chunks: the last input samples and their position in the stream, resampled samples
    that do not fill a frame, the samples before them, and the model's state."""

    tail: bytes = b""
    num_inputs: int = 0
    rest: bytes = b""
    context: bytes = bytes(CONTEXT_SAMPLES * BYTES_PER_SAMPLE)
    model: bytes = b""


class VadModelInfo(Struct, frozen=True):
    """Nothing about the model varies."""


async def load(request: LoadRequest) -> VoiceActivityDetector:
    """Load a voice activity model. Raises ModelLoadError."""
    entry = "engine.tasks.one_pass.voice_activity_detection:load"
    return VoiceActivityDetector(await OnePassHost.start(request, entry, _MAX_BATCH_COST))


class VoiceActivityDetector:
    """One voice activity model of this node, a `TaskModel`."""

    def __init__(self, host: OnePassHost) -> None:
        self.host = host

    @property
    def is_alive(self) -> bool:
        return self.host.is_alive

    def status(self) -> EngineStatus:
        return self.host.status()

    def describe(self) -> ModelDescription:
        return ModelDescription(_MAX_FRAMES, "ai/run", {"audio": "@speech.wav"})

    async def close(self) -> None:
        await self.host.close()

    async def start(self, work: Work[VoiceActivityDetection], emit: Emit) -> Run:
        """Queue the frames of a recording or of a chunk. Raises Refused."""
        task = work.task
        _check(task)
        if not task.is_live:
            return _Recording(self.host, task, emit)
        state = _read_state(task.state)
        frames, state = await asyncio.to_thread(next_frames, task.audio, task.sample_rate, state)
        usage = Usage(audio_ms=task.audio_ms)
        return self.host.submit([frames], functools.partial(_live_result, frames, state), emit, lambda _: usage)


def _free(_outputs: list[Any]) -> Usage:
    """Return no usage: a recording is charged as a whole."""
    return Usage()


def _check(task: VoiceActivityDetection) -> None:
    """Raise Refused for audio that cannot be processed."""
    if not MIN_SAMPLE_RATE <= task.sample_rate <= MAX_SAMPLE_RATE:
        raise Refused("invalid_input", f"the sample rate must be between {MIN_SAMPLE_RATE} and {MAX_SAMPLE_RATE} Hz")
    if not task.audio or len(task.audio) % BYTES_PER_SAMPLE:
        raise Refused("invalid_input", "the recording has no samples")
    if task.is_live and len(task.audio) > _MAX_LIVE_S * task.sample_rate * BYTES_PER_SAMPLE:
        raise Refused("invalid_input", f"a chunk may have at most {_MAX_LIVE_S} seconds")
    if len(task.audio) > _MAX_FRAMES * FRAME_SAMPLES * BYTES_PER_SAMPLE:
        raise Refused("invalid_input", "the recording is longer than an hour")


def _read_state(data: bytes) -> StreamState:
    """Return the state of a stream. Raises Refused."""
    if not data:
        return StreamState()
    try:
        state = msgspec.msgpack.decode(data, type=StreamState)
    except msgspec.MsgspecError:
        raise Refused("invalid_input", "the state of the stream cannot be read") from None
    if len(state.model) not in (0, MODEL_STATE_BYTES) or len(state.context) != CONTEXT_SAMPLES * BYTES_PER_SAMPLE:
        raise Refused("invalid_input", "the state of the stream does not fit this model")
    return state


def next_frames(audio: bytes, sample_rate: int, state: StreamState) -> tuple[Frames, StreamState]:
    """Return the frames that `audio` completes, and the state after them without the model's state."""
    resampled, tail = resample(audio, sample_rate, state.tail, state.num_inputs)
    samples = state.rest + resampled
    end = len(samples) - len(samples) % (FRAME_SAMPLES * BYTES_PER_SAMPLE)
    with_context = state.context + samples[:end]
    after = StreamState(
        tail=tail,
        num_inputs=state.num_inputs + len(audio) // BYTES_PER_SAMPLE,
        rest=samples[end:],
        context=with_context[-CONTEXT_SAMPLES * BYTES_PER_SAMPLE :],
    )
    return Frames(with_context, state.model), after


def resample(audio: bytes, sample_rate: int, tail: bytes, num_inputs: int) -> tuple[bytes, bytes]:
    """Resample 16-bit samples to SAMPLE_RATE with a windowed sinc. Return the samples and the tail for the next chunk.

    `num_inputs` is the number of samples before `audio` in the stream, of which `tail` holds the last. Chunks give the
    same samples as the whole stream does.
    """
    if sample_rate == SAMPLE_RATE:
        return audio, b""
    cutoff = min(1.0, SAMPLE_RATE / sample_rate)
    half = math.ceil(_TAPS / cutoff)
    tail = tail or bytes(2 * half * BYTES_PER_SAMPLE)
    inputs = np.frombuffer(tail + audio, "<i2").astype(np.float32)  # [I]
    first_input = num_inputs - 2 * half
    # Outputs whose window lies within the inputs. The previous chunk ended with those before `start`.
    start, end = num_inputs - half, first_input + len(inputs) - half
    first = max(0, -(-start * SAMPLE_RATE // sample_rate))
    last = max(first, -(-end * SAMPLE_RATE // sample_rate))
    places = np.arange(first, last, dtype=np.int64) * sample_rate  # [O], positions in units of 1 / SAMPLE_RATE
    centers, phases = places // SAMPLE_RATE, (places % SAMPLE_RATE) / SAMPLE_RATE
    offsets = np.arange(-half + 1, half)  # [W]
    distances = offsets[None] - phases[:, None]  # [O, W]
    window = np.cos(np.pi * distances / (2 * half)) ** 2 * np.sinc(distances * cutoff) * cutoff
    windows = inputs[(centers - first_input)[:, None] + offsets[None]]  # [O, W]
    outputs = (windows * window).sum(1).round().clip(-32768, 32767).astype("<i2")
    return outputs.tobytes(), (tail + audio)[-2 * half * BYTES_PER_SAMPLE :]


class _Recording:
    """The run of a whole recording. Its parts run one after the other, so that live streams wait for one part only."""

    def __init__(self, host: OnePassHost, task: VoiceActivityDetection, emit: Emit) -> None:
        self._host = host
        self._task = task
        self._emit = emit
        self._position = 0  # start of the next part, in samples
        self._context, self._state = StreamState().context, b""
        self._probabilities: list[float] = []
        self._usages = [Usage(audio_ms=task.audio_ms)]
        self._job = self._submit()

    def cancel(self) -> Usage:
        self._job.cancel()
        return Usage()

    def _submit(self) -> Job:
        audio = self._task.audio
        num_frames = min(_PART_FRAMES, (len(audio) // BYTES_PER_SAMPLE - self._position) // FRAME_SAMPLES)
        start, self._position = self._position, self._position + num_frames * FRAME_SAMPLES
        samples = self._context + audio[start * BYTES_PER_SAMPLE : self._position * BYTES_PER_SAMPLE]
        self._context = samples[-CONTEXT_SAMPLES * BYTES_PER_SAMPLE :]
        return self._host.submit([Frames(samples, self._state)], self._take_outputs, self._on_event, _free)

    def _take_outputs(self, outputs: list[Any]) -> Result:
        found = msgspec.convert(outputs[0], FrameOutputs)
        self._probabilities += found.probabilities
        self._state = found.state
        return Result()

    def _on_event(self, event: Event) -> None:
        """Continue after a part, or emit the recording's own events after the last."""
        if isinstance(event, Failed):
            self._emit(event)
        elif isinstance(event, Finished):
            self._usages.append(event.usage)
            try:
                if len(self._task.audio) // BYTES_PER_SAMPLE - self._position >= FRAME_SAMPLES:
                    self._job = self._submit()
                    return
            except Refused as error:
                self._emit(error.failure)
                return
            self._emit(Started())
            duration_s = self._task.audio_ms / 1000
            self._emit(Result({"probabilities": self._probabilities, "duration_s": duration_s}))
            self._emit(Finished("stop", total_usage(self._usages)))


def _live_result(frames: Frames, state: StreamState, outputs: list[Any]) -> Result:
    found = msgspec.convert(outputs[0], FrameOutputs)
    after = msgspec.msgpack.encode(msgspec.structs.replace(state, model=found.state))
    return LiveChunk(found.probabilities, frames.samples[CONTEXT_SAMPLES * BYTES_PER_SAMPLE :], after).to_result()
