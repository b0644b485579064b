"""A web server on a loopback address: receives webhooks, whose statuses a test sets, and serves files."""

from __future__ import annotations

import contextlib
import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Receiver:
    """The server. `came` are the received bodies in order, with their headers, and `bodies` their bytes. `statuses` are
    the statuses of the next responses; after these, 200. `files` are served by path, and redirects are URLs there.
    `authority` is the certificate file of the authority.
    """

    def __init__(self, port: int, authority: Path) -> None:
        self.came: list[tuple[dict[str, str], Any]] = []
        self.bodies: list[bytes] = []
        self.statuses: list[int] = []
        self.authority = authority
        self.files: dict[str, bytes | str] = {}
        self.asked: list[dict[str, str]] = []  # headers of requests for files
        self.origin = f"https://127.0.0.1:{port}"
        self.url = f"{self.origin}/hook?key=1"

    def about(self, request_id: str) -> list[Any]:
        """Return the received bodies about one run."""
        return [body for _, body in self.came if body["request_id"] == request_id]


@contextmanager
def receiving(certificate: tuple[Path, Path], authority: Path) -> Iterator[Receiver]:
    """Run a receiver with this certificate and key, signed by the authority, until the block ends."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.came.append((dict(self.headers) | {"path": self.path}, json.loads(body)))
            receiver.bodies.append(body)
            self.send_response(receiver.statuses.pop(0) if receiver.statuses else 200)
            self.send_header("location", receiver.url)
            self.end_headers()

        def do_GET(self) -> None:
            receiver.asked.append(dict(self.headers))
            found = receiver.files.get(self.path)
            if isinstance(found, str):
                self.send_response(302)
                self.send_header("location", found)
                self.end_headers()
                return
            self.send_response(404 if found is None else 200)
            self.end_headers()
            with contextlib.suppress(OSError):  # the client does not read a file that is too large
                self.wfile.write(found or b"")

        def log_message(self, *_args: object) -> None: ...

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(server.server_port, authority)
        # The TLS handshake runs in each connection's own thread, so a client that sends nothing delays no other client.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield receiver
        server.shutdown()
