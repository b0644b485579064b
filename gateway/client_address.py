"""Client address of a request: that of the connection, or the one reported by a trusted proxy.

Computed only if a credential is bound to addresses.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from tenants.credentials.conditions import AddressCondition


class ClientAddress:
    """The client address of one request. `peer` is the peer address of the connection; None on a Unix socket."""

    __slots__ = ("_peer", "_proxies")

    def __init__(self, peer: str | None, proxies: AddressCondition | None) -> None:
        self._peer = peer
        self._proxies = proxies

    def of(self, headers: Sequence[tuple[bytes, bytes]]) -> str | None:
        """Return the last address in `x-forwarded-for` that is no trusted proxy, if the peer is one; None if
        unknown."""
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
