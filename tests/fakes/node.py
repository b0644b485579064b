"""A fake node: speaks engine/protocol/wire.py over a real socket and computes nothing.

Used by the gateway's tests and by its CPU benchmark. The text of a call selects the response: a text that starts with
`!` is a Script as JSON, any other text gets WORDS. Embeddings are computed from the lengths of the texts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import threading
from array import array
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast, get_args

import msgspec

from engine.protocol import events, wire
from engine.protocol.speech_detector import FRAME_SAMPLES
from engine.protocol.status import NodeStatus, ReplicaState, ReplicaStatus
from engine.protocol.tasks.automatic_speech_recognition import AutomaticSpeechRecognition, Segment, Transcript, Word
from engine.protocol.tasks.image_classification import ImageClassification, Label, Labels
from engine.protocol.tasks.image_to_text import ImageToText, description_result
from engine.protocol.tasks.object_detection import Box, DetectedObject, DetectedObjects, ObjectDetection
from engine.protocol.tasks.registry import TaskInput
from engine.protocol.tasks.summarization import Summarization
from engine.protocol.tasks.text_classification import Classification, TextClassification
from engine.protocol.tasks.text_embeddings import Embeddings, TextEmbeddings
from engine.protocol.tasks.text_generation import TextGeneration
from engine.protocol.tasks.text_to_image import GeneratedImages, TextToImage
from engine.protocol.tasks.text_to_speech import TextToSpeech
from engine.protocol.tasks.translation import Translation
from engine.protocol.tasks.voice_activity_detection import LiveChunk, VoiceActivityDetection
from service_identity.service_identity import ServiceIdentity
from storage.ephemeral import Ephemeral
from storage.errors import StoreUnavailable
from tests.waiting import PATIENCE_S

WORDS = ("Hello", " from", " the", " fake", " node", " ✓")
DIMENSIONS = 8
LOUD = 1000  # samples above this are speech


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """The response to one call: `tokens` in order, the first after `first_s` and then one every `gap_s`, followed by
    `end`, a finish reason or a failure reason.

    After `then_after` tokens, `then` happens and no further tokens are sent. `tokens` are sent `repeat` times, each
    extended by `pad` characters. Each tool call is sent in three events of one token. The call crashes the model's
    process `deaths` times, after `death_after` tokens, before it succeeds; a node rejects it after the second crash.
    """

    tokens: tuple[str, ...] = WORDS
    first_s: float = 0.0
    gap_s: float = 0.0
    end: str = "stop"
    stop: str | None = None  # the stop string that ended the output
    message: str = ""
    is_retryable: bool = False
    cached: int = 0
    repeat: int = 1
    pad: int = 0
    deaths: int = 0
    death_after: int = 0
    one_death: bool = False  # True if the failure is reported as the input's first crash
    held_after: int = -1  # number of tokens after which the call waits for `go_on`; -1 never waits
    then_after: int = -1
    then: str = "die"  # die | hang | garbage
    calls: tuple[tuple[str, str], ...] = ()  # name and arguments of the tool calls after the text
    on: str = ""  # the only node that follows the script; other nodes send WORDS

    def texts(self) -> list[str]:
        return [text + "." * self.pad for text in self.tokens * self.repeat]


class FakeNode:
    """One fake node on an event loop in its own thread. All public methods may be called from the test's thread."""

    def __init__(
        self,
        node_id: str,
        folder: Path,
        models: dict[str, str],
        identity: ServiceIdentity,
        *,
        pop: str = "local",
        redis_url: str = "",
    ) -> None:
        self.node_id = node_id
        self.identity = identity
        self.pop = pop
        self.address = f"unix://{folder / (node_id + '.sock')}"
        self.announced = self.address  # the address that is published for gateways
        self.executes: list[wire.Execute] = []
        self.cancels: list[str] = []  # request ids of cancelled calls
        self.is_deaf = False  # True if the node receives messages but sends nothing, not even Pongs
        self.state: ReplicaState = "ready"
        self.queued_tokens = 0
        self.num_waiting = 0
        self.version = "0"
        self.actions: tuple[str, ...] = get_args(wire.ManageAction)
        self.device_name = "Fake CPU"
        self.changes: list[wire.Manage] = []
        self.change_error = ""  # the response to changes
        self._models = models
        self._redis_url = redis_url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"fake {node_id}", daemon=True)
        self._server: asyncio.Server | None = None
        self.connections: set[NodeSide] = set()
        self._jobs: set[asyncio.Task[None]] = set()
        self.goes_on = asyncio.Event()
        self._telling = asyncio.Lock()

    def start(self) -> FakeNode:
        self._thread.start()
        self._call(self._open())
        return self

    def stop(self) -> None:
        """Withdraw the node, close its connections and end its thread."""
        if self._thread.is_alive():
            self._call(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(PATIENCE_S)
            self._loop.close()

    def die(self) -> None:
        """Behave like a process killed by SIGKILL: all connections drop, nothing listens, and presence expires."""
        self._call(self._vanish())

    def drop_connections(self) -> None:
        """Close all connections of gateways, which can connect again at once."""
        self._call(self._drop_connections())

    def publish(self) -> None:
        """Publish the node's current status at once."""
        self._call(self._announce())

    def go_on(self) -> None:
        """Release the held calls. Later calls are not held."""
        self._loop.call_soon_threadsafe(self.goes_on.set)

    def hold(self) -> None:
        """Hold calls again, until the next `go_on`."""
        self._loop.call_soon_threadsafe(self.goes_on.clear)

    def spawn(self, job: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine on this node's loop until the node stops."""
        self._loop.call_soon_threadsafe(self._start, job)

    @property
    def num_open_calls(self) -> int:
        return sum(len(connection.calls) for connection in list(self.connections))

    def respond_at_once(self, side: NodeSide, execute: wire.Execute) -> bool:
        """Return True if the call was completed without a background job. Benchmarks override this method."""
        return False

    def _call(self, job: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(job, self._loop).result(PATIENCE_S)

    async def _open(self) -> None:
        path = self.address.removeprefix("unix://")
        self._server = await self._loop.create_unix_server(lambda: NodeSide(self), path)
        if self._redis_url:
            await self._announce()
            self._start(self._heartbeat())

    def _start(self, job: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(job)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            with contextlib.suppress(StoreUnavailable):
                await self._announce()

    async def _announce(self) -> None:
        async with self._telling:  # an older status must not replace a newer one
            store = Ephemeral.connect(self._redis_url, timeout_s=PATIENCE_S / 2)
            try:
                await store.announce("nodes", self.node_id, msgspec.json.encode(self.status()), ttl_s=5)
            finally:
                await store.close()

    def status(self) -> NodeStatus:
        return NodeStatus(
            node_id=self.node_id,
            pop=self.pop,
            address=self.announced,
            is_draining=self.state == "draining",
            replicas=tuple(
                ReplicaStatus(
                    model=name,
                    revision=revision,
                    state=self.state,  # type: ignore[arg-type]
                    queued_tokens=self.queued_tokens,
                    num_waiting=self.num_waiting,
                )
                for name, revision in self._models.items()
            ),
            tasks=(),
            version=self.version,
            actions=self.actions,
            device_name=self.device_name,
            memory_bytes=8 << 30,
            started_s=1_700_000_000,
        )

    async def _drop_connections(self) -> None:
        for connection in list(self.connections):
            connection.transport.abort()

    async def _vanish(self) -> None:
        for job in list(self._jobs):
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.transport.abort()

    async def _close(self) -> None:
        await self._vanish()
        if self._redis_url:
            store = Ephemeral.connect(self._redis_url, timeout_s=PATIENCE_S / 2)
            with contextlib.suppress(StoreUnavailable):
                await store.withdraw("nodes", self.node_id)
            await store.close()


class NodeSide(asyncio.Protocol):
    """One gateway's connection."""

    def __init__(self, node: FakeNode) -> None:
        self._node = node
        self._nonce = os.urandom(16)
        self._decoder = wire.FrameDecoder()
        self._is_proven = False
        self.calls: dict[int, asyncio.Task[None]] = {}
        self._request_ids: dict[int, str] = {}
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._node.connections.add(self)
        self.send(wire.Hello(version=wire.VERSION, sender=self._node.node_id, nonce=self._nonce))

    def connection_lost(self, _exc: Exception | None) -> None:
        self._node.connections.discard(self)
        for job in self.calls.values():
            job.cancel()

    def data_received(self, data: bytes) -> None:
        for message in self._decoder.feed(data):
            if not self._node.is_deaf:
                self._handle(message)

    def _handle(self, message: wire.Message) -> None:
        if isinstance(message, wire.Hello):
            nonces, identity = (self._nonce, message.nonce), self._node.identity
            gateway = identity.verify_token(message.token, {"gateway"}, nonces)
            if gateway is None:
                self.transport.abort()
                return
            self._is_proven = True
            token = identity.sign(gateway.subject, nonces)
            self.send(wire.Hello(version=wire.VERSION, sender=self._node.node_id, nonce=self._nonce, token=token))
        elif isinstance(message, wire.Ping):
            self.send(wire.Pong())
        elif isinstance(message, wire.Manage):
            self._node.changes.append(message)
            self.send(wire.Managed(message.request_id, self._node.change_error))
        elif isinstance(message, wire.Execute):
            assert self._is_proven
            self._node.executes.append(message)
            self._request_ids[message.call_id] = message.request_id
            if not self._node.respond_at_once(self, message):
                self.calls[message.call_id] = asyncio.get_running_loop().create_task(self._run(message))
        elif isinstance(message, wire.Cancel):
            self._node.cancels.append(self._request_ids.get(message.call_id, ""))
            job = self.calls.get(message.call_id)
            # cancelled after the job's first step, because a job that has not started would send no final event
            if job is not None:
                asyncio.get_running_loop().call_soon(job.cancel)

    def send(self, *messages: wire.Message) -> None:
        self.transport.write(b"".join(map(wire.encode, messages)))

    async def _run(self, execute: wire.Execute) -> None:
        call_id = execute.call_id
        num_sent = 0
        script = script_of(execute.task, self._node.node_id)
        prompt_tokens = count_prompt(execute.task)
        try:
            if not isinstance(execute.task, TextGeneration):
                self.send(*(wire.Reply(call_id, event) for event in RESULTS[type(execute.task)](execute.task)))
                return
            if execute.task.only_counts:
                self.send(
                    wire.Reply(call_id, events.Started(prompt_tokens)), wire.Reply(call_id, events.Finished("stop"))
                )
                return
            await asyncio.sleep(script.first_s)
            num_choices = execute.task.num_choices
            for i, text in enumerate(script.texts()[: execute.task.sampling.max_tokens]):
                if i == script.death_after and execute.num_crashes < script.deaths:
                    num_crashes = execute.num_crashes + 1
                    usage = events.Usage(prompt_tokens=prompt_tokens, completion_tokens=7)
                    failed = events.Failed("internal", "it died", num_crashes < 2, usage, num_crashes)
                    self.send(wire.Reply(call_id, failed))
                    return
                if i == script.then_after:
                    await self._misbehave(script.then)
                if i == script.held_after:
                    await self._node.goes_on.wait()
                if i == 0:
                    self.send(wire.Reply(call_id, events.Started(prompt_tokens, script.cached)))
                else:
                    await asyncio.sleep(script.gap_s)
                for choice in range(num_choices):
                    self.send(wire.Reply(call_id, events.Token(_as_choice(text, choice), choice=choice)))
                    num_sent += 1
            for event in _called(script):
                if num_sent == 0:
                    self.send(wire.Reply(call_id, events.Started(prompt_tokens, script.cached)))
                self.send(wire.Reply(call_id, event))
                num_sent += event.num_tokens
            if script.then_after >= len(script.texts()):
                await self._misbehave(script.then)
            usage = events.Usage(
                prompt_tokens=prompt_tokens, cached_tokens=script.cached, completion_tokens=num_sent,
                queue_us=10, prefill_us=20, decode_us=30,
            )  # fmt: skip
            end = _end(script, usage, num_sent // num_choices)
            if num_choices > 1 and isinstance(end, events.Finished):
                ends = (events.ChoiceEnded(choice, end.reason) for choice in range(num_choices))
                self.send(*(wire.Reply(call_id, ended) for ended in ends))
            self.send(wire.Reply(call_id, end))
        except asyncio.CancelledError:
            usage = events.Usage(prompt_tokens=prompt_tokens, completion_tokens=num_sent)
            if not self.transport.is_closing():
                self.send(wire.Reply(call_id, events.Failed("aborted", usage=usage)))
        finally:
            self.calls.pop(call_id, None)

    async def _misbehave(self, how: str) -> None:
        if how == "die":
            self.transport.abort()
        elif how == "garbage":
            self.transport.write(b"\xff\xff\xff\x7f this is not a frame")
        await asyncio.Event().wait()


def _as_choice(text: str, choice: int) -> str:
    """Return the text of one choice: choices after the first append their number."""
    return text + str(choice) if choice else text


def _called(script: Script) -> list[events.ToolCallDelta]:
    """Return the events of the script's tool calls."""
    pieces = []
    for index, (name, arguments) in enumerate(script.calls):
        half = len(arguments) // 2
        pieces.append(events.ToolCallDelta(index=index, id=f"call_{index}", name=name, num_tokens=1))
        pieces += [
            events.ToolCallDelta(index=index, arguments=text, num_tokens=1)
            for text in (arguments[:half], arguments[half:])
        ]
    return pieces


def _end(script: Script, usage: events.Usage, num_sent: int) -> events.Event:
    if script.end in ("stop", "length", "tool_calls"):
        reason: Any = "length" if num_sent < len(script.texts()) else script.end
        return events.Finished(reason, usage, script.stop)
    return events.Failed(script.end, script.message, script.is_retryable, usage, int(script.one_death))  # type: ignore[arg-type]


def script_of(task: TaskInput, node_id: str) -> Script:
    """Return the script in the task's text for this node, or the default script."""
    if not isinstance(task, TextGeneration):
        return Script()
    texts = [task.prompt or ""] if task.messages is None else [task.messages[-1].content, task.messages[0].content]
    text = next((text for text in texts if text.startswith("!")), "")
    if not text:
        return Script()
    script = msgspec.json.decode(text[1:], type=Script)
    return script if script.on in ("", node_id) else Script()


def count_prompt(task: TaskInput) -> int:
    """Return the prompt's token count: one token per word."""
    if isinstance(task, TextEmbeddings | TextClassification):
        return sum(len(text.split()) for text in task.texts)
    if not isinstance(task, TextGeneration):
        return 0
    texts = [task.prompt or ""] if task.messages is None else [message.content for message in task.messages]
    return sum(len(text.split()) for text in texts)


def classified_texts(task: TextClassification) -> list[events.Event]:
    """Return all three events of a classification: scores grow with the lengths of the texts."""
    usage = events.Usage(prompt_tokens=count_prompt(task))
    shares = [min(1.0, len(text) / 100) for text in task.texts]
    if task.query:
        found = Classification((), tuple((share,) for share in shares))
    else:
        found = Classification(("CLEAN", "RUDE"), tuple((1 - share, share) for share in shares))
    return [events.Started(usage.prompt_tokens), found.to_result(), events.Finished("stop", usage)]


def embedded(task: TextEmbeddings) -> list[events.Event]:
    """Return all three events of an embeddings call."""
    if task.query:
        scores = events.Result({"scores": [[len(text) / 100] for text in task.texts]})
        return [events.Started(), scores, events.Finished("stop", events.Usage(prompt_tokens=count_prompt(task)))]
    rows = [[float(len(text)), *(0.25 * i for i in range(1, DIMENSIONS))] for text in task.texts]
    data = b"".join(struct.pack(f"<{DIMENSIONS}f", *row) for row in rows)
    usage = events.Usage(prompt_tokens=count_prompt(task))
    embeddings = Embeddings((len(rows), DIMENSIONS), data, task.pooling or "mean")
    return [events.Started(usage.prompt_tokens), embeddings.to_result(), events.Finished("stop", usage)]


def found_speech(task: VoiceActivityDetection) -> list[events.Event]:
    """Return all three events of a recording or of a chunk of a live stream at 16 kHz: loud frames are speech."""
    frame_bytes = FRAME_SAMPLES * 2
    samples = task.state + task.audio
    end = len(samples) - len(samples) % frame_bytes
    frames = [samples[start : start + frame_bytes] for start in range(0, end, frame_bytes)]
    probabilities = [0.9 if max(array("h", frame)) > LOUD else 0.1 for frame in frames]
    result = events.Result({"probabilities": probabilities, "duration_s": task.audio_ms / 1000})
    if task.is_live:
        result = LiveChunk(probabilities, samples[:end], samples[end:]).to_result()
    return [events.Started(), result, events.Finished("stop", events.Usage(audio_ms=task.audio_ms))]


def transcribed(task: AutomaticSpeechRecognition) -> list[events.Event]:
    """Return all three events of a transcription, which names the number of samples and the language."""
    text = f"{len(task.audio) // 2} samples in {task.language or 'any'}."
    duration_s = task.duration_ms / 1000
    segment = Segment(0.0, duration_s, text, (Word(text, 0.0, duration_s),))
    transcript = Transcript(duration_s, (segment,), task.language)
    return [events.Started(), transcript.to_result(), events.Finished("stop", events.Usage(audio_ms=task.duration_ms))]


def classified(task: ImageClassification) -> list[events.Event]:
    """Return all three events of a classification, which names the size of the decoded image."""
    labels = Labels((Label(f"{task.image.width} x {task.image.height}", 0.75), Label("other", 0.25)))
    usage = events.Usage(num_image_tiles=task.num_image_tiles)
    return [events.Started(), labels.to_result(), events.Finished("stop", usage)]


def detected(task: ObjectDetection) -> list[events.Event]:
    """Return all three events of a detection: one object that fills the image."""
    box = Box(0, 0, task.image.source_width, task.image.source_height)
    objects = DetectedObjects((DetectedObject("image", max(0.9, task.threshold), box),))
    usage = events.Usage(num_image_tiles=task.num_image_tiles)
    return [events.Started(), objects.to_result(), events.Finished("stop", usage)]


def rewritten(task: Translation | Summarization) -> list[events.Event]:
    """Return all three events of a call whose output is its text in upper case. A word is a token."""
    num_words = len(task.text.split())
    if isinstance(task, Translation) and task.target_lang == "xx":
        return [events.Failed("invalid_input", "'/target_lang' must be one of en, fr")]
    usage = events.Usage(prompt_tokens=num_words, completion_tokens=num_words)
    return [events.Started(num_words), events.Result({"text": task.text.upper()}), events.Finished("stop", usage)]


def described(task: ImageToText) -> list[events.Event]:
    """Return all three events of a description, which names the size of the image and the prompt."""
    text = f"{task.image.width} x {task.image.height}: {task.prompt}"
    usage = events.Usage(completion_tokens=len(text.split()), num_image_tiles=task.num_image_tiles)
    return [events.Started(), description_result(text), events.Finished("stop", usage)]


def spoken(task: TextToSpeech) -> list[events.Event]:
    """Return the events of a speech: a second of silence in two pieces for samples, the text itself for MP3."""
    half = bytes(task.sample_rate)
    pieces = [task.text.encode()] if task.format == "mp3" else [half, half]
    usage = events.Usage(audio_ms=1000, num_characters=len(task.text))
    return [events.Started(), *map(events.Data, pieces), events.Finished("stop", usage)]


def painted(task: TextToImage) -> list[events.Event]:
    """Return the events of images. The bytes of each image are the text of its inputs."""
    sizes = [f"{each.width}x{each.height}" for each in (task.image, task.mask, *task.references) if each is not None]
    text = f"{task.prompt} {task.width}x{task.height} {task.steps} steps {' '.join(sizes)}".strip()
    images = tuple(f"{text} seed {task.seed + number}".encode() for number in range(task.num_images))
    usage = events.Usage(num_steps=task.num_steps, num_image_tiles=task.num_image_tiles)
    progress = events.Progress(task.num_steps, task.num_steps)
    return [events.Started(), progress, GeneratedImages(images).to_result(), events.Finished("stop", usage)]


RESULTS: dict[type, Callable[[Any], list[events.Event]]] = {
    TextEmbeddings: embedded,
    TextClassification: classified_texts,
    Translation: rewritten,
    Summarization: rewritten,
    AutomaticSpeechRecognition: transcribed,
    VoiceActivityDetection: found_speech,
    ImageClassification: classified,
    ObjectDetection: detected,
    ImageToText: described,
    TextToSpeech: spoken,
    TextToImage: painted,
}
"""The events of tasks that do not generate text."""
