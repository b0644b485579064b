"""`/metrics/summary`: calls, tokens, cost, errors and latency over time, of the platform or of one account."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import Response

from gateway.live.metric_summaries import CACHE_S, MAX_SPAN, MetricSummary, step_of
from gateway.management.endpoint import ManagementRequest, invalid_query, respond, takes_query
from gateway.management.usage import Time, parse_time
from gateway.openapi.operation import describe
from gateway.services import Services

_DEFAULT_SPAN = timedelta(hours=1)


class SummaryQuery(Struct, frozen=True, kw_only=True):
    """Query parameters of a summary: the last hour by default. Times are in ISO 8601; UTC without a zone."""

    since: Time | UnsetType = UNSET
    until: Time | UnsetType = UNSET


class PlatformSummaryQuery(SummaryQuery, frozen=True, kw_only=True):
    """Query parameters of the platform's summary. `account_id` restricts it to one account."""

    account_id: Annotated[str, Meta(pattern="^([0-9a-f]{32})?$")] = ""


@describe(result=MetricSummary)
@takes_query(PlatformSummaryQuery)
async def of_platform(services: Services, _request: ManagementRequest, query: PlatformSummaryQuery) -> Response:
    """Summarize the calls of all accounts, or of one account, over time. Spans up to 6 hours have a point per minute,
    up to 8 days per hour, and longer ones per day."""
    return respond(await services.metric_summaries.get(query.account_id, *_span(services, query)))


@describe(result=MetricSummary)
@takes_query(SummaryQuery)
async def of_account(services: Services, request: ManagementRequest, query: SummaryQuery) -> Response:
    """Summarize the account's calls over time. Spans up to 6 hours have a point per minute, up to 8 days per hour, and
    longer ones per day."""
    return respond(await services.metric_summaries.get(request.account_id, *_span(services, query)))


def _span(services: Services, query: SummaryQuery) -> tuple[datetime, datetime]:
    """Return the beginning, at the start of a step, and the end. Without an end, requests within CACHE_S seconds get
    the same one, and so the same summary. Raises Refusal."""
    now_s = services.clock.now().timestamp()
    until = parse_time("until", query.until) or datetime.fromtimestamp(now_s - now_s % CACHE_S + CACHE_S, UTC)
    since = parse_time("since", query.since) or until - _DEFAULT_SPAN
    if until < since:
        raise invalid_query("until", "must not be before 'since'")
    if until - since > MAX_SPAN:
        raise invalid_query("since", f"must be at most {MAX_SPAN.days} days before 'until'")
    _, step_s = step_of(until - since)
    since_s = since.timestamp()
    return datetime.fromtimestamp(since_s - since_s % step_s, UTC), until
