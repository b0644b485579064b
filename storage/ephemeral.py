"""Redis client for state that may be lost: values with an expiry, presence, messages and streams.

Uses Redis 6.2 commands. Every command has a timeout and is tried once; a failure raises StoreUnavailable.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from storage.errors import StoreUnavailable, means_lost

# Ids of expired values stay in a kind's index for this long. The value's own expiry, by Redis's clock, decides
# presence. The delay is far larger than any clock skew: a machine whose clock is an hour ahead must not remove the ids
# of other machines from the index.
_ANNOUNCE = """
local time = redis.call('TIME')
local now = tonumber(time[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('ZADD', KEYS[2], now + tonumber(ARGV[2]) / 1000, ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - 3600)
return string.format('%d.%06d', time[1], time[2])
"""
_LEASE = """
local time = redis.call('TIME')
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return '' end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return string.format('%d.%06d', time[1], time[2])
"""
_SUBSCRIPTION_CHECK_S = 5.0
_ENTRY = b"entry"

Callback = Callable[[bytes], None]


class Ephemeral:
    """A Redis client shared by the whole process."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._callbacks: dict[str, list[Callback]] = {}  # channel -> callbacks

    @classmethod
    def connect(cls, url: str, *, timeout_s: float = 0.25) -> Ephemeral:
        """Create a client for `unix:///path?db=0` or `redis://…` without connecting. `timeout_s` limits each command.

        Raises ValueError for any other URL.
        """
        options: dict[str, Any] = {
            "socket_timeout": timeout_s,
            "socket_connect_timeout": timeout_s,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            "driver_info": None,
            "health_check_interval": 0,
        }
        return cls(Redis.from_url(url, **options))

    async def get(self, key: str) -> bytes | None:
        with _translated():
            value: Any = await self._redis.get(key)
        return None if value is None else bytes(value)

    async def set(self, key: str, value: bytes, ttl_s: float) -> None:
        with _translated():
            await self._redis.set(key, value, px=_milliseconds(ttl_s))

    async def delete(self, key: str) -> None:
        with _translated():
            await self._redis.delete(key)

    async def add(self, counts: Mapping[str, int], ttl_s: float) -> dict[str, int]:
        """Add to counters in one round trip and return their new values. A counter expires `ttl_s` after its last
        change."""
        with _translated():
            async with self._redis.pipeline(transaction=False) as pipeline:
                for key, count in counts.items():
                    pipeline.incrby(key, count)
                    pipeline.pexpire(key, _milliseconds(ttl_s))
                replies: Any = await pipeline.execute()
        return dict(zip(counts, replies[::2], strict=True))

    async def announce(self, kind: str, id: str, payload: bytes, ttl_s: float) -> float:
        """Announce presence in `kind` for `ttl_s` seconds, by Redis's clock. The newest payload replaces earlier
        payloads. Returns Redis's time in Unix seconds."""
        keys = (_presence_key(kind, id), _index_key(kind))
        with _translated():
            reply: Any = self._redis.eval(_ANNOUNCE, len(keys), *keys, payload, _milliseconds(ttl_s), id)
            return float(await reply)

    async def withdraw(self, kind: str, id: str) -> None:
        """Remove an announced id immediately."""
        with _translated():
            async with self._redis.pipeline(transaction=True) as pipeline:
                pipeline.delete(_presence_key(kind, id))
                pipeline.zrem(_index_key(kind), id)
                await pipeline.execute()

    async def find_present(self, kind: str, id: str) -> bytes | None:
        """Return the payload of one unexpired announcement, or None."""
        return await self.get(_presence_key(kind, id))

    async def present(self, kind: str) -> dict[str, bytes]:
        """Return the payloads, by id, of all unexpired announcements in `kind`."""
        ids = await self.present_ids(kind)
        payloads = await self.read_payloads(kind, ids)
        return {id: payload for id, payload in zip(ids, payloads, strict=True) if payload is not None}

    async def present_ids(self, kind: str) -> list[str]:
        """Return the ids of all announcements in `kind`, including ids that expired within the last hour."""
        with _translated():
            members: Any = await self._redis.zrange(_index_key(kind), 0, -1)
        return [id.decode() for id in members]

    async def read_payloads(self, kind: str, ids: Sequence[str]) -> list[bytes | None]:
        """Return the payload of each announcement, or None for an expired one."""
        if not ids:
            return []
        with _translated():
            payloads: Any = await self._redis.mget([_presence_key(kind, id) for id in ids])
        return list(payloads)

    async def take_lease(self, key: str, holder: str, ttl_s: float) -> float | None:
        """Take or renew a lease for `ttl_s` seconds. Return Redis's time in Unix seconds, or None if another holder has
        the lease."""
        with _translated():
            reply: Any = self._redis.eval(_LEASE, 1, key, holder, _milliseconds(ttl_s))
            time_s = await reply
        return float(time_s) if time_s else None

    async def publish(self, channel: str, message: bytes) -> None:
        """Publish to current subscribers. Local callbacks have been called even if StoreUnavailable is raised."""
        for callback in self._callbacks.get(channel, ()):
            callback(message)
        with _translated():
            await self._redis.publish(channel, message)

    def subscribe_local(self, channel: str, callback: Callback) -> None:
        """Call `callback` immediately for each message published through this object on `channel`, even if Redis is
        unavailable. A Redis subscription delivers the same message again."""
        self._callbacks.setdefault(channel, []).append(callback)

    async def subscribe(self, channel: str) -> AsyncGenerator[bytes, None]:
        """Yield messages published on `channel`. The first item, b"", confirms the subscription.

        Raises StoreUnavailable if the connection is lost; messages published before the next subscription are missed.
        """
        with _translated():
            async with self._redis.pubsub() as pubsub:
                await pubsub.subscribe(channel)
                while True:
                    message = await pubsub.get_message(timeout=_SUBSCRIPTION_CHECK_S)
                    if message is None:
                        await pubsub.ping()
                    elif message["type"] == "subscribe":
                        yield b""
                    elif message["type"] == "message":
                        yield message["data"]

    async def append(self, stream: str, entry: bytes, max_len: int) -> None:
        """Append to a stream, which is trimmed to about the newest `max_len` entries."""
        with _translated():
            await self._redis.xadd(stream, {_ENTRY: entry}, maxlen=max_len, approximate=True)

    async def follow(self, stream: str, wait_s: float) -> AsyncGenerator[bytes, None]:
        """Yield entries added to a stream after the call, including entries added while the reader was busy. Each read
        blocks for up to `wait_s`, which must be less than the connection's timeout. Raises StoreUnavailable."""
        with _translated():
            newest: Any = await self._redis.xrevrange(stream, count=1)
        last_id = newest[0][0] if newest else b"0-0"
        while True:
            with _translated():
                streams: Any = await self._redis.xread({stream: last_id}, count=100, block=_milliseconds(wait_s))
            for _, entries in streams or ():
                for entry_id, fields in entries:
                    last_id = entry_id
                    yield fields[_ENTRY]

    async def ping(self) -> None:
        """Ping Redis. Raises StoreUnavailable if Redis does not respond."""
        with _translated():
            await self._redis.ping()

    async def close(self) -> None:
        await self._redis.aclose()


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Translate failures to StoreUnavailable and preserve cancellation. In Python 3.11, the `wait_for` that redis-py
    uses drops a cancellation that arrives together with a result."""
    task = asyncio.current_task()
    cancellations = task.cancelling() if task is not None else 0
    try:
        yield
    except (RedisError, OSError, TimeoutError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not means_lost(error):
            raise
        if task is not None and task.cancelling() > cancellations:
            raise asyncio.CancelledError from error
        raise StoreUnavailable(f"redis: {type(error).__name__}") from error
    if task is not None and task.cancelling() > cancellations:
        raise asyncio.CancelledError


def _presence_key(kind: str, id: str) -> str:
    return f"presence:{kind}:{id}"


def _index_key(kind: str) -> str:
    return f"presence:{kind}"


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
