"""The plan of a local platform: address, nodes and their PoPs, checked before any process starts."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

MAX_NODES = 64
SPARK = "@cf/hearth/spark"
MINILM = "@cf/hearth/minilm"
_POP = re.compile(r"[a-z0-9]([a-z0-9-]{0,14}[a-z0-9])?")


@dataclass(frozen=True)
class Plan:
    """The processes to start. `nodes` maps node id to PoP; the gateway is in the PoP of the first node. Nodes load
    `models` in order; the first one is the chat model of the printed examples."""

    host: str
    port: int
    nodes: Mapping[str, str]
    models: tuple[str, ...] = (SPARK, MINILM)

    @property
    def origin(self) -> str:
        """The gateway's URL for clients on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)  # noqa: S104
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def browser_origins(self) -> str:
        """The gateway's origins as browsers on this machine name them, comma separated."""
        return ",".join(sorted({self.origin, f"http://localhost:{self.port}", f"http://127.0.0.1:{self.port}"}))

    @property
    def memory_share(self) -> float:
        """The part of the machine's memory that each node may use."""
        return 1 / len(self.nodes)

    @property
    def probe_host(self) -> str:
        """The host to which readiness probes connect."""
        return self.origin.removeprefix("http://").rpartition(":")[0].strip("[]")


def plan_nodes(pops: str, nodes: int | None) -> dict[str, str]:
    """Return node id -> PoP for comma-separated PoPs, for example `lis-1`, `fra-1`, `lis-2`.

    Each PoP gets `nodes` nodes, or one. Raises ValueError naming the option.
    """
    names = [name.strip() for name in pops.split(",")]
    for name in names:
        if not _POP.fullmatch(name):
            raise ValueError(f"--pops: {name!r} is not a PoP name (1 to 16 of a-z, 0-9 and -)")
    if len(set(names)) != len(names):
        raise ValueError("--pops: a PoP is listed twice")
    per_pop = 1 if nodes is None else nodes
    count = per_pop * len(names)
    if per_pop < 1 or count > MAX_NODES:
        raise ValueError(f"--nodes must be between 1 and {MAX_NODES // len(names)} for each PoP (got {per_pop})")
    return {f"{names[i % len(names)]}-{i // len(names) + 1}": names[i % len(names)] for i in range(count)}


def plan_models(environ: Mapping[str, str], *, has_starter: bool) -> tuple[str, ...]:
    """Return the models that nodes load: those of HEARTH_NODE_MODELS, or else a chat model and the embedding model.

    The chat model is the starter model if it is wanted and installed.
    """
    from catalog.builtin import STARTER, find_folder

    chosen = environ.get("HEARTH_NODE_MODELS", "").strip()
    if chosen:
        return tuple(name.strip() for name in chosen.split(","))
    return (STARTER if has_starter and find_folder(STARTER) is not None else SPARK, MINILM)


def listen_error(host: str, port: int) -> str | None:
    """Return None if a server could listen on this address now, else the operating system's error message."""
    try:
        with _bound_socket(host, port):
            return None
    except OSError as error:
        return error.strerror or str(error)


def free_port(host: str) -> int:
    """Return a TCP port that is unused now. Raises OSError."""
    with _bound_socket(host, 0) as probe:
        return int(probe.getsockname()[1])


def _bound_socket(host: str, port: int) -> socket.socket:
    family, kind, _, _, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)[0]
    probe = socket.socket(family, kind)
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
    except BaseException:
        probe.close()
        raise
    return probe
