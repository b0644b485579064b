"""ModelConfig: what a `config.json` says a decoder is, checked before anything is allocated.

Reads both spellings in use (transformers 4: `rope_theta` + `rope_scaling`, 5: `rope_parameters`). Never runs code that
a checkpoint names. Knows fields, not tensors: whether an architecture can be built is the registry's to say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

_MAX_JSON_BYTES = 4 * 1024 * 1024
_MISTRAL_WINDOW = 4096  # the published default where the key is absent


class UnsupportedModel(Exception):
    """The model cannot be served; the text names the architecture or the field."""


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding. `kind` is default, linear, llama3 or yarn; fields of other kinds keep defaults."""

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    is_truncated: bool = True


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder-only transformer. `sliding_window` counts the positions a token sees, itself included."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    rms_norm_eps: float = 1e-6
    rope: RopeConfig = RopeConfig()
    is_head_tied: bool = False
    has_attention_bias: bool = False
    has_mlp_bias: bool = False
    sliding_window: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None


def read_config(model_dir: Path) -> ModelConfig:
    """The config of the checkpoint in `model_dir`; `generation_config.json`, where present, says what ends text.

    Raises UnsupportedModel.
    """
    config = parse_config(_read_json(model_dir / "config.json"))
    generation_path = model_dir / "generation_config.json"
    if not generation_path.exists():
        return config
    generation = _Fields(_read_json(generation_path), "generation_config.json")
    eos_token_ids = generation.token_ids("eos_token_id", config.vocab_size)
    return replace(config, eos_token_ids=eos_token_ids) if eos_token_ids else config


