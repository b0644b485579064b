"""`hearth usage`: usage of accounts as sums, forecast, latencies or a file."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.output import CommandFailed, JsonOption, print_record, print_rows
from cli.target import DataOption, Target
from cli.token import AccountOption, account_of, check_account

if TYPE_CHECKING:
    from storage.database import Database
    from tenants.usage.usage_sums import Filter

COLUMNS = (
    "num_calls", "num_useful", "prompt_tokens", "cached_tokens", "completion_tokens", "neurons", "usd", "device_ms",
    "usd_per_useful_reply",
)  # fmt: skip
_LATENCY_COLUMNS = ("model", "num_calls", "ttft_ms", "total_ms")


class By(StrEnum):
    """The key by which usage is grouped."""

    model = "model"
    day = "day"
    hour = "hour"
    token = "token"  # noqa: S105 - not a password
    pop = "pop"
    status = "status"
    task = "task"
    account = "account"


def usage(
    account: AccountOption = None,
    by: Annotated[By, typer.Option(help="Grouping of the rows. `account` includes all accounts.")] = By.model,
    since: Annotated[str | None, typer.Option(help="First day (UTC), as 2026-11-20. Default: 30 days ago.")] = None,
    until: Annotated[str | None, typer.Option(help="Last day (UTC). Default: today.")] = None,
    model: Annotated[str | None, typer.Option(help="Only calls of this model id.")] = None,
    token: Annotated[str | None, typer.Option(help="Only calls with this API token id.")] = None,
    pop: Annotated[str | None, typer.Option(help="Only calls received by this PoP's gateways.")] = None,
    status: Annotated[str | None, typer.Option(help="Only calls with this status, such as stop or timeout.")] = None,
    latency: Annotated[bool, typer.Option("--latency", help="Show latencies by model: P50, P95, P99 in ms.")] = False,
    forecast: Annotated[bool, typer.Option("--forecast", help="Show the forecast for this month instead.")] = False,
    export: Annotated[
        Path | None, typer.Option(help="Write all calls to this file instead (.csv or .parquet).")
    ] = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Show usage by model, day, hour, API token, PoP, status, task or account."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    first = parse_day("--since", since) if since else today - timedelta(days=30)
    last = parse_day("--until", until) if until else today
    if last < first:
        raise CommandFailed("--until must not be before --since", exit_code=2)
    if export is not None and export.suffix not in (".csv", ".parquet"):
        raise CommandFailed(f"--export must end in .csv or .parquet (got {str(export)!r})", exit_code=2)
    from tenants.usage.usage_sums import Filter

    span = (first, last + timedelta(days=1))
    target = Target.find(data)
    account_id = None if by is By.account else account_of(target, account)
    filter_ = Filter(account_id, api_token_id=token, model=model, pop=pop, status=status)
    if export is not None:
        num_bytes = asyncio.run(_export(target, filter_, span, export))
        print_record({"file": str(export), "bytes": num_bytes}, is_json=json)
    elif forecast:
        print_record(asyncio.run(_forecast(target, filter_)), is_json=json)
    elif latency:
        print_rows(asyncio.run(_latency(target, filter_, span)), _LATENCY_COLUMNS, is_json=json, empty="no calls")
    else:
        rows = asyncio.run(_sums(target, filter_, span, by))
        print_rows(rows, (by.value, *COLUMNS), is_json=json, empty="no usage")


def parse_day(option: str, text: str) -> datetime:
    """Return midnight UTC of a day such as 2026-11-20. Raises CommandFailed."""
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise CommandFailed(f"{option} must be a day such as 2026-11-20 (got {text!r})", exit_code=2) from None


@contextlib.asynccontextmanager
async def _open(target: Target, filter_: Filter) -> AsyncIterator[Database]:
    """Open the database and check that the account exists. Raises CommandFailed."""
    async with target.database() as database:
        if filter_.account_id is not None:
            await check_account(database, filter_.account_id)
        yield database


def _rounded(times_ms: tuple[float, ...] | None) -> list[float] | None:
    return None if times_ms is None else [round(time_ms, 3) for time_ms in times_ms]


async def _sums(target: Target, filter_: Filter, span: tuple[datetime, datetime], by: By) -> list[dict[str, Any]]:
    from catalog.pricing import usd
    from tenants.usage import usage_sums

    async with _open(target, filter_) as database:
        found = await usage_sums.total(database, filter_, *span, by=by.value)
    rows = []
    for total in found:
        row = asdict(total)
        per_useful = total.micro_neurons_per_useful
        row = {by.value: row.pop("key"), **row, "neurons": total.micro_neurons / 1e6, "usd": usd(total.micro_neurons)}
        row["device_ms"] = total.device_us / 1000
        row["usd_per_useful_reply"] = None if per_useful is None else usd(per_useful)
        rows.append(row)
    return rows


async def _latency(target: Target, filter_: Filter, span: tuple[datetime, datetime]) -> list[dict[str, Any]]:
    from tenants.usage import usage_entries as entries

    async with _open(target, filter_) as database:
        found = await entries.latencies(database, filter_, *span)
    return [asdict(each) | {name: _rounded(getattr(each, name)) for name in ("ttft_ms", "total_ms")} for each in found]


async def _forecast(target: Target, filter_: Filter) -> dict[str, Any]:
    from catalog.pricing import usd
    from tenants.quota.allowance import read_forecast

    async with _open(target, filter_) as database:
        found = await read_forecast(database, filter_, datetime.now(UTC))
    return {
        "month": found.month,
        "used_neurons": found.used / 1e6,
        "used_usd": usd(found.used),
        "expected_neurons": found.expected / 1e6,
        "expected_usd": usd(found.expected),
        "days_left": round(found.days_left, 2),
    }


async def _export(target: Target, filter_: Filter, span: tuple[datetime, datetime], file: Path) -> int:
    from tenants.usage import usage_export

    format: usage_export.Format = "csv" if file.suffix == ".csv" else "parquet"
    try:
        async with _open(target, filter_) as database:
            pieces = usage_export.export(database, filter_, *span, format)  # raises before the file is created
            with file.open("wb") as out:
                return sum([out.write(piece) async for piece in pieces])
    except OSError as error:
        raise CommandFailed(f"{file}: {error.strerror}") from error
    except usage_export.ParquetUnavailable as error:
        raise CommandFailed(str(error)) from error
