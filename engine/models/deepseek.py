"""DeepSeek V2 and V3: Llama with latent attention and, except in the first layers, mixtures beside shared experts whose
router selects experts within the best groups."""

from __future__ import annotations

from dataclasses import replace

from engine.kernels.interface import Activation
from engine.layers.config import ExpertNames, LatentConfig, MlpConfig, MoeConfig, RouterConfig
from engine.models.config import ModelConfig, RopeConfig
from engine.models.fields import Fields
from engine.models.llama import llama, read_activation
from engine.models.mixtures import read_num_experts, read_router, with_mixture
from engine.models.rope import yarn_mscale
from engine.models.rope_fields import with_interleaved_pairs

_EXPERTS = ExpertNames(shared="shared_experts")
_NORM_EPS = 1e-6  # epsilon of the latents' norms; the config's epsilon is for the residual stream


def deepseek_v2(fields: Fields) -> ModelConfig:
    """Read a config whose scores are a softmax. Groups are ranked by their best expert."""
    fields = fields.with_defaults(q_lora_rank=1536)
    _require_score(fields, "softmax")
    method = fields.word("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise fields.refusal("topk_method", "not supported (greedy, group_limited_greedy are)")
    router = replace(_router(fields, has_groups=method != "greedy"), is_normalized=False)
    return _deepseek(fields, router, default_dense=0, default_shared=2, is_interleaved=True)


def deepseek_v3(fields: Fields) -> ModelConfig:
    """Read a config whose scores are sigmoids with a correction. Groups are ranked by their best two experts."""
    fields = fields.with_defaults(
        q_lora_rank=1536, n_group=8, topk_group=4, routed_scaling_factor=2.5, max_position_embeddings=4096
    )
    _require_score(fields, "sigmoid")
    router = replace(
        _router(fields, has_groups=True),
        score="sigmoid",
        is_normalized=fields.flag("norm_topk_prob", default=True),
        has_correction=True,
        num_group_leaders=2,
    )
    if router.num_groups > 1 and read_num_experts(fields, "n_routed_experts") < 2 * router.num_groups:
        raise fields.refusal("n_group", "groups are ranked by their best two experts but have only one")
    is_interleaved = fields.flag("rope_interleave", default=True)
    config = _deepseek(fields, router, default_dense=3, default_shared=1, is_interleaved=is_interleaved)
    num_draft_layers = fields.whole(
        "num_nextn_predict_layers", 0, 64, default=0
    )  # tensors of the draft layers, which are not used
    drafts = tuple(f"model.layers.{config.num_layers + index}." for index in range(num_draft_layers))
    return replace(config, ignored=drafts)


def _deepseek(
    fields: Fields, router: RouterConfig, *, default_dense: int, default_shared: int, is_interleaved: bool
) -> ModelConfig:
    if fields.whole("moe_layer_freq", 1, 1 << 16, default=1) != 1:
        raise fields.refusal("moe_layer_freq", "not supported (1 is)")
    latent = LatentConfig(
        fields.whole("q_lora_rank", 1, 1 << 16) if "q_lora_rank" in fields else None,
        fields.whole("kv_lora_rank", 1, 1 << 14, default=512),
        fields.whole("qk_nope_head_dim", 1, 1024, default=128),
        fields.whole("qk_rope_head_dim", 2, 1024, default=64),
        fields.whole("v_head_dim", 1, 1024, default=128),
        _NORM_EPS,
    )
    # `llama` reads the rotary positions for the rotated part of a head.
    plain = {**fields.raw, "head_dim": latent.rotary_dim, "num_key_value_heads": None}
    config = llama(Fields(plain, fields.where))
    attention = config.attention
    config = replace(config, attention=replace(attention, latent=latent, scale=_scale(config, latent)))
    config = with_interleaved_pairs(config) if is_interleaved else config
    num_dense = fields.whole("first_k_dense_replace", 0, 1 << 16, default=default_dense)
    inner, activation = fields.whole("moe_intermediate_size", 1, 1 << 20), Activation(read_activation(fields))
    num_shared = fields.whole("n_shared_experts", 0, 1024, default=default_shared)
    shared = MlpConfig(inner * num_shared, activation, fields.flag("mlp_bias")) if num_shared else None
    num_experts = read_num_experts(fields, "n_routed_experts")
    moe = MoeConfig(num_experts, inner, router, activation, shared=shared, names=_EXPERTS)
    return with_mixture(config, moe, lambda index: index >= num_dense)


def _router(fields: Fields, *, has_groups: bool) -> RouterConfig:
    num_experts = read_num_experts(fields, "n_routed_experts")
    router = replace(
        read_router(fields, num_experts, default=min(8, num_experts)),
        scale=fields.number("routed_scaling_factor", 1e-6, 1e6, default=1.0),
    )
    if not has_groups:
        return router
    num_groups = fields.whole("n_group", 1, num_experts, default=1)
    if num_experts % num_groups:
        raise fields.refusal("n_group", f"does not divide n_routed_experts={num_experts}")
    num_chosen_groups = fields.whole("topk_group", 1, num_groups, default=1)
    if router.num_chosen > num_chosen_groups * (num_experts // num_groups):
        raise fields.refusal("num_experts_per_tok", f"more than topk_group={num_chosen_groups} groups have")
    return replace(router, num_groups=num_groups, num_chosen_groups=num_chosen_groups)


def _require_score(fields: Fields, score: str) -> None:
    if fields.word("scoring_func", score) != score:
        raise fields.refusal("scoring_func", f"not supported in this architecture ({score} is)")


def _scale(config: ModelConfig, latent: LatentConfig) -> float:
    """Return the factor of attention scores, which includes `mscale_all_dim` of a stretched context."""
    scale, rope = (latent.plain_dim + latent.rotary_dim) ** -0.5, config.layers[0].positions
    if isinstance(rope, RopeConfig) and rope.mscale_all_dim:
        scale *= yarn_mscale(rope.factor, rope.mscale_all_dim) ** 2
    return scale
