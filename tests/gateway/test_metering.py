"""Metering: one usage entry for each call that reached a node, however it ends, durable before the response ends."""

import asyncio
from datetime import UTC, datetime
from decimal import Decimal

import msgspec
import pytest

from catalog.card import Prices
from engine.protocol.events import Event, Failed, Finished, Started, Token, ToolCallDelta, Usage
from engine.protocol.tasks.text_generation import TextGeneration
from gateway.call import Call
from gateway.errors import ClientLeft, Reason, Refusal
from gateway.metering import MeteredEvents
from gateway.retry_tracker import RetryTracker
from storage.errors import StoreUnavailable
from telemetry.clock import SYSTEM_CLOCK
from tenants.credentials.principal import Principal
from tenants.usage.usage_entries import UsageEntry
from tests.gateway.process import PARROT, cards

CALL = Call(
    request_id="r1",
    principal=Principal("a" * 32, "t" * 32, frozenset()),
    card=next(card for card in cards() if card.name == PARROT),
    requested_model=PARROT,
    task=TextGeneration(prompt="x"),
    is_stream=True,
    namespace=b"n" * 32,
    tenant=1,
    affinity=b"a",
    num_estimated_tokens=1,
    started_at=datetime.now(UTC),
    started_s=SYSTEM_CLOCK.monotonic_s(),
    deadline_s=1e12,
)


class Source:
    """Event source that yields the given events, then raises or ends, and records the cancellation."""

    def __init__(self, *batches: list[Event] | Exception, final_events: list[Event] | None = None) -> None:
        self.node_id = "n1"
        self.tried_node_ids = ["n1"]
        self.is_cancelled = self.is_closed = False
        self._batches = list(batches)
        self._final_events = final_events or []

    async def take(self, not_before_s: float = 0.0) -> list[Event]:
        batch = self._batches.pop(0)
        if isinstance(batch, Exception):
            raise batch
        return batch

    def cancel(self) -> None:
        self.is_cancelled = True

    async def final_events(self, timeout_s: float) -> list[Event]:
        return self._final_events

    def close(self) -> None:
        self.is_closed = True


class Ledger:
    """Ledger that stores entries in memory or is unavailable."""

    def __init__(self, is_unavailable: bool = False) -> None:
        self.entries: list[UsageEntry] = []
        self.is_unavailable = is_unavailable

    async def record(self, entry: UsageEntry) -> None:
        if self.is_unavailable:
            raise StoreUnavailable("away")
        self.entries.append(entry)


def metered(source: Source, ledger: Ledger) -> MeteredEvents:
    return MeteredEvents(CALL, source, ledger, "lis", SYSTEM_CLOCK)  # type: ignore[arg-type]


async def drain(events: MeteredEvents) -> None:
    """Read all events and always close the iterator, as a streaming response does."""
    try:
        while not isinstance((await events.take())[-1], Finished | Failed):
            pass
    finally:
        await events.close()


USAGE = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=3)


async def test_finished_call_has_one_usage_entry_with_the_nodes_counts():
    source, ledger = Source([Started(10, 4)], [Token("a"), Finished("stop", USAGE)]), Ledger()
    await drain(metered(source, ledger))
    (entry,) = ledger.entries
    assert (entry.status, entry.prompt_tokens, entry.cached_tokens, entry.completion_tokens) == ("stop", 10, 4, 3)
    assert entry.micro_neurons == 6 * 100 + 4 * 10 + 3 * 1000
    assert source.is_closed
    assert not source.is_cancelled


async def test_last_event_waits_for_the_durable_usage_entry():
    events = metered(Source([Finished("stop", USAGE)]), Ledger(is_unavailable=True))
    with pytest.raises(StoreUnavailable):
        await events.take()
    await events.close()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ClientLeft(), "client_left"),
        (Refusal(Reason.TIMEOUT), "timeout"),
        (Refusal(Reason.ABORTED), "aborted"),
    ],
)
async def test_abandoned_call_is_cancelled_and_charged_for_the_nodes_reported_usage(error: Exception, status: str):
    final_events = [Token("b"), Failed("aborted", usage=USAGE)]
    source, ledger = Source([Started(10, 4), Token("a")], error, final_events=final_events), Ledger()
    with pytest.raises(type(error)):
        await drain(metered(source, ledger))
    assert source.is_cancelled
    (entry,) = ledger.entries
    assert (entry.status, entry.completion_tokens) == (status, 3)


