"""Anonymous attackers on a gateway, each repeating one kind of request.

    python -m tests.faults.attacks NAME PORT CONNECTIONS

Runs until it is killed. Reconnects whenever the gateway closes a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import Awaitable, Callable

from tenants.credentials.api_token_text import mint, mint_global_key

Attack = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

RECEIVE_BUFFER_BYTES = 4096
RECONNECT_S = 0.05
ATTACKER = "127.0.0.2"  # another address than that of good clients
IDLE_S = 600.0


def request(target: str, *lines: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {target} HTTP/1.1", "Host: x", *lines, "", ""]).encode()


async def pipeline_without_reading(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(request("/openapi.json") * 90)
    await asyncio.sleep(IDLE_S)


async def send_nothing(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(IDLE_S)


async def send_half_a_head(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
    while True:
        writer.write(b"y")
        await writer.drain()
        await asyncio.sleep(0.5)


def repeat(data: bytes, times: int = 1_000_000) -> Attack:
    """Return an attack that sends `data` again after each response."""

    async def attack(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(times):
            writer.write(data)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
            await reader.readexactly(length)

    return attack


async def send_a_large_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(request("/v1/chat/completions", "Content-Length: 40000000", method="POST"))
    for _ in range(40):
        writer.write(bytes(1_000_000))
        await writer.drain()
    await reader.read()


async def guess_tokens(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send well-formed tokens with valid checksums, which only the database can refuse."""
    while True:
        secret, _ = mint("user")
        await repeat(request("/v1/models", f"Authorization: Bearer {secret}"), times=1)(reader, writer)


async def guess_keys(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send well-formed global API keys for unknown users."""
    while True:
        lines = (f"X-Auth-Email: {os.urandom(8).hex()}@example.com", f"X-Auth-Key: {mint_global_key()}")
        await repeat(request("/client/v4/user", *lines), times=1)(reader, writer)


async def sign_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Try passwords for unknown users."""
    while True:
        body = json.dumps({"email": f"{os.urandom(8).hex()}@example.com", "password": "correct horse battery"})
        await repeat(posted("/admin/sign-in/password", body.encode()), times=1)(reader, writer)


def posted(path: str, body: bytes) -> bytes:
    """Return a request with a JSON body to a route without authentication."""
    lines = (f"Content-Length: {len(body)}", "Content-Type: application/json", "Sec-Fetch-Site: same-origin")
    return request(path, *lines, method="POST") + body


CHUNKED = request("/v1/chat/completions", "Transfer-Encoding: chunked", method="POST")
UNKNOWN_NODE = json.dumps({"token": "x" * 40, "node_id": "n", "pop": "lo", "public_key": "0" * 64}).encode()

ATTACKS: dict[str, Attack] = {
    "pipelined responses that are never read": pipeline_without_reading,
    "idle connections": send_nothing,
    "slow heads": send_half_a_head,
    "metrics": repeat(request("/metrics")),
    "API description": repeat(request("/openapi.json")),
    "docs page": repeat(request("/docs")),
    "unknown methods": repeat(request("/", method="BREW")),
    "garbage": repeat(b"\xff\xff\xff"),
    "unknown paths": repeat(request("/x" * 1000)),
    "wrapped requests": repeat(request("/mf/" + "0" * 32, "MF-URL: https://x/metrics")),
    "tiny chunks": repeat(CHUNKED + b"1\r\nx\r\n" * 43_000),
    "tiny headers": repeat(b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * 10_000 + b"\r\n"),
    "trailers": repeat(CHUNKED + b"0\r\n" + b"a:\r\n" * 20_000 + b"\r\n"),
    "deep sign-ins": repeat(posted("/admin/sign-in/password", b'{"email":[' + b"[]," * 32_000 + b"[]]}")),
    "unknown links": repeat(posted("/admin/sign-in/link", b'{"token": "unknown"}')),
    "unknown join tokens": repeat(posted("/client/v4/nodes/enroll", UNKNOWN_NODE)),
    "large bodies": send_a_large_body,
    "guessed API tokens": guess_tokens,
    "guessed global keys": guess_keys,
    "guessed passwords": sign_in,
    "malformed credentials": repeat(request("/v1/models", "Authorization: Bearer x")),
}


async def attack_forever(name: str, port: int) -> None:
    """Repeat one attack on one connection, and reconnect whenever it ends."""
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            connection = socket.socket()
            connection.setblocking(False)
            connection.bind((ATTACKER, 0))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
            reader, writer = await asyncio.open_connection(sock=connection)
            try:
                await ATTACKS[name](reader, writer)
            finally:
                writer.close()
        await asyncio.sleep(RECONNECT_S)


async def main(name: str, port: int, num_connections: int) -> None:
    os.nice(10)  # an attacker has a machine of its own
    await asyncio.gather(*(attack_forever(name, port) for _ in range(num_connections)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
