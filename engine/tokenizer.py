"""Text <-> token ids of one model: plain text, conversations through the chat template, and back (`detokenizer.py`).

Control tokens (end of turn, tool call, …) come from the template and from callers who ask for them by `raw`; inside
anything else a caller wrote they are plain text, since the vocabulary that encodes it does not contain them
(`control_tokens.py`). Knows nothing of sequences or of the device; safe to use from several threads.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as Vocabulary

from engine.chat_template import ChatTemplate, TemplateRefused, find_chat_templates, plain_conversation
from engine.control_tokens import ControlTokens, Guard, TooDeep, take_out_controls
from engine.detokenizer import Detokenizer, TokenBytes, UnsupportedTokenizer

MAX_DEFINITION_BYTES = 256 * 1024 * 1024  # the largest vocabularies people publish take 35 MB
MAX_CONFIG_BYTES = 32 * 1024 * 1024

_TEMPLATE_VARIABLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_OTHER_FORMATS = ("tokenizer.model", "tiktoken.model", "qwen.tiktoken", "spiece.model", "vocab.json", "vocab.txt")
_WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_PROBE = "Hello, na\u00efve \u65e5\u672c \U0001f600\n  1234"


_FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
_ADDED = ("content", *_FLAGS)


class TokenizerUnusable(Exception):
    """The model's tokenizer files are missing, damaged, or of a kind that is not supported."""


