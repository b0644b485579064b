"""Send one Execute to a node and hand on its events; try the next node only while the client has been given nothing.

For a stream that is until the first event, for an unstreamed call until the last: those are gathered here and handed
on whole. A call whose model's process died may go to the same node again if there is no other, and a third time when a
node says that it was not the cause; how many deaths are held against it goes with it. Watches the clocks: first event,
stall, deadline. Knows links and events, not HTTP or prices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec import Struct

from engine.protocol import wire
from engine.protocol.events import Event, Failed
from gateway.call import Call
from gateway.errors import ClientLeft, Reason, Refusal
from gateway.nodes.connections import NodeLink, NodeLost
from gateway.nodes.inbox import Inbox, Overrun
from telemetry import metrics

MAX_ATTEMPTS = 2
MAX_UNREAD_BYTES = 256 * 1024  # of a stream whose client reads slowly
MAX_GATHERED_BYTES = 64 * 1024 * 1024  # of an unstreamed call


class Patience(Struct, frozen=True):
    """How long to wait for a node, in seconds."""

    first_event_s: float
    stall_s: float


class FirstEventLate(Exception):
    """The node has not begun to answer in time, and there is another."""


class Stalled(Exception):
    """The node began to answer and then fell silent."""


class DeadlinePassed(Exception):
    """The call's whole time is over."""


class Dispatch:
    """One call on its way: two attempts, or three, one after the other. `take` until the last event, then it is over.

    `find_links` says which nodes could take the call now, best first: a second attempt asks again, since a node may
    have come back while the first was under way.
    """

    def __init__(self, call: Call, find_links: Callable[[], Sequence[NodeLink]], patience: Patience) -> None:
        self._call = call
        self._find_links = find_links
        self._tried: list[NodeLink] = []
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._unwanted: Exception | None = None  # why nobody waits for this call any more
        self._has_given = False  # whether any event has been handed on
        self._link: NodeLink | None = None
        self._call_id = 0
        self._inbox: Inbox | None = None
        self._sent_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._death = Failed("internal")  # the latest one of a process that worked on this call
        self._num_deaths = 0
        self.num_attempts = 0
        self.node_id = ""

    async def take(self, not_before_s: float = 0.0) -> list[Event]:
        """The next events, not before that time of the loop; the last of them is Finished or Failed when the call has
        ended. Of an unstreamed call, all of them. Raises Refusal, or ClientLeft after `abandon`."""
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
                if last.num_deaths:
                    self._death = last
                    self._num_deaths += 1
                is_retryable = last.is_retryable and (len(events) == 1 or not self._call.is_stream)
                if is_retryable and self._try_another():
                    continue
                if last.is_blocked and not self._has_given:
                    raise Refusal(Reason.INPUT_BLOCKED)
            self._has_given = True
            return events

    def _send_to_next(self) -> None:
        """Send the call to the best node left that can be reached. Raises Refusal when there is none."""
        if self._unwanted is not None:
            raise self._unwanted
        links = self._untried()
        for number, link in enumerate(links, 1):
            self._tried.append(link)
            inbox = Inbox(
                waits_for_end=not self._call.is_stream,
                max_bytes=MAX_UNREAD_BYTES if self._call.is_stream else MAX_GATHERED_BYTES,
            )
            try:
                call_id = link.execute(self._make_execute, inbox)
            except NodeLost:
                continue
            link.tokens_in_flight += self._call.num_estimated_tokens
            self._link, self._call_id, self._inbox, self.node_id = link, call_id, inbox, link.node_id
            self._sent_s = self._loop.time()
            self.num_attempts += 1
            self._set_clocks(links[number:])
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
            num_deaths=self._death.num_deaths,
            died_after=self._death.usage.completion_tokens,
            is_ephemeral=call.principal.residency.is_zero_retention,
        )

    def _try_another(self) -> bool:
        """Leave this node for the next, if the rules and the nodes allow it."""
        if self._has_given or self._loop.time() >= self._call.deadline_s or not self._has_another():
            return False
        self._leave()
        try:
            self._send_to_next()
        except Refusal:
            return False
        metrics.DISPATCH_RETRIES.inc()
        return True

    def _has_another(self) -> bool:
        is_cleared = self._num_deaths > self._death.num_deaths
        max_attempts = MAX_ATTEMPTS + 1 if is_cleared else MAX_ATTEMPTS
        return self.num_attempts < max_attempts and any(link.is_open for link in self._untried())

    def _untried(self) -> list[NodeLink]:
        links = self._find_links()
        untried = [link for link in links if link not in self._tried]
        return untried or (list(links) if self._death.num_deaths else [])

    def _refusal(self, error: Exception) -> Refusal:
        if isinstance(error, NodeLost):
            return Refusal(Reason.ABORTED if self._has_given else Reason.OUT_OF_CAPACITY)
        if isinstance(error, Overrun):
            return Refusal(Reason.ABORTED)
        return Refusal(Reason.TIMEOUT)

    def _set_clocks(self, others: Sequence[NodeLink]) -> None:
        """Of a call that was sent just now; `others` are the nodes that it could go to next."""
        if self._sent_s >= self._call.deadline_s or self._death.num_deaths:
            self._check_clocks()
            return
        has_another = bool(others) and self.num_attempts < MAX_ATTEMPTS and any(link.is_open for link in others)
        wait_s = self._patience.first_event_s if has_another else self._patience.stall_s
        self._timer = self._loop.call_at(min(self._call.deadline_s, self._sent_s + wait_s), self._check_clocks)

    def _check_clocks(self) -> None:
        """Fail the inbox when one of the three clocks has run out, else look again when the next one could have."""
        inbox = self._inbox
        assert inbox is not None
        now = self._loop.time()
        heard_s = inbox.last_event_s
        next_s = self._call.deadline_s
        if now >= self._call.deadline_s:
            inbox.fail(DeadlinePassed())
        elif heard_s is not None:
            stalled_s = heard_s + self._patience.stall_s
            if now >= stalled_s:
                inbox.fail(Stalled())
            next_s = min(next_s, stalled_s)
        elif self._has_another():
            late_s = self._sent_s + self._patience.first_event_s
            if now >= late_s:
                inbox.fail(FirstEventLate())
            next_s = min(next_s, late_s)
        else:
            next_s = min(next_s, now + self._patience.stall_s)
        if next_s > now:
            self._timer = self._loop.call_at(next_s, self._check_clocks)

    def abandon(self) -> None:
        """The client left: whoever waits in `take` gets ClientLeft. Nothing happens to a call that has ended."""
        self._end_early(ClientLeft())

    def stop(self) -> None:
        """This gateway cannot wait any longer: whoever waits in `take` gets a Refusal."""
        self._end_early(Refusal(Reason.ABORTED))

    def _end_early(self, error: Exception) -> None:
        self._unwanted = error
        if self._inbox is not None:
            self._inbox.fail(error)

    def cancel(self) -> None:
        """Tell the node to stop."""
        if self._link is not None:
            self._link.cancel(self._call_id)

    async def last_words(self, timeout_s: float) -> list[Event]:
        """After `cancel`: what the node still says about the call, its end included if it comes in time."""
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
        """Cancel this attempt and hear no more of it."""
        if self._timer is not None:
            self._timer.cancel()
        if self._link is not None:
            self._link.cancel(self._call_id)
            self._link.forget(self._call_id)
            self._link.tokens_in_flight -= self._call.num_estimated_tokens
            self._link = None

    def close(self) -> None:
        """The call is over, however it ended."""
        self._leave()
