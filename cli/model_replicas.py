"""`hearth model ps`, `load` and `unload`: the replicas of all nodes.

Nodes publish their replicas in Redis. They load and unload models on requests to their HTTP interface, which this
command authenticates with the service key of `operator/hearth-command`, created at first use.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.output import CommandFailed, JsonOption, print_rows
from cli.progress import Progress
from cli.service import change_ring_and_audit, ring_path, service_failures
from cli.target import DataOption, Target
from local_platform.service_keys import ensure_key

if TYPE_CHECKING:
    from engine.protocol.status import NodeStatus
    from service_identity.service_identity import ServiceIdentity
    from service_identity.service_tokens import Ring

COLUMNS = ("model", "node", "pop", "state", "running", "waiting", "size", "kv_used", "detail")
SUBJECT = "operator/hearth-command"
_NEW_KEY_S = 5.0  # nodes read a changed key ring at most once a second
_RETRY_S = 0.5

ModelArgument = Annotated[str, typer.Argument(help="Model id or alias.", show_default=False)]
NodeOption = Annotated[str, typer.Option("--node", help="Only this node. Default: all nodes.")]


def ps(data: DataOption = None, json: JsonOption = False) -> None:
    """List the replicas of all nodes: loaded, loading and failed models."""
    rows = asyncio.run(replica_rows(Target.find(data)))
    print_rows(rows, COLUMNS, is_json=json, empty="no node has loaded a model")


def load(model: ModelArgument, node: NodeOption = "", data: DataOption = None, json: JsonOption = False) -> None:
    """Load a model on one node or on all nodes, and wait until it is ready."""
    _request_all("load", model, node, data, json, {})


def unload(
    model: ModelArgument,
    node: NodeOption = "",
    force: Annotated[bool, typer.Option("--force", help="Refuse new calls, and wait for running ones.")] = False,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Unload a model from one node or all nodes, unless calls use it. The next call loads the model again."""
    _request_all("unload", model, node, data, json, {"waits": force})


async def replica_rows(target: Target, model: str = "") -> list[dict[str, Any]]:
    """Return the replicas of all nodes, or those of one model, as rows. Raises CommandFailed."""
    from catalog.registry import Registry
    from cli.output import size_text

    async with target.database() as database:
        registry = Registry(database)
        await registry.refresh()
    sizes = {card.revision: sum(file.size_bytes for file in card.files) for card in registry.all()}
    rows = []
    for node_id, status in sorted((await _nodes(target)).items()):
        for replica in status.replicas:
            if model not in ("", replica.model):
                continue
            used = 1 - (replica.num_free_blocks + replica.num_cached_blocks) / max(replica.num_blocks, 1)
            size_bytes = sizes.get(replica.revision)
            rows.append(
                {
                    "model": replica.model,
                    "node": node_id,
                    "pop": status.pop,
                    "state": replica.state,
                    "running": replica.num_running,
                    "waiting": replica.num_waiting,
                    "size": size_text(size_bytes) if size_bytes is not None else None,
                    "kv_used": f"{used:.0%}" if replica.num_blocks else None,
                    "detail": replica.detail,
                }
            )
    return rows


async def _nodes(target: Target) -> dict[str, NodeStatus]:
    """Return the status of all live nodes by id. Raises CommandFailed."""
    from local_platform.readiness import read_nodes
    from storage.ephemeral import Ephemeral
    from storage.errors import StoreUnavailable

    if target.is_stopped:
        raise CommandFailed(f"the platform in {target.origin} is not running; start it with `hearth up`")
    store = Ephemeral.connect(target.require("REDIS_URL"))
    try:
        return await read_nodes(store)
    except StoreUnavailable as error:
        raise CommandFailed(str(error)) from None
    finally:
        await store.close()


