"""`hearth node`: enroll, list and drain nodes, load and pin models on them, and explain where a call would run.

The gateway answers and makes the change: it is connected to every node. The command signs in with a session of its own,
which ends with the command.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.gateway_request import UrlOption, request_gateway
from cli.output import CommandFailed, JsonOption, print_json, print_record, print_rows, size_text
from cli.target import DataOption, Target
from cli.token import parse_period
from telemetry.process_settings import plain_name

app = typer.Typer(help="Nodes: enroll, list, drain, load and pin models, and explain placement.", no_args_is_help=True)
COLUMNS = ("node", "pop", "state", "device", "memory", "calls", "queued_tokens", "models", "version")
MAX_TOKEN_LIFE_S = 7 * 86400

NodeArgument = Annotated[str, typer.Argument(help="Node id, as in `hearth node list`.", show_default=False)]
ModelArgument = Annotated[str, typer.Argument(help="Model id or alias.", show_default=False)]


@app.command("list")
def list_(url: UrlOption = "", data: DataOption = None, json: JsonOption = False) -> None:
    """List all nodes. Nodes that have left within five minutes are listed as gone."""
    nodes = asyncio.run(request_gateway(url, data, "GET", "/nodes"))
    if json:
        print_json(nodes)
        return
    print_rows([_row(node) for node in nodes], COLUMNS, is_json=False, empty="no node is running")


@app.command()
def drain(node: NodeArgument, url: UrlOption = "", data: DataOption = None, json: JsonOption = False) -> None:
    """Stop sending calls to a node. Running calls finish. The drain ends with `undrain`, or when the node restarts."""
    _change(url, data, node, "drain", json)


@app.command()
def undrain(node: NodeArgument, url: UrlOption = "", data: DataOption = None, json: JsonOption = False) -> None:
    """Send calls to a drained node again."""
    _change(url, data, node, "undrain", json)


@app.command()
def token(
    pop: Annotated[
        str, typer.Option("--pop", help="PoP of the node (its HEARTH_POP). Its key is valid in this PoP only.")
    ] = "local",
    node: Annotated[
        str, typer.Option("--node", help="Id of the node (its HEARTH_NODE_ID). Default: any new node.")
    ] = "",
    life: Annotated[str, typer.Option(help="How long the token can be used.")] = "1h",
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Create a one-time token with which a node joins, and print it. The token is shown only once."""
    life_s = parse_period(life)
    if life_s is None or not 0 < life_s <= MAX_TOKEN_LIFE_S:
        raise CommandFailed(f"--life must be a period of at most 7d, such as 60s, 1h or 7d (got {life!r})", 2)
    for option, name in (("pop", pop), ("node", node or "x")):
        if plain_name(name):
            raise CommandFailed(f"--{option} {plain_name(name)} (got {name!r})", 2)
    secret, expires_at = asyncio.run(_create_token(data, pop, node, life_s))
    print_record(
        {"token": secret, "pop": pop, "node": node or None, "expires_at": expires_at.isoformat()}, is_json=json
    )


async def _create_token(data: Path | None, pop: str, node: str, life_s: int) -> tuple[str, datetime]:
    from tenants.change_context import CLI
    from tenants.node_enrollment import create_token

    async with Target.find(data).database() as database:
        return await create_token(database, pop=pop, node_id=node, life=timedelta(seconds=life_s), context=CLI)


@app.command()
def load(
    node: NodeArgument, model: ModelArgument, url: UrlOption = "", data: DataOption = None, json: JsonOption = False
) -> None:
    """Load a model on a node. Loading continues in the background; `hearth node list` shows the progress."""
    _change_model(url, data, node, model, "load", json)


@app.command()
def unload(
    node: NodeArgument, model: ModelArgument, url: UrlOption = "", data: DataOption = None, json: JsonOption = False
) -> None:
    """Unload a model from a node. Running calls finish first. A later call loads the model again."""
    _change_model(url, data, node, model, "unload", json)


@app.command()
def pin(
    node: NodeArgument, model: ModelArgument, url: UrlOption = "", data: DataOption = None, json: JsonOption = False
) -> None:
    """Load a model on a node and keep it loaded. The pin ends with `unpin`, or when the node restarts."""
    _change_model(url, data, node, model, "pin", json)


