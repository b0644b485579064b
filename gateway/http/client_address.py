"""The address of a client, also behind trusted reverse proxies. Pure.

`X-Forwarded-For` is honored only on connections from trusted proxies.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Protocol

_IPV6_PREFIX = 64  # one client usually has a whole network of this size


class Proxies(Protocol):
    """The networks of trusted proxies."""

    def admits(self, address: str | None) -> bool: ...


def client_address(headers: Sequence[tuple[bytes, bytes]], peer: str | None, proxies: Proxies | None) -> str | None:
    """Return the last address in `x-forwarded-for` that is no trusted proxy if the peer is a trusted proxy, else the
    peer's address; None on a Unix socket."""
    if proxies is None or not proxies.admits(peer):
        return peer
    forwarded = b",".join(value for name, value in headers if name == b"x-forwarded-for")
    hops = [hop.strip() for hop in forwarded.decode("ascii", "replace").split(",") if hop.strip()]
    return next((hop for hop in reversed(hops) if not proxies.admits(hop)), hops[0] if hops else peer)


def limited_network(address: str) -> str:
    """Return what a limit per client counts: the /64 network of an IPv6 address, or the IPv4 address."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address)
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((parsed, _IPV6_PREFIX), strict=False))
