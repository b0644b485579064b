"""Which class builds which architecture."""

from __future__ import annotations

from engine.models.config import ModelConfig, UnsupportedModel
from engine.models.llama import Llama

ARCHITECTURES: dict[str, type[Llama]] = {
    "LlamaForCausalLM": Llama,
    "MistralForCausalLM": Llama,  # the window is in the config
}


def find_architecture(config: ModelConfig) -> type[Llama]:
    """The class for `config.architecture`. Raises UnsupportedModel."""
    try:
        return ARCHITECTURES[config.architecture]
    except KeyError:
        known = ", ".join(sorted(ARCHITECTURES))
        raise UnsupportedModel(f"architecture {config.architecture!r} is not supported (supported: {known})") from None
