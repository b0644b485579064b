"""OpenAI's Responses: read a request body with `input` as text or items, tools and an output format. Pure.

Readers raise `BadInput`. Rendering is the gateway's, in `gateway/inference/responses.py`. The messages of an earlier
response (`previous_response_id`) come from a store; `with_earlier` puts them in front of the request's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from engine.protocol import fields
from engine.protocol.chat_completions import read_template_kwargs, reject_unsafe_fields
from engine.protocol.fields import BadInput
from engine.protocol.messages import ChatMessage, join_text_parts
from engine.protocol.output_format import read_response_format
from engine.protocol.sampling import read_sampling, with_min_tokens
from engine.protocol.tasks.text_generation import TextGeneration
from engine.protocol.tools import MAX_ID_CHARACTERS, read_tool_call, read_tool_options

MAX_ITEMS = 1000

_RESPONSE_ID = re.compile(r"resp_[0-9a-f]{32}")
_ITEM_ID = re.compile(r"(?:msg|fc|rs|in)_([0-9a-f]{32})[0-9a-f]{2,4}")
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "refusal"})
_REASONING_PARTS = frozenset({"reasoning_text", "text"})
_WITH_LOGPROBS = "message.output_text.logprobs"
_UNSUPPORTED = {
    "conversation": "is not supported: use '/previous_response_id', or send its items in '/input'",
    "prompt": "is not supported: there are no stored prompts",
}


@dataclass(frozen=True)
class ResponseRequest:
    """A Responses request.

    `task` has the `instructions` and `messages` of this body alone; the messages of the response `previous_id` come
    between the two. `references` are ids of earlier items that `items` only names: their messages are missing until
    `with_items` is called. `is_background`: the response is generated after the request has been answered.
    """

    task: TextGeneration
    instructions: tuple[ChatMessage, ...]
    messages: tuple[ChatMessage, ...]
    previous_id: str | None
    is_stored: bool
    is_background: bool = False
    items: tuple[dict[str, Any], ...] = ()
    references: tuple[str, ...] = ()

    def with_items(self, known: Mapping[str, Mapping[str, Any]]) -> ResponseRequest:
        """Return the request with referenced items filled in; `known` has items by id. Raises BadInput."""
        items = list(self.items)
        for index, item in enumerate(items):
            if _is_reference(item):
                if item["id"] not in known:
                    raise BadInput(f"'/input/{index}/id' names no item of a stored response")
                items[index] = dict(known[item["id"]])
        return replace(self, messages=_messages(items), references=())

    def with_earlier(self, earlier: tuple[ChatMessage, ...]) -> TextGeneration:
        """Return the task with the messages of earlier responses before this request's own. Raises BadInput."""
        if len(earlier) + len(self.messages) > MAX_ITEMS:
            raise BadInput(f"'/previous_response_id' and '/input' make more than {MAX_ITEMS} messages")
        return msgspec.structs.replace(self.task, messages=(*self.instructions, *earlier, *self.messages))


def read_response_request(body: Mapping[str, Any], *, default_max_tokens: int, context_window: int) -> ResponseRequest:
    """Read a Responses body. Raises BadInput."""
    reject_unsafe_fields(body)
    for name, why in _UNSUPPORTED.items():
        if body.get(name):
            raise BadInput(f"'/{name}' {why}")
    has_logprobs = _WITH_LOGPROBS in fields.items(body.get("include"), "/include", maximum=16)
    sampling = read_sampling(
        {**body, "logprobs": has_logprobs, "top_logprobs": body.get("top_logprobs") if has_logprobs else None},
        "max_output_tokens",
        default_max_tokens=default_max_tokens,
        context_window=context_window,
    )
    system_text = body.get("instructions")
    if system_text is not None and not isinstance(system_text, str):
        raise BadInput("Type mismatch of '/instructions', expected 'string'")
    instructions = () if system_text is None else (ChatMessage("system", system_text),)
    body_input = body.get("input")
    references = _references(body_input)
    messages = _messages(body_input, may_be_empty=bool(references))
    tools = read_tool_options(body)
    reasoning = fields.mapping(body.get("reasoning") or {}, "/reasoning")
    constraint = read_response_format(fields.mapping(body.get("text") or {}, "/text").get("format"), "/text/format")
    task = TextGeneration(
        messages=(*instructions, *messages),
        sampling=with_min_tokens(body, sampling, is_constrained=constraint is not None or bool(tools.tools)),
        tools=tools.tools,
        tool_choice=tools.choice,
        named_tool=tools.named_tool,
        is_parallel_tool_calls=tools.is_parallel,
        template_kwargs=read_template_kwargs({"reasoning_effort": reasoning.get("effort")}),
        separates_reasoning=True,
        constraint=constraint,
    )
    is_stored, is_background = fields.boolean(body, "store", True), fields.boolean(body, "background", False)
    if is_background and not is_stored:
        raise BadInput("'/background' needs '/store': a background response is retrieved later")
    previous_id = _previous_id(body.get("previous_response_id"))
    items = tuple(body_input or ()) if references else ()
    return ResponseRequest(task, instructions, messages, previous_id, is_stored, is_background, items, references)


