"""`A/ai/usage`: an account's usage as sums, calls, latencies, files and a forecast; prices, budgets and alerts.

Reads the ledger, which is up to a second behind. Dollar amounts are neurons at the list price.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, defstruct, structs
from starlette.responses import Response, StreamingResponse

from catalog.pricing import price_in_micro_neurons, usd
from gateway.errors import Reason, Refusal
from gateway.inference.run import RUN
from gateway.management.endpoint import (
    Count,
    ManagementRequest,
    existing,
    format_time,
    invalid,
    invalid_query,
    read_object,
    respond,
    takes_body,
    takes_query,
)
from gateway.model_names import find_model
from gateway.openapi.operation import describe
from gateway.services import Services
from storage.errors import Conflict
from telemetry.fair_share import current_account
from tenants.credentials import api_tokens
from tenants.quota import budgets
from tenants.quota.allowance import read_forecast
from tenants.quota.budgets import MAX_MICRO_AMOUNT, MonthlyBudget, Unit
from tenants.usage import usage_entries as usage
from tenants.usage import usage_export, usage_sums
from tenants.usage.usage_sums import Filter, Group, UsageTotal

MAX_CALLS = 1000
_DEFAULT_SPAN = timedelta(days=30)

Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
TokenId = Annotated[str, Meta(pattern="^([0-9a-f]{32})?$")]


class FilterQuery(Struct, frozen=True, kw_only=True):
    """Query parameters that select calls: each one that is given must be equal."""

    api_token_id: str | None = None
    model: str | None = None
    task: str | None = None
    pop: str | None = None
    status: str | None = None

    def filter(self, request: ManagementRequest) -> Filter:
        """Return the filter for the account in the path."""
        return self.filter_for(request.account_id)

    def filter_for(self, account_id: str | None) -> Filter:
        """Return the filter for an account, or for all accounts."""
        return Filter(account_id, self.api_token_id, self.model, self.task, self.pop, self.status)


class SpanQuery(FilterQuery, frozen=True, kw_only=True):
    """A filter with a span of time: the last 30 days by default. Times are in ISO 8601; UTC without a zone."""

    since: Time | UnsetType = UNSET
    until: Time | UnsetType = UNSET

    def span(self, services: Services) -> tuple[datetime, datetime]:
        """Return the beginning and end of the span, in UTC. Raises Refusal."""
        until = parse_time("until", self.until) or services.clock.now() + timedelta(minutes=1)
        since = parse_time("since", self.since) or until - _DEFAULT_SPAN
        if until < since:
            raise invalid_query("until", "must not be before 'since'")
        return since, until


class SumsQuery(SpanQuery, frozen=True, kw_only=True):
    """Query parameters of the sums: `by` is what the calls are grouped by."""

    by: Literal["model", "day", "hour", "minute", "token", "pop", "status", "task"] = "model"


class CallsQuery(SpanQuery, frozen=True, kw_only=True):
    """Query parameters of the list of calls. `before` is a request id: the list continues after that call.
    `min_duration_ms` selects calls that took at least as long."""

    limit: Count = 50
    before: str | None = None
    min_duration_ms: Annotated[float, Meta(ge=0)] | None = None


class ExportQuery(SpanQuery, frozen=True, kw_only=True):
    """Query parameters of the export."""

    format: Literal["csv", "parquet"] = "csv"


class PriceBody(Struct, frozen=True):
    """A body of `ai/run`."""


class BudgetBody(Struct, frozen=True):
    """The body that sets a monthly budget, of the account or of one API token."""

    amount: Annotated[float, Meta(gt=0, le=MAX_MICRO_AMOUNT // 1_000_000)]
    unit: Unit = "neurons"
    api_token_id: TokenId | None = None
    refuses: bool = True
    alert_percents: list[int] = msgspec.field(default_factory=lambda: list(budgets.DEFAULT_ALERTS))


class BudgetQuery(Struct, frozen=True):
    """Query parameters that name a budget."""

    api_token_id: TokenId = ""
    unit: Unit = "neurons"


class UsageTotals(Struct, frozen=True, kw_only=True):
    """The usage of a group of calls. The group's name is in the field that the query parameter `by` names."""

    account: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    day: str | UnsetType = UNSET
    hour: str | UnsetType = UNSET
    minute: str | UnsetType = UNSET
    token: str | UnsetType = UNSET
    pop: str | UnsetType = UNSET
    status: str | UnsetType = UNSET
    task: str | UnsetType = UNSET
    num_calls: int
    num_useful: int
    num_attempts: int
    num_tool_calls: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    micro_neurons: int
    neurons: float
    usd: float
    device_us: int
    device_ms: float
    bytes_in: int
    bytes_out: int
    usd_per_useful_reply: float | None
    neurons_per_useful_reply: float | None


