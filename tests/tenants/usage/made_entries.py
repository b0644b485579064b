"""Usage entries for tests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tenants.usage.usage_entries import UsageEntry

EVER = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


def entry(request_id: str, **fields: Any) -> UsageEntry:
    """Return a plain entry with these fields changed."""
    plain: dict[str, Any] = {
        "request_id": request_id,
        "account_id": "a" * 32,
        "api_token_id": "b" * 32,
        "model": "@cf/hearth/spark",
        "revision": "c" * 64,
        "task": "text-generation",
        "pop": "lis",
        "node_id": "node-1",
        "status": "stop",
        "prompt_tokens": 20,
        "cached_tokens": 16,
        "completion_tokens": 5,
        "started_at": NOON,
        "ttft_ms": 12.5,
        "duration_ms": 40.25,
        "attempts": 1,
        "micro_neurons": 1_234_567_890_123,
        "is_stream": True,
    }
    return UsageEntry(**{**plain, **fields})
