"""Compare a queued batch of embedding calls with the same calls made directly over 16 connections. Goal: 0.90 × or
more.

    python -m bench.batches [--calls 1000] [--connections 16] [--words 20] [--rounds 3]

Runs a whole platform with the built-in embedding model; every call embeds one text. "Direct" uses keep-alive
connections and ends with the last response. "Batch" is the time from queueing until the complete result is received,
polling every 50 ms. Rounds alternate in random order.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from typing import Any

from bench.http_streams import prompts
from bench.platform_under_test import PlatformAddress, machine, platform

POLL_S = 0.05


class Client:
    """A keep-alive connection that sends a body and reads a response with a content length or in chunks."""

    def __init__(self, platform_address: PlatformAddress, path: str) -> None:
        self._platform = platform_address
        self._path = path
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def open(self) -> Client:
        host, port = self._platform.base_url.split("/")[2].split(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
        return self

    async def post(self, body: bytes, query: str = "") -> bytes:
        head = f"POST {self._path}{query} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self._platform.api_token}\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        result = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        if b"transfer-encoding: chunked" in result:
            response = await self._chunks()
        else:
            response = await self._reader.readexactly(int(result.partition(b"content-length: ")[2].split(b"\r\n")[0]))
        if not result.startswith(b"http/1.1 200"):
            raise SystemExit(response.decode())
        return response

    async def _chunks(self) -> bytes:
        parts = []
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            parts.append(await self._reader.readexactly(size))
            await self._reader.readexactly(2)
        await self._reader.readexactly(2)
        return b"".join(parts)

    def close(self) -> None:
        self._writer.close()


async def direct(clients: list[Client], texts: list[str]) -> float:
    """Return calls per second over direct connections."""
    bodies = iter([json.dumps({"text": text}).encode() for text in texts])

    async def work(client: Client) -> None:
        for body in bodies:
            await client.post(body)

    started = time.perf_counter()
    await asyncio.gather(*(work(client) for client in clients))
    return len(texts) / (time.perf_counter() - started)


async def queued(client: Client, texts: list[str]) -> float:
    """Return calls per second of one queued batch."""
    started = time.perf_counter()
    body = json.dumps({"requests": [{"text": text} for text in texts]}).encode()
    batch_id = json.loads(await client.post(body, "?queueRequest=true"))["result"]["request_id"]
    poll = json.dumps({"request_id": batch_id}).encode()
    response = await client.post(poll, "?queueRequest=true")
    while b'"responses"' not in response[:100]:
        await asyncio.sleep(POLL_S)
        response = await client.post(poll, "?queueRequest=true")
    took = time.perf_counter() - started
    responses: list[Any] = json.loads(response)["result"]["responses"]
    assert [item["id"] for item in responses if item["success"]] == list(range(len(texts)))
    return len(texts) / took


async def measure(
    platform_address: PlatformAddress, num_calls: int, num_connections: int, num_words: int, num_rounds: int
) -> dict[str, Any]:
    path = f"/client/v4/accounts/{platform_address.account_id}/ai/run/@cf/hearth/minilm"
    clients = [await Client(platform_address, path).open() for _ in range(num_connections)]
    figures: dict[str, list[float]] = {"direct": [], "batch": []}
    await direct(clients, prompts(4 * num_connections, num_words, 0))
    for number in range(1, num_rounds + 1):
        kinds = ["direct", "batch"]
        random.Random(number).shuffle(kinds)
        for kind in kinds:
            texts = prompts(num_calls, num_words, number * 10 + len(kind))
            rate = await (direct(clients, texts) if kind == "direct" else queued(clients[0], texts))
            figures[kind].append(rate)
    for client in clients:
        client.close()
    medians = {f"{kind}_calls_per_s": round(statistics.median(rates), 1) for kind, rates in figures.items()}
    ratio = statistics.median(figures["batch"]) / statistics.median(figures["direct"])
    return medians | {"ratio": round(ratio, 3), "rounds": num_rounds, "calls": num_calls}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--words", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with platform() as platform_address:
        report = asyncio.run(
            measure(platform_address, options.calls, options.connections, options.words, options.rounds)
        )
    print(json.dumps(machine() | report, indent=2))


if __name__ == "__main__":
    main()
