"""Configuration of each kind of layer, as data. Knows no family and no tensor."""

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
    """Latent attention: keys and values come from one cached latent per token, beside one rotated key shared by all
    heads.

    `query_rank` None: queries are projected directly.
    """

    query_rank: int | None
    rank: int
    plain_dim: int  # size of the part of a query head without position
    rotary_dim: int
    value_dim: int
    eps: float


@dataclass(frozen=True)
class AttentionConfig:
    """Attention settings common to all layers. `has_bias` concerns queries, keys and values."""

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
    """The selection of `num_chosen` experts per token, and the weights of their outputs.

    `score` is softmax (over all experts) or sigmoid. With groups, only experts of the best `num_chosen_groups` of
    `num_groups` are considered; a group's score is the sum of its best `num_group_leaders` experts.
    """

    num_chosen: int
    score: str = "softmax"
    is_normalized: bool = True
    scale: float = 1.0
    num_groups: int = 1
    num_chosen_groups: int = 1
    num_group_leaders: int = 1
    has_bias: bool = False
    has_correction: bool = False  # a bias that affects selection, but not weights


@dataclass(frozen=True)
class ExpertNames:
    """A checkpoint's names for the parts of a mixture of experts, and its layout of matrices that hold all experts."""

    router: str = "gate"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    shared: str = "shared_expert"
    is_stacked: bool = False  # always one transposed matrix for all experts; otherwise as stored in the checkpoint
    is_interleaved: bool = False  # gate and up alternate


@dataclass(frozen=True)
class MoeConfig:
    """A feed-forward of many experts; each token uses a few."""

    num_experts: int
    inner: int
    router: RouterConfig
    activation: Activation = GATED_SILU
    has_bias: bool = False
    shared: MlpConfig | None = None  # an expert used by every token
    is_shared_gated: bool = False
    is_input_weighted: bool = False  # weights multiply the inputs instead of the outputs
    names: ExpertNames = ExpertNames()
