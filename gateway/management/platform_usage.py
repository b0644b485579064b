"""`/usage`: the usage of all accounts, for people with a platform role. The results are those of `A/ai/usage`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta
from starlette.responses import Response

from gateway.management import usage
from gateway.management.endpoint import ManagementRequest, takes_query
from gateway.management.usage import CallsQuery, ExportQuery, SpanQuery, UsageCall, UsageSums
from gateway.openapi.operation import describe
from gateway.services import Services
from tenants.usage import usage_export

AccountId = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]


class PlatformSumsQuery(SpanQuery, frozen=True, kw_only=True):
    """Query parameters of the sums. Without `account_id`, all accounts are summed."""

    account_id: AccountId | None = None
    by: Literal["account", "model", "day", "hour", "minute", "token", "pop", "status", "task"] = "account"


class PlatformCallsQuery(CallsQuery, frozen=True, kw_only=True):
    """Query parameters of the list of calls. Without `account_id`, calls of all accounts are listed."""

    account_id: AccountId | None = None


class PlatformExportQuery(ExportQuery, frozen=True, kw_only=True):
    """Query parameters of the export. Without `account_id`, calls of all accounts are exported."""

    account_id: AccountId | None = None


@describe(result=UsageSums)
@takes_query(PlatformSumsQuery)
async def summed(services: Services, _request: ManagementRequest, query: PlatformSumsQuery) -> Response:
    """Sum the usage of all accounts by account, model, day, hour, minute, token, PoP, status or task."""
    return await usage.sum_usage(services, query, query.filter_for(query.account_id), query.by)


@describe(result=list[UsageCall])  # type: ignore[valid-type]
@takes_query(PlatformCallsQuery)
async def list_calls(services: Services, _request: ManagementRequest, query: PlatformCallsQuery) -> Response:
    """List the calls of all accounts, newest first."""
    return await usage.list_usage_calls(services, query, query.filter_for(query.account_id))


@describe(content={media_type: {} for media_type in usage_export.MEDIA_TYPES.values()})
@takes_query(PlatformExportQuery)
async def export(services: Services, _request: ManagementRequest, query: PlatformExportQuery) -> Response:
    """Export the calls of all accounts as CSV or Parquet. The connection is closed if the export fails midway."""
    return await usage.export_usage(services, query, query.filter_for(query.account_id))
