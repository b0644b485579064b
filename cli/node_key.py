"""`hearth node-key`: the key of one PoP, for nodes that are to be of that place and can be of no other."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.data_dir import DataOption
from cli.output import CommandFailed, JsonOption, print_record
from cli.target import Target


def node_key(
    pop: Annotated[str, typer.Argument(help="The place, as nodes there have it in HEARTH_POP.", show_default=False)],
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Print what a node of this place gets as HEARTH_NODE_POP_KEY, in the cluster secret's stead."""
    from engine.protocol.wire import pop_key

    try:
        secret = bytes.fromhex(Target.find(data).require("HEARTH_CLUSTER_SECRET"))
    except ValueError:
        raise CommandFailed("HEARTH_CLUSTER_SECRET: expected hexadecimal bytes") from None
    print_record({"pop": pop, "key": pop_key(secret, pop).hex()}, is_json=json)
