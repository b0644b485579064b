"""Dispatch: send a call to a node and return its events; retry on another node while the client has received nothing.

A streamed call can be retried until its first event, an unstreamed call until its last, because its events are
collected here and returned together. If the model process crashes, the call may go to the same node again when there is
no other, and a third time when a node reports that this call did not cause the crash.

Enforces three timeouts: first event, stall, deadline. Knows links and events, not HTTP or prices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from engine.protocol import wire
from engine.protocol.events import Event, Failed
from gateway.call import Call
from gateway.errors import ClientLeft, Reason, Refusal
from gateway.node_selection import NodeSelector
from gateway.nodes.connections import NodeLink, NodeLost
from gateway.nodes.inbox import Inbox, Overrun
from telemetry import metrics

MAX_ATTEMPTS = 2
MAX_UNREAD_BYTES = 256 * 1024  # limit for a stream whose client reads slowly
MAX_COLLECTED_BYTES = 64 * 1024 * 1024  # limit for a call that is not streamed


class Timeouts(Struct, frozen=True):
    """Seconds to wait for a node's first event, and for each further event."""

    first_event_s: float
    stall_s: float


class FirstEventLate(Exception):
    """The node sent no event in time, and another node is available."""


class Stalled(Exception):
    """The node sent events and then none for too long."""


class DeadlinePassed(Exception):
    """The call's deadline passed."""


