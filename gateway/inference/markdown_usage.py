"""The usage entry of a call that turned files into Markdown: what came, what went, how long it took. It costs nothing.

Knows no file's content, and not who reads it.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

from gateway.inference.markdown_conversion import Ask
from tenants.credentials.principal import Principal
from tenants.usage.usage_entries import UsageEntry

TASK = "to-markdown"
"""What limits and usage call it; it stands for the model too, for it runs none."""


def entry_of(
    request_id: str,
    principal: Principal,
    ask: Ask,
    job: asyncio.Task[list[dict[str, Any]]],
    *,
    pop: str,
    started_at: datetime,
    duration_ms: float,
) -> UsageEntry:
    """Of a conversion that has ended: `stop`, `client_left` where it was ended, or `refused` as a whole. It started
    when the call's files were all here."""
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
        pop=pop,
        node_id="",
        status="client_left" if job.cancelled() else "refused" if failed else "stop",
        prompt_tokens=0,
        cached_tokens=0,
        completion_tokens=0,
        started_at=started_at,
        ttft_ms=None,
        duration_ms=duration_ms,
        attempts=1,
        micro_neurons=0,
        is_stream=False,
        bytes_in=sum(len(document.data) for document in ask.documents),
        bytes_out=sum(len(text.encode()) for text in texts),
        is_useful=bool(texts),
    )
