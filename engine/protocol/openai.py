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

from engine.protocol.events import Embeddings, FinishReason, TokenLogprob, ToolCallDelta, Usage
from engine.protocol.fields import BadInput, boolean, integer, items, mapping, number
from engine.protocol.messages import chat_messages
from engine.protocol.outcome import Choice
from engine.protocol.output_format import output_constraint
from engine.protocol.tasks import Sampling, TextEmbeddings, TextGeneration, ToolCall
from engine.protocol.tools import tool_use
from engine.protocol.vllm_fields import with_min_tokens

MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 256
MAX_TOP_LOGPROBS = 20
MAX_TEXTS = 3000
MAX_CHOICES = 8
MAX_STOP_TOKENS = 16  # with stop strings
MAX_BIASES = 1024
MAX_BIAS = 100

_MIN_TOP_P = 0.001
_MIN_REPETITION_PENALTY = 0.01
REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_THINKING_SWITCHES = {"enable_thinking", "clear_thinking"}
_FORBIDDEN = ("chat_template", "prompt_embeds", "input_embeds", "prompt_token_ids")

_encode = msgspec.json.Encoder().encode


def text_generation(
    body: Mapping[str, Any], *, default_max_tokens: int, context_window: int, max_choices: int = MAX_CHOICES
) -> TextGeneration:
    """The task in a chat completion body. Raises BadInput."""
    refuse_unsafe_fields(body)
    num_choices = integer(body, "n", 1, minimum=1, maximum=max_choices)
    limit_name = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    task = conversation(
        body, sampling(body, limit_name, default_max_tokens=default_max_tokens, context_window=context_window)
    )
    is_held = task.constraint is not None or bool(task.tools)
    return msgspec.structs.replace(
        task,
        sampling=with_min_tokens(body, task.sampling, is_held=is_held),
        num_choices=num_choices,
        template_kwargs=template_kwargs(body),
        tells_reasoning=True,
    )


def template_kwargs(body: Mapping[str, Any]) -> dict[str, bool | str]:
    """Variables of the chat template that a caller sets: `reasoning_effort`, `chat_template_kwargs`. Raises BadInput.

    Templates of some families call the switch `thinking`. An effort of none switches it off.
    """
    found: dict[str, bool | str] = {}
    effort = body.get("reasoning_effort")
    if effort is not None:
        if not isinstance(effort, str) or effort not in REASONING_EFFORTS:
            raise BadInput(f"'/reasoning_effort' must be one of {', '.join(REASONING_EFFORTS)}")
        found |= {"enable_thinking": False} if effort == "none" else {"reasoning_effort": effort}
    switches = body.get("chat_template_kwargs") or {}
    for name in switches:
        found[name] = boolean(switches, name, True, within="/chat_template_kwargs")
    return found | ({"thinking": found["enable_thinking"]} if "enable_thinking" in found else {})


def conversation(body: Mapping[str, Any], sampling: Sampling) -> TextGeneration:
    """The task in `messages`, tools and output format: what both families say in the same fields. Raises BadInput."""
    use = tool_use(body)
    return TextGeneration(
        messages=chat_messages(body),
        sampling=sampling,
        tools=use.tools,
        tool_choice=use.choice,
        named_tool=use.named_tool,
        is_parallel_tool_calls=use.is_parallel,
        constraint=output_constraint(body),
    )


def refuse_unsafe_fields(body: Mapping[str, Any]) -> None:
    """Fields by which a caller would choose a template or feed tensors. Raises BadInput."""
    for name in _FORBIDDEN:
        if body.get(name) is not None:
            raise BadInput(f"'/{name}' is not accepted from a caller")
    switches = body.get("chat_template_kwargs")
    if switches is not None and not (isinstance(switches, dict) and _THINKING_SWITCHES.issuperset(switches)):
        raise BadInput("'/chat_template_kwargs' accepts enable_thinking and clear_thinking only")


