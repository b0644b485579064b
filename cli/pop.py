"""`hearth pop`: list PoPs with their round trips, and evacuate and restore a PoP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from cli.gateway_request import UrlOption, request_gateway
from cli.output import CommandFailed, JsonOption, print_json, print_record, print_rows
from cli.target import DataOption

app = typer.Typer(help="PoPs: list, evacuate and restore.", no_args_is_help=True)
COLUMNS = ("pop", "city", "country", "jurisdictions", "num_nodes", "round_trip_ms", "is_measured")

PopArgument = Annotated[str, typer.Argument(help="PoP, as in `hearth pop list`.", show_default=False)]


@app.command("list")
def list_(url: UrlOption = "", data: DataOption = None, json: JsonOption = False) -> None:
    """List all PoPs. Round trips are those of the gateway that responds."""
    pops = asyncio.run(request_gateway(url, data, "GET", "/pops"))
    if json:
        print_json(pops)
        return
    rows = [{**pop, "jurisdictions": ", ".join(pop["jurisdictions"])} for pop in pops]
    print_rows(rows, COLUMNS, is_json=False, empty="no PoP is known")


@app.command()
def evacuate(pop: PopArgument, url: UrlOption = "", data: DataOption = None, json: JsonOption = False) -> None:
    """Drain all nodes of a PoP. Running calls finish, and new calls and sessions go to other PoPs.

    A node that starts later in the PoP takes calls: stop its start first, or evacuate again.
    """
    _change(url, data, pop, "drain", json)


@app.command()
def restore(pop: PopArgument, url: UrlOption = "", data: DataOption = None, json: JsonOption = False) -> None:
    """Undrain all nodes of a PoP. Sessions return to them."""
    _change(url, data, pop, "undrain", json)


def _change(url: str, data: Path | None, pop: str, action: str, is_json: bool) -> None:
    found = asyncio.run(request_gateway(url, data, "POST", f"/pops/{pop}/{action}"))
    errors = "; ".join(f"{node}: {error}" for node, error in found["errors"].items())
    print_record({"pop": pop, f"{action}ed": ", ".join(found["changed"]), "errors": errors or None}, is_json=is_json)
    if errors:
        raise CommandFailed(f"{len(found['errors'])} nodes were not {action}ed")
