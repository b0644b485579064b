"""OpenAI bodies <-> typed tasks and events: chat completions and embeddings. Pure; standard library and msgspec only.

Used by the gateway and by the engine's standalone server. Reading raises `BadInput` with a text that names the field
and the limit and never the value. Knows nothing of HTTP, accounts, SSE framing, or which model supports what.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from engine.protocol.events import Embeddings, FinishReason, TokenLogprob, Usage
from engine.protocol.tasks import ChatMessage, Sampling, TextEmbeddings, TextGeneration

MAX_MESSAGES = 1000
MAX_CONTENT_PARTS = 64
MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 256
MAX_TOP_LOGPROBS = 20
MAX_TEXTS = 3000

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_MIN_TOP_P = 0.001
_MIN_REPETITION_PENALTY = 0.01
_THINKING_SWITCHES = {"enable_thinking", "clear_thinking"}
_FORBIDDEN = ("chat_template", "prompt_embeds", "input_embeds", "prompt_token_ids")

_encode = msgspec.json.Encoder().encode


class BadInput(ValueError):
    """A body that cannot become a task. The text is for the client."""


def text_generation(body: Mapping[str, Any], *, default_max_tokens: int, context_window: int) -> TextGeneration:
    """The task in a chat completion body. Raises BadInput."""
    refuse_unsafe_fields(body)
    num_choices = integer(body, "n", 1, minimum=1, maximum=8)
    if num_choices != 1:
        raise BadInput("'/n' must be <= 1")
    if body.get("logit_bias"):
        raise BadInput("'/logit_bias' is not supported")
    limit_name = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    return TextGeneration(
        messages=chat_messages(body),
        sampling=sampling(body, limit_name, default_max_tokens=default_max_tokens, context_window=context_window),
    )


def refuse_unsafe_fields(body: Mapping[str, Any]) -> None:
    """Fields by which a caller would choose a template or feed tensors. Raises BadInput."""
    for name in _FORBIDDEN:
        if body.get(name) is not None:
            raise BadInput(f"'/{name}' is not accepted from a caller")
    switches = body.get("chat_template_kwargs")
    if switches is not None and not (isinstance(switches, dict) and _THINKING_SWITCHES.issuperset(switches)):
        raise BadInput("'/chat_template_kwargs' accepts enable_thinking and clear_thinking only")


def chat_messages(body: Mapping[str, Any]) -> tuple[ChatMessage, ...]:
    """`messages` as plain-text turns; only an assistant's content may be null. Raises BadInput."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise BadInput("required properties at '/' are 'messages'")
    if not 1 <= len(messages) <= MAX_MESSAGES:
        raise BadInput(f"'/messages' must have 1 to {MAX_MESSAGES} items")
    return tuple(_message(i, message) for i, message in enumerate(messages))


def _message(index: int, message: Any) -> ChatMessage:
    if not isinstance(message, dict):
        raise BadInput(f"Type mismatch of '/messages/{index}', expected 'object'")
    role = message.get("role")
    known_role = _ROLES.get(role) if isinstance(role, str) else None
    if known_role is None:
        raise BadInput(f"'/messages/{index}/role' must be one of system, user, assistant, tool")
    content = message.get("content")
    if isinstance(content, str):
        return ChatMessage(known_role, content)
    if content is None and known_role == "assistant":
        return ChatMessage(known_role)
    if isinstance(content, list):
        return ChatMessage(known_role, _joined_parts(index, content))
    raise BadInput(f"Type mismatch of '/messages/{index}/content', expected 'string' or 'array'")


def _joined_parts(index: int, parts: list[Any]) -> str:
    where = f"'/messages/{index}/content'"
    if not 1 <= len(parts) <= MAX_CONTENT_PARTS:
        raise BadInput(f"{where} must have 1 to {MAX_CONTENT_PARTS} parts")
    texts = []
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise BadInput(f"{where} may hold parts of type 'text' only")
        texts.append(part["text"])
    return "\n".join(texts)