def response_id_of_item(item_id: str) -> str:
    """Return the id of the response that an item belongs to."""
    found = _ITEM_ID.fullmatch(item_id)
    assert found is not None
    return f"resp_{found[1]}"


def _is_reference(item: Any) -> bool:
    """Return True if an input item only names an earlier item; its type may be omitted."""
    return isinstance(item, dict) and (
        item.get("type") == "item_reference" or (item.get("type") is None and "id" in item and "role" not in item)
    )


def _references(body_input: Any) -> tuple[str, ...]:
    found = []
    for index, item in enumerate(body_input if isinstance(body_input, list) else ()):
        if _is_reference(item):
            item_id = item.get("id")
            if not isinstance(item_id, str) or not _ITEM_ID.fullmatch(item_id):
                raise BadInput(f"'/input/{index}/id' must be the id of an item of a response")
            found.append(item_id)
    return tuple(found)


def _previous_id(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not _RESPONSE_ID.fullmatch(value):
        raise BadInput("'/previous_response_id' must be the id of a response")
    return value


def _messages(value: Any, *, may_be_empty: bool = False) -> tuple[ChatMessage, ...]:
    """Return the items of `input` as messages, without references. Consecutive reasoning, text and tool calls of the
    assistant form one message."""
    if isinstance(value, str):
        return (ChatMessage("user", value),)
    items = fields.items(value, "/input", maximum=MAX_ITEMS)
    if not items:
        raise BadInput("required properties at '/' are 'input'" if value is None else "'/input' must have >= 1 items")
    messages: list[ChatMessage] = []
    for index, item in enumerate(items):
        if _is_reference(item):
            continue
        message = _message(fields.mapping(item, f"/input/{index}"), f"/input/{index}")
        if message is None:
            continue
        if messages and message.role == "assistant" and _continues(messages[-1], message):
            before = messages.pop()
            message = msgspec.structs.replace(
                before,
                content=before.content or message.content,
                tool_calls=(*before.tool_calls, *message.tool_calls),
            )
        messages.append(message)
    if not messages and not may_be_empty:
        raise BadInput("'/input' must hold a message")
    return tuple(messages)


def _continues(before: ChatMessage, message: ChatMessage) -> bool:
    """Return True if an assistant's `message` is part of the one before: tool calls after text, or anything but
    reasoning after reasoning."""
    is_only_reasoning = bool(before.reasoning and not before.content and not before.tool_calls)
    return before.role == "assistant" and not message.reasoning and (bool(message.tool_calls) or is_only_reasoning)


def _message(item: dict[str, Any], pointer: str) -> ChatMessage | None:
    """Return the message of one item; None for reasoning without its text."""
    kind = item.get("type") or "message"
    if kind == "message":
        role = item.get("role")
        known_role = _ROLES.get(role) if isinstance(role, str) else None
        if known_role is None:
            raise BadInput(f"'{pointer}/role' must be one of system, developer, user, assistant")
        return ChatMessage(known_role, join_text_parts(item.get("content"), f"{pointer}/content", _TEXT_PARTS))
    if kind == "function_call":
        return ChatMessage("assistant", tool_calls=(read_tool_call(item, pointer, id_field="call_id"),))
    if kind == "function_call_output":
        call_id = fields.text(item.get("call_id"), f"{pointer}/call_id", max_characters=MAX_ID_CHARACTERS)
        return ChatMessage(
            "tool", join_text_parts(item.get("output"), f"{pointer}/output", _TEXT_PARTS), tool_call_id=call_id
        )
    if kind == "reasoning":
        content = item.get("content")
        return (
            ChatMessage("assistant", reasoning=join_text_parts(content, f"{pointer}/content", _REASONING_PARTS))
            if content
            else None
        )
    raise BadInput(
        f"'{pointer}/type' must be one of message, function_call, function_call_output, reasoning, item_reference"
    )
