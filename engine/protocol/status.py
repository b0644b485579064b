"""Status that a node publishes about itself once a second, with an expiry; every gateway reads it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

ReplicaState = Literal["cold", "loading", "ready", "idle", "sleeping", "evicted", "draining", "failed"]
READY_STATES: tuple[ReplicaState, ...] = ("ready", "idle")  # can take calls at once


class ReplicaStatus(Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """One loaded copy of one model version on a node.

    `revision` is the manifest digest. `queued_tokens` counts prompt and completion tokens still to be computed: the
    load that placement balances. Block counts are 0 for tasks without a KV cache. `num_computed_tokens` counts all
    tokens that went through the forward pass, `num_steps` the passes. `num_ranks` processes share the model; their
    devices were busy for `busy_us` microseconds in total, and for `busy_ratio` of the time since the last report.
    `weight_bytes` and `kv_bytes` are the memory of the model's weights and of its KV cache over all ranks.
    `num_cached_tokens` of `num_prompt_tokens` were served from the prefix cache. An `is_pinned` model is never evicted.
    `demand` is the decayed number of calls per minute, and `reload_s` the duration of the last load from local disk, or
    of the last wake of a sleeping model. The weights of a sleeping model take `host_bytes` of host memory.
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
    busy_ratio: float = 0.0
    weight_bytes: int = 0
    kv_bytes: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    detail: str = ""
    is_pinned: bool = False
    demand: float = 0.0
    reload_s: float = 0.0
    host_bytes: int = 0


class NodeStatus(Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """One node. `address` is where gateways connect (`unix:///path` or `tcp://host:port`), `http_address` the
    address of its HTTP endpoint. `tasks` are the slugs of the tasks that the node can load on demand. `pop` is what the
    node claims; a gateway trusts `pop` for residency only if the node's service key is bound to the same PoP.
    `device_name` and `memory_bytes` describe the device, `power_w` is the power of all devices in watts, and
    `temperature_c` the temperature of the hottest one in degrees Celsius; 0 if unknown. Weights and KV caches hold
    `used_bytes` of `budget_bytes` (0: no limit). `version` is Hearth's version, and `started_s` the start of the
    process in Unix seconds, and `instance` identifies this process. Gateways may ask for the changes in `actions`."""

    node_id: str
    pop: str
    address: str
    http_address: str = ""
    protocol_version: int = 1
    is_draining: bool = False
    num_calls: int = 0
    device: str = "cpu"
    device_name: str = ""
    memory_bytes: int = 0
    budget_bytes: int = 0
    used_bytes: int = 0
    power_w: float = 0.0
    temperature_c: float = 0.0
    version: str = ""
    started_s: int = 0
    instance: str = ""
    replicas: tuple[ReplicaStatus, ...] = ()
    tasks: tuple[str, ...] = ("text-generation", "text-embeddings")
    actions: tuple[str, ...] = ("drain", "undrain", "load", "unload")
