"""OpenAI's chat completions: read a request body, and render `chat.completion` whole or as chunks. Pure.

The gateway and the standalone server share this module. Readers raise `BadInput`. Which model supports a field is
decided elsewhere.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engine.protocol.events import ChoiceEnded, Finished, FinishReason, TokenLogprob, ToolCallDelta, Usage
from engine.protocol.fields import BadInput, boolean
from engine.protocol.outcome import Choice, Outcome
from engine.protocol.rendering import (
    DONE,
    Renderer,
    data_frame,
    encode,
    logprobs_object,
    tool_call_delta_object,
    tool_call_object,
    usage_object,
)
from engine.protocol.sampling import read_num_choices, read_sampling, with_min_tokens
from engine.protocol.tasks.text_generation import TextGeneration

REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
DEFAULT_MAX_CHOICES = 8

_THINKING_SWITCHES = {"enable_thinking", "clear_thinking"}
_FORBIDDEN = ("chat_template", "prompt_embeds", "input_embeds", "prompt_token_ids")


def read_chat_request(
    body: Mapping[str, Any], *, default_max_tokens: int, context_window: int, max_choices: int = DEFAULT_MAX_CHOICES
) -> TextGeneration:
    """Read a chat completion body. Raises BadInput."""
    reject_unsafe_fields(body)
    num_choices = read_num_choices(body, max_choices)
    limit_name = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    sampling = read_sampling(body, limit_name, default_max_tokens=default_max_tokens, context_window=context_window)
    task = TextGeneration.of_messages(body, sampling)
    is_constrained = task.constraint is not None or bool(task.tools)
    return msgspec.structs.replace(
        task,
        sampling=with_min_tokens(body, sampling, is_constrained=is_constrained),
        num_choices=num_choices,
        template_kwargs=read_template_kwargs(body),
        separates_reasoning=True,
    )


def read_template_kwargs(body: Mapping[str, Any]) -> dict[str, bool | str]:
    """Read `reasoning_effort` and `chat_template_kwargs` as variables of the chat template. Raises BadInput.

    An effort of "none" disables thinking. Templates of some families call the switch `thinking`, so both are set.
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


def reject_unsafe_fields(body: Mapping[str, Any]) -> None:
    """Raise BadInput for fields with which a caller would choose a chat template or pass tensors."""
    for name in _FORBIDDEN:
        if body.get(name) is not None:
            raise BadInput(f"'/{name}' is not accepted from a caller")
    switches = body.get("chat_template_kwargs")
    if switches is not None and not (isinstance(switches, dict) and _THINKING_SWITCHES.issuperset(switches)):
        raise BadInput("'/chat_template_kwargs' accepts enable_thinking and clear_thinking only")


def includes_usage(body: Mapping[str, Any]) -> bool:
    """Return `stream_options.include_usage`: True if the stream's last chunk shall have the usage. Raises BadInput."""
    options = body.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise BadInput("Type mismatch of '/stream_options', expected 'object'")
    return boolean(options, "include_usage", False)


