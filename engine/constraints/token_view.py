"""A model's tokenizer as llguidance wants it: which bytes each id spells, which ids are control tokens or end tokens.

Read from the model's own tokenizer.json. What `engine/tokenizer.py` takes for a control token is one here too, even if
the file does not call it special: text cannot spell it, and only a grammar that names it allows it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_LOOKS_LIKE_CONTROL = re.compile(r"[<\[{|｜].*[>\]}|｜]", re.DOTALL)  # as in engine/tokenizer.py


@dataclass(frozen=True, eq=False)
class TokenView:
    """One model's vocabulary as matchers see it. `byte_ids` [256] is the token that spells exactly that byte, -1 where
    the vocabulary has none."""

    tokenizer: LLTokenizer
    num_tokens: int  # bits of a mask
    byte_ids: NDArray[np.intp]
    eos_token_ids: tuple[int, ...]


def read_token_view(model_dir: Path, vocab_size: int, eos_token_ids: tuple[int, ...]) -> TokenView:
    """`vocab_size` is the model's own: where it goes beyond the tokenizer's, the ids between spell nothing and are
    never allowed. Takes a second for the largest vocabularies. Raises OSError, ValueError, TypeError or KeyError if the
    file is not one that the library reads."""
    from llguidance import LLTokenizer

    definition = msgspec.json.decode((model_dir / "tokenizer.json").read_bytes())
    _mark_controls(definition)
    largest_added = max((token["id"] for token in definition.get("added_tokens", [])), default=-1)
    num_tokens = max(vocab_size, largest_added + 1, _largest_id(definition["model"]["vocab"]) + 1)
    eos = [token_id for token_id in eos_token_ids if token_id < num_tokens]
    tokenizer = LLTokenizer(msgspec.json.encode(definition).decode(), n_vocab=num_tokens, eos_token=eos or None)
    return TokenView(tokenizer, num_tokens, _byte_ids(tokenizer), tuple(tokenizer.eos_tokens))


def _byte_ids(tokenizer: LLTokenizer) -> NDArray[np.intp]:
    found = np.full(256, -1, dtype=np.intp)
    for byte in range(256):
        ids = tokenizer.greedy_tokenize(chr(byte)) if byte < 128 else tokenizer.tokenize_bytes(bytes([byte]))
        if len(ids) == 1 and tokenizer.decode_bytes(ids) == bytes([byte]):
            found[byte] = ids[0]
    return found


def _mark_controls(definition: dict[str, Any]) -> None:
    definition["truncation"] = definition["padding"] = definition["post_processor"] = None
    for token in definition.get("added_tokens", []):
        if len(token["content"]) > 1 and _LOOKS_LIKE_CONTROL.fullmatch(token["content"]):
            token["special"] = True


def _largest_id(vocab: dict[str, int] | list[Any]) -> int:
    return len(vocab) - 1 if isinstance(vocab, list) else max(vocab.values(), default=-1)