class UsageSums(Struct, frozen=True):
    """Sums of usage in a span of time."""

    since: str
    until: str
    by: Group
    sums: list[UsageTotals]


class Percentiles(Struct, frozen=True):
    """Percentiles in milliseconds."""

    p50: float
    p95: float
    p99: float


class ModelLatency(Struct, frozen=True):
    """Latencies of a model. `ttft_ms` is null if no call had output."""

    model: str
    num_calls: int
    ttft_ms: Percentiles | None
    total_ms: Percentiles


class Amount(Struct, frozen=True):
    """A price."""

    neurons: float
    usd: float


class UsageForecast(Struct, frozen=True):
    """The usage of a month so far, and expected at its end."""

    month: str
    days_left: float
    used: Amount
    used_beyond_free: Amount
    expected: Amount
    expected_beyond_free: Amount


class BudgetResult(Struct, frozen=True):
    """A monthly budget. `api_token_id` null is the whole account."""

    api_token_id: str | None
    unit: Unit
    amount: float
    refuses: bool
    alert_percents: list[int]


class BudgetAlertResult(Struct, frozen=True, kw_only=True):
    """A threshold of a budget that usage has passed."""

    alert_id: str
    account_id: str
    api_token_id: str | None
    unit: str
    month: str
    percent: int
    amount: float
    used: float
    at: str


_CALL_FIELDS = [(field.encode_name, field.type) for field in structs.fields(usage.UsageEntry)]
UsageCall = defstruct("UsageCall", [*_CALL_FIELDS, ("neurons", float), ("usd", float)], frozen=True)
UsageCall.__doc__ = (
    "A call's metadata and usage. `attempts` counts the nodes that were tried, `tried_nodes` names them."
)


@describe(result=UsageSums)
@takes_query(SumsQuery)
async def summed(services: Services, request: ManagementRequest, query: SumsQuery) -> Response:
    """Sum the account's usage by model, day, hour, minute, token, PoP, status or task. Older usage is stored by hour
    and then by day, so older times are less exact."""
    return await sum_usage(services, query, query.filter(request), query.by)


async def sum_usage(services: Services, query: SpanQuery, calls: Filter, by: Group) -> Response:
    """Respond with the sums of these calls in the span of the query."""
    since, until = query.span(services)
    totals = await usage_sums.total(services.database, calls, since, until, by)
    sums = [{by: total.key, **_render_total(total)} for total in totals]
    return respond({"since": format_time(since), "until": format_time(until), "by": by, "sums": sums})


@describe(result=list[UsageCall])  # type: ignore[valid-type]
@takes_query(CallsQuery)
async def list_calls(services: Services, request: ManagementRequest, query: CallsQuery) -> Response:
    """List the account's calls, newest first."""
    return await list_usage_calls(services, query, query.filter(request))


async def list_usage_calls(services: Services, query: CallsQuery, calls: Filter) -> Response:
    """Respond with a page of these calls."""
    since, until = parse_time("since", query.since), parse_time("until", query.until)
    found = await usage.list_recent(
        services.database,
        calls,
        min(max(1, query.limit), MAX_CALLS),
        before=query.before,
        since=since,
        until=until,
        min_duration_ms=query.min_duration_ms,
    )
    return respond([render_call(entry) for entry in found])


