"""Load models and tokenizers of `transformers` from a folder: quietly, offline, and without running code of a model."""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch


class UnsupportedModel(ValueError):
    """The folder does not contain a model that the task supports."""


def read_config(model_dir: Path, model_types: Collection[str], what: str) -> dict[str, Any]:
    """Return the model's `config.json`. `what` names the kind of models in the message.

    Raises UnsupportedModel for other model types and for models with code of their own, OSError and ValueError.
    """
    config: dict[str, Any] = json.loads((model_dir / "config.json").read_text())
    if "auto_map" in config or config.get("model_type") not in model_types:
        raise UnsupportedModel(f"{what} are {', '.join(sorted(model_types))} without code of their own")
    return config


def load_pretrained(auto_class: str, model_dir: Path, *, is_complete: bool = False) -> Any:
    """Return the model of a folder in float32, loaded from safetensors by a class such as `AutoModel`.

    With `is_complete`, weights that the files do not have are an error; otherwise `transformers` makes random ones.
    Raises OSError, ValueError or KeyError.
    """
    model, report = getattr(import_transformers(), auto_class).from_pretrained(
        model_dir,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        dtype=torch.float32,
        output_loading_info=True,
    )
    missing = sorted(report["missing_keys"])
    if is_complete and missing:
        raise ValueError(f"the files have no weights for {', '.join(missing[:5])}")
    return model.eval()


def load_tokenizer(model_dir: Path) -> Any:
    """Return the tokenizer of a folder. Raises OSError, ValueError or KeyError."""
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # recommends another package for Marian
        return load_processor("AutoTokenizer", model_dir)


def load_processor(auto_class: str, model_dir: Path) -> Any:
    """Return what a class such as `AutoImageProcessor` makes of a folder. Raises OSError, ValueError or KeyError."""
    return getattr(import_transformers(), auto_class).from_pretrained(
        model_dir, local_files_only=True, trust_remote_code=False
    )


def import_transformers() -> Any:
    """Return the module `transformers`, which is quiet and offline."""
    from engine.tasks.one_pass.transformers_imports import transformers

    return transformers
