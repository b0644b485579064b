"""Text <-> token ids of one model: plain text, conversations through the chat template, and back (`detokenizer.py`).

Control tokens (end of turn, tool call, …) come from the template and from callers who ask for them by `raw`; inside
anything else a caller wrote they are plain text, since the vocabulary that encodes it does not contain them. Knows
nothing of sequences or of the device; safe to use from several threads.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as Vocabulary

from engine.chat_template import ChatTemplate, find_chat_template, plain_conversation
from engine.detokenizer import Detokenizer, TokenBytes

_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]  # Unicode keeps these out of interchanged text
_LOOKS_LIKE_CONTROL = re.compile(r"[<\[{|｜].*[>\]}|｜]", re.DOTALL)
_TEMPLATE_VARIABLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class TokenizerUnusable(Exception):
    """The model's tokenizer files are missing, damaged, or of a kind that is not supported."""


@dataclass(frozen=True)
class ControlToken:
    """An added token that means something to the model beyond its text. `is_hidden`: it never shows in an answer."""

    token_id: int
    text: str
    is_hidden: bool
    strips_left: bool
    strips_right: bool


class Tokenizer:
    """One model's tokenizer, read from its folder."""

    def __init__(self, model_dir: Path) -> None:
        """Raises TokenizerUnusable."""
        try:
            definition = msgspec.json.decode((model_dir / "tokenizer.json").read_bytes())
            config = _read_json(model_dir / "tokenizer_config.json")
            leading_ids = _leading_ids(definition.get("post_processor"))
            controls = _take_out_controls(definition)
            self._vocabulary = Vocabulary.from_str(msgspec.json.encode(definition).decode())
        except (OSError, msgspec.DecodeError, KeyError, TypeError) as error:
            raise TokenizerUnusable(f"tokenizer files of {model_dir.name} cannot be read: {error}") from error
        except Exception as error:  # the tokenizers library raises bare Exception for a definition it cannot build
            raise TokenizerUnusable(f"tokenizer.json of {model_dir.name}: {error}") from error
        self._inner_vocabulary = _without_leading_space(self._vocabulary, definition)
        self._by_text = {control.text: control for control in controls}
        self._control_pattern = _any_of(self._by_text)
        self._hidden_pattern = _any_of([control.text for control in controls if control.is_hidden])
        self._open_ends = {text[:size] for text in self._by_text for size in range(1, len(text))}
        self._max_open_end = max(map(len, self._open_ends), default=0)
        special_tokens = _special_tokens(config)
        bos = self._by_text.get(special_tokens.get("bos_token", ""))
        self._leading_id = bos.token_id if bos and _adds_bos(config, leading_ids, bos.token_id) else None
        source = find_chat_template(model_dir, config)
        self._template = ChatTemplate(source, special_tokens) if source else None
        shown = {control.token_id: "" if control.is_hidden else control.text for control in controls}
        self._token_bytes = TokenBytes(self._vocabulary, definition.get("decoder"), shown)
        self._max_token_bytes = max((len(token.encode()) for token in self._vocabulary.get_vocab()), default=1)

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def control_id(self, text: str) -> int | None:
        """The id of the control token spelled exactly `text`."""
        control = self._by_text.get(text)
        return control.token_id if control else None

    def min_tokens(self, text: str) -> int:
        """A lower bound of the tokens in `text`, without encoding it."""
        return (len(text) - text.count(" ")) // self._max_token_bytes

    def encode(self, text: str, *, is_raw: bool = False) -> list[int]:
        """A text to be continued. `is_raw`: the caller writes the model's own format, so control tokens count."""
        token_ids = self._encode_parts(text, self._control_pattern if is_raw else None, mark="")
        if self._leading_id is not None and token_ids[:1] != [self._leading_id]:
            token_ids.insert(0, self._leading_id)
        return token_ids

    def encode_conversation(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The prompt that asks for the assistant's next turn. Raises TemplateRefused.

        A control token inside a message gets a mark in its middle, so that neither the template nor the split after
        it can mistake it; marks are taken out before the text between the template's own control tokens is encoded.
        """
        if self._template is None:
            return self.encode(plain_conversation(messages))
        mark = _unused_character(messages)
        marked = [{key: self._marked(message, key, mark) for key in message} for message in messages]
        return self._encode_parts(self._template.render(marked), self._control_pattern, mark)

    def detokenizer(self, *, is_own_text: bool = True) -> Detokenizer:
        """For one sequence; see `Detokenizer`."""
        return Detokenizer(self._token_bytes, is_own_text=is_own_text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """All of it at once, as a text of its own."""
        return self.detokenizer().push(token_ids)

    def token_text(self, token_id: int) -> str:
        """One token's own text, for log-probabilities; bytes that are no character show as U+FFFD."""
        return self._token_bytes[token_id].decode(errors="replace")

    def _marked(self, message: Mapping[str, str], key: str, mark: str) -> str:
        """`message[key]` with a mark inside every control token in it, and after a beginning of one at its end. The
        assistant's own turns keep the shown ones (`<think>`), since templates look for them there."""
        text = message[key].replace(mark, "")
        pattern = self._hidden_pattern if message.get("role") == "assistant" else self._control_pattern
        if pattern is not None:
            text = pattern.sub(lambda match: match[0][0] + mark + match[0][1:], text)
        if key == "role":  # templates spell control tokens around it: `<|` + role + `|>`
            return text
        end = text.rstrip()
        for size in range(self._max_open_end, 0, -1):
            if end[-size:] in self._open_ends:
                return end + mark + text[len(end) :]
        return text

    def _encode_parts(self, text: str, controls: re.Pattern[str] | None, mark: str) -> list[int]:
        """`text` split at `controls`: their ids, and the ids of the plain text between them."""
        token_ids: list[int] = []
        position = 0
        strips_left = False
        for match in controls.finditer(text) if controls else ():
            control = self._by_text[match[0]]
            between = text[position : match.start()]
            between = between.lstrip() if strips_left else between
            between = between.rstrip() if control.strips_left else between
            token_ids += self._encode_plain(between, mark, is_first=position == 0)
            token_ids.append(control.token_id)
            position, strips_left = match.end(), control.strips_right
        rest = text[position:].lstrip() if strips_left else text[position:]
        token_ids += self._encode_plain(rest, mark, is_first=position == 0)
        return token_ids

    def _encode_plain(self, text: str, mark: str, *, is_first: bool) -> list[int]:
        """Ids of text that holds no control tokens, whatever it looks like."""
        text = text.replace(mark, "") if mark else text
        if not text:
            return []
        vocabulary = self._vocabulary if is_first else self._inner_vocabulary
        token_ids: list[int] = vocabulary.encode(text, add_special_tokens=False).ids
        return token_ids


def _take_out_controls(definition: dict[str, Any]) -> list[ControlToken]:
    """Give every control token of a tokenizer definition an unguessable name, in place; return what they were.

    Their ids stay taken, so the others keep theirs; no text can spell them any more.
    """
    prefix = _NONCHARACTERS[0] + secrets.token_hex(8)
    model = definition["model"]
    vocab = model["vocab"]
    controls = []
    for token in definition["added_tokens"]:
        text, token_id, is_special = token["content"], token["id"], token["special"]
        if len(text) < 2 or not (is_special or _LOOKS_LIKE_CONTROL.fullmatch(text)):
            continue
        controls.append(ControlToken(token_id, text, is_special, token["lstrip"], token["rstrip"]))
        name = f"{prefix}:{token_id}{_NONCHARACTERS[0]}"
        token |= {"content": name, "normalized": False}
        if model.get("unk_token") == text:
            model["unk_token"] = name
        if isinstance(vocab, list):
            if token_id < len(vocab):
                vocab[token_id][0] = name
        elif text in vocab:
            vocab[name] = vocab.pop(text)
    definition["post_processor"] = definition["truncation"] = definition["padding"] = None
    return controls


def _without_leading_space(vocabulary: Vocabulary, definition: dict[str, Any]) -> Vocabulary:
    """For text after the first control token: the same vocabulary, but no space put before the text where the
    tokenizer puts one only at the very beginning (`prepend_scheme` "first")."""
    pre_tokenizer = definition.get("pre_tokenizer")
    if pre_tokenizer is None:
        return vocabulary
    steps = pre_tokenizer["pretokenizers"] if pre_tokenizer["type"] == "Sequence" else [pre_tokenizer]
    if not any(step["type"] == "Metaspace" and step.get("prepend_scheme") == "first" for step in steps):
        return vocabulary
    changed = [step | {"prepend_scheme": "never"} if step["type"] == "Metaspace" else step for step in steps]
    pre_tokenizer = changed[0] if len(changed) == 1 else {"type": "Sequence", "pretokenizers": changed}
    return Vocabulary.from_str(msgspec.json.encode(definition | {"pre_tokenizer": pre_tokenizer}).decode())


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and the like by name, as text."""
    found = {}
    for name in _TEMPLATE_VARIABLES:
        value = config.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            found[name] = value
    return found


def _adds_bos(config: Mapping[str, Any], leading_ids: Sequence[int], bos_id: int) -> bool:
    """Whether a plain text begins with the beginning-of-text token: the configuration says so, else the
    post-processor does, else the kind of tokenizer is known for it."""
    if "add_bos_token" in config:
        return bool(config["add_bos_token"])
    return bos_id in leading_ids or str(config.get("tokenizer_class", "")).startswith("LlamaTokenizer")


def _leading_ids(post_processor: Mapping[str, Any] | None) -> list[int]:
    """Ids that a tokenizer's post-processor puts before a single text."""
    if post_processor is None:
        return []
    if post_processor["type"] == "Sequence":
        return [token_id for step in post_processor["processors"] for token_id in _leading_ids(step)]
    if post_processor["type"] != "TemplateProcessing":
        return []
    first = post_processor["single"][0].get("SpecialToken")
    return list(post_processor["special_tokens"][first["id"]]["ids"]) if first else []


def _any_of(texts: Sequence[str] | Mapping[str, Any]) -> re.Pattern[str] | None:
    """Matches any of `texts`, the longest first."""
    ordered = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(re.escape(text) for text in ordered)) if ordered else None


def _unused_character(messages: Sequence[Mapping[str, str]]) -> str:
    """A noncharacter that no message contains; if one contains them all, the last, which it then loses."""
    for candidate in _NONCHARACTERS:
        if not any(candidate in value for message in messages for value in message.values()):
            return candidate
    return _NONCHARACTERS[-1]


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    value = msgspec.json.decode(path.read_bytes())
    if not isinstance(value, dict):
        raise TypeError(f"{path.name} is not an object")
    return value
