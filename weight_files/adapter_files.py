"""Check a LoRA adapter in PEFT's format. Both files are untrusted.

`adapter_config.json` contains rank, scale and modules; `adapter_model.safetensors` has two matrices per module: A
[rank, in] and B [out, rank], which add scale × B A to the module's weight. Anything else (DoRA, trained biases, whole
modules, a changed base) is rejected by its field's name. Reads no values and needs no device library: uploads, node
fronts and loading processes all use these checks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weight_files.safetensors_header import Extent, HeaderError, parse_object, read_header

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
MAX_CONFIG_BYTES = 64 * 1024
MAX_RANK = 64  # the engine's limit; a platform may set a lower one
_MAX_MODULES = 16_384  # per file
_MAX_NAMES = 1024  # per list of the config
_MAX_NAME = 256
_MAX_ALPHA = 1e6
_DTYPES = ("F32", "F16", "BF16")

ROOT = r"(?:model\.|language_model\.model\.|model\.language_model\.)?"  # prefix of a base's decoder
LAYER = r"layers\.(?:0|[1-9][0-9]{0,3})\."
_TENSOR = re.compile(  # base_model.model. is PEFT's prefix
    rf"(?:base_model\.model\.)?{ROOT}({LAYER}[A-Za-z0-9_.]{{1,128}})\.lora_(A|B)(?:\.default)?\.weight"
)
_WHOLE = re.compile(r"(?:embed_tokens|lm_head)(?:\.base_layer)?\.(?:weight|bias)$")  # PEFT may add these by itself
# A name in a pattern: PEFT matches it at the end of a name, or from the start after a ^.
_NAME_AS_PATTERN = re.compile(
    r"((?:[A-Za-z0-9_]|\\?\.)+)\$?|\^((?:language_)?model(?:\\?\.)(?:[A-Za-z0-9_]|\\?\.)+)\$?"
)
# Fields that change the result, and the values that disable them.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "use_dora": (False,),
    "modules_to_save": ([],),
    "bias": ("none",),
    "lora_bias": (False,),
    "fan_in_fan_out": (False,),
    "layer_replication": ([],),
    "use_qalora": (False,),
    "trainable_token_indices": ([],),
    "target_parameters": ([],),
    "alora_invocation_tokens": ([],),
}
_EMPTY: tuple[Any, ...] = (False, [], {})  # values that disable a variant of any name
_UNCHANGED = ("lm_head", "embed_tokens")  # must not be changed by an adapter
# Fields about initialization, training or storage, which do not affect the result.
_HARMLESS = (
    "use_rslora",  # read below
    "qalora_group_size",
    "loftq_config",
    "eva_config",
    "corda_config",
    "lora_ga_config",
    "runtime_config",
)
_VARIANT = re.compile(r"use_\w+|\w+_config")  # PEFT's naming scheme of variants of LoRA
_EXCEPTIONS = ("exclude_modules", "layers_to_transform")
_CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


Sites = Mapping[str, tuple[int, int] | None]
"""Modules that can be changed, and their (in, out); None where that is not known."""


class AdapterError(Exception):
    """The adapter is not supported; the text names the file, the field or tensor, and the limit."""


@dataclass(frozen=True)
class AdapterSettings:
    """The content of `adapter_config.json`. `rank_pattern` and `alpha_pattern` are exceptions by module."""

    rank: int
    alpha: float
    is_rank_stabilised: bool
    target_modules: tuple[str, ...]  # last parts of names; empty for any (a pattern or "all-linear")
    has_exceptions: bool  # True if not every module of those names is changed
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    model_type: str

    @property
    def max_rank(self) -> int:
        return max(self.rank, *self.rank_pattern.values()) if self.rank_pattern else self.rank

    def scale_of(self, module: str, rank: int) -> float:
        """Return the factor of B A for a module `layers.N.…` whose matrices have `rank`."""
        alpha = _find(self.alpha_pattern, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.is_rank_stabilised else rank)

    def rank_of(self, module: str) -> int:
        return int(_find(self.rank_pattern, module, self.rank))


@dataclass(frozen=True)
class Change:
    """An adapter's change of one module: scale × B A. A is [rank, num_in], B [num_out, rank]."""

    rank: int
    scale: float
    num_in: int
    num_out: int
    a: Extent
    b: Extent
    a_name: str
    b_name: str