def sampling(
    body: Mapping[str, Any],
    limit_name: str = "max_tokens",
    *,
    default_max_tokens: int,
    context_window: int,
    min_max_tokens: int = 1,
) -> Sampling:
    """How to sample, from either family's field names. Raises BadInput."""
    logprobs = None
    if boolean(body, "logprobs", False):
        logprobs = integer(body, "top_logprobs", 0, minimum=0, maximum=MAX_TOP_LOGPROBS)
    elif body.get("top_logprobs"):
        integer(body, "top_logprobs", 0, minimum=0, maximum=MAX_TOP_LOGPROBS)
        raise BadInput("'/top_logprobs' needs '/logprobs' to be true")
    stop = _stop_strings(body.get("stop"))
    seed = integer(body, "seed", None, minimum=-(2**63), maximum=2**64 - 1)
    return Sampling(
        max_tokens=integer(
            body, limit_name, min(default_max_tokens, context_window), minimum=min_max_tokens, maximum=context_window
        ),
        must_fit=body.get(limit_name) is not None,
        temperature=number(body, "temperature", 0.6, minimum=0, maximum=5),
        top_p=max(_MIN_TOP_P, number(body, "top_p", 1.0, minimum=0, maximum=1)),
        top_k=max(0, integer(body, "top_k", 0, minimum=-1, maximum=1000)),  # -1 is off too, as vLLM has it
        min_p=number(body, "min_p", 0.0, minimum=0, maximum=1),
        seed=None if seed is None else seed % 2**63,
        repetition_penalty=max(_MIN_REPETITION_PENALTY, number(body, "repetition_penalty", 1.0, minimum=0, maximum=2)),
        presence_penalty=number(body, "presence_penalty", 0.0, minimum=-2, maximum=2),
        frequency_penalty=number(body, "frequency_penalty", 0.0, minimum=-2, maximum=2),
        stop=stop,
        stop_token_ids=_stop_tokens(body.get("stop_token_ids"), MAX_STOP_TOKENS - len(stop)),
        ignore_eos=boolean(body, "ignore_eos", False),
        logprobs=logprobs,
        logit_bias=_logit_bias(body.get("logit_bias")),
    )


def _stop_tokens(value: Any, maximum: int) -> tuple[int, ...]:
    token_ids = items(value, "/stop_token_ids", maximum=maximum)
    if not all(_is_token_id(token_id) for token_id in token_ids):
        raise BadInput("'/stop_token_ids' must hold token ids")
    return tuple(token_ids)


def _is_token_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 31


def _logit_bias(value: Any) -> tuple[tuple[int, float], ...]:
    """An object of token ids, as JSON spells keys, and numbers."""
    if value is None:
        return ()
    biases = mapping(value, "/logit_bias")
    if len(biases) > MAX_BIASES:
        raise BadInput(f"'/logit_bias' must have <= {MAX_BIASES} members")
    found: dict[int, float] = {}
    for key, bias in biases.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < 1 << 31):
            raise BadInput("'/logit_bias' must have token ids as its keys")
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise BadInput("Type mismatch of a value in '/logit_bias', expected 'number'")
        if not -MAX_BIAS <= bias <= MAX_BIAS:
            raise BadInput(f"values in '/logit_bias' must be >= {-MAX_BIAS} and <= {MAX_BIAS}")
        found[int(key)] = float(bias)
    return tuple(found.items())


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