class ChatRenderer(Renderer):
    """`chat.completion`, whole or as chunks, for `num_choices` choices. With `is_legacy` tool calls are rendered as the
    older `function_call`, which has room for one call."""

    def __init__(
        self,
        completion_id: str,
        created: int,
        model: str,
        *,
        has_usage_chunk: bool = False,
        has_logprobs: bool = False,
        is_legacy: bool = False,
        num_choices: int = 1,
    ) -> None:
        self._head = (completion_id, created, model)
        self._has_usage_chunk = has_usage_chunk
        self._has_logprobs = has_logprobs
        self._is_legacy = is_legacy
        self._num_choices = num_choices

    @functools.cached_property
    def _chunks(self) -> list[ChatChunks]:
        """The chunk writers of a streamed response, one for each choice."""
        return [
            ChatChunks(*self._head, has_usage_chunk=self._has_usage_chunk, is_legacy=self._is_legacy, index=index)
            for index in range(self._num_choices)
        ]

    def whole(self, outcome: Outcome) -> bytes:
        return encode(
            chat_completion(
                *self._head,
                outcome.choices,
                outcome.finished.usage,
                has_logprobs=self._has_logprobs,
                is_legacy=self._is_legacy,
            )
        )

    def text(self, text: str, logprobs: Sequence[TokenLogprob], choice: int = 0) -> bytes:
        return data_frame(self._chunks[choice].text(text, logprobs))

    def reasoning(self, text: str, choice: int = 0) -> bytes:
        return data_frame(self._chunks[choice].reasoning(text))

    def tool_call(self, delta: ToolCallDelta) -> bytes:
        return data_frame(self._chunks[delta.choice].tool_call(delta))

    def choice_end(self, ended: ChoiceEnded) -> bytes:
        return data_frame(self._chunks[ended.choice].end(ended.reason))

    def end(self, finished: Finished) -> bytes:
        frames = data_frame(self._chunks[0].end(finished.reason)) if self._num_choices == 1 else b""
        if self._has_usage_chunk:
            frames += data_frame(self._chunks[0].usage(finished.usage))
        return frames + DONE


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
    """Return a whole `chat.completion`."""
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
                "finish_reason": _finish_reason(choice.finish_reason, is_legacy=is_legacy),
            }
            for index, choice in enumerate(choices)
        ],
        "usage": _usage_object(usage),
    }


def _message(choice: Choice, *, is_legacy: bool) -> dict[str, Any]:
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


def _usage_object(usage: Usage) -> dict[str, Any]:
    return usage_object(usage) | {"completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens}}


def _finish_reason(reason: FinishReason, *, is_legacy: bool) -> str:
    return "function_call" if is_legacy and reason == "tool_calls" else reason


class ChatChunks:
    """The `chat.completion.chunk` documents of one choice, as JSON bytes. Constant parts are rendered once."""

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
        self._open = encode(head)[:-1]
        self._before = self._open + b',"choices":[{"index":%d,"delta":' % index
        self._before_text = self._before + b'{"content":'
        self._tail = b"}]" + (b',"usage":null}' if has_usage_chunk else b"}")
        self._after_text = b'},"logprobs":null,"finish_reason":null' + self._tail
        self._has_role = False
        self._is_legacy = is_legacy

    def text(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> bytes:
        """Return a chunk of content; the first chunk of a stream also names the role."""
        if self._has_role and not logprobs:
            return self._before_text + encode(text) + self._after_text
        delta = {"content": text} if self._has_role else {"role": "assistant", "content": text}
        self._has_role = True
        shown = encode(logprobs_object(logprobs)) if logprobs else b"null"
        return self._before + encode(delta) + b',"logprobs":' + shown + b',"finish_reason":null' + self._tail

    def reasoning(self, text: str) -> bytes:
        """Return a chunk of reasoning; b"" for an empty text."""
        if not text:
            return b""
        delta = {"reasoning_content": text} if self._has_role else {"role": "assistant", "reasoning_content": text}
        self._has_role = True
        return self._before + encode(delta) + b',"logprobs":null,"finish_reason":null' + self._tail

    def tool_call(self, delta: ToolCallDelta) -> bytes:
        """Return a chunk with a piece of a tool call; b"" for calls after the first in the legacy form."""
        if self._is_legacy and delta.index:
            return b""
        shown: dict[str, Any] = {} if self._has_role else {"role": "assistant", "content": None}
        self._has_role = True
        if self._is_legacy:
            name = {} if delta.name is None else {"name": delta.name}
            shown["function_call"] = {**name, "arguments": delta.arguments}
        else:
            shown["tool_calls"] = [tool_call_delta_object(delta)]
        return self._before + encode(shown) + b',"logprobs":null,"finish_reason":null' + self._tail

    def end(self, reason: FinishReason) -> bytes:
        """Return the chunk with the finish reason; in a stream without content it also names the role."""
        delta = b"{}" if self._has_role else b'{"role":"assistant","content":""}'
        shown = encode(_finish_reason(reason, is_legacy=self._is_legacy))
        return self._before + delta + b',"logprobs":null,"finish_reason":' + shown + self._tail

    def usage(self, usage: Usage) -> bytes:
        """Return the chunk without choices that `include_usage` requests."""
        return self._open + b',"choices":[],"usage":' + encode(_usage_object(usage)) + b"}"
