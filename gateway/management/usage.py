"""`A/ai/usage`: what an account has used, by anything that calls differ in; calls, latencies, files, forecast, budgets.

Reads the ledger, which is some tenths of a second behind. Dollars are neurons at the list price.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from catalog.pricing import price_in_micro_neurons, usd
from gateway.call import estimated_tokens_of, most_completion_tokens_of
from gateway.errors import Reason, Refusal
from gateway.inference.run import RUN
from gateway.management.objects import answer, body_of, invalid, principal_of, shown_time, whole_number
from gateway.model_names import find_model
from gateway.services import Services
from storage.errors import Conflict
from tenants.credentials import api_tokens
from tenants.quota import budgets
from tenants.quota.allowance import forecast as forecast_of
from tenants.quota.budgets import MonthlyBudget
from tenants.usage import usage_entries as usage
from tenants.usage import usage_export, usage_sums
from tenants.usage.usage_sums import Filter, Group, UsageTotal

MAX_CALLS = 1000
_GROUPS = tuple(group for group in get_args(Group) if group != "account")
_ID = re.compile(r"[0-9a-f]{32}")
_DEFAULT_SPAN = timedelta(days=30)


async def summed(services: Services, request: Request) -> Response:
    """Sums over the account's calls: one for each model, day, hour, minute, token, PoP, status or task. Times begin at
    whole minutes while those are kept, then at whole hours, then at whole days."""
    by = request.query_params.get("by", "model")
    if by not in _GROUPS:
        raise Refusal(Reason.QUERY_INVALID, f"the query parameter 'by' must be one of {', '.join(_GROUPS)}")
    since, until = _span(services, request)
    totals = await usage_sums.total(services.database, _filter(request), since, until, by)  # type: ignore[arg-type]
    shown = [{by: total.key, **_shown(total)} for total in totals]
    return answer({"since": shown_time(since), "until": shown_time(until), "by": by, "sums": shown})


async def list_calls(services: Services, request: Request) -> Response:
    """The account's calls, newest first; `before` goes on after the request id given."""
    limit = min(max(1, whole_number(request, "limit", 50)), MAX_CALLS)
    before = request.query_params.get("before")
    found = await usage.list_recent(services.database, _filter(request), limit, before=before)
    return answer([_shown_call(entry) for entry in found])


async def latency(services: Services, request: Request) -> Response:
    """P50, P95 and P99 of the time to the first output and of the whole, by model. Over the newest 20,000 calls of the
    span."""
    since, until = _span(services, request)
    found = await usage.latencies(services.database, _filter(request), since, until)
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
    return answer(rows)


async def export(services: Services, request: Request) -> Response:
    """The account's calls as a file, CSV or Parquet. Should it break after its beginning, so does the connection."""
    format = request.query_params.get("format", "csv")
    if format not in usage_export.MEDIA_TYPES:
        raise Refusal(Reason.QUERY_INVALID, "the query parameter 'format' must be csv or parquet")
    since, until = _span(services, request)
    try:
        pieces = await _begun(usage_export.export(services.database, _filter(request), since, until, format))
    except usage_export.ParquetUnavailable as error:
        raise Refusal(Reason.QUERY_INVALID, str(error)) from error
    name = f"usage-{since:%Y%m%d}-{until:%Y%m%d}.{format}"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    media_type = usage_export.MEDIA_TYPES[format]
    return StreamingResponse(pieces, media_type=media_type, headers=headers)


