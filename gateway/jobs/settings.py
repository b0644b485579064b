"""What a gateway is told about queued batches: how large they may be, how many it runs, how long they last."""

from __future__ import annotations

from dataclasses import dataclass

from telemetry.settings import at_least, setting


@dataclass(frozen=True)
class BatchSettings:
    """Bounds of an account's queue, this gateway's part in running it, and the times of a batch's life."""

    max_requests: int = setting(
        "HEARTH_BATCH_MAX_REQUESTS", "requests that one batch may have", default=10_000, check=at_least(1)
    )
    max_waiting: int = setting(
        "HEARTH_BATCH_MAX_WAITING",
        "requests that may wait in one account's batches; beyond it new batches are refused",
        default=100_000,
        check=at_least(1),
    )
    max_calls: int = setting(
        "HEARTH_BATCH_MAX_CALLS",
        "calls of queued batches that this gateway runs at once; 0 leaves them to others",
        default=32,
        check=at_least(0),
    )
    lease_s: float = setting(
        "HEARTH_BATCH_LEASE_S",
        "time after which another gateway takes over what a silent one has begun: queued batches, idempotency-keys",
        default=15.0,
        check=at_least(0.5),
    )
    deadline_s: float = setting(
        "HEARTH_BATCH_DEADLINE_S",
        "time in the queue after which a batch's requests are answered with a timeout",
        default=86400.0,
        check=at_least(1),
    )
    ttl_s: float = setting(
        "HEARTH_BATCH_TTL_S",
        "how long a finished batch's answers are kept, encrypted",
        default=86400.0,
        check=at_least(1),
    )