def sampling(
    body: Mapping[str, Any], limit_name: str = "max_tokens", *, default_max_tokens: int, context_window: int
) -> Sampling:
    """How to sample, from either family's field names. Raises BadInput."""
    logprobs = None
    if boolean(body, "logprobs", False):
        logprobs = integer(body, "top_logprobs", 0, minimum=0, maximum=MAX_TOP_LOGPROBS)
    elif body.get("top_logprobs"):
        integer(body, "top_logprobs", 0, minimum=0, maximum=MAX_TOP_LOGPROBS)
    seed = integer(body, "seed", None, minimum=-(2**63), maximum=2**64 - 1)
    return Sampling(
        max_tokens=integer(
            body, limit_name, min(default_max_tokens, context_window), minimum=1, maximum=context_window
        ),
        must_fit=body.get(limit_name) is not None,
        temperature=number(body, "temperature", 0.6, minimum=0, maximum=5),
        top_p=max(_MIN_TOP_P, number(body, "top_p", 1.0, minimum=0, maximum=1)),
        top_k=integer(body, "top_k", 0, minimum=0, maximum=1000),
        min_p=number(body, "min_p", 0.0, minimum=0, maximum=1),
        seed=None if seed is None else seed % 2**63,
        repetition_penalty=max(_MIN_REPETITION_PENALTY, number(body, "repetition_penalty", 1.0, minimum=0, maximum=2)),
        presence_penalty=number(body, "presence_penalty", 0.0, minimum=-2, maximum=2),
        frequency_penalty=number(body, "frequency_penalty", 0.0, minimum=-2, maximum=2),
        stop=_stop_strings(body.get("stop")),
        ignore_eos=boolean(body, "ignore_eos", False),
        logprobs=logprobs,
    )


def _stop_strings(stop: Any) -> tuple[str, ...]:
    if stop is None:
        return ()
    texts = [stop] if isinstance(stop, str) else stop
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise BadInput("Type mismatch of '/stop', expected 'string' or an 'array' of them")
    if len(texts) > MAX_STOP_STRINGS or any(not 1 <= len(text.encode()) <= MAX_STOP_BYTES for text in texts):
        raise BadInput(f"'/stop' must have at most {MAX_STOP_STRINGS} strings of 1 to {MAX_STOP_BYTES} bytes")
    return tuple(texts)


