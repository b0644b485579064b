"""HTTP client for webhooks, whose addresses callers choose; see `gateway/http/address_guard.py`.

Redirects are not followed, only the status line of the response is read, and the whole exchange takes at most
`TIMEOUT_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import Sequence
from urllib.parse import urlsplit

from gateway.http.address_guard import AddressGuard, AddressNotAllowed

TIMEOUT_S = 10.0

_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: |\r)")
_MAX_LINE = 4096


class NotSent(Exception):
    """No response arrived. The text is one of a few fixed reasons, and contains no address."""


class WebhookClient(AddressGuard):
    """Sends to the addresses that the guard allows."""

    async def post(self, url: str, body: bytes, headers: Sequence[tuple[str, str]]) -> int:
        """Send a POST request and return the status of the response. `url` is a checked https URL. Raises NotSent."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self._post(url, body, headers)
        except TimeoutError:
            raise NotSent("timeout") from None
        except ssl.SSLError:
            raise NotSent("tls") from None
        except AddressNotAllowed:
            raise NotSent("address not allowed") from None
        except (OSError, UnicodeError, ValueError):
            raise NotSent("unreachable") from None

    async def _post(self, url: str, body: bytes, headers: Sequence[tuple[str, str]]) -> int:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 443
        address = await self.find(host, port)
        reader, writer = await asyncio.open_connection(
            str(address), port, ssl=self.tls, server_hostname=host, limit=_MAX_LINE
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
