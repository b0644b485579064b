"""A model's vocabulary in the form llguidance needs: the bytes of each token, the control tokens and the end tokens.

Read from the same files as the text tokenizer (`engine/text/files.py`). Control tokens
(`engine/text/control_tokens.py`) are removed from the text vocabulary; otherwise llguidance would spell a forced text
that contains a control token's name with the control token itself. Only a grammar that names a control token by id
allows it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine.text.control_tokens import remove_control_tokens
from engine.text.files import TokenizerUnusable, read_definition

if TYPE_CHECKING:
    from llguidance import LLTokenizer

# llguidance sorts larger vocabularies beforehand, which makes masks cheaper; for small ones the cost exceeds the gain.
_SMALL_VOCABULARY = 16_384
_SPECIAL_TO_LLGUIDANCE = re.compile(r"<.*>", re.DOTALL)  # names that llguidance treats as special tokens


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """One model's vocabulary. `num_tokens` is the number of bits in a token mask."""

    tokenizer: LLTokenizer
    num_tokens: int
    eos_token_ids: tuple[int, ...]
    control_ids: Mapping[str, int]  # by name, as in the model's files


def read_vocabulary(model_dir: Path, vocab_size: int, eos_token_ids: tuple[int, ...]) -> Vocabulary:
    """Read the vocabulary of the model in `model_dir`. Takes about a second for the largest vocabularies.

    `vocab_size` is the number of rows of the model's logits. Ids that the tokenizer does not know are never allowed.
    Raises OSError, ValueError, TypeError or KeyError if llguidance cannot use the files.
    """
    from llguidance import LLTokenizer

    try:
        definition, _ = read_definition(model_dir)
    except TokenizerUnusable as error:
        raise ValueError(str(error)) from error
    control_ids = {control.text: control.token_id for control in remove_control_tokens(definition)}
    _mark_special(definition, set(control_ids.values()))
    largest_added = max((token["id"] for token in definition.get("added_tokens", [])), default=-1)
    num_tokens = max(vocab_size, largest_added + 1, _largest_id(definition["model"]["vocab"]) + 1)
    eos = [token_id for token_id in eos_token_ids if token_id < num_tokens]
    tokenizer = LLTokenizer(
        msgspec.json.encode(definition).decode(),
        n_vocab=num_tokens,
        eos_token=eos or None,
        slices=None if num_tokens > _SMALL_VOCABULARY else [],
    )
    return Vocabulary(tokenizer, num_tokens, tuple(tokenizer.eos_tokens), control_ids)


def _mark_special(definition: dict[str, Any], control_ids: set[int]) -> None:
    """Mark the control tokens as special, and remove other added tokens that llguidance would treat as special."""
    definition["truncation"] = definition["padding"] = definition["post_processor"] = None
    for token in definition["added_tokens"]:
        if token["id"] in control_ids:
            token["special"] = True
    definition["added_tokens"] = [
        token
        for token in definition["added_tokens"]
        if token["id"] in control_ids or not _SPECIAL_TO_LLGUIDANCE.fullmatch(token["content"])
    ]


def _largest_id(vocab: dict[str, int] | list[Any]) -> int:
    return len(vocab) - 1 if isinstance(vocab, list) else max(vocab.values(), default=-1)
