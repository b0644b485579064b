"""Read the header of a GGUF file for its model card. The engine's reader is imported when it is needed."""

from __future__ import annotations

from pathlib import Path

from catalog.errors import PublishError
from catalog.model_folder import GgufModel

_MAX_CHARACTERS = 500


def read_gguf_model(path: Path, has_tokenizer: bool) -> GgufModel:
    """Return the facts in a GGUF header. With `has_tokenizer`, check that the tokenizer in it is supported.

    Raises PublishError.
    """
    try:
        from engine.checkpoints.gguf_config import gguf_config
        from engine.checkpoints.gguf_file import GgufError, read_gguf
        from engine.checkpoints.gguf_tokenizer import gguf_tokenizer

        try:
            file = read_gguf(path)
            config = gguf_config(file)
            if has_tokenizer:
                gguf_tokenizer(file)
        except GgufError as error:
            raise PublishError(str(error)) from error
    except ImportError as error:
        reason = f"({error.name} is missing)"
        raise PublishError(f"GGUF files need the engine: pip install 'hearth[engine]' {reason}") from None

    def text(key: str) -> str:
        value = file.metadata.get(f"general.{key}")
        return value.strip()[:_MAX_CHARACTERS] if isinstance(value, str) else ""

    return GgufModel(config, text("description") or text("name"), text("license"))