@dataclass(frozen=True)
class AdapterForm:
    """A whole adapter: its changes by module (`layers.0.self_attn.q_proj`)."""

    settings: AdapterSettings
    changes: Mapping[str, Change]

    @property
    def max_rank(self) -> int:
        return max(change.rank for change in self.changes.values())


def parse_settings(text: bytes, max_rank: int = MAX_RANK) -> AdapterSettings:
    """Read `adapter_config.json`. Raises AdapterError."""
    if len(text) > MAX_CONFIG_BYTES:
        raise AdapterError(f"{CONFIG_FILE} must have at most {MAX_CONFIG_BYTES} bytes (got {len(text)})")
    try:
        config = parse_object(text, CONFIG_FILE)
    except HeaderError as error:
        raise AdapterError(str(error)) from None
    if str(config.get("peft_type", "LORA")).upper() != "LORA":
        raise _fault("peft_type", "must be LORA")
    if config.get("task_type") not in (None, "CAUSAL_LM"):
        raise _fault("task_type", "must be CAUSAL_LM")
    for field, value in config.items():
        is_variant = _VARIANT.fullmatch(field) is not None and field not in _HARMLESS
        disabled = _UNSUPPORTED.get(field, _EMPTY if is_variant else None)
        if disabled is None or value is None or any(value == each and type(value) is type(each) for each in disabled):
            continue
        raise _fault(field[:100], "is not supported: only plain LoRA matrices are")
    initialization = config.get("init_lora_weights")
    if isinstance(initialization, str) and initialization.lower().startswith(_CHANGED_BASE):
        raise _fault("init_lora_weights", "changes the base model: convert the adapter to plain LoRA first")
    return AdapterSettings(
        rank=_rank(config.get("r"), "r", max_rank),
        alpha=_alpha(config.get("lora_alpha"), "lora_alpha"),
        is_rank_stabilised=_flag(config, "use_rslora"),
        target_modules=_target_modules(config.get("target_modules")),
        has_exceptions=any(config.get(field) not in (None, "", []) for field in _EXCEPTIONS),
        rank_pattern=_pattern(config, "rank_pattern", lambda value, field: _rank(value, field, max_rank)),
        alpha_pattern=_pattern(config, "alpha_pattern", _alpha),
        model_type=_word(config, "model_type"),
    )


def read_changes(weights: Path, settings: AdapterSettings | None, max_rank: int = MAX_RANK) -> dict[str, Change]:
    """Check the header of `adapter_model.safetensors` against the settings, if known (without them a change has no
    scale). Returns the changes by module. Raises AdapterError."""
    try:
        extents = read_header(weights)
    except HeaderError as error:
        raise AdapterError(str(error)) from None
    pairs: dict[str, dict[str, str]] = {}
    for name, extent in extents.items():
        match = _TENSOR.fullmatch(name)
        if match is None:
            hint = ": save the adapter with save_embedding_layers=False" if _WHOLE.search(name) else ""
            raise AdapterError(f"{WEIGHTS_FILE}: {name[:200]!r} is not a LoRA matrix of a layer's module{hint}")
        if extent.dtype not in _DTYPES:
            raise AdapterError(
                f"{WEIGHTS_FILE}: {name[:200]!r} has type {extent.dtype}; supported are {', '.join(_DTYPES)}"
            )
        if pairs.setdefault(match[1], {}).setdefault(match[2], name) != name:
            raise AdapterError(f"{WEIGHTS_FILE}: {match[1]!r} has two matrices lora_{match[2]}")
    if not pairs:
        raise AdapterError(f"{WEIGHTS_FILE} contains no matrix")
    if len(pairs) > _MAX_MODULES:
        raise AdapterError(f"{WEIGHTS_FILE} changes {len(pairs)} modules; at most {_MAX_MODULES} are supported")
    changes = {module: _change(module, pair, extents, settings, max_rank) for module, pair in sorted(pairs.items())}
    if settings is not None:
        _check_targets(settings, changes)
    return changes


