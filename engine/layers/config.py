"""What each kind of layer is built from, as data. Knows no family and no tensor."""

from __future__ import annotations

from dataclasses import dataclass

from engine.kernels.interface import GATED_SILU, Activation


@dataclass(frozen=True)
class NormConfig:
    """`kind` is rms or layer; `offset` is added to the stored weight."""

    kind: str = "rms"
    eps: float = 1e-6
    offset: float = 0.0
    has_bias: bool = False


RMS_NORM = NormConfig()


@dataclass(frozen=True)
class LatentConfig:
    """Keys and values from one latent of a token, kept in their place, beside a rotated key that all heads shard.

    `query_rank` None: queries are projected directly.
    """

    query_rank: int | None
    rank: int
    plain_dim: int  # of a query head, the part without position
    rotary_dim: int
    value_dim: int
    eps: float


@dataclass(frozen=True)
class AttentionConfig:
    """What the attention of every layer has in common. `has_bias` is of queries, keys and values."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float | None = None
    softcap: float | None = None
    has_bias: bool = False
    has_output_bias: bool = False
    has_sinks: bool = False
    latent: LatentConfig | None = None


@dataclass(frozen=True)
class MlpConfig:
    """A feed-forward of one pair of matrices."""

    inner: int
    activation: Activation = GATED_SILU
    has_bias: bool = False


@dataclass(frozen=True)
class RouterConfig:
    """How `num_chosen` experts are found for each token, and what their outputs weigh.

    `score` is softmax (over all experts) or sigmoid. With groups, only experts of the `num_chosen_groups` best of
    `num_groups` are looked at; a group is as good as the sum of its `num_group_leaders` best.
    """

    num_chosen: int
    score: str = "softmax"
    is_normalized: bool = True
    scale: float = 1.0
    num_groups: int = 1
    num_chosen_groups: int = 1
    num_group_leaders: int = 1
    has_bias: bool = False
    has_correction: bool = False  # a bias that takes part in choosing, not in weighing


@dataclass(frozen=True)
class ExpertNames:
    """What a checkpoint calls the parts of a mixture, and how it lays out matrices that hold all experts."""

    router: str = "gate"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    shared: str = "shared_expert"
    is_stacked: bool = False  # always one matrix for all experts, each transposed; else as the checkpoint has it
    is_interleaved: bool = False  # gate and up alternate


@dataclass(frozen=True)
class MoeConfig:
    """A feed-forward of many experts, a few of which each token goes through."""

    num_experts: int
    inner: int
    router: RouterConfig
    activation: Activation = GATED_SILU
    has_bias: bool = False
    shared: MlpConfig | None = None  # an expert for every token
    is_shared_gated: bool = False
    is_input_weighted: bool = False  # weights multiply what goes in, not what comes out
    names: ExpertNames = ExpertNames()