class Tokenizer:
    """One model's tokenizer, read from its folder."""

    def __init__(self, model_dir: Path) -> None:
        """Raises TokenizerUnusable."""
        try:
            definition, config = _read_files(model_dir)
            special_tokens = _special_tokens(config)
            _complete(definition, config, special_tokens)
            leading_ids = _leading_ids(definition.get("post_processor"))
            controls = take_out_controls(definition)
            definition["post_processor"] = definition["truncation"] = definition["padding"] = None
            self._vocabulary = _build(definition)
            self._inner_vocabulary = _without_leading_space(self._vocabulary, definition)
            shown = {control.token_id: "" if control.is_hidden else control.text for control in controls}
            self._token_bytes = TokenBytes(self._vocabulary, definition.get("decoder"), shown)
            self._chars_per_byte = _chars_per_byte(definition)
        except (TokenizerUnusable, UnsupportedTokenizer) as error:
            raise TokenizerUnusable(f"tokenizer of {model_dir.name}: {error}") from error
        except OSError as error:
            raise TokenizerUnusable(f"tokenizer files of {model_dir.name} cannot be read: {error}") from error
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError, OverflowError) as error:
            what = f"{type(error).__name__}: {error}"
            raise TokenizerUnusable(f"tokenizer.json of {model_dir.name} is damaged ({what})") from error
        try:
            sources = find_chat_templates(model_dir, config)
            self._template = ChatTemplate(sources, special_tokens) if sources else None
        except (OSError, ValueError, TemplateRefused) as error:
            raise TokenizerUnusable(f"chat template of {model_dir.name}: {error}") from error
        self._controls = ControlTokens(controls, self._template.words if self._template else ())
        bos = self._controls.by_text.get(special_tokens.get("bos_token", ""))
        self._leading_id = bos.token_id if bos and _adds_bos(config, leading_ids, bos.token_id) else None
        self._max_token_bytes = max((len(token.encode()) for token in self._vocabulary.get_vocab()), default=1)

    @property
    def chat_template(self) -> ChatTemplate | None:
        return self._template

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def control_id(self, text: str) -> int | None:
        """The id of the control token spelled exactly `text`."""
        control = self._controls.by_text.get(text)
        return control.token_id if control else None

    @property
    def shown_control_ids(self) -> tuple[int, ...]:
        """The ids of control tokens that show in an answer (`<think>`)."""
        return tuple(control.token_id for control in self._controls.by_text.values() if not control.is_hidden)

    def min_tokens(self, text: str) -> int:
        """A lower bound of the tokens in `text`, without encoding it; 0 for a tokenizer that may leave text out."""
        if not self._chars_per_byte:
            return 0
        return sum(map(len, text.split())) // (self._chars_per_byte * self._max_token_bytes)

    def encode(self, text: str, *, is_raw: bool = False) -> list[int]:
        """A text to be continued. `is_raw`: the caller writes the model's own format, so control tokens count."""
        token_ids = self._encode_parts(text, self._controls.pattern if is_raw else None)
        if self._leading_id is not None and token_ids[:1] != [self._leading_id]:
            token_ids.insert(0, self._leading_id)
        return token_ids

    def encode_conversation(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **template_kwargs: Any,
    ) -> list[int]:
        """The prompt that asks for the assistant's next turn. Raises TemplateRefused.

        Everything given here is a caller's: control tokens in it are plain text, but for the shown ones
        (`<think>`) in an assistant's own turn. Nothing is put before what the template writes.
        """
        if self._template is None:
            return self.encode(plain_conversation(messages))
        try:
            guard = Guard(self._controls, (messages, tools, template_kwargs))
        except TooDeep as error:
            raise TemplateRefused("a message or a tool is nested too deep") from error
        rendered = self._template.render(
            guard.messages(messages),
            tools=None if tools is None else guard.guarded(tools),
            add_generation_prompt=add_generation_prompt,
            **{name: guard.guarded(value) for name, value in template_kwargs.items()},
        )
        return self._encode_parts(rendered, self._controls.pattern, guard)

    def detokenizer(self, *, is_own_text: bool = True, keep: Collection[str] = ()) -> Detokenizer:
        """For one sequence; see `Detokenizer`. `keep` names hidden control tokens that are to show all the same, such
        as the marks around a tool call."""
        kept = {token_id: text.encode() for text in keep if (token_id := self.control_id(text)) is not None}
        return Detokenizer(self._token_bytes, is_own_text=is_own_text, kept=kept)

    def decode(self, token_ids: Sequence[int]) -> str:
        """All of it at once, as a text of its own."""
        return self.detokenizer().push(token_ids)

    def token_text(self, token_id: int) -> str:
        """One token's own text, for log-probabilities; bytes that are no character show as U+FFFD."""
        return self._token_bytes[token_id].decode(errors="replace")

    def _encode_parts(self, text: str, pattern: re.Pattern[str] | None, guard: Guard | None = None) -> list[int]:
        """`text` split at the controls that `pattern` finds: their ids, and the ids of the plain text between them."""
        token_ids: list[int] = []
        position = 0
        strips_left = False
        for match in pattern.finditer(text) if pattern else ():
            control = self._controls.by_text[match[0]]
            between = text[position : match.start()]
            between = between.lstrip(_WHITE_SPACE) if strips_left else between
            between = between.rstrip(_WHITE_SPACE) if control.strips_left else between
            token_ids += self._encode_plain(between, guard, is_first=position == 0)
            token_ids.append(control.token_id)
            position, strips_left = match.end(), control.strips_right
        rest = text[position:].lstrip(_WHITE_SPACE) if strips_left else text[position:]
        token_ids += self._encode_plain(rest, guard, is_first=position == 0)
        return token_ids

    def _encode_plain(self, text: str, guard: Guard | None, *, is_first: bool) -> list[int]:
        """Ids of text that holds no control tokens, whatever it looks like."""
        text = guard.without_marks(text) if guard else text
        if not text:
            return []
        vocabulary = self._vocabulary if is_first else self._inner_vocabulary
        try:
            token_ids: list[int] = vocabulary.encode(text, add_special_tokens=False).ids
        except (UnicodeEncodeError, TypeError):  # half a surrogate pair, which no vocabulary knows
            sound = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            token_ids = vocabulary.encode(sound, add_special_tokens=False).ids
        return token_ids