class Dispatch:
    """The attempts to run one call: two at most, or three after a crash. Call `take` until the last event, and `close`
    in any case. Each attempt selects nodes again, because a node may have recovered meanwhile."""

    def __init__(self, call: Call, selector: NodeSelector, timeouts: Timeouts) -> None:
        self._call = call
        self._selector = selector
        self._tried: list[NodeLink] = []
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._end_error: Exception | None = None  # set by `abandon` and `stop`
        self._has_returned = False  # True once `take` has returned events
        self._link: NodeLink | None = None
        self._call_id = 0
        self._inbox: Inbox | None = None
        self._sent_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._crash = Failed("internal")  # the latest crash of a process that worked on this call
        self._num_crashes_seen = 0
        self.num_attempts = 0
        self.node_id = ""

    async def take(self, not_before_s: float = 0.0) -> list[Event]:
        """Return the next events, not before this time of the event loop; of an unstreamed call, all events. The last
        event of a call is Finished or Failed. Raises Refusal, and ClientLeft after `abandon`."""
        if self._inbox is None:
            self._send_to_next()
        while True:
            assert self._inbox is not None
            try:
                events = await self._inbox.take(not_before_s)
            except (NodeLost, FirstEventLate, Stalled) as error:
                if not self._try_another():
                    raise self._refusal(error) from None
                continue
            except (DeadlinePassed, Overrun) as error:
                raise self._refusal(error) from None
            last = events[-1]
            if isinstance(last, Failed):
                if last.num_crashes:
                    self._crash = last
                    self._num_crashes_seen += 1
                is_retryable = last.is_retryable and (len(events) == 1 or not self._call.is_stream)
                if is_retryable and self._try_another():
                    continue
                if last.is_blocked and not self._has_returned:
                    self._selector.block(self._call)
                    raise Refusal(Reason.INPUT_BLOCKED)
            self._has_returned = True
            return events

    def _send_to_next(self) -> None:
        """Send the call to the best reachable node that was not tried yet. Raises Refusal if there is none."""
        if self._end_error is not None:
            raise self._end_error
        links = self._untried()
        for number, link in enumerate(links, 1):
            self._tried.append(link)
            inbox = Inbox(
                waits_for_end=not self._call.is_stream,
                max_bytes=MAX_UNREAD_BYTES if self._call.is_stream else MAX_COLLECTED_BYTES,
            )
            try:
                call_id = link.execute(self._make_execute, inbox)
            except NodeLost:
                continue
            link.tokens_in_flight += self._call.num_estimated_tokens
            self._link, self._call_id, self._inbox, self.node_id = link, call_id, inbox, link.node_id
            self._sent_s = self._loop.time()
            self.num_attempts += 1
            self._start_timer(links[number:])
            return
        raise Refusal(Reason.OUT_OF_CAPACITY)

    def _make_execute(self, call_id: int) -> wire.Execute:
        call = self._call
        return wire.Execute(
            call_id=call_id,
            request_id=call.request_id,
            model=call.card.name,
            revision=call.card.revision,
            namespace=call.namespace,
            tenant=call.tenant,
            task=call.task,
            deadline_s=max(0.001, call.deadline_s - self._loop.time()),
            num_crashes=self._crash.num_crashes,
            tokens_before_crash=self._crash.usage.completion_tokens,
            is_ephemeral=call.principal.residency.is_zero_retention,
        )

    def _try_another(self) -> bool:
        """Send the call to another node, if a retry is allowed and a node is available; return True on success."""
        if self._has_returned or self._loop.time() >= self._call.deadline_s or not self._has_another():
            return False
        self._leave()
        try:
            self._send_to_next()
        except Refusal:
            return False
        metrics.DISPATCH_RETRIES.inc()
        return True

    def _has_another(self) -> bool:
        is_cleared = self._num_crashes_seen > self._crash.num_crashes
        max_attempts = MAX_ATTEMPTS + 1 if is_cleared else MAX_ATTEMPTS
        return self.num_attempts < max_attempts and any(link.is_open for link in self._untried())

    def _untried(self) -> list[NodeLink]:
        links = self._selector.links(self._call)
        untried = [link for link in links if link not in self._tried]
        return untried or (list(links) if self._crash.num_crashes else [])

    def _refusal(self, error: Exception) -> Refusal:
        if isinstance(error, NodeLost):
            return Refusal(Reason.ABORTED if self._has_returned else Reason.OUT_OF_CAPACITY)
        if isinstance(error, Overrun):
            return Refusal(Reason.ABORTED)
        return Refusal(Reason.TIMEOUT)

    def _start_timer(self, others: Sequence[NodeLink]) -> None:
        """Start the timer of a call that was just sent; `others` are the nodes that it could go to next."""
        if self._sent_s >= self._call.deadline_s or self._crash.num_crashes:
            self._check_timeouts()
            return
        has_another = bool(others) and self.num_attempts < MAX_ATTEMPTS and any(link.is_open for link in others)
        wait_s = self._timeouts.first_event_s if has_another else self._timeouts.stall_s
        self._timer = self._loop.call_at(min(self._call.deadline_s, self._sent_s + wait_s), self._check_timeouts)

    def _check_timeouts(self) -> None:
        """Fail the inbox if a timeout has passed, else check again when the next one can pass."""
        assert self._inbox is not None
        now = self._loop.time()
        due_s, error = self._next_timeout(self._inbox.last_event_s, now)
        if now >= due_s:
            self._inbox.fail(error)
        else:
            self._timer = self._loop.call_at(due_s, self._check_timeouts)

    def _next_timeout(self, last_event_s: float | None, now: float) -> tuple[float, Exception]:
        """Return the time at which the next timeout can pass, and its error."""
        due_s: float
        error: Exception
        if last_event_s is not None:
            due_s, error = last_event_s + self._timeouts.stall_s, Stalled()
        elif self._has_another():
            due_s, error = self._sent_s + self._timeouts.first_event_s, FirstEventLate()
        else:  # wait for the first event until the deadline, unless another node becomes available
            due_s, error = now + self._timeouts.stall_s, FirstEventLate()
        deadline_s = self._call.deadline_s
        return (deadline_s, DeadlinePassed()) if deadline_s <= due_s else (due_s, error)

    def abandon(self) -> None:
        """The client disconnected: `take` raises ClientLeft. No effect on a call that has ended."""
        self._end_early(ClientLeft())

    def stop(self) -> None:
        """The gateway shuts down: `take` raises Refusal. No effect on a call that has ended."""
        self._end_early(Refusal(Reason.ABORTED))

    def _end_early(self, error: Exception) -> None:
        self._end_error = error
        if self._inbox is not None:
            self._inbox.fail(error)

    def cancel(self) -> None:
        """Send Cancel to the node."""
        if self._link is not None:
            self._link.cancel(self._call_id)

    async def final_events(self, timeout_s: float) -> list[Event]:
        """Return the events that the node still sends after `cancel`, until the call has ended or the timeout."""
        inbox = self._inbox
        if inbox is None or self._link is None:
            return []
        events = inbox.drain()
        inbox.waits_for_end = True
        try:
            async with asyncio.timeout(timeout_s):
                if self._link.is_open and not inbox.has_ended:
                    events += await inbox.take()
        except (TimeoutError, NodeLost, Overrun, DeadlinePassed, Stalled, FirstEventLate, ClientLeft, Refusal):
            events += inbox.drain()
        return events

    def _leave(self) -> None:
        """Cancel this attempt and ignore its further events."""
        if self._timer is not None:
            self._timer.cancel()
        if self._link is not None:
            self._link.cancel(self._call_id)
            self._link.forget(self._call_id)
            self._link.tokens_in_flight -= self._call.num_estimated_tokens
            self._link = None

    def close(self) -> None:
        """Release the node: the call is over."""
        self._leave()