def read_adapter(folder: Path, max_rank: int = MAX_RANK) -> AdapterForm:
    """Check both files of the adapter in `folder`. Raises AdapterError."""
    path = folder / CONFIG_FILE
    try:
        if not path.is_file() or path.stat().st_size > MAX_CONFIG_BYTES:
            raise AdapterError(f"{CONFIG_FILE} is missing or has more than {MAX_CONFIG_BYTES} bytes")
        text = path.read_bytes()
    except OSError as error:
        raise AdapterError(f"{CONFIG_FILE} cannot be read: {error.strerror}") from None
    settings = parse_settings(text, max_rank)
    return AdapterForm(settings, read_changes(folder / WEIGHTS_FILE, settings, max_rank))


def check_fit(form: AdapterForm, sites: Sites, architecture: str = "") -> None:
    """Check that an adapter fits a base. Models of two families may have the same sites. Raises AdapterError."""
    if architecture:
        check_family(form.settings, architecture)
    check_shapes(form.changes, sites)


def check_family(settings: AdapterSettings, architecture: str) -> None:
    """Check that `model_type`, if present, is of the `architecture`'s family, ignoring numbers: `llama` and `llama4`
    match, `llama` and `mistral` do not. Raises AdapterError."""
    model_type = settings.model_type
    if model_type and _family_of(model_type) != _family_of(architecture):
        raise _fault("model_type", f"is {model_type!r}, but the model is of another family ({architecture})")


def check_shapes(changes: Mapping[str, Change], sites: Sites) -> None:
    """Check modules and shapes; `sites` has every module that can be changed. Raises AdapterError."""
    for module, change in changes.items():
        if module not in sites:
            raise AdapterError(f"{WEIGHTS_FILE}: the model has no module {module!r} that an adapter can change")
        shape = sites[module]
        if shape is not None and shape != (change.num_in, change.num_out):
            raise AdapterError(
                f"{WEIGHTS_FILE}: {module!r} maps {change.num_in} to {change.num_out}, "
                f"the model's maps {shape[0]} to {shape[1]}: the adapter is for another base model"
            )


def _change(
    module: str, pair: Mapping[str, str], extents: Mapping[str, Extent], settings: AdapterSettings | None, max_rank: int
) -> Change:
    for letter in "AB":
        if letter not in pair:
            raise AdapterError(f"{WEIGHTS_FILE}: {module!r} has no matrix lora_{letter}")
    a, b = extents[pair["A"]], extents[pair["B"]]
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1]:
        raise AdapterError(
            f"{WEIGHTS_FILE}: {module!r} has A {list(a.shape)} and B {list(b.shape)}, which cannot be multiplied"
        )
    rank = a.shape[0]
    if not 1 <= rank <= max_rank:
        raise AdapterError(f"{WEIGHTS_FILE}: {module!r} has rank {rank}; at most {max_rank} is supported")
    if settings is not None and rank != settings.rank_of(module):
        raise AdapterError(
            f"{WEIGHTS_FILE}: {module!r} has rank {rank}, but {CONFIG_FILE} has rank {settings.rank_of(module)}"
        )
    scale = math.nan if settings is None else settings.scale_of(module, rank)
    return Change(rank, scale, a.shape[1], b.shape[0], a, b, pair["A"], pair["B"])


