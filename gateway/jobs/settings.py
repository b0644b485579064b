"""Settings of queued batches: their size, how many this gateway runs, and their lifetime."""

from __future__ import annotations

from dataclasses import dataclass

from telemetry.settings import at_least, setting


@dataclass(frozen=True)
class BatchSettings:
    """Limits of an account's queue, this gateway's share of the work, and the lifetime of batches."""

    max_requests: int = setting(
        "HEARTH_BATCH_MAX_REQUESTS", "Largest number of requests in one batch.", default=10_000, check=at_least(1)
    )
    max_waiting: int = setting(
        "HEARTH_BATCH_MAX_WAITING",
        "Largest number of waiting requests per account. If exceeded, new batches are refused with 429.",
        default=100_000,
        check=at_least(1),
    )
    max_calls: int = setting(
        "HEARTH_BATCH_MAX_CALLS",
        "Largest number of queued calls that this gateway runs at the same time. 0 leaves them to other gateways.",
        default=32,
        check=at_least(0),
    )
    lease_s: float = setting(
        "HEARTH_BATCH_LEASE_S",
        "Seconds after which another gateway takes over the queued batches and idempotency keys of a silent gateway.",
        default=15.0,
        check=at_least(0.5),
    )
    deadline_s: float = setting(
        "HEARTH_BATCH_DEADLINE_S",
        "Seconds in the queue after which the requests of a batch fail with a timeout.",
        default=86400.0,
        check=at_least(1),
    )
    ttl_s: float = setting(
        "HEARTH_BATCH_TTL_S",
        "Seconds for which the results of a finished batch are stored, encrypted.",
        default=86400.0,
        check=at_least(1),
    )
