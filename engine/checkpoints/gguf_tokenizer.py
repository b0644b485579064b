"""Convert a GGUF header's vocabulary into `tokenizer.json` and `tokenizer_config.json`.

Two kinds are supported: byte-level BPE ("gpt2") with a named pre-tokenizer, and SentencePiece BPE ("llama"), whose
merges follow from the scores. Other kinds and pre-tokenizers are rejected by name, because an approximation would
silently give wrong tokens. Knows no tensors; needs no device library.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.checkpoints.gguf_file import GgufError, GgufFile, read_gguf

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_MAX_TOKENS = 1 << 22
_MAX_PIECE = 128  # longest token, in characters, that is considered as a merge

_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_CASED_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"

_LLAMA3 = rf"{_SHORT}|{_LETTERS}|\p{{N}}{{1,3}}|{_SIGNS}"
_QWEN2 = rf"{_SHORT}|{_LETTERS}|\p{{N}}|{_SIGNS}"
_TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_CASED_SIGNS}"
_GPT4O = rf"{_CASED[0]}{_SHORT}?|{_CASED[1]}{_SHORT}?|\p{{N}}{{1,3}}|{_CASED_SIGNS}"

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_AFTER_SPLIT = _BYTE_LEVEL | {"use_regex": False}
_DIGITS = {"type": "Digits", "individual_digits": True}

# `tokenizer.ggml.pre` -> the steps before merging
_WHOLE_WORDS = (
    "llama3",
    "llama-v3",
    "llama-bpe",
    "falcon3",
    "pixtral",
    "tekken",
)  # a word that is a token is not split
_SPLITS = dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "smaug-bpe", "dbrx"), _LLAMA3)
_SPLITS |= dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"), _QWEN2)
_SPLITS |= dict.fromkeys(("gpt-4o", "llama4"), _GPT4O) | {"tekken": _TEKKEN}
_PLAIN = ("gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jina-es", "jina-de")
_WITH_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell")

_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}

Definition = dict[str, Any]


def read_gguf_tokenizer(path: Path) -> tuple[Definition, Definition]:
    """Return definition and configuration. Raises GgufError."""
    return gguf_tokenizer(read_gguf(path))


def gguf_tokenizer(file: GgufFile) -> tuple[Definition, Definition]:
    """Return definition and configuration. Raises GgufError naming the key."""
    tokens = _texts(file, "tokenizer.ggml.tokens")
    if not tokens:
        raise GgufError(f"{file.path.name}: tokenizer.ggml.tokens is missing")
    kinds = _numbers(file, "tokenizer.ggml.token_type", len(tokens)) or [_NORMAL] * len(tokens)
    model = file.metadata.get("tokenizer.ggml.model")
    if model == "gpt2":
        definition = _byte_level(file, tokens)
    elif model == "llama":
        if file.architecture.startswith("gemma"):
            tokens = ["▁" * len(token) if token.isspace() and set(token) == {" "} else token for token in tokens]
            kinds = [_NORMAL if set(token) == {"▁"} else kind for token, kind in zip(tokens, kinds, strict=True)]
        definition = _sentence_pieces(file, tokens, kinds)
    else:
        raise GgufError(
            f"{file.path.name}: tokenizer.ggml.model={str(model)[:50]!r} is not supported (gpt2 and llama are): "
            "put the model's tokenizer.json beside the file"
        )
    definition["added_tokens"] = [
        _added(token_id, token, is_special=kind != _USER_DEFINED)
        for token_id, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if token and kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    ]
    return definition, _configuration(file, tokens)


def _byte_level(file: GgufFile, tokens: Sequence[str]) -> Definition:
    rule = file.metadata.get("tokenizer.ggml.pre", "gpt-2")
    if rule in _PLAIN:
        steps: list[Definition] = [_BYTE_LEVEL]
    elif rule in _WITH_DIGITS:
        steps = [_DIGITS, _BYTE_LEVEL]
    elif rule in _SPLITS:
        split = {"type": "Split", "pattern": {"Regex": _SPLITS[rule]}, "behavior": "Isolated", "invert": False}
        steps = [split, _AFTER_SPLIT]
    else:
        known = ", ".join(sorted({*_PLAIN, *_WITH_DIGITS, *_SPLITS}))
        raise GgufError(
            f"{file.path.name}: tokenizer.ggml.pre={str(rule)[:50]!r} is not known ({known} are): "
            "put the model's tokenizer.json beside the file"
        )
    merges = [merge.split(" ") for merge in _texts(file, "tokenizer.ggml.merges")]
    if not merges or any(len(merge) != 2 for merge in merges):
        raise GgufError(f"{file.path.name}: tokenizer.ggml.merges is missing, or has what is no pair")
    model = _pairs(tokens, merges) | {"ignore_merges": rule in _WHOLE_WORDS}
    normalizer = {"type": "NFC"} if _SPLITS.get(rule) == _QWEN2 else None
    return {
        "version": "1.0",
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": None,
        "decoder": _BYTE_LEVEL,
        "model": model,
    }


def _sentence_pieces(file: GgufFile, tokens: Sequence[str], kinds: Sequence[int]) -> Definition:
    is_gemma = file.architecture.startswith("gemma")
    scores = _numbers(file, "tokenizer.ggml.scores", len(tokens))
    if scores is None:
        raise GgufError(f"{file.path.name}: tokenizer.ggml.scores is missing")
    if is_gemma:  # merges are ordered by position
        scores = [-index for index in range(len(tokens))]
    unknown_id = file.metadata.get("tokenizer.ggml.unknown_token_id", 0)
    unknown = tokens[unknown_id] if type(unknown_id) is int and 0 <= unknown_id < len(tokens) else None
    model = _pairs(tokens, _merges(tokens, kinds, scores))
    model |= {"byte_fallback": True, "fuse_unk": True, "unk_token": unknown}
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    back = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    has_prefix = file.metadata.get("tokenizer.ggml.add_space_prefix", not is_gemma)
    if has_prefix:
        normalizer: Definition = {
            "type": "Sequence",
            "normalizers": [{"type": "Prepend", "prepend": "▁"}, spaces],
        }
        back.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    else:
        normalizer = spaces
    return {
        "version": "1.0",
        "normalizer": normalizer,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": back},
        "model": model,
    }


def _merges(tokens: Sequence[str], kinds: Sequence[int], scores: Sequence[float]) -> list[list[str]]:
    """Return all merges of two tokens into a third, best score first, as SentencePiece does with these scores."""
    plain = {token: index for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind == _NORMAL}
    found = []
    for token, index in plain.items():
        if len(token) > _MAX_PIECE:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in plain and right in plain:
                found.append((-scores[index], index, plain[left], left, right))
    found.sort()
    return [[left, right] for *_, left, right in found]


def _pairs(tokens: Sequence[str], merges: list[list[str]]) -> Definition:
    vocab: dict[str, int] = {}
    for index, token in enumerate(tokens):
        vocab.setdefault(token, index)
    return {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": vocab, "merges": merges,
    }  # fmt: skip


def _added(token_id: int, token: str, *, is_special: bool) -> Definition:
    return {
        "id": token_id, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
        "normalized": False, "special": is_special,
    }  # fmt: skip


def _configuration(file: GgufFile, tokens: Sequence[str]) -> Definition:
    metadata = file.metadata
    config: Definition = {}
    for name, key in _SPECIAL.items():
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is None:
            continue
        if type(token_id) is not int or not 0 <= token_id < len(tokens):
            raise GgufError(f"{file.path.name}: tokenizer.ggml.{key}_token_id={token_id!r} of {len(tokens)} tokens")
        config[name] = tokens[token_id]
    adds_bos = metadata.get("tokenizer.ggml.model") == "llama" or metadata.get("tokenizer.ggml.pre") in _WHOLE_WORDS
    config["add_bos_token"] = bool(metadata.get("tokenizer.ggml.add_bos_token", adds_bos))
    template = metadata.get("tokenizer.chat_template")
    if template is not None:
        config["chat_template"] = template
    return config


def _texts(file: GgufFile, key: str) -> list[str]:
    values = file.metadata.get(key, [])
    is_sound = isinstance(values, list) and len(values) <= _MAX_TOKENS and all(type(each) is str for each in values)
    if not is_sound:
        raise GgufError(f"{file.path.name}: {key} is no list of texts")
    return list(values)


def _numbers(file: GgufFile, key: str, length: int) -> list[Any] | None:
    values = file.metadata.get(key)
    if values is None:
        return None
    if not isinstance(values, list) or len(values) != length or not all(type(each) in (int, float) for each in values):
        raise GgufError(f"{file.path.name}: {key} is no list of {length} numbers")
    return values