@describe(result=list[ModelLatency])
@takes_query(SpanQuery)
async def latency(services: Services, request: ManagementRequest, query: SpanQuery) -> Response:
    """Get p50, p95 and p99 of time to first token and total time, by model. Covers the newest 20,000 calls of the
    span."""
    since, until = query.span(services)
    found = await usage.latencies(services.database, query.filter(request), since, until)
    names = [f"p{percent}" for percent in usage.PERCENTILES]
    rows = [
        {
            "model": each.model,
            "num_calls": each.num_calls,
            "ttft_ms": None if each.ttft_ms is None else dict(zip(names, each.ttft_ms, strict=True)),
            "total_ms": dict(zip(names, each.total_ms, strict=True)),
        }
        for each in found
    ]
    return respond(rows)


@describe(content={media_type: {} for media_type in usage_export.MEDIA_TYPES.values()})
@takes_query(ExportQuery)
async def export(services: Services, request: ManagementRequest, query: ExportQuery) -> Response:
    """Export the account's calls as CSV or Parquet. The connection is closed if the export fails midway."""
    return await export_usage(services, query, query.filter(request))


async def export_usage(services: Services, query: ExportQuery, calls: Filter) -> Response:
    """Respond with a file of these calls in the span of the query."""
    since, until = query.span(services)
    try:
        pieces = usage_export.export(services.database, calls, since, until, query.format)
    except usage_export.ParquetUnavailable as error:
        raise Refusal(Reason.QUERY_INVALID, str(error)) from error
    started = await _started(services, pieces)
    name = f"usage-{since:%Y%m%d}-{until:%Y%m%d}.{query.format}"
    return StreamingResponse(
        started,
        media_type=usage_export.MEDIA_TYPES[query.format],
        headers={"content-disposition": f'attachment; filename="{name}"'},
    )


