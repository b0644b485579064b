"""A small Hugging Face hub on loopback: repository listing, files with HEAD, ETag, Range and X-Repo-Commit.

Serves one repository at one commit, read-only. Can close a connection in the middle of a file and serve bytes that
differ from the announced digest. Records every request.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import socket
import struct
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_LARGE = (".safetensors", ".bin", ".pth")


@dataclass
class Request:
    """One request to the hub. `sent_bytes` counts the sent bytes of the response body."""

    method: str
    path: str
    range: str | None
    sent_bytes: int = 0


@dataclass
class Cut:
    """Closes the connection of the next GET of a file after `after_bytes` of the body, normally or with a reset; or
    holds the rest of the body back until `HubServer.release` is set."""

    after_bytes: int
    kind: Literal["close", "reset", "hold"] = "close"


@dataclass
class HubServer:
    """Serves `files` (path -> bytes) as `repo_id`. Use as a context manager; `url` is for HF_ENDPOINT."""

    repo_id: str
    files: dict[str, bytes]
    cuts: dict[str, list[Cut]] = field(default_factory=dict)
    served_instead: dict[str, bytes] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def of_folder(cls, repo_id: str, folder: Path) -> HubServer:
        paths = [path for path in folder.rglob("*") if path.is_file()]
        return cls(repo_id, {str(path.relative_to(folder)): path.read_bytes() for path in paths})

    def __enter__(self) -> HubServer:
        hub = self

        class Handler(_Handler):
            server_hub = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def downloads_of(self, path: str) -> list[Request]:
        """Return all GET requests for one file, in order."""
        return [seen for seen in self.requests if seen.method == "GET" and seen.path.endswith(f"/{path}")]

    def listing(self) -> bytes:
        siblings = []
        for path, data in sorted(self.files.items()):
            blob_id = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
            sibling = {"rfilename": path, "size": len(data), "blobId": blob_id}
            if path.endswith(_LARGE):
                sha256 = hashlib.sha256(data).hexdigest()
                sibling["lfs"] = {"size": len(data), "sha256": sha256, "pointerSize": 134}
            siblings.append(sibling)
        return json.dumps({"id": self.repo_id, "sha": COMMIT, "siblings": siblings, "tags": []}).encode()


class _Handler(BaseHTTPRequestHandler):
    server_hub: HubServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def log_message(self, format: str, *args: object) -> None:
        """Do nothing: requests are recorded instead of printed."""

    def _answer(self, *, has_body: bool) -> None:
        hub = self.server_hub
        path = unquote(urlsplit(self.path).path)
        seen = Request(self.command, path, self.headers.get("Range"))
        hub.requests.append(seen)
        if re.fullmatch(rf"/api/models/{hub.repo_id}/revision/(main|{COMMIT})", path):
            self._send(seen, 200, hub.listing(), {"Content-Type": "application/json"}, has_body)
        elif (file := path.removeprefix(f"/{hub.repo_id}/resolve/{COMMIT}/")) in hub.files:
            self._send_file(seen, file, has_body)
        else:
            missing = {"X-Error-Code": "RevisionNotFound" if hub.repo_id in path else "RepoNotFound"}
            self._send(seen, 404, b"{}", missing, has_body)

    def _send_file(self, seen: Request, file: str, has_body: bool) -> None:
        hub = self.server_hub
        data = hub.served_instead.get(file, hub.files[file])
        headers = {
            "ETag": f'"{hashlib.sha256(hub.files[file]).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
        }
        status, start = 200, 0
        if seen.range is not None and (match := re.fullmatch(r"bytes=(\d+)-", seen.range)):
            status, start = 206, int(match[1])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        cuts = hub.cuts.get(file, [])
        cut = cuts.pop(0) if has_body and cuts else None
        self._send(seen, status, data[start:], headers, has_body, cut)

    def _send(
        self,
        seen: Request,
        status: int,
        body: bytes,
        headers: dict[str, str],
        has_body: bool,
        cut: Cut | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not has_body:
            return
        part = body if cut is None else body[: cut.after_bytes]
        self.wfile.write(part)
        seen.sent_bytes = len(part)
        if cut is not None and cut.kind == "hold":
            self.wfile.flush()
            self.server_hub.release.wait()
            with contextlib.suppress(OSError):  # the client has gone
                self.wfile.write(body[cut.after_bytes :])
        elif cut is not None:
            self.close_connection = True
            if cut.kind == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
