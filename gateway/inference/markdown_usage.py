"""The usage entry of a conversion to Markdown: bytes in and out, and the duration. Conversions are free."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

from gateway.inference.markdown_conversion import Conversion
from tenants.credentials.principal import Principal
from tenants.usage.usage_entries import UsageEntry

# The name in limits and usage, also in place of a model.
TASK = "to-markdown"


def conversion_entry(
    request_id: str,
    principal: Principal,
    conversion: Conversion,
    job: asyncio.Task[list[dict[str, Any]]],
    *,
    pop: str,
    started_at: datetime,
    duration_ms: float,
) -> UsageEntry:
    """Return the entry of a conversion that has ended, with status `stop`, `client_left` or `refused`. `started_at` is
    when all files had arrived."""
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
        bytes_in=sum(len(document.data) for document in conversion.documents),
        bytes_out=sum(len(text.encode()) for text in texts),
        is_useful=bool(texts),
    )
