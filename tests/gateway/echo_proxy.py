"""Proxy between the official SDK's own test files and a gateway.

Those files call one text model with every task's input, which a real model rejects: the proxy echoes such inputs. Where
a name is expected they write the name of the field; the proxy replaces the account `account_id` by a real id and the
model `model` by a real model, and accepts uploads of the file `file_name` without passing them on.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from urllib.parse import unquote

import httpx

ECHOING_MODEL = "@cf/meta/llama-3.1-8b-instruct"
TUNABLE_MODEL = "@cf/hearth/spark"
_HOP_HEADERS = {"connection", "content-encoding", "content-length", "host", "keep-alive", "transfer-encoding"}


@contextlib.contextmanager
def run_echo_proxy(base_url: str, account_id: str, placeholder_account_id: str) -> Iterator[str]:
    """Yield the proxy's base URL. `base_url` is the gateway's; calls of `account_id` are echoed."""
    prefix = httpx.URL(base_url).path
    echoed_path = f"{prefix}/accounts/{account_id}/ai/run/{ECHOING_MODEL}"
    with httpx.Client(timeout=60) as client:

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_request(self) -> None:
                path = self.path.replace("/accounts/account_id", f"/accounts/{placeholder_account_id}")
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                if unquote(path.partition("?")[0]) == echoed_path:
                    self.reply(200, _success({"response": body.decode()}), {"content-type": "application/json"})
                    return
                if b'name="file_name"' in body and b"\r\nfile_name\r\n" in body:
                    self.reply(200, _success({}), {"content-type": "application/json"})
                    return
                if path.rstrip("/").endswith("/ai/finetunes") and body:
                    fields = json.loads(body)
                    body = json.dumps(
                        fields | {"model": TUNABLE_MODEL} if fields.get("model") == "model" else fields
                    ).encode()
                url = str(httpx.URL(base_url).copy_with(path="/")).rstrip("/") + path
                headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_HEADERS}
                response = client.request(self.command, url, headers=headers, content=body)
                forwarded = {
                    name: value for name, value in response.headers.items() if name.lower() not in _HOP_HEADERS
                }
                self.reply(response.status_code, response.content, forwarded)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_request  # noqa: N815 - names in the library

            def reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_args: object) -> None: ...

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}{prefix}"
            server.shutdown()


def _success(result: dict[str, str]) -> bytes:
    return json.dumps({"result": result, "success": True, "errors": [], "messages": []}).encode()
