"""A minimal gateway side of the wire for tests, which can also violate the protocol."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from engine.protocol import wire
from engine.protocol.events import Event, Failed, Finished, Started, Token
from engine.protocol.sampling import Sampling
from engine.protocol.tasks.registry import TaskInput
from engine.protocol.tasks.text_generation import TextGeneration
from service_identity.service_identity import ServiceIdentity
from tests.service_keys import service_keys
from tests.waiting import wait_until

NAMESPACE = b"n" * 32


_PING_AFTER_S = 2.0  # seconds of silence before a Ping


class Closed(Exception):
    """The node closed the connection."""


class WireClient:
    """A connection to a node. `events` reads the replies to one call; messages of other calls are kept for their
    readers.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.num_reads = 0
        self._decoder = wire.FrameDecoder()
        self._messages: deque[wire.Message] = deque()

    @classmethod
    async def open(cls, address: str, context: ssl.SSLContext | None = None) -> WireClient:
        """Connect without sending a handshake."""
        kind, _, location = address.partition("://")
        if kind == "unix":
            return cls(*await asyncio.open_unix_connection(location))
        host, _, port = location.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port), ssl=context))

    @classmethod
    async def connect(
        cls, address: str, identity: ServiceIdentity | None = None, context: ssl.SSLContext | None = None
    ) -> WireClient:
        """Connect and authenticate in both directions, as `identity` or as the tests' gateway."""
        client = await cls.open(address, context)
        try:
            await client._shake_hands(identity or service_keys().identity("gateway/gateway"))
        except BaseException:
            client.writer.close()
            raise
        return client

    async def _shake_hands(self, identity: ServiceIdentity) -> None:
        hello = await self.receive()
        assert isinstance(hello, wire.Hello)
        nonce = os.urandom(16)
        nonces = (hello.nonce, nonce)
        token = identity.sign(f"node/{hello.sender}", nonces)
        self.send(wire.Hello(version=wire.VERSION, sender="test", nonce=nonce, token=token))
        response = await self.receive()
        assert isinstance(response, wire.Hello)
        assert identity.verify_token(response.token, {"node"}, nonces) is not None

    def send(self, *messages: wire.Message) -> None:
        self.writer.write(b"".join(wire.encode(message) for message in messages))

    async def receive(self) -> wire.Message:
        """Return the next message. Raises Closed."""
        while not self._messages:
            try:
                data = await asyncio.wait_for(self.reader.read(1 << 16), _PING_AFTER_S)
            except TimeoutError:  # on a slow machine, a Ping keeps the connection open
                self.send(wire.Ping())
                continue
            except ConnectionError as error:
                raise Closed from error
            if not data:
                raise Closed
            self.num_reads += 1
            self._messages.extend(self._decoder.feed(data))
        return self._messages.popleft()

    async def events(self, call_id: int) -> AsyncIterator[Event]:
        """Yield the events of one call to its end. Only one reader at a time."""
        while True:
            message = await self.receive()
            if isinstance(message, wire.Reply) and message.call_id == call_id:
                yield message.event
                if isinstance(message.event, Finished | Failed):
                    return

    async def all_events(self, call_id: int) -> list[Event]:
        return [event async for event in self.events(call_id)]

    async def by_call(self, *call_ids: int) -> dict[int, list[Event]]:
        """Return the events of several calls, after all have ended."""
        heard: dict[int, list[Event]] = {call_id: [] for call_id in call_ids}
        num_open = len(call_ids)
        while num_open:
            message = await self.receive()
            if isinstance(message, wire.Reply):
                heard[message.call_id].append(message.event)
                num_open -= isinstance(message.event, Finished | Failed)
        return heard

    async def until_started(self, num_calls: int) -> None:
        """Return after this many calls have sent their first event."""
        while num_calls:
            message = await self.receive()
            num_calls -= isinstance(message, wire.Reply) and isinstance(message.event, Started)

    async def ends(self, num_calls: int) -> dict[int, Event]:
        """Return the final events of the next calls to end, this many."""
        heard: dict[int, Event] = {}
        while len(heard) < num_calls:
            message = await self.receive()
            if isinstance(message, wire.Reply) and isinstance(message.event, Finished | Failed):
                heard[message.call_id] = message.event
        return heard

    async def meanwhile(self, predicate: Callable[[], object | Awaitable[object]]) -> None:
        """Wait until `predicate` is true. Send Pings meanwhile, so that the node does not close the connection."""

        def condition() -> object | Awaitable[object]:
            self.send(wire.Ping())
            return predicate()

        await wait_until(condition, interval_s=0.05)

    async def close(self) -> None:
        self.writer.close()

    async def wait_closed_by_node(self) -> None:
        """Read until the node closes the connection."""
        try:
            while True:
                await self.receive()
        except Closed:
            self.writer.close()


def execute(
    call_id: int,
    task: TaskInput | None = None,
    *,
    model: str = "a",
    revision: str = "r",
    deadline_s: float = 30.0,
    namespace: bytes = NAMESPACE,
    **sampling: object,
) -> wire.Execute:
    """Return a call of `task`, by default greedy text generation."""
    values = {"temperature": 0.0, "max_tokens": 8, **sampling}
    return wire.Execute(
        call_id=call_id,
        request_id=f"request-{call_id}",
        model=model,
        revision=revision,
        namespace=namespace,
        tenant=1,
        task=task or TextGeneration(prompt="Once upon a time", sampling=Sampling(**values)),
        deadline_s=deadline_s,
    )


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Token))