def _check_targets(settings: AdapterSettings, changes: Mapping[str, Change]) -> None:
    """Check that every listed target module is present and, without exceptions, that all its modules are."""
    if not settings.target_modules:
        return
    targets = set(settings.target_modules)
    found = set()
    for module in changes:
        named = _suffixes(module) & targets
        if not named:
            raise AdapterError(f"{WEIGHTS_FILE}: {module!r} is not among target_modules of {CONFIG_FILE}")
        found |= named
    if targets - found and not settings.has_exceptions:
        raise _fault("target_modules", f"names {min(targets - found)!r}, which has no matrix in {WEIGHTS_FILE}")


def _suffixes(module: str) -> set[str]:
    """Return the names that a config may use for a module: `q_proj` and `self_attn.q_proj` for
    `layers.0.self_attn.q_proj`."""
    parts = module.split(".")
    return {".".join(parts[first:]) for first in range(len(parts))}


def _find(pattern: Mapping[str, float], module: str, default: float) -> float:
    """Return the value of the first key that names the module."""
    names = _suffixes(module) if pattern else set()
    return next((value for key, value in pattern.items() if key in names), default)


def _family_of(name: str) -> str:
    """Return the letters before the first number of a `model_type` (`qwen2_moe`) or architecture."""
    letters = re.match(r"[a-z]*", name.partition("For")[0].lower().replace("_", "").replace("-", ""))
    return letters[0] if letters is not None else ""


def _plain_name(name: str) -> str:
    """Return a module's name without the prefix before its decoder's layers."""
    first = name.find("layers.")
    return name[first:] if first > 0 else name


def _fault(field: str, problem: str) -> AdapterError:
    return AdapterError(f"{CONFIG_FILE}: '{field}' {problem}")


def _rank(value: Any, field: str, max_rank: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _fault(field, "must be a whole number")
    if not 1 <= value <= max_rank:
        raise _fault(field, f"must be >= 1 and <= {max_rank}")
    return value


def _alpha(value: Any, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _fault(field, "must be a number")
    if not 0 < value <= _MAX_ALPHA:  # also rejects NaN
        raise _fault(field, f"must be > 0 and <= {_MAX_ALPHA:g}")
    return float(value)


def _flag(config: Mapping[str, Any], field: str) -> bool:
    value = config.get(field)
    if value is not None and not isinstance(value, bool):
        raise _fault(field, "must be true or false")
    return bool(value)


def _word(config: Mapping[str, Any], field: str) -> str:
    value = config.get(field)
    if value is None:
        return ""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", value):
        raise _fault(field, "must be a word")
    return value


def _target_modules(value: Any) -> tuple[str, ...]:
    if value is None or isinstance(value, str):  # a pattern or "all-linear": the weights decide
        return ()
    if not isinstance(value, list) or len(value) > _MAX_NAMES:
        raise _fault("target_modules", f"must be a list of at most {_MAX_NAMES} names")
    if not all(isinstance(each, str) and re.fullmatch(r"[A-Za-z0-9_.]{1,256}", each) for each in value):
        raise _fault("target_modules", "must be a list of names")
    for name in _UNCHANGED:
        if any(each.endswith(name) for each in value):
            raise _fault("target_modules", f"names {name!r}, which adapters cannot change")
    return tuple(_plain_name(each) for each in value)


def _pattern(config: Mapping[str, Any], field: str, read: Any) -> dict[str, Any]:
    value = config.get(field)
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > _MAX_NAMES:
        raise _fault(field, f"must be an object of at most {_MAX_NAMES} fields")
    found: dict[str, Any] = {}
    for key, each in value.items():
        name = _NAME_AS_PATTERN.fullmatch(key)
        if name is None or len(key) > _MAX_NAME:
            raise _fault(field, "must have names of modules as keys; other regular expressions are not supported")
        found.setdefault(_plain_name((name[1] or name[2]).replace("\\.", ".")), read(each, field))
    return found