async def _begun(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same pieces; the first that the database has to give is here already. Raises StoreUnavailable."""
    first = await anext(pieces) + await anext(pieces, b"")

    async def all_() -> AsyncIterator[bytes]:
        yield first
        async for piece in pieces:
            yield piece

    return all_()


async def forecast(services: Services, request: Request) -> Response:
    """What the month comes to if it goes on as the last seven days did. Free neurons count for accounts of that plan,
    and in what lies beyond them for all."""
    now = services.clock.now()
    first, _ = usage_sums.month_of(now)
    which = Filter(request.path_params["account_id"])
    until = now + timedelta(days=1)
    totals = await usage_sums.total(services.database, which, min(first, now - timedelta(days=7)), until, "day")
    free = services.settings.free_neurons_per_day * 1_000_000
    found = forecast_of({total.key: total.micro_neurons for total in totals}, now, free)
    shown = {"month": found.month, "days_left": round(found.days_left, 3)}
    for name in ("used", "used_beyond_free", "expected", "expected_beyond_free"):
        amount = getattr(found, name)
        shown[name] = {"neurons": amount / 1e6, "usd": usd(amount)}
    return answer(shown)


async def price(services: Services, request: Request) -> Response:
    """What a call would cost, without running it: the body is that of `ai/run`. The prompt's length is guessed from its
    text; `at_most` is for an answer as long as it may become."""
    resolved = await find_model(services.registry, request.path_params["model"])
    task = RUN.read(resolved.card, await body_of(services, request)).task
    most = most_completion_tokens_of(task)
    prompt_tokens = max(0, estimated_tokens_of(task) - most)
    prices = resolved.card.prices
    costs = {
        "prompt": price_in_micro_neurons(prices, prompt_tokens=prompt_tokens),
        "at_most": price_in_micro_neurons(prices, prompt_tokens=prompt_tokens, completion_tokens=most),
        "at_most_in_batch": price_in_micro_neurons(
            prices, prompt_tokens=prompt_tokens, completion_tokens=most, is_batch=True
        ),
    }
    shown = {name: {"neurons": cost / 1e6, "usd": usd(cost)} for name, cost in costs.items()}
    about = {"model": resolved.card.name, "prompt_tokens": prompt_tokens, "max_completion_tokens": most}
    return answer({**about, **shown})


async def list_budgets(services: Services, request: Request) -> Response:
    """The account's monthly budgets, and those of its API tokens."""
    found = await budgets.list_all(services.database, request.path_params["account_id"])
    return answer([_shown_budget(budget) for budget in found])


async def put_budget(services: Services, request: Request) -> Response:
    """Set a monthly budget of the account, or of one API token, in neurons or dollars."""
    body = await body_of(services, request)
    amount, percents = body.get("amount"), body.get("alert_percents", list(budgets.DEFAULT_ALERTS))
    if not isinstance(amount, int | float) or isinstance(amount, bool):
        raise invalid("amount must be a number")
    if not isinstance(percents, list) or not all(type(percent) is int for percent in percents):
        raise invalid("alert_percents must be a list of whole numbers")
    refuses = body.get("refuses", True)
    if not isinstance(refuses, bool):
        raise invalid("refuses must be true or false")
    try:
        budget = MonthlyBudget(
            account_id=request.path_params["account_id"],
            api_token_id=_token_id(body.get("api_token_id", "")),
            unit=body.get("unit", "neurons"),
            micro_amount=round(amount * 1_000_000),
            refuses=refuses,
            alert_percents=tuple(sorted(set(percents))),
        )
        if budget.api_token_id and not await api_tokens.may_be_used_on(
            services.database, budget.account_id, budget.api_token_id
        ):
            raise invalid("api_token_id is no API token of this account")
        await budgets.put(services.database, budget, who=principal_of(request).api_token_id, clock=services.clock)
    except (ValueError, Conflict) as error:
        raise invalid(str(error)) from None
    await services.allowance.refresh()
    return answer(_shown_budget(budget))


async def remove_budget(services: Services, request: Request) -> Response:
    """Take a budget away; the query says which."""
    query, account_id = request.query_params, request.path_params["account_id"]
    token_id, unit = _token_id(query.get("api_token_id", "")), query.get("unit", "neurons")
    who = principal_of(request).api_token_id
    if not await budgets.remove(services.database, account_id, token_id, unit, who=who, clock=services.clock):
        raise Refusal(Reason.OBJECT_UNKNOWN)
    await services.allowance.refresh()
    return answer({"api_token_id": token_id or None, "unit": unit})


async def list_alerts(services: Services, request: Request) -> Response:
    """The shares of budgets that were passed, newest first."""
    found = await budgets.list_alerts(services.database, request.path_params["account_id"])
    rows = []
    for alert in found:
        row = asdict(alert) | {"at": shown_time(alert.at), "api_token_id": alert.api_token_id or None}
        row |= {"amount": row.pop("micro_amount") / 1e6, "used": row.pop("micro_used") / 1e6}
        rows.append(row)
    return answer(rows)


def _shown(total: UsageTotal) -> dict[str, Any]:
    """A sum as people read it: neurons, dollars and device-milliseconds beside the ledger's whole numbers."""
    shown = asdict(total)
    del shown["key"]
    per_useful = total.micro_neurons_per_useful
    return shown | {
        "neurons": total.micro_neurons / 1e6,
        "usd": usd(total.micro_neurons),
        "device_ms": total.device_us / 1000,
        "usd_per_useful_reply": None if per_useful is None else usd(per_useful),
        "neurons_per_useful_reply": None if per_useful is None else per_useful / 1e6,
    }


def _shown_call(entry: usage.UsageEntry) -> dict[str, Any]:
    shown = msgspec.structs.asdict(entry) | {"started_at": entry.started_at.astimezone(UTC).isoformat()}
    return shown | {"neurons": entry.micro_neurons / 1e6, "usd": usd(entry.micro_neurons)}


def _shown_budget(budget: MonthlyBudget) -> dict[str, Any]:
    return {
        "api_token_id": budget.api_token_id or None,
        "unit": budget.unit,
        "amount": budget.micro_amount / 1e6,
        "refuses": budget.refuses,
        "alert_percents": list(budget.alert_percents),
    }


def _token_id(value: Any) -> str:
    if value is None or value == "":
        return budgets.WHOLE_ACCOUNT
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise invalid("api_token_id must be the id of an API token")
    return value


def _filter(request: Request) -> Filter:
    query = request.query_params
    names = ("api_token_id", "model", "task", "pop", "status")
    return Filter(request.path_params["account_id"], **{name: query.get(name) for name in names})


def _span(services: Services, request: Request) -> tuple[datetime, datetime]:
    """`since` and `until`: 30 days until now unless given. Raises Refusal."""
    until = _time(request, "until") or services.clock.now() + timedelta(minutes=1)
    since = _time(request, "since") or until - _DEFAULT_SPAN
    if until < since:
        raise Refusal(Reason.QUERY_INVALID, "the query parameter 'until' is before 'since'")
    return since, until


def _time(request: Request, name: str) -> datetime | None:
    text = request.query_params.get(name)
    if not text:
        return None
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise Refusal(Reason.QUERY_INVALID, f"the query parameter '{name}' must be a time in ISO 8601") from None
