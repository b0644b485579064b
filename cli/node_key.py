"""`hearth node-key`: the key of one PoP, for nodes that are to be of that place and can be of no other.
That it was told is noted in the audit; it is not told where that cannot be."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from cli.output import CommandFailed, JsonOption, print_record
from cli.target import DataOption, Target


def node_key(
    pop: Annotated[str, typer.Argument(help="The place, as nodes there have it in HEARTH_POP.", show_default=False)],
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Print what a node of this place gets as HEARTH_NODE_POP_KEY, in the cluster secret's stead."""
    from engine.protocol.wire import pop_key

    target = Target.find(data)
    try:
        secret = bytes.fromhex(target.require("HEARTH_CLUSTER_SECRET"))
    except ValueError:
        raise CommandFailed("HEARTH_CLUSTER_SECRET: expected hexadecimal bytes") from None
    asyncio.run(_note(target, pop))
    print_record({"pop": pop, "key": pop_key(secret, pop).hex()}, is_json=json)


async def _note(target: Target, pop: str) -> None:
    from cli.audit_entries import append_entry

    async with target.database() as database:
        await append_entry(database, "node_key.tell", pop, pop)
