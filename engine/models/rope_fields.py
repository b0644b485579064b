"""Read the rotary positions of a `config.json` in every spelling that is in use.

transformers 4 writes `rope_theta` beside `rope_scaling`, 5 puts both into `rope_parameters`; older files write `type`
for `rope_type` and `su` for `longrope`.
"""

from __future__ import annotations

from dataclasses import replace

from engine.models.config import LayerConfig, ModelConfig, RopeConfig
from engine.models.fields import Fields
from engine.models.sliding_window import FULL, SLIDING

_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
_NUM_AXES = 3


def read_rope(fields: Fields, head_dim: int, max_positions: int, can_be_partial: bool = False) -> RopeConfig:
    """Return the positions that `fields` describe. Raises UnsupportedModel naming the field."""
    parameters = fields.inner("rope_scaling" if fields.raw.get("rope_parameters") in (None, {}) else "rope_parameters")
    for name in (FULL, SLIDING):
        if name in parameters:
            raise parameters.refusal(name, "not supported: all layers of this architecture have the same positions")
    kind = parameters.word("rope_type", parameters.word("type", "default"))
    kind = "longrope" if kind == "su" else kind
    if kind not in _KINDS:
        raise parameters.refusal("rope_type", f"rope_type {kind!r} is not supported ({', '.join(_KINDS)} are)")
    rope = _unscaled(fields, parameters, head_dim, can_be_partial)
    if kind in ("default", "dynamic"):  # dynamic scaling has no effect within the trained context
        return rope
    original = fields if "original_max_position_embeddings" in fields else parameters  # the outer field has precedence
    original_max = original.whole("original_max_position_embeddings", 1, 1 << 26, default=max_positions)
    rope = replace(rope, kind=kind, original_max_positions=original_max)
    attention_factor = parameters.number("attention_factor", 0.0, 1e3, default=0.0) or None
    if kind == "llama3":
        return _llama3(rope, parameters)
    rope = replace(rope, attention_factor=attention_factor)
    if kind == "longrope":
        return _longrope(rope, parameters, head_dim, max_positions)
    return _linear_or_yarn(rope, parameters)


def read_axis_sections(fields: Fields, head_dim: int) -> tuple[int, ...]:
    """Return the number of frequencies of each axis, see `RopeConfig.sections`. Raises UnsupportedModel."""
    name = "rope_scaling" if fields.raw.get("rope_parameters") in (None, {}) else "rope_parameters"
    half = head_dim // 2
    sections = fields.inner(name).raw.get("mrope_section", [half // 4, half * 3 // 8, half - half // 4 - half * 3 // 8])
    is_valid = isinstance(sections, list) and len(sections) == _NUM_AXES and all(type(each) is int for each in sections)
    if not is_valid or min(sections) < 1 or sum(sections) != half:
        raise fields.refusal("mrope_section", f"must be {_NUM_AXES} numbers whose sum is {half}")
    return tuple(sections)


def _unscaled(fields: Fields, parameters: Fields, head_dim: int, can_be_partial: bool) -> RopeConfig:
    """Return the unscaled positions: base frequency, and the rotated size of a head."""
    theta = (parameters if "rope_theta" in parameters else fields).number("rope_theta", 1.001, 1e12, default=10000.0)
    source = parameters if "partial_rotary_factor" in parameters else fields
    factor = source.number("partial_rotary_factor", 0.0, 1.0, default=1.0)
    if factor != 1.0 and not can_be_partial:
        raise parameters.refusal("partial_rotary_factor", "not supported: this architecture rotates whole heads")
    rotary_dim = int(head_dim * factor)
    if rotary_dim < 2 or rotary_dim % 2 or head_dim % 2:
        raise fields.refusal("head_dim", f"the head size and its rotated size ({rotary_dim}) must be even and above 0")
    return RopeConfig(theta=theta, rotary_dim=0 if rotary_dim == head_dim else rotary_dim)


def _longrope(rope: RopeConfig, parameters: Fields, head_dim: int, max_positions: int) -> RopeConfig:
    count = (rope.rotary_dim or head_dim) // 2
    return replace(
        rope,
        factor=parameters.number("factor", 1e-3, 1e6, default=max_positions / rope.original_max_positions),
        short_factors=parameters.numbers("short_factor", count, 1e-6, 1e6),
        long_factors=parameters.numbers("long_factor", count, 1e-6, 1e6),
    )


def _linear_or_yarn(rope: RopeConfig, parameters: Fields) -> RopeConfig:
    """Return linear or YaRN scaling. Linear scaling uses only the factor."""
    return replace(
        rope,
        factor=parameters.number("factor", 1e-3, 1e6),
        beta_fast=parameters.number("beta_fast", 1e-6, 1e6, default=32.0),
        beta_slow=parameters.number("beta_slow", 1e-6, 1e6, default=1.0),
        mscale=parameters.number("mscale", 0.0, 1e3, default=0.0),
        mscale_all_dim=parameters.number("mscale_all_dim", 0.0, 1e3, default=0.0),
        is_truncated=parameters.flag("truncate", default=True),
    )


def _llama3(rope: RopeConfig, parameters: Fields) -> RopeConfig:
    factor = parameters.number("factor", 1e-3, 1e6)
    low = parameters.number("low_freq_factor", 1e-6, 1e6)
    high = parameters.number("high_freq_factor", 1e-6, 1e6)
    if low > high:
        raise parameters.refusal("low_freq_factor", f"more than high_freq_factor={high:g}")
    return replace(rope, factor=factor, low_freq_factor=low, high_freq_factor=high)


def with_interleaved_pairs(config: ModelConfig) -> ModelConfig:
    """Return a copy whose positions rotate adjacent numbers of a head together."""

    def change(_index: int, layer: LayerConfig) -> LayerConfig:
        if not isinstance(layer.positions, RopeConfig):
            return layer
        return replace(layer, positions=replace(layer.positions, is_interleaved=True))

    return config.with_layers(change)
