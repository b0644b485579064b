"""One WebSocket with live speech: audio in, transcripts out and, with a chat model, responses.

Each utterance is one call: it reserves quota when speech starts, and has one usage entry. Speech that starts while a
response is being sent ends the response.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from catalog.registry import Resolved
from engine.protocol.speech_detector import FRAME_SAMPLES
from engine.protocol.tasks.automatic_speech_recognition import (
    BYTES_PER_SAMPLE,
    SAMPLE_RATE,
    AutomaticSpeechRecognition,
    Segment,
)
from engine.protocol.tasks.voice_activity_detection import LiveChunk, VoiceActivityDetection
from gateway import quotas
from gateway.call import Call, Endpoint
from gateway.errors import ClientLeft, Reason, Refusal, refusal_of
from gateway.http.web_socket import CloseCode, SocketEnded, WebSocket
from gateway.inference.run import RUN
from gateway.speech.listener import Listener
from gateway.speech.node_calls import NodeCalls, UtteranceUsage, shifted
from gateway.speech.options import SpeechOptions
from gateway.speech.utterance import MAX_UTTERANCE_S, Transcription, Utterance
from gateway.speech.voice_response import VoiceResponder
from storage.errors import StoreError
from telemetry import metrics
from tenants.credentials.principal import Principal

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 1.0
VERIFY_INTERVAL_S = 5.0  # between verifications of the credential
_ENDPOINT: Endpoint = RUN


class Models(Struct, frozen=True):
    """The models of a session; without `chat` nothing responds, without `speech` responses are text."""

    recognition: Resolved
    voice_activity: Resolved
    chat: Resolved | None = None
    speech: Resolved | None = None


class Limits(Struct, frozen=True):
    """Seconds without a message after which a WebSocket is closed, and its longest duration."""

    idle_s: float
    total_s: float


class _Command(Struct, frozen=True, tag_field="type", tag=str.lower):
    """A text message of the client."""


class Finalize(_Command, frozen=True):
    """End the running utterance now."""


class Cancel(_Command, frozen=True):
    """End the running response."""


class Close(_Command, frozen=True):
    """End the running utterance, wait for its transcript and the response, and close the WebSocket."""


_read_command: msgspec.json.Decoder[Finalize | Cancel | Close] = msgspec.json.Decoder(Finalize | Cancel | Close)


class SpeechSession:
    """`verify` verifies the credential again and returns the principal; it raises Refusal or StoreError."""

    def __init__(
        self,
        socket: WebSocket,
        calls: NodeCalls,
        models: Models,
        options: SpeechOptions,
        limits: Limits,
        verify: Callable[[], Awaitable[Principal]],
    ) -> None:
        self._socket = socket
        self._calls = calls
        self._models = models
        self._options = options
        self._limits = limits
        self._verify = verify
        self._loop = asyncio.get_running_loop()
        self._listener = Listener(options.sample_rate, options.silence_frames, self._find_speech, self._start_utterance)
        self._responder = None
        if models.chat is not None:
            self._responder = VoiceResponder(socket, calls, models.chat, models.speech, options)
        self._tasks: set[asyncio.Task[None]] = set()
        self._previous: asyncio.Task[None] | None = None  # task of the previous utterance

    async def run(self) -> None:
        """Serve the WebSocket until it is closed."""
        end = SocketEnded(CloseCode.INTERNAL_ERROR, "internal error")
        self._spawn(self._watch)
        try:
            await self._open()
            while True:
                await self._on_message(await self._socket.receive())
        except SocketEnded as error:
            end = error
        except (Refusal, StoreError) as error:
            end = await self._refused(error)
        except Exception:
            log.exception("live speech failed", extra={"request_id": self._calls.request_id})
            metrics.INTERNAL_ERRORS.inc()
        finally:
            self._socket.end(end.code, end.reason)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._socket.close(end.code if end.code != 1006 else CloseCode.NORMAL, end.reason)

    async def _open(self) -> None:
        """Load the voice activity model, and say that the session has started."""
        await self._find_speech(VoiceActivityDetection(audio=bytes(FRAME_SAMPLES * BYTES_PER_SAMPLE), is_live=True))
        self._spawn(self._warm_up)
        await self._socket.send(
            {
                "type": "session.started",
                "request_id": self._calls.request_id,
                "model": self._models.recognition.card.name,
                "sample_rate": self._options.sample_rate,
            }
        )

    async def _warm_up(self) -> None:
        """Load the speech recognition model before it is needed. A failure is reported with the first utterance."""
        task = AutomaticSpeechRecognition(audio=bytes(SAMPLE_RATE), language=self._options.language)
        try:
            await self._calls.run(self._calls.make(self._models.recognition, _ENDPOINT, task))
        except Refusal:
            return

    async def _watch(self) -> None:
        """Enforce the limits, verify the credential again, and end the session when the gateway drains."""
        started_s = verified_s = self._loop.time()
        while True:
            await asyncio.sleep(min(CHECK_INTERVAL_S, self._limits.idle_s / 4, self._limits.total_s / 4))
            now = self._loop.time()
            if now - self._socket.last_received_s > self._limits.idle_s:
                self._socket.end(CloseCode.GOING_AWAY, f"no message for {self._limits.idle_s:g} seconds")
            elif now - started_s > self._limits.total_s:
                self._socket.end(CloseCode.GOING_AWAY, f"the session lasted {self._limits.total_s:g} seconds")
            elif self._calls.services.admission.is_draining and not self._is_busy:
                self._socket.end(CloseCode.SERVICE_RESTART, "this gateway is shutting down")
            elif now - verified_s >= VERIFY_INTERVAL_S:
                verified_s = now
                await self._verify_again()

    async def _verify_again(self) -> None:
        try:
            self._calls.principal = await self._verify()
        except Refusal as refusal:
            self._socket.end(CloseCode.POLICY_VIOLATION, refusal.text)
        except StoreError:
            return  # calls of a credential that cannot be verified are refused when they start

    @property
    def _is_busy(self) -> bool:
        is_responding = self._responder is not None and self._responder.is_responding
        return self._listener.utterance is not None or is_responding or self._is_transcribing

    @property
    def _is_transcribing(self) -> bool:
        return self._previous is not None and not self._previous.done()

    # ── messages ──

    async def _on_message(self, message: bytes | str) -> None:
        if isinstance(message, bytes):
            if len(message) % BYTES_PER_SAMPLE:
                raise SocketEnded(CloseCode.UNSUPPORTED_DATA, "audio must have 16-bit samples: an odd number of bytes")
            await self._listener.push(message)
            return
        try:
            command = _read_command.decode(message)
        except msgspec.MsgspecError:
            raise SocketEnded(
                CloseCode.UNSUPPORTED_DATA, 'a text message must be {"type": "finalize"}, "cancel" or "close"'
            ) from None
        if isinstance(command, Cancel):
            if self._responder is not None:
                await self._responder.interrupt()
            return
        await self._listener.finish()
        if isinstance(command, Close):
            await self._finish()
            raise SocketEnded(CloseCode.NORMAL, "closed as requested")

    async def _finish(self) -> None:
        """Wait for the transcript and the response."""
        if self._previous is not None:
            await asyncio.wait([self._previous])
        if self._responder is not None:
            await self._responder.wait()

    async def _find_speech(self, task: VoiceActivityDetection) -> LiveChunk:
        call = self._calls.make(self._models.voice_activity, _ENDPOINT, task)
        return LiveChunk.of_result(await self._calls.run(call))

    # ── utterances ──

    def _start_utterance(self, utterance: Utterance) -> None:
        self._previous = self._spawn(functools.partial(self._serve, utterance, self._previous))

    async def _serve(self, utterance: Utterance, previous: asyncio.Task[None] | None) -> None:
        """Transcribe an utterance and respond to it."""
        if self._responder is not None:
            await self._responder.interrupt()
        await self._socket.send(
            {"type": "speech.started", "utterance": utterance.number, "time": round(utterance.start_s, 3)}
        )
        if previous is not None:
            await asyncio.wait([previous])
        try:
            text = await self._transcribe(utterance)
        except (Refusal, StoreError, ClientLeft) as error:
            await self._send_error(refusal_of(error) or Refusal(Reason.ABORTED), utterance)
            return
        if text and self._responder is not None:
            self._responder.add(text)
            if utterance.number == self._listener.num_utterances:  # else the user speaks already again
                await self._responder.start(utterance.number, self._spawn)

    async def _transcribe(self, utterance: Utterance) -> str:
        """Send the transcripts of an utterance, record its usage, and return the text. Raises Refusal, StoreError."""
        longest = AutomaticSpeechRecognition(audio=bytes(MAX_UTTERANCE_S * SAMPLE_RATE * BYTES_PER_SAMPLE))
        call = self._calls.make(self._models.recognition, _ENDPOINT, longest)
        usage = UtteranceUsage()
        async with quotas.QuotaReservation(self._calls.services, [call]) as reservation:
            metered = self._calls.meter(call, usage)
            try:
                segments = await self._follow(utterance, usage)
                usage.finish()
                await metered.take()
            except Refusal as refusal:
                usage.fail(refusal)
                await asyncio.gather(metered.take(), return_exceptions=True)
                raise
            finally:
                usage.audio_ms = round(utterance.duration_s * 1000)
                await metered.close()
                reservation.set_actual(metered.num_tokens, metered.micro_neurons)
        await self._send_final(utterance, segments, call, metered.micro_neurons)
        return " ".join(segment.text for segment in segments)

    async def _follow(self, utterance: Utterance, usage: UtteranceUsage) -> list[Segment]:
        """Return the segments of an utterance once it has ended."""

        async def transcribe(audio: bytes, start_s: float) -> list[Segment]:
            task = AutomaticSpeechRecognition(audio=audio, language=self._options.language)
            call = self._calls.make(self._models.recognition, _ENDPOINT, task)
            usage.audio_ms = round(utterance.duration_s * 1000)
            return shifted(await self._calls.run(call, usage), start_s)

        async def send_partial(segments: Sequence[Segment]) -> None:
            text = " ".join(segment.text for segment in segments)
            await self._socket.send({"type": "transcript.partial", "utterance": utterance.number, "text": text})

        transcription = Transcription(utterance, transcribe, send_partial if self._options.interim_results else None)
        segments = await transcription.run()
        usage.audio_ms = round(utterance.duration_s * 1000)
        return segments

    async def _send_final(
        self, utterance: Utterance, segments: Sequence[Segment], call: Call, micro_neurons: int
    ) -> None:
        number, end_s = utterance.number, utterance.start_s + utterance.duration_s
        await self._socket.send(
            {
                "type": "transcript.final",
                "utterance": number,
                "text": " ".join(segment.text for segment in segments),
                "start": round(utterance.start_s, 3),
                "end": round(end_s, 3),
                "segments": segments,
            }
        )
        await self._socket.send({"type": "speech.ended", "utterance": number, "time": round(end_s, 3)})
        await self._socket.send(
            {
                "type": "usage",
                "utterance": number,
                "request_id": call.request_id,
                "model": call.card.name,
                "audio_ms": round(utterance.duration_s * 1000),
                "neurons": round(micro_neurons / 1e6, 6),
            }
        )

    # ── errors and tasks ──

    async def _send_error(self, refusal: Refusal, utterance: Utterance | None = None) -> None:
        event: dict[str, Any] = {
            "type": "error",
            "code": refusal.row.code,
            "status": refusal.row.status,
            "message": refusal.message,
        }
        if utterance is not None:
            event["utterance"] = utterance.number
        if refusal.retry_after_s is not None:
            event["retry_after_s"] = refusal.retry_after_s
        await self._socket.send(event)

    async def _refused(self, error: Exception) -> SocketEnded:
        """Send an error that ends the session, and return the end."""
        refusal = refusal_of(error) or Refusal(Reason.INTERNAL)
        try:
            await self._send_error(refusal)
        except SocketEnded as ended:
            return ended
        is_temporary = refusal.row.status in (408, 429, 503)
        return SocketEnded(CloseCode.TRY_AGAIN_LATER if is_temporary else CloseCode.POLICY_VIOLATION, refusal.text)

    def _spawn(self, job: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Run a job beside the reader of messages. A bug ends the session."""
        task = asyncio.create_task(self._guard(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guard(self, job: Callable[[], Awaitable[None]]) -> None:
        try:
            await job()
        except SocketEnded:
            return
        except (Refusal, StoreError) as error:
            refusal = refusal_of(error)
            assert refusal is not None
            try:
                await self._send_error(refusal)
            except SocketEnded:
                return
        except Exception:
            log.exception("live speech failed", extra={"request_id": self._calls.request_id})
            metrics.INTERNAL_ERRORS.inc()
            self._socket.end(CloseCode.INTERNAL_ERROR, "internal error")
