"""Frames on a socket between two processes of ours: 4 bytes little-endian length, then the payload.

Both ends are of one version, and neither sends what the other could not hold. Knows nothing of what payloads say.
"""

from __future__ import annotations

import socket

_LENGTH_BYTES = 4


def framed(payload: bytes) -> bytes:
    """One frame."""
    return len(payload).to_bytes(_LENGTH_BYTES, "little") + payload


class FrameReader:
    """Bytes in, payloads out, for any split of the bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Every payload completed by `data`, in order."""
        self._buffer += data
        payloads: list[bytes] = []
        offset = 0
        while len(self._buffer) - offset >= _LENGTH_BYTES:
            begin = offset + _LENGTH_BYTES
            end = begin + int.from_bytes(self._buffer[offset:begin], "little")
            if len(self._buffer) < end:
                break
            payloads.append(bytes(self._buffer[begin:end]))
            offset = end
        if offset:
            del self._buffer[:offset]
        return payloads


def receive_frame(channel: socket.socket) -> bytearray | None:
    """The next payload, waited for; None if the other end closes before."""
    length = receive_exactly(channel, _LENGTH_BYTES)
    return None if length is None else receive_exactly(channel, int.from_bytes(length, "little"))


def receive_exactly(channel: socket.socket, num_bytes: int) -> bytearray | None:
    """Exactly so many bytes; None if the other end closes before."""
    data = bytearray(num_bytes)
    rest = memoryview(data)
    while rest:
        try:
            count = channel.recv_into(rest)
        except ConnectionResetError:
            return None
        if not count:
            return None
        rest = rest[count:]
    return data
