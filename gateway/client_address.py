"""From which address a request comes: the connection's, or what a trusted proxy in front says it is.

Only needed where a credential's condition asks for it, so nothing is computed before that.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from tenants.credentials.conditions import AddressCondition


class ClientAddress:
    """The address of one request. `peer` is the other end of its connection; None on a Unix socket."""

    __slots__ = ("_peer", "_proxies")

    def __init__(self, peer: str | None, proxies: AddressCondition | None) -> None:
        self._peer = peer
        self._proxies = proxies

    def of(self, headers: Sequence[tuple[bytes, bytes]]) -> str | None:
        """The last address of `x-forwarded-for` that no trusted proxy has, if the peer is one; None when unknown."""
        if self._proxies is None or not self._proxies.admits(self._peer):
            return self._peer
        forwarded = b",".join(value for name, value in headers if name == b"x-forwarded-for")
        hops = [hop.strip() for hop in forwarded.decode("ascii", "replace").split(",") if hop.strip()]
        for hop in reversed(hops):
            if not self._proxies.admits(hop):
                return hop if _is_address(hop) else None
        return hops[0] if hops else self._peer


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