def text_embeddings(body: Mapping[str, Any]) -> tuple[TextEmbeddings, Literal["float", "base64"]]:
    """The task in an embeddings body, and the encoding its answer is wanted in. Raises BadInput."""
    encoding = body.get("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        raise BadInput("'/encoding_format' must be one of float, base64")
    return TextEmbeddings(texts=texts(body, "input")), "base64" if encoding == "base64" else "float"


def texts(body: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """One text or a list of them. Raises BadInput."""
    value = body.get(name)
    if value is None:
        raise BadInput(f"required properties at '/' are '{name}'")
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise BadInput(f"Type mismatch of '/{name}', expected 'string' or an 'array' of them")
    if not 1 <= len(found) <= MAX_TEXTS:
        raise BadInput(f"'/{name}' must have 1 to {MAX_TEXTS} items")
    if not all(found):
        raise BadInput(f"'/{name}' must not hold an empty text")
    return tuple(found)


def wants_usage_chunk(body: Mapping[str, Any]) -> bool:
    """Whether a streamed chat asks for a last chunk with the usage. Raises BadInput."""
    options = body.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise BadInput("Type mismatch of '/stream_options', expected 'object'")
    return boolean(options, "include_usage", False)


def usage_object(usage: Usage) -> dict[str, Any]:
    """Token counts as both families show them."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def logprobs_object(logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    """`logprobs` of a choice."""
    return {
        "content": [
            _logprob(entry.text, entry.logprob)
            | {"top_logprobs": [_logprob(*alternative) for alternative in entry.top]}
            for entry in logprobs
        ],
        "refusal": None,
    }


def _logprob(text: str, logprob: float) -> dict[str, Any]:
    """`bytes` is null for a token that is no whole character: its text is a stand-in."""
    return {"token": text, "logprob": logprob, "bytes": None if "\ufffd" in text else list(text.encode())}


def chat_completion(
    completion_id: str,
    created: int,
    model: str,
    text: str,
    reason: FinishReason,
    usage: Usage,
    logprobs: Sequence[TokenLogprob] | None = None,
) -> dict[str, Any]:
    """A whole `chat.completion`."""
    return {
        "id": completion_id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None if logprobs is None else logprobs_object(logprobs),
                "finish_reason": reason,
            }
        ],
        "usage": usage_object(usage),
    }


class ChatChunks:
    """The `chat.completion.chunk` documents of one stream, as JSON bytes; everything constant is rendered once."""

    def __init__(self, completion_id: str, created: int, model: str, *, has_usage_chunk: bool) -> None:
        head = {"id": completion_id, "object": "chat.completion.chunk", "created": created, "model": model}
        self._open = _encode(head)[:-1]
        self._before = self._open + b',"choices":[{"index":0,"delta":'
        self._before_text = self._before + b'{"content":'
        self._tail = b"}]" + (b',"usage":null}' if has_usage_chunk else b"}")
        self._after_text = b'},"logprobs":null,"finish_reason":null' + self._tail
        self._has_role = False

    def text(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> bytes:
        """A delta of content; the stream's first also names the role."""
        if self._has_role and not logprobs:
            return self._before_text + _encode(text) + self._after_text
        delta = {"content": text} if self._has_role else {"role": "assistant", "content": text}
        self._has_role = True
        shown = _encode(logprobs_object(logprobs)) if logprobs else b"null"
        return self._before + _encode(delta) + b',"logprobs":' + shown + b',"finish_reason":null' + self._tail

    def end(self, reason: FinishReason) -> bytes:
        """The chunk that says why the stream ends; of an answer without text, it names the role too."""
        delta = b"{}" if self._has_role else b'{"role":"assistant","content":""}'
        return self._before + delta + b',"logprobs":null,"finish_reason":' + _encode(reason) + self._tail

    def usage(self, usage: Usage) -> bytes:
        """The chunk without choices that `include_usage` asks for."""
        return self._open + b',"choices":[],"usage":' + _encode(usage_object(usage)) + b"}"


def vectors(embeddings: Embeddings) -> list[list[float]]:
    """Rows of floats."""
    num_texts, dimensions = embeddings.shape
    values = array("f")
    values.frombytes(embeddings.data)
    if sys.byteorder == "big":
        values.byteswap()
    flat = values.tolist()
    return [flat[row * dimensions : (row + 1) * dimensions] for row in range(num_texts)]


def embeddings_object(
    model: str, embeddings: Embeddings, usage: Usage, encoding: Literal["float", "base64"]
) -> dict[str, Any]:
    """A whole embeddings answer; base64 is of little-endian float32."""
    rows: list[Any]
    if encoding == "base64":
        size = embeddings.shape[1] * 4
        data = embeddings.data
        rows = [base64.b64encode(data[at : at + size]).decode() for at in range(0, len(data), size)]
    else:
        rows = list(vectors(embeddings))
    return {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)],
        "model": model,
        "usage": {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens},
    }


def number(body: Mapping[str, Any], name: str, default: float, *, minimum: float, maximum: float) -> float:
    """A number field within bounds. Raises BadInput."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadInput(f"Type mismatch of '/{name}', expected 'number'")
    if not minimum <= value <= maximum:
        raise BadInput(f"'/{name}' must be >= {minimum:g} and <= {maximum:g}")
    return float(value)


def integer(body: Mapping[str, Any], name: str, default: Any, *, minimum: int, maximum: int) -> Any:
    """A whole-number field within bounds, or `default`. Raises BadInput."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"Type mismatch of '/{name}', expected 'integer'")
    if not minimum <= value <= maximum:
        raise BadInput(f"'/{name}' must be >= {minimum} and <= {maximum}")
    return value


def boolean(body: Mapping[str, Any], name: str, default: bool) -> bool:
    """A yes-or-no field. Raises BadInput."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise BadInput(f"Type mismatch of '/{name}', expected 'boolean'")
    return value
