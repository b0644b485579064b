"""Tests of frames: messages are decoded for every split of their bytes, and malformed frames raise WireError."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol import events, wire
from engine.protocol.messages import ChatMessage
from engine.protocol.sampling import Sampling
from engine.protocol.tasks.registry import TaskInput
from engine.protocol.tasks.text_embeddings import TextEmbeddings
from engine.protocol.tasks.text_generation import TextGeneration

_texts = st.text(max_size=20)
_counts = st.integers(0, 2**31)
_usage = st.builds(events.Usage, prompt_tokens=_counts, cached_tokens=_counts, completion_tokens=_counts)
_logprobs = st.builds(
    events.TokenLogprob,
    text=_texts,
    logprob=st.floats(-100, 0),
    top=st.lists(st.tuples(_texts, st.floats(-100, 0)), max_size=3).map(tuple),
)
_events: st.SearchStrategy[events.Event] = st.one_of(
    st.builds(events.Started, prompt_tokens=_counts, cached_tokens=_counts),
    st.builds(events.Token, text=_texts, num_tokens=_counts, logprobs=st.lists(_logprobs, max_size=3).map(tuple)),
    st.builds(
        events.Result,
        st.dictionaries(_texts, _counts | _texts, max_size=3),
        st.binary(max_size=64),
    ),
    st.builds(events.Finished, reason=st.sampled_from(["stop", "length"]), usage=_usage),
    st.builds(
        events.Failed,
        reason=st.sampled_from(["invalid_input", "timeout", "aborted", "internal"]),
        message=_texts,
        is_retryable=st.booleans(),
        usage=_usage,
    ),
)
_sampling = st.builds(
    Sampling,
    max_tokens=_counts,
    temperature=st.floats(0, 5),
    seed=st.none() | st.integers(0, 2**63 - 1),
    stop=st.lists(_texts, max_size=3).map(tuple),
    logprobs=st.none() | st.integers(0, 20),
)
_messages = st.lists(st.builds(ChatMessage, role=_texts, content=_texts, name=st.none() | _texts), max_size=3)
_tasks: st.SearchStrategy[TaskInput] = st.one_of(
    st.builds(TextGeneration, messages=_messages.map(tuple), sampling=_sampling),
    st.builds(TextGeneration, prompt=_texts, raw=st.booleans()),
    st.builds(TextGeneration, prompt_token_ids=st.lists(_counts, max_size=5).map(tuple)),
    st.builds(TextEmbeddings, texts=st.lists(_texts, max_size=3).map(tuple), pooling=st.none() | st.just("cls")),
)
_messages_on_the_wire: st.SearchStrategy[wire.Message] = st.one_of(
    st.builds(wire.Hello, version=_counts, sender=_texts, nonce=st.binary(max_size=32), token=_texts),
    st.builds(
        wire.Execute,
        call_id=_counts,
        request_id=_texts,
        model=_texts,
        revision=_texts,
        namespace=st.binary(min_size=32, max_size=32),
        tenant=_counts,
        task=_tasks,
        deadline_s=st.floats(0, 1e6),
    ),
    st.builds(wire.Cancel, call_id=_counts),
    st.just(wire.Ping()),
    st.just(wire.Pong()),
    st.builds(wire.Reply, call_id=_counts, event=_events),
)


@given(sent=st.lists(_messages_on_the_wire, max_size=5), cuts=st.lists(st.integers(0, 4000), max_size=20))
def test_messages_are_decoded_for_every_split_of_their_bytes(sent: list[wire.Message], cuts: list[int]) -> None:
    data = b"".join(wire.encode(message) for message in sent)
    decoder = wire.FrameDecoder()
    received: list[wire.Message] = []
    position = 0
    for cut in [*sorted(cut for cut in cuts if cut < len(data)), len(data)]:
        received += decoder.feed(data[position:cut])
        position = cut
    assert received == sent


@given(data=st.binary(max_size=400))
def test_random_bytes_raise_wire_error_or_wait_for_more(data: bytes) -> None:
    decoder = wire.FrameDecoder(max_frame_bytes=1000)
    with suppress(wire.WireError):
        list(decoder.feed(data))


@given(message=_messages_on_the_wire, position=st.integers(0, 10_000), bits=st.integers(1, 255))
def test_frame_with_a_flipped_byte_is_a_valid_message_or_raises_wire_error(
    message: wire.Message, position: int, bits: int
) -> None:
    frame = bytearray(wire.encode(message))
    frame[position % len(frame)] ^= bits
    with suppress(wire.WireError):
        for received in wire.FrameDecoder(max_frame_bytes=1 << 16).feed(frame):
            assert isinstance(received, wire.Message)


def test_type_that_is_not_utf8_raises_wire_error() -> None:
    """msgspec raises UnicodeDecodeError for this frame instead of DecodeError."""
    with pytest.raises(wire.WireError):
        list(wire.FrameDecoder().feed(b"\x0b\x00\x00\x00\x81\xa4type\xa4\xf0ing"))


@given(message=_messages_on_the_wire, cut=st.integers(0, 10_000))
def test_incomplete_frame_is_not_a_message(message: wire.Message, cut: int) -> None:
    frame = wire.encode(message)
    assert list(wire.FrameDecoder().feed(frame[: cut % len(frame)])) == []


@pytest.mark.parametrize(
    "payload",
    [
        msgspec.msgpack.encode({"type": "execute"}),
        msgspec.msgpack.encode({"type": "unknown", "call_id": 1}),
        msgspec.msgpack.encode({"call_id": 1}),
        msgspec.msgpack.encode([1, 2, 3]),
        msgspec.msgpack.encode({"type": "cancel", "call_id": "1"}),
        msgspec.msgpack.encode({"type": "reply", "call_id": 1, "event": {"type": "finished", "reason": "tired"}}),
        msgspec.msgpack.encode(wire.Ping()) + b"\x00",
        b"\x91" * 5000,
        b"\xc1",
        b"",
    ],
)
def test_frame_with_another_payload_raises_wire_error(payload: bytes) -> None:
    with pytest.raises(wire.WireError, match="unreadable"):
        list(wire.FrameDecoder().feed(len(payload).to_bytes(4, "little") + payload))


def test_frame_over_the_size_limit_is_rejected_before_its_payload_arrives() -> None:
    with pytest.raises(wire.WireError, match="over the limit"):
        list(wire.FrameDecoder().feed((wire.MAX_FRAME_BYTES + 1).to_bytes(4, "little")))


def test_messages_before_a_malformed_frame_are_delivered() -> None:
    incoming = wire.FrameDecoder().feed(wire.encode(wire.Ping()) + b"\x01\x00\x00\x00\xc1")
    assert next(incoming) == wire.Ping()
    with pytest.raises(wire.WireError):
        next(incoming)


def test_json_line_has_the_same_fields_as_the_frame() -> None:
    reply = wire.Reply(7, events.Token("\u2615\n", 2))
    line = wire.to_json_line(reply)
    assert line.count(b"\n") == 1
    expected: dict[str, Any] = {"type": "reply", "call_id": 7}
    expected["event"] = {"type": "token", "text": "\u2615\n", "num_tokens": 2}
    assert json.loads(line) == expected
