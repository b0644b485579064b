"""Choose the zygote that forks a model's worker: one that has imported the library that the model needs.

Importing `transformers` takes seconds. Imports neither torch nor a library.
"""

from __future__ import annotations

import json
from pathlib import Path

from engine.processes.zygote import Zygote

TRANSFORMERS = "engine.tasks.one_pass.transformers_imports"
DIFFUSERS = "engine.tasks.one_pass.diffusers_imports"
# Models of our own code, which import no library. A type that is missing here loads more slowly.
_OWN_MODEL_TYPES = (
    "fasttext",
    "mobilenet_v2_dense",
    "ssd_mobilenet_v2",
    "tfidf_linear",
    "universal_sentence_encoder_lite",
)


def zygote_for(folder: Path, zygote: Zygote) -> Zygote:
    """Return `zygote` or its branch with the library that the model in `folder` needs."""
    if (folder / "model_index.json").is_file():
        return zygote.branch(DIFFUSERS)
    is_own = _model_type(folder) in _OWN_MODEL_TYPES
    return zygote if is_own or not any(folder.glob("*.safetensors")) else zygote.branch(TRANSFORMERS)


def _model_type(folder: Path) -> str:
    """Return the type of the model; "" if unknown, which the worker reports."""
    try:
        return str(json.loads((folder / "config.json").read_bytes()).get("model_type"))
    except (OSError, ValueError, AttributeError):
        return ""
