"""Responses of a voice loop: a chat model responds to an utterance, and a speech model speaks the response.

The response is spoken sentence by sentence while the chat model generates the rest. Audio is sent little ahead of its
playback, so that an interruption leaves little unheard audio with the client.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

from catalog.registry import Resolved
from engine.protocol.events import Event, Failed, Finished, Token
from engine.protocol.tasks.text_to_speech import DEFAULT_SAMPLE_RATE
from gateway import quotas
from gateway.errors import failure
from gateway.http.web_socket import WebSocket
from gateway.inference.chat_completions import CHAT_COMPLETIONS
from gateway.preparation import prepare
from gateway.running_calls import RunningCalls, start_calls
from gateway.speech.node_calls import NodeCalls
from gateway.speech.options import SpeechOptions
from gateway.speech.speaker import Speaker

MAX_HISTORY_MESSAGES = 20

Spawn = Callable[[Callable[[], Awaitable[None]]], asyncio.Task[None]]


class VoiceResponder:
    """The conversation of one WebSocket. At most one response runs at a time."""

    def __init__(
        self,
        socket: WebSocket,
        calls: NodeCalls,
        chat_model: Resolved,
        speech_model: Resolved | None,
        options: SpeechOptions,
    ) -> None:
        self._socket = socket
        self._calls = calls
        self._chat_model = chat_model
        self._speech_model = speech_model
        self._options = options
        self._history: list[dict[str, str]] = []
        self._running: asyncio.Task[None] | None = None
        self._text = ""  # text of the running response

    @property
    def is_responding(self) -> bool:
        return self._running is not None and not self._running.done()

    def add(self, text: str) -> None:
        """Add the text of an utterance to the conversation. Utterances without a response between them are one
        message."""
        if self._history and self._history[-1]["role"] == "user":
            text = f"{self._history.pop()['content']} {text}"
        self._history.append({"role": "user", "content": text})
        del self._history[:-MAX_HISTORY_MESSAGES]

    async def start(self, utterance: int, spawn: Spawn) -> None:
        """Respond to the conversation so far."""
        await self.interrupt()
        self._running = spawn(functools.partial(self._respond, utterance))

    async def interrupt(self) -> None:
        """End the running response. The conversation keeps what was generated so far."""
        if self.is_responding and self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def wait(self) -> None:
        """Wait for the end of the running response."""
        if self._running is not None:
            await asyncio.wait([self._running])

    async def _respond(self, utterance: int) -> None:
        self._text = ""
        started: dict[str, Any] = {"type": "response.started", "utterance": utterance}
        if self._speech_model is not None:
            started["sample_rate"] = DEFAULT_SAMPLE_RATE
        await self._socket.send(started)
        reason = "failed"
        try:
            await self._generate(utterance)
            reason = "completed"
        except asyncio.CancelledError:
            reason = "interrupted"
            raise
        finally:
            self._history.append({"role": "assistant", "content": self._text})
            await self._socket.send({"type": "response.ended", "utterance": utterance, "reason": reason})

    async def _generate(self, utterance: int) -> None:
        """Send the chat model's response as it is generated, and its usage. Raises Refusal, StoreError."""
        context = self._calls.context(self._chat_model, CHAT_COMPLETIONS)
        system = [{"role": "system", "content": self._options.instructions}] if self._options.instructions else []
        body = {
            "model": self._chat_model.requested_name,
            "messages": [*system, *self._history],
            "stream": True,
            "max_tokens": self._options.max_tokens,
        }
        request = await prepare(context, body)
        async with quotas.QuotaReservation(self._calls.services, request.calls) as reservation:
            running = start_calls(context, request.calls, reservation.on_first_output)
            try:
                finished = await self._send_output(running, utterance)
            finally:
                running.abandon()
                await running.close()
                reservation.set_actual(running.num_tokens, running.micro_neurons)
        await self._socket.send(
            {
                "type": "usage",
                "utterance": utterance,
                "request_id": context.request_id,
                "model": self._chat_model.card.name,
                "prompt_tokens": finished.usage.prompt_tokens,
                "completion_tokens": finished.usage.completion_tokens,
                "neurons": round(running.micro_neurons / 1e6, 6),
            }
        )

    async def _send_output(self, running: RunningCalls, utterance: int) -> Finished:
        """Send the text and, with a speech model, its audio. Returns when the audio has been played."""
        if self._speech_model is None:
            return await self._send_text(running, utterance, None)
        speaker = Speaker(self._socket, self._calls, self._speech_model, self._options.voice, utterance)
        speaking = asyncio.create_task(speaker.run())
        try:
            finished = await self._send_text(running, utterance, speaker)
            speaker.finish()
            await speaking
        finally:
            speaking.cancel()
            await asyncio.gather(speaking, return_exceptions=True)
        return finished

    async def _send_text(self, running: RunningCalls, utterance: int, speaker: Speaker | None) -> Finished:
        while True:
            events = await running.take()
            text = "".join(event.text for event in events if isinstance(event, Token) and not event.is_reasoning)
            if text:
                self._text += text
                await self._socket.send({"type": "response.text", "utterance": utterance, "text": text})
                if speaker is not None:
                    speaker.add(text)
            last: Event = events[-1]
            if isinstance(last, Failed):
                raise failure(last.reason, last.message)
            if isinstance(last, Finished):
                return last
