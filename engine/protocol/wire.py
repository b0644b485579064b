"""Frames between gateway and node: 4 bytes little-endian length, then one MessagePack map with a `type`.

The node speaks first. Both sides authenticate before anything else is answered, each with a service token that is
bound to both nonces:

    node     Hello(version, sender, nonce)
    gateway  Hello(version, sender, nonce, token)
    node     Hello(version, sender, nonce, token)      the connection is open
    gateway  Execute | Cancel | Manage | Ping ...        node  Reply | Managed | Pong ...

`FrameDecoder` is strict: a frame that is too long or malformed raises `WireError`, and the connection must be closed.
The HTTP endpoint of a node sends the same messages as JSON lines (`to_json_line`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Literal

import msgspec
from msgspec import Struct

from engine.protocol.events import Event
from engine.protocol.tasks.registry import TaskInput

VERSION = 1
MAX_FRAME_BYTES = 64 * 1024 * 1024
KEEPALIVE_INTERVAL_S = 1.0
KEEPALIVE_TIMEOUT_S = 5.0


ManageAction = Literal["drain", "undrain", "load", "unload", "pin", "unpin"]


class WireError(Exception):
    """The peer sent something that is not this protocol, or could not authenticate."""


class Hello(Struct, frozen=True, tag="hello", omit_defaults=True, kw_only=True):
    version: int
    sender: str
    nonce: bytes
    token: str = ""


class Execute(Struct, frozen=True, tag="execute", omit_defaults=True, kw_only=True):
    """Run one call. `call_id` is unique on its connection. `namespace` (32 bytes) keys the prefix cache; equal
    namespaces may share blocks, different ones never do. `tenant` is a number for fairness only. `deadline_s` is the
    remaining time in seconds. Everything that an `is_ephemeral` call computed is wiped when it ends. `num_crashes` is
    the number of model processes that crashed while they worked on this call; `tokens_before_crash` is how many tokens
    the last of them had generated. `traceparent` (W3C) is set if the call is traced."""

    call_id: int
    request_id: str
    model: str
    revision: str
    namespace: bytes
    tenant: int
    task: TaskInput
    deadline_s: float
    num_crashes: int = 0
    tokens_before_crash: int = 0
    is_ephemeral: bool = False
    traceparent: str = ""


class Cancel(Struct, frozen=True, tag="cancel"):
    """Stop a call; it ends with Failed("aborted") unless it had already ended."""

    call_id: int


class Ping(Struct, frozen=True, tag="ping"):
    """Sent by the gateway every KEEPALIVE_INTERVAL_S; a node that receives nothing for KEEPALIVE_TIMEOUT_S cancels the
    calls of the connection."""


class Pong(Struct, frozen=True, tag="pong"):
    """The node's response to Ping: its event loop is alive."""


class Reply(Struct, frozen=True, tag="reply"):
    call_id: int
    event: Event


class Manage(Struct, frozen=True, tag="manage"):
    """Change the node: refuse new calls (`drain`) or accept them again (`undrain`), or load, unload, pin or unpin
    `model`. Sent only to nodes whose status lists the action: older ones do not know this message."""

    request_id: int
    action: ManageAction
    model: str = ""


class Managed(Struct, frozen=True, tag="managed"):
    """The response to Manage: the change has been made or has begun, unless `error` says why not."""

    request_id: int
    error: str = ""


Message = Hello | Execute | Cancel | Manage | Ping | Pong | Reply | Managed

_encoder = msgspec.msgpack.Encoder()
_decode = msgspec.msgpack.Decoder[Message](Message).decode
_read_size = struct.Struct("<I").unpack_from
_json_encoder = msgspec.json.Encoder()


def encode(message: Message) -> bytes:
    """Return a message as one frame, including its length."""
    payload = _encoder.encode(message)
    return len(payload).to_bytes(4, "little") + payload


def to_json_line(message: Message | Event) -> bytes:
    """Return a message as one line of JSON, with bytes fields in base64."""
    return _json_encoder.encode(message) + b"\n"


class FrameDecoder:
    """Decodes messages from bytes that are split anywhere."""

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._buffer = bytearray()
        self._max_frame_bytes = max_frame_bytes

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[Message]:
        """Yield every message completed by `data`. Raises WireError; the decoder cannot be used afterwards."""
        buffer = self._buffer
        if buffer:
            buffer += data
        offset, view = 0, memoryview(buffer or data)
        end = len(view)
        try:
            while end - offset >= 4:
                (size,) = _read_size(view, offset)
                if size > self._max_frame_bytes:
                    raise WireError(f"frame of {size} bytes is over the limit of {self._max_frame_bytes}")
                start = offset + 4
                if end - start < size:
                    break
                offset = start + size
                try:
                    message = _decode(view[start:offset])
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    raise WireError(f"unreadable frame: {error}") from error
                yield message
        finally:
            remaining = b"" if offset == end or buffer else bytes(view[offset:])
            view.release()
            del buffer[:offset]
            buffer += remaining
