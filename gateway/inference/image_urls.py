"""Images that chat messages name by URL: fetched if the operator allows it, and then decoded like other files.

Only https, only addresses that the guard allows, at most three redirects, which are checked too, and limits of size and
time. Nothing of a client's request is sent along.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import httpx
from msgspec import structs

from engine.protocol.images import MediaFile
from gateway.errors import Reason, Refusal
from gateway.http.address_guard import MAX_URL_CHARACTERS, AddressGuard, AddressNotAllowed, is_unambiguous
from telemetry.fair_share import FairQueue

TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 30.0  # for all images of a request
MAX_REDIRECTS = 3
MAX_FETCHES = 12  # at the same time

_HEADERS = {"accept": "image/*", "accept-encoding": "identity", "user-agent": "hearth"}

Fetch = Callable[[MediaFile], Awaitable[MediaFile]]


class _NotFetched(Exception):
    """The text says why, in words that suit a client."""


class ImageUrls:
    """Fetches images of at most `max_bytes` from public addresses and from `networks`. With 0 bytes, fetches none."""

    def __init__(self, max_bytes: int, networks: Sequence[str] = ()) -> None:
        self._max_bytes = max_bytes
        self._guard = AddressGuard(networks)
        self._fetches = FairQueue(MAX_FETCHES)

    def fetcher(self, account_id: str) -> Fetch:
        """Return a function that returns a file with the data of its URL, for the files of one request. The function
        raises Refusal, which names the field."""
        deadline_s = asyncio.get_running_loop().time() + REQUEST_TIMEOUT_S

        async def fetch(file: MediaFile) -> MediaFile:
            try:
                async with asyncio.timeout_at(deadline_s), self._fetches.slot(account_id), asyncio.timeout(TIMEOUT_S):
                    return structs.replace(file, data=await self._fetch(file.url), url="")
            except _NotFetched as error:
                reason = str(error)
            except (TimeoutError, httpx.TimeoutException):
                reason = "its server takes too long"
            except AddressNotAllowed:
                reason = "its address is not public"
            except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError, ValueError):
                reason = "its server cannot be reached, or has no valid certificate"
            raise Refusal(Reason.INPUT_INVALID, f"'/{file.field}': the image_url cannot be fetched: {reason}")

        return fetch

    async def _fetch(self, url: str) -> bytes:
        if not self._max_bytes:
            raise _NotFetched("this platform fetches no URLs; send the image as a `data:` URL")
        async with httpx.AsyncClient(verify=self._guard.tls, trust_env=False, timeout=TIMEOUT_S) as client:
            for _ in range(1 + MAX_REDIRECTS):
                found = await self._get(client, url)
                if isinstance(found, bytes):
                    return found
                url = found
        raise _NotFetched(f"it redirects more than {MAX_REDIRECTS} times")

    async def _get(self, client: httpx.AsyncClient, url: str) -> bytes | str:
        """Return the file, or the URL to which its server redirects."""
        if len(url) > MAX_URL_CHARACTERS or not is_unambiguous(url):
            raise _NotFetched(f"it must be an https URL of a public host, with at most {MAX_URL_CHARACTERS} characters")
        parts = httpx.URL(url)
        host = parts.raw_host.decode("ascii")  # `host` is decoded, and other libraries would encode it differently
        address = await self._guard.find(host, parts.port or 443)
        headers = _HEADERS | {"host": parts.netloc.decode("ascii")}
        target, extensions = parts.copy_with(host=str(address)), {"sni_hostname": host}
        async with client.stream("GET", target, headers=headers, extensions=extensions) as response:
            if response.has_redirect_location:
                return str(parts.join(response.headers["location"]))
            if response.status_code != httpx.codes.OK:
                raise _NotFetched(f"its server responds with status {response.status_code}")
            return await self._read(response)

    async def _read(self, response: httpx.Response) -> bytes:
        """Return the body as it is sent, because a compressed body can be far larger than it seems."""
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > self._max_bytes:
                raise _NotFetched(f"it has more than {self._max_bytes} bytes")
        return bytes(body)

    def close(self) -> None:
        self._guard.close()