async def _started(services: Services, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Return the same pieces after reading the first rows, so that a database failure is still an error response. Each
    later piece is read when it is the caller's turn. Raises StoreUnavailable."""
    first = await anext(pieces) + await anext(pieces, b"")
    party = current_account.get()

    async def all_pieces() -> AsyncIterator[bytes]:
        piece: bytes | None = first
        while piece is not None:
            yield piece
            async with services.management_turns.slot(party):
                piece = await anext(pieces, None)

    return all_pieces()


@describe(result=UsageForecast)
async def forecast(services: Services, request: ManagementRequest) -> Response:
    """Forecast the usage of this month from the last seven days. `beyond_free` amounts exclude the daily free
    neurons."""
    account = Filter(request.account_id)
    free = services.settings.free_neurons_per_day * 1_000_000
    found = await read_forecast(services.database, account, services.clock.now(), free)
    amounts = {
        name: _render_amount(getattr(found, name))
        for name in ("used", "used_beyond_free", "expected", "expected_beyond_free")
    }
    return respond({"month": found.month, "days_left": round(found.days_left, 3), **amounts})


@describe(body=PriceBody)
async def price(services: Services, request: ManagementRequest) -> Response:
    """Estimate the price of a call without running it. The body is that of `ai/run`. Prompt tokens are estimated from
    the text; `at_most` assumes the longest possible response."""
    resolved = await find_model(services.registry, request.path_params["model"])
    task = RUN.parse(resolved.card, await read_object(services, request)).task
    completion_tokens = task.max_completion_tokens
    prompt_tokens = max(0, task.num_estimated_tokens - completion_tokens)
    in_micro_neurons = functools.partial(price_in_micro_neurons, resolved.card.prices, prompt_tokens=prompt_tokens)
    return respond(
        {
            "model": resolved.card.name,
            "prompt_tokens": prompt_tokens,
            "max_completion_tokens": completion_tokens,
            "prompt": _render_amount(in_micro_neurons()),
            "at_most": _render_amount(in_micro_neurons(completion_tokens=completion_tokens)),
            "at_most_in_batch": _render_amount(in_micro_neurons(completion_tokens=completion_tokens, is_batch=True)),
        }
    )


@describe(result=list[BudgetResult])
async def list_budgets(services: Services, request: ManagementRequest) -> Response:
    """List the monthly budgets of the account and of its API tokens."""
    found = await budgets.list_all(services.database, request.account_id)
    return respond([_render_budget(budget) for budget in found])


@describe(result=BudgetResult)
@takes_body(BudgetBody)
async def put_budget(services: Services, request: ManagementRequest, body: BudgetBody) -> Response:
    """Set a monthly budget of the account, or of one API token, in neurons or dollars."""
    try:
        budget = MonthlyBudget(
            account_id=request.account_id,
            api_token_id=body.api_token_id or budgets.WHOLE_ACCOUNT,
            unit=body.unit,
            micro_amount=round(body.amount * 1_000_000),
            refuses=body.refuses,
            alert_percents=tuple(sorted(set(body.alert_percents))),
        )
        if budget.api_token_id and not await api_tokens.may_be_used_on(
            services.database, budget.account_id, budget.api_token_id
        ):
            raise invalid("api_token_id must be the id of an API token of this account")
        await budgets.put(services.database, budget, context=request.change_context)
    except (ValueError, Conflict) as error:
        raise invalid(str(error)) from None
    await services.allowance.refresh()
    return respond(_render_budget(budget))


@takes_query(BudgetQuery)
async def remove_budget(services: Services, request: ManagementRequest, query: BudgetQuery) -> Response:
    """Delete the budget that the query names."""
    account_id, token_id = request.account_id, query.api_token_id or budgets.WHOLE_ACCOUNT
    context = request.change_context
    existing(await budgets.remove(services.database, account_id, token_id, query.unit, context=context) or None)
    await services.allowance.refresh()
    return respond({"api_token_id": token_id or None, "unit": query.unit})


@describe(result=list[BudgetAlertResult])
async def list_alerts(services: Services, request: ManagementRequest) -> Response:
    """List the budget alerts, newest first."""
    found = await budgets.list_alerts(services.database, request.account_id)
    rows = []
    for alert in found:
        row = asdict(alert) | {"at": format_time(alert.at), "api_token_id": alert.api_token_id or None}
        row |= {"amount": row.pop("micro_amount") / 1e6, "used": row.pop("micro_used") / 1e6}
        rows.append(row)
    return respond(rows)


def _render_total(total: UsageTotal) -> dict[str, Any]:
    """Return a sum with the ledger's integers, and beside them neurons, dollars and milliseconds."""
    rendered = asdict(total)
    del rendered["key"]
    per_useful = total.micro_neurons_per_useful
    return (
        rendered
        | _render_amount(total.micro_neurons)
        | {
            "device_ms": total.device_us / 1000,
            "usd_per_useful_reply": None if per_useful is None else usd(per_useful),
            "neurons_per_useful_reply": None if per_useful is None else per_useful / 1e6,
        }
    )


def render_call(entry: usage.UsageEntry) -> dict[str, Any]:
    """Return a call as the API renders calls: metadata, never content."""
    times = {"started_at": entry.started_at.astimezone(UTC).isoformat()}
    return msgspec.structs.asdict(entry) | times | _render_amount(entry.micro_neurons)


def _render_amount(micro_neurons: int) -> dict[str, float]:
    return {"neurons": micro_neurons / 1e6, "usd": usd(micro_neurons)}


def _render_budget(budget: MonthlyBudget) -> dict[str, Any]:
    return {
        "api_token_id": budget.api_token_id or None,
        "unit": budget.unit,
        "amount": budget.micro_amount / 1e6,
        "refuses": budget.refuses,
        "alert_percents": list(budget.alert_percents),
    }


def parse_time(name: str, text: str | UnsetType) -> datetime | None:
    """Return a time in UTC, or None for a missing parameter. Raises Refusal."""
    if not text:
        return None
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise invalid_query(name, "must be a time in ISO 8601, such as 2027-01-01T00:00:00Z") from None
