"""Frames on a socket between two of our processes: 4 bytes little-endian length, then the payload.

Both ends run the same version and trust each other, so the length has no limit.
"""

from __future__ import annotations

import socket

_LENGTH_BYTES = 4


def framed(payload: bytes) -> bytes:
    """Return the payload as a frame."""
    return len(payload).to_bytes(_LENGTH_BYTES, "little") + payload


class FrameReader:
    """Splits a byte stream into payloads."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return every payload that `data` completes, in order."""
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
    """Wait for the next payload; return None if the other end closes first."""
    length = receive_exactly(channel, _LENGTH_BYTES)
    return None if length is None else receive_exactly(channel, int.from_bytes(length, "little"))


def receive_exactly(channel: socket.socket, num_bytes: int) -> bytearray | None:
    """Wait for exactly `num_bytes`; return None if the other end closes first."""
    data = bytearray(num_bytes)
    missing = memoryview(data)
    while missing:
        try:
            count = channel.recv_into(missing)
        except ConnectionResetError:
            return None
        if not count:
            return None
        missing = missing[count:]
    return data
