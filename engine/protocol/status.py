"""Status that a node publishes about itself once a second, with an expiry; every gateway reads it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

ReplicaState = Literal["cold", "loading", "ready", "draining", "failed"]


class ReplicaStatus(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One loaded copy of one model version on a node.

    `revision` is the manifest digest. `queued_tokens` counts prompt and completion tokens still to be computed: the
    load that placement balances. Block counts are 0 for tasks without a KV cache. `num_computed_tokens` counts all
    tokens that went through the forward pass, `num_steps` the passes. `num_ranks` processes share the model; their
    devices were busy for `busy_us` microseconds in total.
    """

    model: str
    revision: str
    state: ReplicaState
    num_running: int = 0
    num_waiting: int = 0
    queued_tokens: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_cached_blocks: int = 0
    num_computed_tokens: int = 0
    num_preemptions: int = 0
    num_steps: int = 0
    num_ranks: int = 1
    busy_us: int = 0
    detail: str = ""


class NodeStatus(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One node. `address` is where gateways connect (`unix:///path` or `tcp://host:port`), `http_address` the
    address of its HTTP endpoint. `tasks` are the slugs of the tasks that the node can load on demand. `pop` is what the
    node claims; a gateway trusts `pop` for residency only if the node's service key is bound to the same PoP."""

    node_id: str
    pop: str
    address: str
    http_address: str = ""
    protocol_version: int = 1
    is_draining: bool = False
    num_calls: int = 0
    device: str = "cpu"
    replicas: tuple[ReplicaStatus, ...] = ()
    tasks: tuple[str, ...] = ("text-generation", "text-embeddings")