def _read_files(model_dir: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tokenizer's definition and its configuration. Raises TokenizerUnusable, OSError."""
    definition = _read_json(model_dir / "tokenizer.json", MAX_DEFINITION_BYTES)
    if definition is None:
        others = [name for name in _OTHER_FORMATS if (model_dir / name).exists()]
        raise TokenizerUnusable(_why_not(others[0]) if others else "tokenizer.json is missing")
    model = definition.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict | list) or not model["vocab"]:
        raise TokenizerUnusable("tokenizer.json: model.vocab is missing")
    added = definition.setdefault("added_tokens", [])
    for index, token in enumerate(added):
        if not (isinstance(token["content"], str) and isinstance(token["id"], int) and token["id"] >= 0):
            raise TokenizerUnusable(f"tokenizer.json: added_tokens[{index}] has no usable content and id")
    config = _read_json(model_dir / "special_tokens_map.json", MAX_CONFIG_BYTES) or {}
    return definition, config | (_read_json(model_dir / "tokenizer_config.json", MAX_CONFIG_BYTES) or {})


def _why_not(name: str) -> str:
    return (
        f"tokenizer.json is missing, and {name} alone does not say how text is split and which tokens are added; "
        "save the tokenizer once with transformers, which writes tokenizer.json"
    )


def _build(definition: dict[str, Any]) -> Vocabulary:
    """The library's tokenizer; encodes and decodes once, to learn now what would fail later. Raises
    TokenizerUnusable."""
    try:
        vocabulary = Vocabulary.from_str(msgspec.json.encode(definition).decode())
        vocabulary.encode(_PROBE, add_special_tokens=False)
    except MemoryError:
        raise
    except BaseException as error:  # the library raises bare Exception, and its panics are not even that
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise TokenizerUnusable(f"tokenizer.json: {error}") from error
    model = vocabulary.model
    if hasattr(model, "_resize_cache"):
        # Words that one tenant sent would be faster for the next: see docs/decisions if you want them back.
        model._resize_cache(0)
    return vocabulary


def _complete(definition: dict[str, Any], config: Mapping[str, Any], special_tokens: Mapping[str, str]) -> None:
    """Add the tokens that only the configuration names, in place."""
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
    return _build(definition | {"pre_tokenizer": pre_tokenizer})


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and the like by name, as text."""
    found = {}
    for name in _TEMPLATE_VARIABLES:
        value = _content(config.get(name))
        if value is not None:
            found[name] = value
    return found


def _content(token: Any) -> str | None:
    """The text of a token that is written as such or as an object."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _adds_bos(config: Mapping[str, Any], leading_ids: Sequence[int], bos_id: int) -> bool:
    """Whether a plain text begins with the beginning-of-text token: the configuration says so, else the
    post-processor does, else the kind of tokenizer is known for it."""
    if config.get("add_bos_token") is not None:
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


def _chars_per_byte(definition: Mapping[str, Any]) -> int:
    """How many characters that are not white space can at most go into a byte of a token's spelling; 0 where there
    is no such bound, because parts of a text may be left out or many become one."""
    model = definition["model"]
    if model.get("type", "BPE") != "BPE" or (model.get("unk_token") is not None and not model.get("byte_fallback")):
        return 0
    most = 1
    for step in _steps(definition.get("normalizer"), "normalizers"):
        if step["type"] in ("NFC", "NFKC"):
            most = 4  # three marks and their letter become one character
        elif not (step["type"] == "Prepend" or (step["type"] == "Replace" and step["pattern"] == {"String": " "})):
            return 0
    for step in _steps(definition.get("pre_tokenizer"), "pretokenizers"):
        is_known = step["type"] in ("ByteLevel", "Metaspace", "Digits")
        if not is_known and not (step["type"] == "Split" and step["behavior"] != "Removed"):
            return 0
    return most


def _steps(part: Mapping[str, Any] | None, name: str) -> list[dict[str, Any]]:
    """The steps of a part of the definition that may be one step or a sequence of them."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [inner for step in part[name] for inner in _steps(step, name)]
    return [dict(part)]


def _read_json(path: Path, max_bytes: int) -> dict[str, Any] | None:
    """The object in a file, None where there is no such file. Raises TokenizerUnusable, OSError."""
    if not path.exists():
        return None
    if path.stat().st_size > max_bytes:
        raise TokenizerUnusable(f"{path.name} is over {max_bytes} bytes")
    try:
        value = msgspec.json.decode(path.read_bytes())
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise TokenizerUnusable(f"{path.name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerUnusable(f"{path.name} is not an object")
    return value
