"""The usage entry of a call that turned files into Markdown: what came, what went, how long it took. It costs nothing.

Knows no file's content, and not who reads it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gateway.markdown.conversion import Ask
from gateway.services import Services
from tenants.principal import Principal
from tenants.usage import UsageEntry

TASK = "to-markdown"
"""What limits and usage call it; it stands for the model too, for it runs none."""


@dataclass(frozen=True)
class Began:
    """When the call's files were all here, by either clock."""

    at: datetime
    at_s: float


def entry_of(
    services: Services,
    request_id: str,
    principal: Principal,
    began: Began,
    ask: Ask,
    job: asyncio.Task[list[dict[str, Any]]],
) -> UsageEntry:
    """Of a conversion that has ended: `stop`, `client_left` where it was ended, or `refused` as a whole."""
    failed = job.cancelled() or job.exception() is not None
    rows = [] if failed else job.result()
    texts = [str(row["data"]) for row in rows if "data" in row]
    return UsageEntry(
        request_id=request_id,
        account_id=principal.account_id,
        api_token_id=principal.api_token_id,
        model=TASK,
        revision="",
        task=TASK,
        pop=services.settings.pop,
        node_id="",
        status="client_left" if job.cancelled() else "refused" if failed else "stop",
        prompt_tokens=0,
        cached_tokens=0,
        completion_tokens=0,
        started_at=began.at,
        ttft_ms=None,
        duration_ms=(services.clock.monotonic_s() - began.at_s) * 1000,
        attempts=1,
        micro_neurons=0,
        is_stream=False,
        bytes_in=sum(len(document.data) for document in ask.documents),
        bytes_out=sum(len(text.encode()) for text in texts),
        is_useful=bool(texts),
    )
