"""Speaker: read a text aloud while it is being generated, sentence by sentence.

Each sentence is one call of the speech model. Audio is sent at most MAX_AHEAD_S before it is played.
"""

from __future__ import annotations

import asyncio
import re

from catalog.registry import Resolved
from engine.protocol.events import Data, Failed, Finished
from engine.protocol.tasks.text_to_speech import BYTES_PER_SAMPLE, DEFAULT_SAMPLE_RATE, TextToSpeech
from gateway import quotas
from gateway.errors import failure
from gateway.http.web_socket import WebSocket
from gateway.inference.speech import SPEECH
from gateway.running_calls import start_calls
from gateway.speech.node_calls import NodeCalls

MAX_AHEAD_S = 1.0
MAX_SENTENCE_CHARACTERS = 300
_MESSAGE_BYTES = DEFAULT_SAMPLE_RATE * BYTES_PER_SAMPLE // 5  # 200 ms
_END = re.compile(r"[.!?…。！？]+[\"')\]]*\s|\n")
_CLAUSE = re.compile(r"[,;:]\s")
_MIN_CLAUSE_CHARACTERS = 15
_SPEAKABLE = re.compile(r"\w")


def take_sentence(text: str, *, is_first: bool) -> tuple[str, str]:
    """Return the first sentence of a growing text and the rest; the sentence is empty until its end is known.

    The first piece of a text ends after a clause already, so that speech starts early.
    """
    found = _END.search(text)
    if found is None and is_first:
        found = _CLAUSE.search(text, _MIN_CLAUSE_CHARACTERS)
    if found is not None:
        return text[: found.end()].strip(), text[found.end() :]
    if len(text) <= MAX_SENTENCE_CHARACTERS:
        return "", text
    cut = text.rfind(" ", 1, MAX_SENTENCE_CHARACTERS)
    cut = MAX_SENTENCE_CHARACTERS if cut < 0 else cut
    return text[:cut].strip(), text[cut:].lstrip()


class Speaker:
    """Speaks one response."""

    def __init__(self, socket: WebSocket, calls: NodeCalls, model: Resolved, voice: str, utterance: int) -> None:
        self._socket = socket
        self._calls = calls
        self._model = model
        self._voice = voice
        self._utterance = utterance
        self._loop = asyncio.get_running_loop()
        self._text = ""
        self._is_first = True
        self._sentences: asyncio.Queue[str | None] = (
            asyncio.Queue()
        )  # sentences of one response; its limited length bounds the queue
        self._played_s = 0.0  # time at which the audio sent so far will have been played

    def add(self, text: str) -> None:
        """Add a piece of the text."""
        self._text += text
        while True:
            sentence, self._text = take_sentence(self._text, is_first=self._is_first)
            if not sentence:
                return
            self._put(sentence)

    def finish(self) -> None:
        """Say that the text is complete."""
        self._put(self._text.strip())
        self._sentences.put_nowait(None)

    def _put(self, sentence: str) -> None:
        if _SPEAKABLE.search(sentence):
            self._is_first = False
            self._sentences.put_nowait(sentence)

    async def run(self) -> None:
        """Speak until the text is complete and played. Raises Refusal, StoreError and SocketEnded."""
        while (sentence := await self._sentences.get()) is not None:
            await self._speak(sentence)
        await asyncio.sleep(max(0.0, self._played_s - self._loop.time()))

    async def _speak(self, sentence: str) -> None:
        task = TextToSpeech(text=sentence, voice=self._voice, format="pcm")
        context, call = self._calls.prepare(self._model, SPEECH, task, is_stream=True)
        async with quotas.QuotaReservation(self._calls.services, [call]) as reservation:
            running = start_calls(context, [call], reservation.on_first_output)
            try:
                end: Finished | None = None
                while end is None:
                    for event in await running.take():
                        if isinstance(event, Data):
                            await self._send(event.data)
                        elif isinstance(event, Failed):
                            raise failure(event.reason, event.message)
                        elif isinstance(event, Finished):
                            end = event
            finally:
                running.abandon()
                await running.close()
                reservation.set_actual(running.num_tokens, running.micro_neurons)
        await self._socket.send(
            {
                "type": "usage",
                "utterance": self._utterance,
                "request_id": call.request_id,
                "model": call.card.name,
                "audio_ms": end.usage.audio_ms,
                "neurons": round(running.micro_neurons / 1e6, 6),
            }
        )

    async def _send(self, audio: bytes) -> None:
        """Send samples in short messages, little ahead of their playback."""
        for start in range(0, len(audio), _MESSAGE_BYTES):
            piece = audio[start : start + _MESSAGE_BYTES]
            await asyncio.sleep(max(0.0, self._played_s - MAX_AHEAD_S - self._loop.time()))
            await self._socket.send(piece)
            seconds = len(piece) / (DEFAULT_SAMPLE_RATE * BYTES_PER_SAMPLE)
            self._played_s = max(self._played_s, self._loop.time()) + seconds