def _request_all(action: str, model: str, node: str, data: Path | None, json: bool, options: dict[str, bool]) -> None:
    """Send a request to each node at once, show progress, and print the replicas. Raises CommandFailed."""
    target = Target.find(data)
    name, nodes = asyncio.run(_find(target, model, node))
    if action == "unload" and not node:
        nodes = {id_: status for id_, status in nodes.items() if any(each.model == name for each in status.replicas)}
        if not nodes:
            raise CommandFailed(f"no node has loaded {name}")
    identity = _operator(data)
    with Progress() as progress:
        progress.step(f"waiting for {', '.join(nodes)} to {action} {name}")

        async def request(node_id: str, status: NodeStatus) -> str:
            try:
                await _request(identity, node_id, status.http_address, action, {"model": name, **options})
            except CommandFailed as error:
                return str(error)
            progress.done(f"node {node_id} has {action}ed {name}")
            return ""

        async def request_all() -> list[str]:
            return await asyncio.gather(*(request(*each) for each in nodes.items()))

        errors = [error for error in asyncio.run(request_all()) if error]
    if errors:
        raise CommandFailed("; ".join(errors))
    rows = [{"model": name, "node": node_id, "state": f"{action}ed"} for node_id in nodes]
    print_rows(rows, ("model", "node", "state"), is_json=json, empty="")


async def _find(target: Target, model: str, node: str) -> tuple[str, Mapping[str, NodeStatus]]:
    """Return the model's own name, and the nodes to ask. Raises CommandFailed."""
    from catalog.card import parse_model_id
    from catalog.registry import Registry
    from cli.stores import failures

    nodes = await _nodes(target)
    if node and node not in nodes:
        raise CommandFailed(f"there is no node {node} (running: {', '.join(sorted(nodes)) or 'none'})")
    if not nodes:
        raise CommandFailed("no node is running")
    async with target.database() as database:
        registry = Registry(database)
        await registry.refresh()
    with failures():
        found = registry.find(parse_model_id(model))
    if found is None:
        raise CommandFailed(f"there is no model {model}; see `hearth model list`")
    return found.card.name, {node: nodes[node]} if node else nodes


def _operator(data: Path | None) -> ServiceIdentity:
    """Return the identity of this command. Raises CommandFailed if its key can be neither found nor created."""
    from service_identity.service_identity import ServiceIdentity

    path = ring_path(None, data)

    def change(kid: str, edit: Callable[[Ring], Ring]) -> None:
        change_ring_and_audit(path, data, "service_key.make", kid, SUBJECT, edit)

    with service_failures(path):
        return ServiceIdentity(path, ensure_key(path, SUBJECT, "", change), "operator")


async def _request(identity: ServiceIdentity, node_id: str, address: str, action: str, body: Mapping[str, Any]) -> None:
    """Send one request to a node and wait for its result. Raises CommandFailed."""
    import httpx

    is_socket = address.startswith("unix://")
    transport = httpx.AsyncHTTPTransport(uds=address.removeprefix("unix://") if is_socket else None)
    timeout = httpx.Timeout(None, connect=5.0)
    deadline_s = time.monotonic() + _NEW_KEY_S
    async with httpx.AsyncClient(transport=transport, timeout=timeout) as client:
        while True:
            url = f"{'http://node' if is_socket else address}/{action}"
            headers = {"authorization": f"Bearer {identity.sign(f'node/{node_id}')}"}
            try:
                response = await client.post(url, json=body, headers=headers)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                remedy = "run this command on its machine, or set HEARTH_NODE_HTTP to an address that is reachable"
                raise CommandFailed(f"node {node_id} does not respond at {address} ({error}): {remedy}") from None
            if response.status_code != 401 or time.monotonic() > deadline_s:
                break
            await asyncio.sleep(_RETRY_S)  # the key may be too new for the node
    if response.status_code != 200:
        raise CommandFailed(f"node {node_id}: {_message(response)}")


def _message(response: Any) -> str:
    remedy = "; use --force to wait for them" if response.status_code == 409 and "calls use" in response.text else ""
    try:
        return f"{response.json()['error']}{remedy}"
    except (ValueError, KeyError, TypeError):
        return f"HTTP status {response.status_code}"
