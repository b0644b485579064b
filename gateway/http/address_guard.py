"""Guard of requests to URLs that callers choose: webhooks and image URLs.

A host name is resolved once, and the connection goes to an address that was checked, never to the name again. Addresses
outside the public internet are refused, unless the operator allows their networks.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import re
import socket
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

MAX_URL_CHARACTERS = 2048
MAX_LOOKUPS = 24  # threads; an unresponsive name server blocks one for up to three attempts' time

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_UNICAST = ipaddress.IPv6Network("2000::/3")  # global unicast; other IPv6 addresses are local or translate to IPv4
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_HOST = re.compile(r"(?=.{4,253}$)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z][a-z0-9-]{0,61}[a-z0-9]", re.IGNORECASE)
_PRINTABLE = re.compile(r"[!-~]+")


class AddressNotAllowed(OSError):
    """Raised for a host that has no allowed address."""


def is_unambiguous(url: str) -> bool:
    """Return True for an https URL whose host every parser reads in the same way."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return False
    return (
        _PRINTABLE.fullmatch(url) is not None
        and url.lower().startswith("https://")
        and "\\" not in url
        and "@" not in url.split("/", 3)[2]
        and port != 0
        and (_HOST.fullmatch(host) is not None or _is_ip_address(host))
    )


def _is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class AddressGuard:
    """Allows public addresses, and those in `networks`."""

    def __init__(self, networks: Sequence[str] = ()) -> None:
        self._networks: list[Network] = [ipaddress.ip_network(text, strict=False) for text in networks]
        self._lookups = ThreadPoolExecutor(MAX_LOOKUPS, thread_name_prefix="lookup")

    @functools.cached_property
    def tls(self) -> ssl.SSLContext:
        """Created on first use, because it reads all certificate authorities of the machine."""
        context = ssl.create_default_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context

    async def find(self, host: str, port: int) -> Address:
        """Return the first allowed address of a host. Raises AddressNotAllowed, OSError."""
        try:
            addresses = [ipaddress.ip_address(host)]
        except ValueError:
            lookup = functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
            found = await asyncio.get_running_loop().run_in_executor(self._lookups, lookup)
            addresses = [ipaddress.ip_address(str(each[4][0]).partition("%")[0]) for each in found]
        allowed = [address for address in addresses if self.may_reach(address)]
        if not allowed:
            raise AddressNotAllowed(f"{host} has no allowed address")
        return allowed[0]

    def may_reach_host(self, url: str) -> bool:
        """Return False if the URL's host is an IP address that is not allowed. Names are checked when resolved."""
        try:
            return self.may_reach(ipaddress.ip_address(urlsplit(url).hostname or ""))
        except ValueError:
            return True

    def may_reach(self, address: Address) -> bool:
        """Return True if the address is public, or in a network that the operator allows."""
        if any(address in network for network in self._networks):
            return True
        return all(_is_public(each) for each in [address, *_embedded_addresses(address)])

    def close(self) -> None:
        self._lookups.shutdown(wait=False, cancel_futures=True)


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and address not in _UNICAST and address not in _NAT64:
        return False
    return address.is_global and not address.is_multicast


def _embedded_addresses(address: Address) -> list[Address]:
    """Return the IPv4 addresses that an IPv6 address stands for by translation or tunneling."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    found = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _NAT64:
        found.append(ipaddress.IPv4Address(address.packed[-4:]))
    return [each for each in found if each is not None]