async def test_usage_of_a_dead_node_is_counted_by_the_gateway():
    source = Source([Started(10, 4), Token("a"), Token("bc", 2)], Refusal(Reason.ABORTED), final_events=[Token("d")])
    ledger = Ledger()
    with pytest.raises(Refusal):
        await drain(metered(source, ledger))
    (entry,) = ledger.entries
    assert (entry.prompt_tokens, entry.cached_tokens, entry.completion_tokens) == (10, 4, 4)


async def test_call_that_reached_no_node_has_no_usage_entry():
    source, ledger = Source(Refusal(Reason.OUT_OF_CAPACITY)), Ledger()
    source.tried_node_ids = []
    with pytest.raises(Refusal):
        await drain(metered(source, ledger))
    assert ledger.entries == []
    assert source.is_closed


def called(**changes: object) -> Call:
    return msgspec.structs.replace(CALL, deadline_s=asyncio.get_running_loop().time() + 60, **changes)


async def entry_of(call: Call, *batches: list[Event], useful: RetryTracker | None = None) -> UsageEntry:
    ledger = Ledger()
    events = MeteredEvents(call, Source(*batches), ledger, "lis", SYSTEM_CLOCK, useful)  # type: ignore[arg-type]
    await drain(events)
    (entry,) = ledger.entries
    return entry


async def test_usage_entry_has_device_time_and_bytes():
    usage = Usage(prompt_tokens=10, completion_tokens=3, device_us=4321)
    pieces = [Token("né"), ToolCallDelta(index=0, id="c1", name="f"), ToolCallDelta(index=0, arguments='{"a":1}')]
    entry = await entry_of(called(num_bytes_in=77), [Started(10), *pieces, Finished("tool_calls", usage)])
    assert (entry.device_us, entry.bytes_in, entry.bytes_out, entry.num_tool_calls) == (4321, 77, 3 + 7, 1)
    assert entry.is_useful


async def test_response_is_useful_if_it_finished_in_time_and_in_its_format():
    late = msgspec.structs.replace(CALL, deadline_s=asyncio.get_running_loop().time() - 1)
    assert not (await entry_of(late, [Finished("stop", USAGE)])).is_useful
    assert not (await entry_of(called(), [Failed("constraint_failed", usage=USAGE)])).is_useful
    assert (await entry_of(called(), [Finished("length", USAGE)])).is_useful


async def test_retried_response_is_reported_once_as_not_useful():
    useful = RetryTracker(SYSTEM_CLOCK)
    results = []
    for changes in (
        {"body_hash": 1},
        {"body_hash": 2, "is_retry": True},
        {"body_hash": 1, "is_retry": True},
        {"body_hash": 1},
    ):
        results.append((await entry_of(called(**changes), [Finished("stop", USAGE)], useful=useful)).num_retried)
    assert results == [0, 0, 1, 0]


async def test_batch_calls_have_the_batch_price():
    card = msgspec.structs.replace(CALL.card, prices=Prices(Decimal(4), batch_discount=Decimal("0.5")))
    alone = await entry_of(called(card=card), [Finished("stop", USAGE)])
    batched = await entry_of(called(card=card, is_batch=True), [Finished("stop", USAGE)])
    assert (alone.micro_neurons, batched.micro_neurons, batched.is_batch) == (40, 20, True)


async def test_closing_twice_records_one_entry():
    source, ledger = Source([Finished("length", USAGE)]), Ledger()
    events = metered(source, ledger)
    await drain(events)
    await events.close()
    assert len(ledger.entries) == 1