def parse_config(raw: Mapping[str, Any]) -> ModelConfig:
    """A ModelConfig from the parsed JSON. Raises UnsupportedModel naming the field."""
    fields = _Fields(raw, "config.json")
    architecture = _architecture(raw)
    hidden_size = fields.whole("hidden_size", 1, 1 << 17)
    num_heads = fields.whole("num_attention_heads", 1, 1024)
    num_kv_heads = fields.whole("num_key_value_heads", 1, 1024, default=num_heads)
    if num_heads % num_kv_heads:
        raise UnsupportedModel(
            f"config.json: num_attention_heads={num_heads} is not a multiple of num_key_value_heads={num_kv_heads}"
        )
    if raw.get("head_dim") is None and hidden_size % num_heads:
        raise UnsupportedModel(
            f"config.json: hidden_size={hidden_size} is not a multiple of num_attention_heads={num_heads}"
        )
    head_dim = fields.whole("head_dim", 2, 1024, default=hidden_size // num_heads)
    if head_dim % 2:
        raise UnsupportedModel(f"config.json: head_dim={head_dim} must be even for rotary positions")
    vocab_size = fields.whole("vocab_size", 2, 1 << 24)
    max_positions = fields.whole("max_position_embeddings", 1, 1 << 26, default=2048)
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModel(f"config.json: hidden_act={activation!r} is not supported (silu is)")
    return ModelConfig(
        architecture=architecture,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=fields.whole("intermediate_size", 1, 1 << 20),
        num_layers=fields.whole("num_hidden_layers", 1, 1024),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_positions=max_positions,
        rms_norm_eps=fields.number("rms_norm_eps", 0.0, 1.0, default=1e-6),
        rope=_rope(raw, max_positions),
        is_head_tied=fields.flag("tie_word_embeddings"),
        has_attention_bias=fields.flag("attention_bias"),
        has_mlp_bias=fields.flag("mlp_bias"),
        sliding_window=_sliding_window(fields, architecture),
        eos_token_ids=fields.token_ids("eos_token_id", vocab_size),
        bos_token_id=next(iter(fields.token_ids("bos_token_id", vocab_size)), None),
    )


def _architecture(raw: Mapping[str, Any]) -> str:
    if raw.get("auto_map"):
        raise UnsupportedModel("config.json: auto_map asks for code from the checkpoint; that is never run")
    if raw.get("quantization_config"):
        raise UnsupportedModel("config.json: quantization_config: quantised checkpoints are not supported")
    names = raw.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise UnsupportedModel(f"config.json: architectures={names!r}: expected a list with one name")
    return names[0]


def _sliding_window(fields: _Fields, architecture: str) -> int | None:
    if not architecture.startswith("Mistral"):
        return None
    if "sliding_window" not in fields.raw:
        return _MISTRAL_WINDOW
    return None if fields.raw["sliding_window"] is None else fields.whole("sliding_window", 1, 1 << 26)


def _rope(raw: Mapping[str, Any], max_positions: int) -> RopeConfig:
    parameters = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(parameters, Mapping):
        raise UnsupportedModel("config.json: rope_parameters is not an object")
    fields = _Fields(parameters, "config.json rope_parameters")
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in ("default", "linear", "dynamic", "llama3", "yarn"):
        raise UnsupportedModel(f"config.json: rope_type={kind!r} is not supported")
    if fields.number("partial_rotary_factor", 0.0, 1.0, default=1.0) != 1.0:
        raise UnsupportedModel("config.json: partial_rotary_factor other than 1 is not supported")
    theta_fields = fields if "rope_theta" in parameters else _Fields(raw, "config.json")
    theta = theta_fields.number("rope_theta", 1.0, 1e12, default=10000.0)
    if kind in ("default", "dynamic"):  # dynamic scaling changes nothing within the trained context, all we offer
        return RopeConfig(theta=theta)
    original_default = raw.get("original_max_position_embeddings") or max_positions
    rope = RopeConfig(
        theta=theta,
        kind=kind,
        factor=fields.number("factor", 1e-3, 1e6),
        low_freq_factor=fields.number("low_freq_factor", 1e-6, 1e6, default=None if kind == "llama3" else 1.0),
        high_freq_factor=fields.number("high_freq_factor", 1e-6, 1e6, default=None if kind == "llama3" else 4.0),
        original_max_positions=fields.whole("original_max_position_embeddings", 1, 1 << 26, default=original_default),
        attention_factor=fields.number("attention_factor", 0.0, 1e3, default=0.0) or None,
        beta_fast=fields.number("beta_fast", 0.0, 1e6, default=32.0) or 32.0,
        beta_slow=fields.number("beta_slow", 0.0, 1e6, default=1.0) or 1.0,
        mscale=fields.number("mscale", 0.0, 1e3, default=0.0),
        mscale_all_dim=fields.number("mscale_all_dim", 0.0, 1e3, default=0.0),
        is_truncated=fields.flag("truncate", default=True),
    )
    if kind == "llama3" and rope.low_freq_factor == rope.high_freq_factor:
        raise UnsupportedModel("config.json: low_freq_factor and high_freq_factor must differ")
    return rope


class _Fields:
    """Typed reads from one JSON object; every refusal names the file and the field."""

    def __init__(self, raw: Mapping[str, Any], where: str) -> None:
        self.raw = raw
        self._where = where

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise UnsupportedModel(f"{self._where}: {name}={value!r}: expected a whole number from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise UnsupportedModel(f"{self._where}: {name}={value!r}: expected a number from {low:g} to {high:g}")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise UnsupportedModel(f"{self._where}: {name}={value!r}: expected true or false")
        return value

    def token_ids(self, name: str, vocab_size: int) -> tuple[int, ...]:
        """One id, a list of ids, or none at all. Ids outside the vocabulary are refused."""
        value = self.raw.get(name)
        values = [] if value is None else value if isinstance(value, list) else [value]
        for token_id in values:
            if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
                raise UnsupportedModel(f"{self._where}: {name}={value!r}: not a token id below {vocab_size}")
        return tuple(values)

    def _value(self, name: str, default: Any) -> Any:
        value = self.raw.get(name)
        if value is not None:
            return value
        if default is None:
            raise UnsupportedModel(f"{self._where}: {name} is missing")
        return default


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        size_bytes = path.stat().st_size
        if size_bytes > _MAX_JSON_BYTES:
            raise UnsupportedModel(f"{path.name}: {size_bytes} bytes is too large for a model config")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise UnsupportedModel(f"{path.name} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UnsupportedModel(f"{path.name} is not JSON") from None
    if not isinstance(value, dict):
        raise UnsupportedModel(f"{path.name} is not a JSON object")
    return value
