"""Serves the verified files of this node's disk cache to other nodes: `GET /files/KEY` with a range of bytes."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import IO

from engine.serving.asgi import Message, Send, send_response
from engine.serving.disk_cache import DiskCache

MAX_UPLOADS = 8  # more are refused, and the other node asks another one
CHUNK_BYTES = 1 << 20

_KEY = re.compile(r"/files/(?:blobs/sha256/(?P<sha256>[0-9a-f]{64})|manifests/(?P<revision>[0-9a-f]{64})\.json)")
_RANGE = re.compile(rb"bytes=([0-9]{1,15})-([0-9]{0,15})")


class ServedFiles:
    """Files are read by digest only. The caller has authenticated the request."""

    def __init__(self, cache: DiskCache) -> None:
        self._cache = cache
        self._num_uploads = 0

    async def serve(self, scope: Message, send: Send) -> None:
        """Send the requested range of a file; 404 if this node does not have the file."""
        path = self._path_of(scope["path"])
        found = next((_RANGE.fullmatch(value) for name, value in scope["headers"] if name == b"range"), None)
        if path is None or found is None:
            status = 404 if path is None else 416
            await send_response(send, status, b'{"error":"no such file or range"}\n')
        elif self._num_uploads >= MAX_UPLOADS:
            await send_response(send, 503, b'{"error":"too many nodes read files here"}\n')
        else:
            self._num_uploads += 1
            try:
                with path.open("rb") as file:
                    await self._send_range(file, path.stat().st_size, int(found[1]), found[2], send)
            except FileNotFoundError:  # evicted meanwhile
                await send_response(send, 404, b'{"error":"no such file"}\n')
            finally:
                self._num_uploads -= 1

    def _path_of(self, path: str) -> Path | None:
        match = _KEY.fullmatch(path)
        if match is None:
            return None
        found = self._cache.find_file(match["sha256"] or "", match["revision"] or "")
        return found if found is not None and found.is_file() else None

    async def _send_range(self, file: IO[bytes], size: int, start: int, last: bytes, send: Send) -> None:
        end = min(size, int(last) + 1) if last else size
        if start >= end:
            await send_response(send, 416, b'{"error":"no such range"}\n')
            return
        headers = [
            (b"content-type", b"application/octet-stream"),
            (b"content-length", b"%d" % (end - start)),
            (b"content-range", b"bytes %d-%d/%d" % (start, end - 1, size)),
        ]
        await send({"type": "http.response.start", "status": 206, "headers": headers})
        file.seek(start)
        while start < end:
            chunk = await asyncio.to_thread(file.read, min(CHUNK_BYTES, end - start))
            if not chunk:
                raise OSError(f"{file.name} is shorter than its size")
            start += len(chunk)
            await send({"type": "http.response.body", "body": chunk, "more_body": start < end})