@app.command()
def unpin(
    node: NodeArgument, model: ModelArgument, url: UrlOption = "", data: DataOption = None, json: JsonOption = False
) -> None:
    """Unpin a model on a node. The model stays loaded until its memory is needed."""
    _change_model(url, data, node, model, "unpin", json)


@app.command()
def explain(
    model: ModelArgument,
    account: Annotated[str, typer.Option("--account", help="Account id. Default: the first account.")] = "",
    session: Annotated[str, typer.Option("--session", help="Value of x-session-affinity.")] = "",
    prompt: Annotated[str, typer.Option("--prompt", help="Beginning of the prompt, for calls without a session.")] = "",
    url: UrlOption = "",
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Explain on which node a call would run now, and why not on the others."""
    account_id = account or Target.find(data).first_account_id
    if not account_id:
        raise CommandFailed("give an account with --account", exit_code=2)
    query = {"model": model, "session": session, "prompt": prompt}
    path = f"/accounts/{account_id}/ai/placement/explain"
    found = asyncio.run(
        request_gateway(url, data, "GET", path, {name: value for name, value in query.items() if value})
    )
    if json:
        print_json(found)
        return
    rows: list[dict[str, Any]] = [
        {"rank": number, "node": node["node_id"], **node} for number, node in enumerate(found["ranked"], 1)
    ]
    rows += [
        {"rank": "removed", "node": removed["node_id"], "reason": f"{step['filter']}: {removed['reason']}"}
        for step in found["steps"]
        for removed in step["removed"]
    ]
    columns = ("rank", "node", "pop", "tier", "load_tokens", "predicted_s", "reason")
    print_rows(rows, columns, is_json=False, empty="no node is running")


def _change(url: str, data: Path | None, node: str, action: str, is_json: bool) -> None:
    changed = asyncio.run(request_gateway(url, data, "POST", f"/nodes/{node}/{action}"))
    print_record({"node": changed["node_id"], "changed": f"{action}ed", "calls": changed["num_calls"]}, is_json=is_json)


_PATHS = {
    "load": ("POST", "replicas"),
    "unload": ("DELETE", "replicas"),
    "pin": ("POST", "pins"),
    "unpin": ("DELETE", "pins"),
}


def _change_model(url: str, data: Path | None, node: str, model: str, action: str, is_json: bool) -> None:
    method, name = _PATHS[action]
    path, body = f"/nodes/{node}/{name}", {"model": model}
    sent = (
        request_gateway(url, data, method, path, body=body)
        if method == "POST"
        else request_gateway(url, data, method, f"{path}/{model}")
    )
    changed = asyncio.run(sent)
    states = [
        f"{each['state']}, {each['detail']}" if each["detail"] else each["state"]
        for each in changed["replicas"]
        if each["model"] == model
    ]
    print_record(
        {"node": changed["node_id"], "model": model, "begun": action, "state": states[0] if states else None},
        is_json=is_json,
    )


def _row(node: dict[str, Any]) -> dict[str, Any]:
    replicas = [f"{each['model']} ({_state_text(each)})" for each in node["replicas"]]
    state = node["state"] if node["is_reachable"] or node["state"] == "gone" else f"{node['state']}, not reachable"
    return {
        "node": node["node_id"],
        "pop": node["pop"],
        "state": state,
        "device": node["device_name"] or node["device"],
        "memory": _memory_text(node),
        "calls": node["num_calls"],
        "queued_tokens": node["queued_tokens"],
        "models": ", ".join(replicas),
        "version": node["version"],
    }


def _state_text(replica: dict[str, Any]) -> str:
    return f"{replica['state']}, pinned" if replica["is_pinned"] else str(replica["state"])


def _memory_text(node: dict[str, Any]) -> str | None:
    """Return what models use of the node's budget, or else the device's memory."""
    if node["budget_bytes"]:
        return f"{size_text(node['used_bytes'])} of {size_text(node['budget_bytes'])}"
    return size_text(node["memory_bytes"]) if node["memory_bytes"] else None
