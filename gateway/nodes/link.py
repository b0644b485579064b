"""Link: what dispatch and placement need of a connection to a node. `NodeLink` connects to Hearth's own nodes,
`gateway/foreign/engine_link.py` to OpenAI-compatible servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from engine.protocol import wire
from gateway.nodes.inbox import Inbox


class Link(Protocol):
    """A connection that runs calls. `tokens_in_flight` are the estimated tokens of this gateway's running calls."""

    node_id: str
    address: str
    pop: str
    tokens_in_flight: int

    @property
    def is_open(self) -> bool:
        """True if calls can be sent now."""
        ...

    @property
    def proven_pop(self) -> str:
        """The PoP that residency rules may rely on, or ""."""
        ...

    @property
    def round_trip_s(self) -> float | None:
        """The measured round trip to the node in seconds, or None."""
        ...

    @property
    def keeps_no_content(self) -> bool:
        """True if the node wipes what a call with zero data retention computed."""
        ...

    def execute(self, make_execute: Callable[[int], wire.Execute], inbox: Inbox) -> int:
        """Send a call; its events go to `inbox`. Return the call's id on this link. Raises NodeLost."""
        ...

    def cancel(self, call_id: int) -> None:
        """Ask the node to stop a call. Its last event still reaches the inbox. No effect on a call that has ended."""
        ...

    def forget(self, call_id: int) -> None:
        """Ignore further events of a call."""
        ...

    async def manage(self, action: wire.ManageAction, model: str, timeout_s: float) -> None:
        """Ask the node for a change. Raises NodeRefused, NodeLost, TimeoutError."""
        ...
