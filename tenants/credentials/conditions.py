"""Networks from which an API token may or may not be used."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache

import msgspec
from msgspec import Struct

MAX_NETWORKS = 100

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class AddressCondition(Struct, frozen=True, omit_defaults=True):
    """Networks in CIDR notation. An empty `within` admits every address; `not_within` always rejects."""

    within: tuple[str, ...] = ()
    not_within: tuple[str, ...] = ()

    def admits(self, address: str | None) -> bool:
        """Return True if a call from `address` is admitted; an unknown address (None) only if no networks are set."""
        if not self.within and not self.not_within:
            return True
        parsed = _parse_address(address) if address is not None else None
        if parsed is None:
            return False
        within, not_within = _networks(self.within), _networks(self.not_within)
        if any(parsed in network for network in not_within):
            return False
        return not within or any(parsed in network for network in within)


def parse_networks(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the networks unchanged, after checking them. Raises ValueError naming the limit or the position."""
    networks = tuple(texts)
    if len(networks) > MAX_NETWORKS:
        raise ValueError(f"must have at most {MAX_NETWORKS} networks (got {len(networks)})")
    for number, text in enumerate(networks):
        try:
            ipaddress.ip_network(text, strict=False)
        except ValueError:
            raise ValueError(f"entry {number} must be an address or a network in CIDR notation") from None
    return networks


def encode_condition(condition: AddressCondition | None) -> str | None:
    """Encode a condition for a database column. `decode_condition` is the inverse."""
    return None if condition is None else msgspec.json.encode(condition).decode()


def decode_condition(text: str | None) -> AddressCondition | None:
    return None if text is None else msgspec.json.decode(text, type=AddressCondition)


@lru_cache(maxsize=4096)
def _networks(texts: tuple[str, ...]) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)


def _parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an address; an IPv4-mapped IPv6 address becomes the IPv4 address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
