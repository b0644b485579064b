"""Tokens of a stream are sent together, never later than the limit, and with the same content and order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from engine.protocol.events import Event, Token, TokenLogprob, ToolCallDelta
from engine.protocol.outcome import Outcome
from engine.tasks.token_coalescer import CoalescedStream, Piece, TokenCoalescer, join_pieces
from tests.fakes.virtual_loop import VirtualLoop, run_virtually

WAIT_S = 0.025


def _now_ms() -> float:
    return round(asyncio.get_running_loop().time() * 1000, 6)


class Recorder:
    """A stream of numbers, with the milliseconds at which they were added and sent."""

    def __init__(self, coalescer: TokenCoalescer) -> None:
        self.added_ms: list[float] = []
        self.sent: list[tuple[float, list[int]]] = []
        self.stream: CoalescedStream[int] = coalescer.open(lambda items: self.sent.append((_now_ms(), items)))

    def add(self) -> None:
        self.added_ms.append(_now_ms())
        self.stream.add(len(self.added_ms) - 1)


async def _play(arrivals_ms: Sequence[float], wait_s: float) -> Recorder:
    recorder = Recorder(TokenCoalescer(wait_s))
    for at_ms in arrivals_ms:
        await asyncio.sleep(at_ms / 1000 - asyncio.get_running_loop().time())
        recorder.add()
    await asyncio.sleep(1.0)
    return recorder


def played(arrivals_ms: Sequence[float], wait_s: float = WAIT_S) -> list[tuple[float, list[int]]]:
    """Return (milliseconds, items) of everything that was sent for items that arrived at these milliseconds."""
    return run_virtually(_play(arrivals_ms, wait_s)).sent


def test_first_item_is_sent_at_once_and_the_last_within_the_wait() -> None:
    assert played([100, 110]) == [(100, [0]), (135, [1])]


def test_items_of_a_fast_stream_are_sent_with_the_first_that_comes_after_the_wait() -> None:
    assert played([0, 16, 32, 48, 64, 80]) == [(0, [0]), (32, [1, 2]), (64, [3, 4]), (105, [5])]


def test_items_of_a_slow_stream_are_never_held() -> None:
    arrivals_ms = [25.5 * number for number in range(8)]
    assert played(arrivals_ms) == [(at_ms, [number]) for number, at_ms in enumerate(arrivals_ms)]


def test_a_wait_of_zero_sends_every_item_at_once() -> None:
    arrivals_ms = [number // 2 for number in range(20)]
    assert played(arrivals_ms, wait_s=0.0) == [(at_ms, [number]) for number, at_ms in enumerate(arrivals_ms)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("mean_gap_ms", [0.5, 5, 20, 50])
def test_random_arrivals_keep_their_order_and_the_limit(seed: int, mean_gap_ms: float) -> None:
    choose = random.Random(seed)
    arrivals_ms, at_ms = list[float](), 0.0
    for _ in range(400):
        at_ms += choose.choice((0.0, choose.expovariate(1 / mean_gap_ms)))
        arrivals_ms.append(at_ms)
    recorder = run_virtually(_play(arrivals_ms, WAIT_S))
    assert [item for _, items in recorder.sent for item in items] == list(range(400))
    assert len(recorder.sent) < 400
    last_ms = float("-inf")
    for sent_ms, items in recorder.sent:
        added_ms = [recorder.added_ms[item] for item in items]
        assert all(sent_ms - each <= WAIT_S * 1000 + 1e-3 for each in added_ms)
        assert sent_ms == added_ms[0] or added_ms[0] - last_ms < WAIT_S * 1000, "held although the last send is old"
        last_ms = sent_ms


async def _many_streams() -> tuple[int, list[Recorder]]:
    """Hold items of 50 streams; return the largest number of timers, and the streams."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    coalescer = TokenCoalescer(WAIT_S)
    recorders = [Recorder(coalescer) for _ in range(50)]
    most = 0
    for _ in range(3):
        for recorder in recorders:
            recorder.add()
            most = max(most, len(loop._scheduled))  # type: ignore[attr-defined]
        await asyncio.sleep(0.004)
    await asyncio.sleep(1.0)
    return most, recorders


