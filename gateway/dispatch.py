"""Dispatch: send a call to a node and return its events; retry on another node while the client has received nothing.

A streamed call can be retried until its first event, an unstreamed call until its last, because its events are
collected here and returned together. If the model process crashes, the call may go to the same node again when there is
no other, and a third time when a node reports that this call did not cause the crash.

Enforces three timeouts: first event, stall, deadline. Knows links and events, not HTTP or prices.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from msgspec import Struct

from engine.protocol import wire
from engine.protocol.events import Event, Failed
from gateway.call import Call
from gateway.errors import ClientLeft, Reason, Refusal
from gateway.failover import Failover
from gateway.node_selection import NodeSelector
from gateway.nodes.candidate import Candidate
from gateway.nodes.connections import NodeLost
from gateway.nodes.inbox import Inbox, Overrun
from gateway.nodes.link import Link
from telemetry import metrics

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 2
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


class Superseded(Exception):
    """Another attempt of a hedged call had the first event."""


class Attempt:
    """A call that was sent to one node."""

    __slots__ = ("call_id", "inbox", "node", "num_tokens", "predicted_s", "sent_s")

    def __init__(self, node: Candidate, call_id: int, inbox: Inbox, num_tokens: int, sent_s: float) -> None:
        self.node = node
        self.call_id = call_id
        self.inbox = inbox
        self.num_tokens = num_tokens
        self.sent_s = sent_s
        self.predicted_s = node.base_s + node.load_tokens * node.s_per_token
        node.link.tokens_in_flight += num_tokens

    def leave(self) -> None:
        """Cancel the call on the node and ignore its further events."""
        self.node.link.cancel(self.call_id)
        self.node.link.forget(self.call_id)
        self.node.link.tokens_in_flight -= self.num_tokens


class Dispatch:
    """The attempts to run one call: two at most, or three after a crash; a cancelled one does not count. Call `take`
    until the last event, and `close` in any case. Each attempt selects nodes again, because a node may have recovered
    meanwhile.

    A short call that waits unusually long for its first event is hedged: it is also sent to a second node. The attempt
    with the first event continues, and the other one is cancelled. A hedge whose other attempt has failed counts as the
    retry.
    """

    def __init__(self, call: Call, selector: NodeSelector, timeouts: Timeouts, failover: Failover) -> None:
        self._call = call
        self._selector = selector
        self._failover = failover
        self._tried: list[Link] = []
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._end_error: Exception | None = None  # set by `abandon` and `stop`
        self._has_returned = False  # True once `take` has returned events
        self._attempt: Attempt | None = None
        self._hedge: Attempt | None = None  # the second attempt, while neither has an event
        self._lost_pop: str | None = None  # PoP of a node whose connection was lost
        self._timer: asyncio.TimerHandle | None = None
        self._hedge_timer: asyncio.TimerHandle | None = None
        self._crash = Failed("internal")  # the latest crash of a process that worked on this call
        self._num_crashes_seen = 0
        self._num_superseded = 0  # attempts that were cancelled because the other one of a hedge had the first event
        self.node_id = ""
        self.tried_node_ids: list[str] = []  # nodes that the call was sent to, in order

    async def take(self, not_before_s: float = 0.0) -> list[Event]:
        """Return the next events, not before this time of the event loop; of an unstreamed call, all events. The last
        event of a call is Finished or Failed. Raises Refusal, and ClientLeft after `abandon`."""
        if self._attempt is None:
            self._failover.add_call()
            self._send_to_next()
        while True:
            attempt = self._attempt
            assert attempt is not None
            try:
                events = await attempt.inbox.take(not_before_s)
            except Superseded:
                continue
            except (NodeLost, FirstEventLate, Stalled) as error:
                self._record_failure(attempt)
                if isinstance(error, NodeLost):
                    self._lost_pop = attempt.node.pop
                if self._attempt is attempt and not self._try_another():
                    raise self._refusal(error) from None
                continue
            except (DeadlinePassed, Overrun) as error:
                raise self._refusal(error) from None
            if self._attempt is not attempt:  # the hedge had its first event before this end was read
                continue
            last = events[-1]
            if isinstance(last, Failed):
                if last.num_crashes:
                    self._crash = last
                    self._num_crashes_seen += 1
                elif last.reason == "internal":
                    self._record_failure(attempt)
                is_retryable = last.is_retryable and (len(events) == 1 or not self._call.is_stream)
                if is_retryable and self._try_another(is_free=last.reason == "draining"):
                    continue
                if last.is_blocked and not self._has_returned:
                    self._selector.block(self._call)
                    raise Refusal(Reason.INPUT_BLOCKED)
            elif not self._has_returned:
                self._record_success(attempt)
            self._has_returned = True
            return events

    def _send_to_next(self) -> None:
        """Send the call to the best reachable node that was not tried yet. Raises Refusal if there is none."""
        if self._end_error is not None:
            raise self._end_error
        nodes = self._untried()
        for number, node in enumerate(nodes, 1):
            attempt = self._send(node)
            if attempt is not None:
                self._attempt, self.node_id = attempt, node.node_id
                self._start_timers(nodes[number:])
                return
        raise Refusal(Reason.OUT_OF_CAPACITY)

    def _send(self, node: Candidate) -> Attempt | None:
        """Send the call to a node; return None if the connection to the node is lost."""
        self._tried.append(node.link)
        is_stream = self._call.is_stream
        max_bytes = self._call.task.max_unread_bytes if is_stream else MAX_COLLECTED_BYTES
        inbox = Inbox(waits_for_end=not is_stream, max_bytes=max_bytes)
        try:
            call_id = node.link.execute(self._make_execute, inbox)
        except NodeLost:
            return None
        self.tried_node_ids.append(node.node_id)
        return Attempt(node, call_id, inbox, self._call.num_estimated_tokens, self._loop.time())

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
            traceparent=call.traceparent,
        )

    def _record_success(self, attempt: Attempt) -> None:
        first_event_s = attempt.inbox.first_event_s
        if first_event_s is None:
            return
        waited_s, node = first_event_s - attempt.sent_s, attempt.node
        own_s = attempt.num_tokens * node.s_per_token
        now_s = self._selector.now_s()
        node.health.record_success(now_s)
        if node.is_hot:
            node.health.record_first_event(waited_s - attempt.predicted_s - own_s, now_s)
            self._failover.add_first_event(self._call.card.name, waited_s)

    def _record_failure(self, attempt: Attempt) -> None:
        if attempt.node.health.record_failure(self._selector.now_s()):
            metrics.EJECTIONS.inc()
            log.warning("node is ejected: its calls failed", extra={"node_id": attempt.node.node_id})

    def _try_another(self, *, is_free: bool = False) -> bool:
        """Send the call to another node, if a retry is allowed and a node is available; return True on success. A retry
        that `is_free` is not counted against the retry budget."""
        if self._has_returned or self._loop.time() >= self._call.deadline_s:
            return False
        if self._hedge is not None and not self._hedge.inbox.has_failed:
            self._promote_hedge()
            return True
        if not self._has_another():
            return False
        if not is_free and not self._failover.retries.take():
            metrics.RETRIES_DENIED.inc()
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
        max_attempts = MAX_ATTEMPTS + self._num_superseded + (1 if is_cleared else 0)
        return len(self.tried_node_ids) < max_attempts and any(node.link.is_open for node in self._untried())

    def _untried(self) -> list[Candidate]:
        found = self._selector.place(self._call)
        if not self._tried:
            return found.nodes
        untried = [node for node in found.nodes if node.link not in self._tried]
        untried = untried or [node for node in found.reserve if node.link not in self._tried]
        if self._lost_pop is not None:  # a retry in the same PoP could be lost with the whole PoP
            untried.sort(key=lambda node: node.pop == self._lost_pop or not node.is_hot)
        return untried or (found.nodes if self._crash.num_crashes else [])

    def _refusal(self, error: Exception) -> Refusal:
        if isinstance(error, NodeLost):
            return Refusal(Reason.ABORTED if self._has_returned else Reason.OUT_OF_CAPACITY)
        if isinstance(error, Overrun):
            return Refusal(Reason.ABORTED)
        return Refusal(Reason.TIMEOUT)

    def _start_hedge(self) -> None:
        """Send a call that still waits for its first event to a second node too, if the budget allows."""
        attempt = self._attempt
        if attempt is None or attempt.inbox.first_event_s is not None or not self._has_another():
            return
        if self._loop.time() >= self._call.deadline_s or not self._failover.take_hedge():
            return
        for node in self._untried():
            hedge = self._send(node)
            if hedge is not None:
                self._hedge = hedge
                hedge.inbox.on_first_event = self._on_first_event_of_hedge
                attempt.inbox.on_first_event = self._on_first_event
                return

    def _on_first_event(self, event: Event) -> None:
        if self._hedge is not None and not isinstance(event, Failed):
            metrics.HEDGES.labels("first").inc()
            self._num_superseded += 1
            self._drop_hedge()

    def _on_first_event_of_hedge(self, event: Event) -> None:
        if isinstance(event, Failed):
            self._drop_hedge()
            return
        assert self._attempt is not None
        metrics.HEDGES.labels("second").inc()
        self._num_superseded += 1
        superseded = self._attempt.inbox
        self._promote_hedge()
        superseded.fail(Superseded())

    def _promote_hedge(self) -> None:
        """Continue with the second attempt only."""
        assert self._hedge is not None
        hedge, self._hedge = self._hedge, None
        self._leave()
        hedge.inbox.on_first_event = None
        self._attempt, self.node_id = hedge, hedge.node.node_id
        self._start_timers(())

    def _drop_hedge(self) -> None:
        if self._hedge is not None:
            hedge, self._hedge = self._hedge, None
            hedge.leave()

    def _start_timers(self, others: Sequence[Candidate]) -> None:
        """Start the timers of a call that was just sent; `others` are the nodes that it could go to next."""
        assert self._attempt is not None
        call, sent_s = self._call, self._attempt.sent_s
        if sent_s >= call.deadline_s or self._crash.num_crashes:
            self._check_timeouts()
            return
        has_another = bool(others) and len(self.tried_node_ids) < MAX_ATTEMPTS and any(n.link.is_open for n in others)
        wait_s = self._timeouts.first_event_s if has_another else self._timeouts.stall_s
        self._timer = self._loop.call_at(min(call.deadline_s, sent_s + wait_s), self._check_timeouts)
        if has_another:
            delay_s = self._failover.hedge_delay_s(call.card.name, call.num_bytes_in, is_batch=call.is_batch)
            if delay_s is not None and delay_s < wait_s:
                self._hedge_timer = self._loop.call_at(sent_s + delay_s, self._start_hedge)

    def _check_timeouts(self) -> None:
        """Fail the inbox if a timeout has passed, else check again when the next one can pass."""
        assert self._attempt is not None
        now = self._loop.time()
        due_s, error = self._next_timeout(self._attempt, now)
        if now >= due_s:
            self._attempt.inbox.fail(error)
        else:
            self._timer = self._loop.call_at(due_s, self._check_timeouts)

    def _next_timeout(self, attempt: Attempt, now: float) -> tuple[float, Exception]:
        """Return the time at which the next timeout can pass, and its error."""
        due_s: float
        error: Exception
        last_event_s = attempt.inbox.last_event_s
        if last_event_s is not None:
            due_s, error = last_event_s + self._timeouts.stall_s, Stalled()
        elif self._hedge is not None or self._has_another():
            due_s, error = attempt.sent_s + self._timeouts.first_event_s, FirstEventLate()
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
        if self._attempt is not None:
            self._attempt.inbox.fail(error)

    def cancel(self) -> None:
        """Send Cancel to the node."""
        self._stop_timers()
        self._drop_hedge()
        if self._attempt is not None:
            self._attempt.node.link.cancel(self._attempt.call_id)

    async def final_events(self, timeout_s: float) -> list[Event]:
        """Return the events that the node still sends after `cancel`, until the call has ended or the timeout."""
        if self._attempt is None:
            return []
        inbox, link = self._attempt.inbox, self._attempt.node.link
        events = inbox.drain()
        inbox.waits_for_end = True
        try:
            async with asyncio.timeout(timeout_s):
                if link.is_open and not inbox.has_ended:
                    events += await inbox.take()
        except (TimeoutError, NodeLost, Overrun, DeadlinePassed, Stalled, FirstEventLate, ClientLeft, Refusal):
            events += inbox.drain()
        return events

    def _stop_timers(self) -> None:
        if self._hedge_timer is not None:
            self._hedge_timer.cancel()
            self._hedge_timer = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _leave(self) -> None:
        """Leave the current attempt."""
        self._stop_timers()
        if self._attempt is not None:
            self._attempt.leave()
            self._attempt = None

    def close(self) -> None:
        """Release the node: the call is over."""
        self._drop_hedge()
        self._leave()
