"""Read facts from a tokenizer's definition (`tokenizer.json`) and configuration (`tokenizer_config.json` and others).

Pure functions. A damaged definition raises KeyError, TypeError, ValueError, IndexError or AttributeError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_TEMPLATE_VARIABLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
_ADDED = ("content", *_FLAGS)


def special_tokens_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of `bos_token`, `eos_token`, … by name."""
    found = {}
    for name in _TEMPLATE_VARIABLES:
        value = _content(config.get(name))
        if value is not None:
            found[name] = value
    return found


def _content(token: Any) -> str | None:
    """Return the text of a token that is given as a string or as an object."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def adds_bos(config: Mapping[str, Any], leading_ids: Sequence[int], bos_id: int) -> bool:
    """Return True if plain text starts with the beginning-of-text token.

    The configuration decides; without a setting there, the post-processor; otherwise Llama tokenizers do.
    """
    if config.get("add_bos_token") is not None:
        return bool(config["add_bos_token"])
    return bos_id in leading_ids or str(config.get("tokenizer_class", "")).startswith("LlamaTokenizer")


def leading_ids_of(post_processor: Mapping[str, Any] | None) -> list[int]:
    """Return the token ids that a post-processor puts before a single text."""
    if post_processor is None:
        return []
    if post_processor["type"] == "Sequence":
        return [token_id for step in post_processor["processors"] for token_id in leading_ids_of(step)]
    if post_processor["type"] != "TemplateProcessing":
        return []
    first = post_processor["single"][0].get("SpecialToken")
    return list(post_processor["special_tokens"][first["id"]]["ids"]) if first else []


def chars_per_byte(definition: Mapping[str, Any]) -> int:
    """Return the maximum number of non-white-space characters per byte of token text.

    Returns 0 if there is no such bound, because the tokenizer may drop text or map many characters to one.
    """
    model = definition["model"]
    if model.get("type", "BPE") != "BPE" or (model.get("unk_token") is not None and not model.get("byte_fallback")):
        return 0
    most = 1
    for step in _steps(definition.get("normalizer"), "normalizers"):
        if step["type"] in ("NFC", "NFKC"):
            most = 4  # a letter and three combining marks may become one character
        elif not (step["type"] == "Prepend" or (step["type"] == "Replace" and step["pattern"] == {"String": " "})):
            return 0
    for step in _steps(definition.get("pre_tokenizer"), "pretokenizers"):
        is_known = step["type"] in ("ByteLevel", "Metaspace", "Digits")
        if not is_known and not (step["type"] == "Split" and step["behavior"] != "Removed"):
            return 0
    return most


def _steps(part: Mapping[str, Any] | None, name: str) -> list[dict[str, Any]]:
    """Return the steps of a component that is a single step or a sequence."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [inner for step in part[name] for inner in _steps(step, name)]
    return [dict(part)]


def complete(definition: dict[str, Any], config: Mapping[str, Any], special_tokens: Mapping[str, str]) -> None:
    """Add the tokens that only the configuration declares to the definition, in place."""
    added = definition["added_tokens"]
    known = {token["content"] for token in added}
    declared = config.get("added_tokens_decoder") or {}
    for token_id, token in sorted(declared.items(), key=lambda item: int(item[0])):
        if token["content"] not in known:
            added.append({"id": int(token_id)} | _FLAGS | {name: token[name] for name in _ADDED if name in token})
            known.add(token["content"])
    vocab = definition["model"]["vocab"]
    ids = vocab if isinstance(vocab, dict) else {piece: index for index, (piece, _) in enumerate(vocab)}
    extra = config.get("additional_special_tokens") or config.get("extra_special_tokens") or []
    extra = list(extra.values()) if isinstance(extra, dict) else extra
    for token in (*special_tokens.values(), *map(_content, extra)):
        if token is not None and token in ids and token not in known:
            added.append({"id": ids[token], "content": token} | _FLAGS | {"special": True})
            known.add(token)


def without_leading_space(definition: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the definition for text after the first control token, or None if it is the same.

    A tokenizer with `prepend_scheme` "first" puts a space before the first text only.
    """
    pre_tokenizer = definition.get("pre_tokenizer")
    steps = _steps(pre_tokenizer, "pretokenizers")
    if not any(step["type"] == "Metaspace" and step.get("prepend_scheme") == "first" for step in steps):
        return None
    changed = [step | {"prepend_scheme": "never"} if step["type"] == "Metaspace" else step for step in steps]
    return {**definition, "pre_tokenizer": {"type": "Sequence", "pretokenizers": changed}}
