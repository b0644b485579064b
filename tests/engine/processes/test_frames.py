"""Frames are reassembled from any split of the bytes; reading an incomplete frame returns None."""

from __future__ import annotations

import socket

from hypothesis import given
from hypothesis import strategies as st

from engine.processes.frames import FrameReader, framed, receive_frame


@given(st.lists(st.binary(max_size=300), max_size=5), st.data())
def test_frames_are_reassembled_from_any_split(sent: list[bytes], data: st.DataObject):
    stream, reader, payloads = b"".join(map(framed, sent)), FrameReader(), []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        payloads += reader.feed(stream[:cut])
        stream = stream[cut:]
    assert payloads == sent


def test_incomplete_frame_is_none():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(framed(b"whole") + framed(b"") + framed(b"half")[:-1])
        theirs.close()
        assert [receive_frame(ours) for _ in range(3)] == [b"whole", b"", None]