def test_streams_share_one_timer() -> None:
    most, recorders = run_virtually(_many_streams())
    assert most == 1
    assert all(recorder.sent == [(0, [0]), (29, [1, 2])] for recorder in recorders)


async def _take() -> Recorder:
    recorder = Recorder(TokenCoalescer(WAIT_S))
    for _ in range(3):
        recorder.add()
    assert recorder.stream.take() == [1, 2]
    await asyncio.sleep(1.0)
    return recorder


def test_taken_items_are_not_sent() -> None:
    assert run_virtually(_take()).sent == [(0, [0])]


def test_logprobs_stay_with_their_tokens() -> None:
    logprobs = [TokenLogprob(text, -0.5, (("x", -1.0),)) for text in "abc"]
    pieces = [Token(each.text, 1, (each,)) for each in logprobs]
    assert join_pieces(pieces) == [Token("abc", 3, tuple(logprobs))]


def test_reasoning_text_and_tool_calls_are_not_mixed() -> None:
    pieces: list[Piece] = [
        Token("think", is_reasoning=True),
        Token("ing", is_reasoning=True),
        Token("text"),
        ToolCallDelta(index=0, id="call_1", name="f", num_tokens=1),
        ToolCallDelta(index=0, arguments='{"a"', num_tokens=1),
        ToolCallDelta(index=0, arguments=":1}", num_tokens=2),
        ToolCallDelta(index=1, id="call_2", name="f", arguments="{", num_tokens=1),
        ToolCallDelta(index=1, arguments="}", num_tokens=1),
    ]
    assert join_pieces(pieces) == [
        Token("thinking", 2, is_reasoning=True),
        Token("text"),
        pieces[3],
        ToolCallDelta(index=0, arguments='{"a":1}', num_tokens=3),
        *pieces[6:],
    ]


def random_piece(choose: random.Random, number: int) -> Piece:
    if choose.random() < 0.7:
        text = f"{number} "
        logprobs = (TokenLogprob(text, -float(number)),) if choose.random() < 0.5 else ()
        return Token(text, choose.randrange(1, 3), logprobs, is_reasoning=choose.random() < 0.2)
    index, is_first = number // 40, choose.random() < 0.2
    call_id, name = (f"call_{number}", f"f{index}") if is_first else (None, None)
    return ToolCallDelta(index=index, id=call_id, name=name, arguments=f"{number},", num_tokens=1)


def characters_of(pieces: Sequence[Piece]) -> list[tuple[object, str]]:
    """Return each character with the kind of its piece, in order."""
    found: list[tuple[object, str]] = []
    for piece in pieces:
        if isinstance(piece, Token):
            found += [(piece.is_reasoning, each) for each in piece.text]
        else:
            found += [(piece.id, piece.name or "")] if piece.id else []
            found += [(piece.index, each) for each in piece.arguments]
    return found


def outcome_of(events: Sequence[Event]) -> Outcome:
    outcome = Outcome()
    for event in events:
        outcome.add(event)
    return outcome


@pytest.mark.parametrize("seed", range(20))
def test_joined_pieces_have_the_same_content_order_and_counts(seed: int) -> None:
    choose = random.Random(seed)
    pieces = [random_piece(choose, number) for number in range(200)]
    joined = join_pieces(pieces)
    assert len(joined) < len(pieces)
    assert characters_of(joined) == characters_of(pieces)
    assert outcome_of(joined).logprobs == outcome_of(pieces).logprobs
    assert outcome_of(joined).tool_calls == outcome_of(pieces).tool_calls
    assert sum(piece.num_tokens for piece in joined) == sum(piece.num_tokens for piece in pieces)
