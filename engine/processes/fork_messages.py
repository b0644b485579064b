"""Messages between a node's front process and its zygote or a branch of it: one per datagram."""

from __future__ import annotations

import msgspec
from msgspec import Struct

MAX_MESSAGE_BYTES = 64 * 1024


class Fork(Struct, frozen=True, tag="fork"):
    """Request for a child that runs `entry`, "module:function". The child's socket is passed with the datagram."""

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
    code: int  # as in subprocess: negative for a signal


class BranchArguments(Struct, frozen=True):
    """Arguments of a forked branch: the module that it imports, and the entry point that configures its children."""

    module: str
    configure: str


encoder = msgspec.msgpack.Encoder()
request_decoder = msgspec.msgpack.Decoder(Fork)
report_decoder: msgspec.msgpack.Decoder[Forked | ForkFailed | Exited] = msgspec.msgpack.Decoder(
    Forked | ForkFailed | Exited
)