def chat_usage_object(usage: Usage) -> dict[str, Any]:
    """Token counts of a chat completion."""
    return usage_object(usage) | {"completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens}}


def logprobs_object(logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    """`logprobs` of a choice."""
    return {"content": [_logprobs_of(entry) for entry in logprobs], "refusal": None}


def _logprobs_of(entry: TokenLogprob) -> dict[str, Any]:
    """One token's. Where it is a part of a character its text is a stand-in, and its `bytes` are what tells."""
    texts = ((entry.text, entry.logprob), *entry.top)
    spelled = entry.spelled or tuple(text.encode() for text, _ in texts)
    own, *others = [
        {"token": text, "logprob": logprob, "bytes": list(spells)}
        for (text, logprob), spells in zip(texts, spelled, strict=True)
    ]
    return own | {"top_logprobs": others}


def chat_completion(
    completion_id: str,
    created: int,
    model: str,
    choices: Sequence[Choice],
    usage: Usage,
    *,
    has_logprobs: bool = False,
    is_legacy: bool = False,
) -> dict[str, Any]:
    """A whole `chat.completion`. `is_legacy`: calls are told as the older `function_call`, which has room for one."""
    return {
        "id": completion_id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [
            {
                "index": index,
                "message": _message(choice, is_legacy=is_legacy),
                "logprobs": logprobs_object(choice.logprobs) if has_logprobs else None,
                "finish_reason": finish_reason(choice.why, is_legacy=is_legacy),
            }
            for index, choice in enumerate(choices)
        ],
        "usage": chat_usage_object(usage),
    }


def _message(choice: Choice, *, is_legacy: bool) -> dict[str, Any]:
    """What an assistant said."""
    text, reasoning, tool_calls = choice.text, choice.reasoning, choice.tool_calls
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if tool_calls:
        message["content"] = text or None
        if is_legacy:
            message["function_call"] = {"name": tool_calls[0].name, "arguments": tool_calls[0].arguments}
        else:
            message["tool_calls"] = [tool_call_object(call) for call in tool_calls]
    return message


def tool_call_object(call: ToolCall) -> dict[str, Any]:
    """A call in a message; `arguments` stay JSON text."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def tool_call_delta(delta: ToolCallDelta) -> dict[str, Any]:
    """A piece of a call; only the first has id, type and name."""
    if delta.name is None:
        return {"index": delta.index, "function": {"arguments": delta.arguments}}
    function = {"name": delta.name, "arguments": delta.arguments}
    return {"index": delta.index, "id": delta.id, "type": "function", "function": function}


def finish_reason(reason: FinishReason, *, is_legacy: bool) -> str:
    """Why an answer ended, in the words of the form that was asked for."""
    return "function_call" if is_legacy and reason == "tool_calls" else reason


class ChatChunks:
    """The `chat.completion.chunk` documents of one stream, as JSON bytes; everything constant is rendered once."""

    def __init__(
        self,
        completion_id: str,
        created: int,
        model: str,
        *,
        has_usage_chunk: bool,
        is_legacy: bool = False,
        index: int = 0,
    ) -> None:
        head = {"id": completion_id, "object": "chat.completion.chunk", "created": created, "model": model}
        self._open = _encode(head)[:-1]
        self._before = self._open + b',"choices":[{"index":%d,"delta":' % index
        self._before_text = self._before + b'{"content":'
        self._tail = b"}]" + (b',"usage":null}' if has_usage_chunk else b"}")
        self._after_text = b'},"logprobs":null,"finish_reason":null' + self._tail
        self._has_role = False
        self._is_legacy = is_legacy

    def text(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> bytes:
        """A delta of content; the stream's first also names the role."""
        if self._has_role and not logprobs:
            return self._before_text + _encode(text) + self._after_text
        delta = {"content": text} if self._has_role else {"role": "assistant", "content": text}
        self._has_role = True
        shown = _encode(logprobs_object(logprobs)) if logprobs else b"null"
        return self._before + _encode(delta) + b',"logprobs":' + shown + b',"finish_reason":null' + self._tail

    def reasoning(self, text: str) -> bytes:
        """A delta of what the model thinks; none for an empty one."""
        if not text:
            return b""
        delta = {"reasoning_content": text} if self._has_role else {"role": "assistant", "reasoning_content": text}
        self._has_role = True
        return self._before + _encode(delta) + b',"logprobs":null,"finish_reason":null' + self._tail

    def tool_call(self, delta: ToolCallDelta) -> bytes:
        """A piece of a call. The older form has room for one call, and tells nothing of others."""
        if self._is_legacy and delta.index:
            return b""
        shown: dict[str, Any] = {} if self._has_role else {"role": "assistant", "content": None}
        self._has_role = True
        if self._is_legacy:
            name = {} if delta.name is None else {"name": delta.name}
            shown["function_call"] = {**name, "arguments": delta.arguments}
        else:
            shown["tool_calls"] = [tool_call_delta(delta)]
        return self._before + _encode(shown) + b',"logprobs":null,"finish_reason":null' + self._tail

    def end(self, reason: FinishReason) -> bytes:
        """The chunk that says why the stream ends; of an answer without text, it names the role too."""
        delta = b"{}" if self._has_role else b'{"role":"assistant","content":""}'
        return self._before + delta + b',"logprobs":null,"finish_reason":' + self._shown(reason) + self._tail

    def _shown(self, reason: FinishReason) -> bytes:
        return _encode(finish_reason(reason, is_legacy=self._is_legacy))

    def usage(self, usage: Usage) -> bytes:
        """The chunk without choices that `include_usage` asks for."""
        return self._open + b',"choices":[],"usage":' + _encode(chat_usage_object(usage)) + b"}"


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
