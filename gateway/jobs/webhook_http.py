"""HTTP client for webhooks: the only requests that the platform sends to addresses chosen by callers.

A host name is resolved once, and the connection goes to an address that was checked, never to the name again. Addresses
outside the public internet are refused, unless the operator allows their networks. Redirects are not followed, only the
status line of the response is read, and the whole exchange takes at most `TIMEOUT_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import re
import socket
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

TIMEOUT_S = 10.0
MAX_LOOKUPS = 24  # threads; an unresponsive name server blocks one for up to three attempts' time

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_UNICAST = ipaddress.IPv6Network("2000::/3")  # global unicast; other IPv6 addresses are local or translate to IPv4
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: |\r)")
_MAX_LINE = 4096


class NotSent(Exception):
    """No response arrived. The text is one of a few fixed reasons, and contains no address."""


class WebhookClient:
    """Sends to public addresses, and to those in `networks`."""

    def __init__(self, networks: Sequence[str] = ()) -> None:
        self._networks: list[Network] = [ipaddress.ip_network(text, strict=False) for text in networks]
        self._lookups = ThreadPoolExecutor(MAX_LOOKUPS, thread_name_prefix="lookup")

    @functools.cached_property
    def _tls(self) -> ssl.SSLContext:
        """Created on first use, because it reads all certificate authorities of the machine."""
        context = ssl.create_default_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context

    async def post(self, url: str, body: bytes, headers: Sequence[tuple[str, str]]) -> int:
        """Send a POST request and return the status of the response. `url` is a checked https URL. Raises NotSent."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self._post(url, body, headers)
        except TimeoutError:
            raise NotSent("timeout") from None
        except ssl.SSLError:
            raise NotSent("tls") from None
        except (OSError, UnicodeError, ValueError):
            raise NotSent("unreachable") from None

    async def _post(self, url: str, body: bytes, headers: Sequence[tuple[str, str]]) -> int:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 443
        address = await self._find(host, port)
        reader, writer = await asyncio.open_connection(
            str(address), port, ssl=self._tls, server_hostname=host, limit=_MAX_LINE
        )
        try:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            lines = [f"POST {target} HTTP/1.1", f"host: {parts.netloc}", f"content-length: {len(body)}"]
            lines += [f"{name}: {value}" for name, value in headers]
            writer.write("\r\n".join([*lines, "connection: close", "", ""]).encode("ascii") + body)
            await writer.drain()
            with contextlib.suppress(asyncio.LimitOverrunError, asyncio.IncompleteReadError):
                found = _STATUS.match(await reader.readuntil(b"\r\n"))
                if found is not None:
                    return int(found[1])
            raise NotSent("no response")
        finally:
            writer.transport.abort()

    async def _find(self, host: str, port: int) -> Address:
        """Return the first allowed address of a host. Raises NotSent, OSError."""
        try:
            addresses = [ipaddress.ip_address(host)]
        except ValueError:
            lookup = functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
            found = await asyncio.get_running_loop().run_in_executor(self._lookups, lookup)
            addresses = [ipaddress.ip_address(str(each[4][0]).partition("%")[0]) for each in found]
        allowed = [address for address in addresses if self.may_reach(address)]
        if not allowed:
            raise NotSent("address not allowed")
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
