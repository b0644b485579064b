"""What a node's front and its warm parent say to each other: one message a datagram."""

from __future__ import annotations

import msgspec
from msgspec import Struct

MAX_MESSAGE_BYTES = 64 * 1024


class Fork(Struct, frozen=True, tag="fork"):
    """Asks for a child that runs `entry`, "module:function". Its socket travels along."""

    fork_id: int
    entry: str
    arguments: bytes
    name: str


class Forked(Struct, frozen=True, tag="forked"):
    fork_id: int
    pid: int


class ForkFailed(Struct, frozen=True, tag="fork_failed"):
    fork_id: int
    message: str


class Exited(Struct, frozen=True, tag="exited"):
    pid: int
    code: int  # as subprocess has it: negative for a signal


encoder = msgspec.msgpack.Encoder()
request_decoder = msgspec.msgpack.Decoder(Fork)
news_decoder: msgspec.msgpack.Decoder[Forked | ForkFailed | Exited] = msgspec.msgpack.Decoder(
    Forked | ForkFailed | Exited
)
