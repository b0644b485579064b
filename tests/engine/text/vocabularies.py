"""Vocabularies for tests: one of every kind, from the test data, from the project, and generated."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from engine.text.control_tokens import remove_control_tokens
from engine.text.tokenizer import Tokenizer

_BUILTIN = Path(__file__).parents[3] / "catalog/builtin"


def unigram() -> dict[str, Any]:
    """Return a small Unigram vocabulary with byte fallback, in which control tokens score higher than their parts."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581"]
    scores = [0.0, 0.0, 0.0, *([-20.0] * 256), -2.0]
    words = [
        "the",
        "\u2581the",
        "e",
        "t",
        "h",
        "<",
        ">",
        "/",
        "s",
        "|",
        "i",
        "m",
        "_",
        "n",
        "d",
        "<|im_end|>",
        "<tool_call>",
    ]
    vocab = [*zip(pieces, scores, strict=True), *((word, -1.0) for word in words)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = {"<unk>": True, "<s>": True, "</s>": True, "<|im_end|>": True, "<tool_call>": False}
    sign = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    return {
        "version": "1.0",
        "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": True, "vocab": vocab},
        "added_tokens": [
            {"id": [piece for piece, _ in vocab].index(text), "content": text, "special": special, **flags}
            for text, special in added.items()
        ],
        "normalizer": None,
        "pre_tokenizer": sign,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, sign]},
    }


# Folders in the test data; two vocabularies have no folder there.
EVERY = {
    "gpt2": "tokenizers/gpt2",
    "phi-2": "tokenizers/phi-2",
    "phi-3": "tokenizers/phi-3",
    "gpt-neox-20b": "tokenizers/gpt-neox-20b",
    "whisper-tiny": "tokenizers/whisper-tiny",
    "stories260K": "models/stories260K",
    "spark": "",
    "unigram": "",
}


def definition_of(name: str, test_data: Path) -> dict[str, Any]:
    """Return the contents of tokenizer.json."""
    if name == "unigram":
        return unigram()
    folder = test_data / EVERY[name] if EVERY[name] else _BUILTIN / name
    definition: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text())
    return definition


@cache
def tokenizer_in(folder: Path) -> Tokenizer:
    """Return the tokenizer of a folder that no test changes; loading the largest takes a second."""
    return Tokenizer(folder)


@cache
def conversing(name: str, test_data: Path) -> tuple[Tokenizer, dict[str, int]]:
    """Return a tokenizer whose template puts the first control token before each message and the last one after, and
    the ids of all control tokens by text."""
    definition = definition_of(name, test_data)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "tokenizer.json").write_text(json.dumps(definition))
        found = remove_control_tokens(definition)
        first, last = [json.dumps(text) for text in (found[0].text, found[-1].text)]
        template = f"{{% for m in messages %}}{{{{ {first} ~ m.content ~ {last} }}}}{{% endfor %}}"
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
        return Tokenizer(folder), {control.text: control.token_id for control in found}
