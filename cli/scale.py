"""`hearth scale`: the scaling plan with its reasons, what-if plans, overrides, and capacity reserved for accounts.

The gateway makes the plan and stores the rules.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from cli.gateway_request import UrlOption, request_gateway
from cli.output import CommandFailed, JsonOption, print_json, print_record, print_rows
from cli.target import DataOption, Target

app = typer.Typer(help="Autoscaling: plans, overrides and reserved capacity.", no_args_is_help=True)

TARGET_COLUMNS = ("model", "pop", "num_current", "num_replicas", "tokens_per_s", "reason")
CHANGE_COLUMNS = ("action", "model", "node_id", "pop", "reason")
UNPLACED_COLUMNS = ("model", "pop", "num_replicas", "reason")
OVERRIDE_COLUMNS = ("model", "pop", "min_replicas", "max_replicas", "is_pinned")
RESERVED_COLUMNS = ("account_id", "model", "pop", "tokens_per_s")
DIFFERENCE_COLUMNS = ("model", "pop", "num_before", "num_after", "reason")

ModelArgument = Annotated[str, typer.Argument(help="Model id or alias.", show_default=False)]
PopOption = Annotated[str, typer.Option("--pop", help="PoP of the rule. Default: all PoPs together.")]
AccountOption = Annotated[str, typer.Option("--account", help="Account id. Default: the first account.")]


@app.command()
def plan(url: UrlOption = "", data: DataOption = None, json: JsonOption = False) -> None:
    """Print how many replicas each model shall have in each PoP, the changes of nodes that lead there, and the reasons.

    Changes nothing.
    """
    found = asyncio.run(request_gateway(url, data, "GET", "/scaling/plan"))
    if json:
        print_json(found)
        return
    state = "on" if found["is_on"] else "off: nodes keep what they have"
    print_record(
        {"autoscaling": state, "applied_by": found["holder"], "applied_at": found["applied_at"]}, is_json=False
    )
    print_rows(found["targets"], TARGET_COLUMNS, is_json=False, empty="no model has replicas or demand")
    print_rows(found["changes"], CHANGE_COLUMNS, is_json=False, empty="no changes")
    if found["unplaced"]:
        print_rows(found["unplaced"], UNPLACED_COLUMNS, is_json=False, empty="")


@app.command("compare")
def compare(
    lose: Annotated[str, typer.Option("--lose", help="PoP to lose.")] = "",
    add: Annotated[str, typer.Option("--add", help="PoP to add.")] = "",
    nodes: Annotated[int, typer.Option("--nodes", help="Nodes of the added PoP.")] = 2,
    at: Annotated[str, typer.Option("--at", help="Latitude/longitude of the added PoP, if its code is unknown.")] = "",
    url: UrlOption = "",
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Print how the scaling plan changes if a PoP is lost or added. Changes nothing."""
    if bool(lose) == bool(add):
        raise CommandFailed("give either --lose or --add", exit_code=2)
    query = {"lose": lose} if lose else {"add": add, "nodes": str(nodes)}
    if at:
        latitude, separator, longitude = at.partition("/")
        if not separator:
            raise CommandFailed("--at must be LATITUDE/LONGITUDE, as in 38.7/-9.1", exit_code=2)
        query |= {"latitude": latitude, "longitude": longitude}
    found = asyncio.run(request_gateway(url, data, "GET", "/scaling/what_if", query))
    if json:
        print_json(found)
        return
    print_rows(found["differences"], DIFFERENCE_COLUMNS, is_json=False, empty="the plan stays the same")
    if found["unplaced"]:
        print_rows(found["unplaced"], UNPLACED_COLUMNS, is_json=False, empty="")


@app.command("set")
def set_(
    model: ModelArgument,
    pop: PopOption = "",
    minimum: Annotated[int, typer.Option("--min", help="Smallest number of replicas.")] = 0,
    maximum: Annotated[int, typer.Option("--max", help="Largest number of replicas. -1 means no limit.")] = -1,
    pin: Annotated[bool, typer.Option("--pin", help="Never evict the replicas; keep at least one.")] = False,
    url: UrlOption = "",
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Set how many replicas a model has. Replaces the override of the same model and PoP."""
    body = {
        "pop": pop or None,
        "min_replicas": minimum,
        "max_replicas": None if maximum < 0 else maximum,
        "is_pinned": pin,
    }
    print_record(asyncio.run(request_gateway(url, data, "PUT", f"/scaling/overrides/{model}", body=body)), is_json=json)


@app.command()
def unset(
    model: ModelArgument, pop: PopOption = "", url: UrlOption = "", data: DataOption = None, json: JsonOption = False
) -> None:
    """Remove an override."""
    query = {"pop": pop} if pop else None
    print_record(asyncio.run(request_gateway(url, data, "DELETE", f"/scaling/overrides/{model}", query)), is_json=json)


@app.command()
def overrides(url: UrlOption = "", data: DataOption = None, json: JsonOption = False) -> None:
    """List the overrides."""
    rows = asyncio.run(request_gateway(url, data, "GET", "/scaling/overrides"))
    print_rows(rows, OVERRIDE_COLUMNS, is_json=json, empty="no overrides")


@app.command()
def reserve(
    model: ModelArgument,
    pop: Annotated[str, typer.Option("--pop", help="PoP of the capacity.", show_default=False)],
    tokens_per_s: Annotated[float, typer.Option("--tokens-per-s", help="Tokens per second.", show_default=False)],
    account: AccountOption = "",
    url: UrlOption = "",
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Reserve capacity for an account, in addition to the measured demand."""
    path = f"/accounts/{_account(account, data)}/ai/reserved_capacity/{model}"
    body: dict[str, Any] = {"pop": pop, "tokens_per_s": tokens_per_s}
    print_record(asyncio.run(request_gateway(url, data, "PUT", path, body=body)), is_json=json)


@app.command()
def release(
    model: ModelArgument,
    pop: Annotated[str, typer.Option("--pop", help="PoP of the capacity.", show_default=False)],
    account: AccountOption = "",
    url: UrlOption = "",
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Release reserved capacity."""
    path = f"/accounts/{_account(account, data)}/ai/reserved_capacity/{model}"
    print_record(asyncio.run(request_gateway(url, data, "DELETE", path, {"pop": pop})), is_json=json)


@app.command()
def reserved(url: UrlOption = "", data: DataOption = None, json: JsonOption = False) -> None:
    """List the capacity that is reserved for accounts."""
    rows = asyncio.run(request_gateway(url, data, "GET", "/scaling/reserved_capacity"))
    print_rows(rows, RESERVED_COLUMNS, is_json=json, empty="no reserved capacity")


def _account(account: str, data: Any) -> str:
    found = account or Target.find(data).first_account_id
    if not found:
        raise CommandFailed("give an account with --account", exit_code=2)
    return found
