"""Inputs and outputs of the scaling plan: demand, nodes, models and rules; targets and changes. Plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tenants.scaling_rules import Override, Reservation

Action = Literal["load", "unload", "pin", "unpin"]
Key = tuple[str, str]
"""A model and a PoP."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Calls to one model that entered the fabric at one PoP. `idle_s` is the time since the last call."""

    model: str
    pop: str
    tokens_per_s: float
    idle_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`memory_bytes` is what one replica occupies, weights and the floor of its KV cache. `tokens_per_s` is what one
    replica computes when it is always busy."""

    name: str
    task: str
    memory_bytes: int
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node that takes calls. `loaded` has the models that are ready or loading, with the bytes that each occupies.
    `memory_bytes` is 0 if the node does not report its memory: such a node has room for `max_unknown` models."""

    node_id: str
    pop: str
    memory_bytes: int
    tasks: frozenset[str]
    loaded: Mapping[str, int] = field(default_factory=dict)
    pinned: frozenset[str] = frozenset()
    can_pin: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """Constants of the plan.

    A replica is planned for each `target_utilization` of a replica's speed. Between one and `1 + tolerance` times that
    no replica is added, and a lower target applies only after `down_delay_s` seconds in which every plan was lower:
    replicas do not flap. A PoP hosts a model if its demand is at least `own_share` of a replica's speed; smaller demand
    goes to the nearest PoP that hosts the model. After `idle_s` without a call, a model is scaled to zero.
    `usable_memory` is the part of a node's memory that replicas may occupy, and `most_busy` the part of its time up to
    which a node gets more replicas.
    """

    target_utilization: float = 0.7
    tolerance: float = 0.1
    down_delay_s: float = 300.0
    idle_s: float = 900.0
    own_share: float = 0.05
    usable_memory: float = 0.9
    most_busy: float = 0.85
    max_unknown: int = 4


@dataclass(frozen=True, slots=True)
class Level:
    """The replicas that one model has in one PoP according to the last plan. Since `lower_since_s`, every plan has
    asked for fewer, at most for `lower_max`; None if the last plan has not. `num_guests` more replicas are in the PoP
    because other PoPs are full."""

    num_replicas: int
    lower_since_s: float | None = None
    lower_max: int = 0
    num_guests: int = 0


@dataclass(frozen=True, slots=True)
class Target:
    """Replicas of a model in a PoP: the planned number, the present number, and the reason."""

    model: str
    pop: str
    num_replicas: int
    num_current: int
    tokens_per_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one node."""

    action: Action
    model: str
    node_id: str
    pop: str
    reason: str


@dataclass(frozen=True, slots=True)
class Unplaced:
    """Replicas for which no node has room."""

    model: str
    pop: str
    num_replicas: int
    reason: str


@dataclass(frozen=True)
class Inputs:
    """Everything that a plan depends on. `neighbors` lists, for each PoP with demand or nodes, the PoPs with nodes,
    nearest first. `levels` come from the last plan."""

    now_s: float
    demand: Sequence[Demand]
    nodes: Sequence[NodeFacts]
    models: Mapping[str, ModelFacts]
    neighbors: Mapping[str, Sequence[str]]
    overrides: Sequence[Override] = ()
    reservations: Sequence[Reservation] = ()
    levels: Mapping[Key, Level] = field(default_factory=dict)
    policy: Policy = Policy()


@dataclass(frozen=True)
class Plan:
    """Targets of all models and PoPs, the changes that lead there, and the levels for the next plan."""

    targets: tuple[Target, ...]
    changes: tuple[Change, ...]
    unplaced: tuple[Unplaced, ...]
    levels: Mapping[Key, Level]
