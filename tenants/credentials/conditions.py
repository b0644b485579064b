"""Networks from which an API token may and may not be used."""

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
        found = _address(address) if address is not None else None
        if found is None:
            return False
        within, not_within = _networks(self.within), _networks(self.not_within)
        if any(found in network for network in not_within):
            return False
        return not within or any(found in network for network in within)


def parse_networks(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the networks unchanged, after checking them. Raises ValueError naming the limit or the position."""
    found = tuple(texts)
    if len(found) > MAX_NETWORKS:
        raise ValueError(f"at most {MAX_NETWORKS} networks")
    for number, text in enumerate(found):
        try:
            ipaddress.ip_network(text, strict=False)
        except ValueError:
            raise ValueError(f"entry {number} is no address or network in CIDR notation") from None
    return found


def encode_condition(condition: AddressCondition | None) -> str | None:
    """For a row; `decode_condition` is its inverse."""
    return None if condition is None else msgspec.json.encode(condition).decode()


def decode_condition(text: str | None) -> AddressCondition | None:
    return None if text is None else msgspec.json.decode(text, type=AddressCondition)


@lru_cache(maxsize=4096)
def _networks(texts: tuple[str, ...]) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an address; an IPv4-mapped IPv6 address becomes the IPv4 address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
