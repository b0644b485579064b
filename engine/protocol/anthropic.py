"""Anthropic's Messages: read a request body with system text, messages of content blocks, and tools. Pure.

Readers raise `BadInput`. Rendering is the gateway's, in `gateway/inference/messages.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from engine.protocol import fields
from engine.protocol.chat_completions import read_template_kwargs, reject_unsafe_fields
from engine.protocol.fields import BadInput
from engine.protocol.messages import MAX_CONTENT_PARTS, MAX_MESSAGES, ChatMessage, join_text_parts
from engine.protocol.output_format import read_message_format
from engine.protocol.sampling import read_sampling
from engine.protocol.tasks.text_generation import TextGeneration
from engine.protocol.tools import MAX_ID_CHARACTERS, read_tool_call, read_tool_options

MAX_TEXT_CHARACTERS = 10 * 1024 * 1024  # the largest request body

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def read_message_request(body: Mapping[str, Any], *, default_max_tokens: int, context_window: int) -> TextGeneration:
    """Read a Messages body. Raises BadInput."""
    reject_unsafe_fields(body)
    sampling = read_sampling(
        {**body, "stop": body.get("stop_sequences")},
        default_max_tokens=default_max_tokens,
        context_window=context_window,
    )
    choice = body.get("tool_choice")
    tools = read_tool_options(
        {
            "tools": body.get("tools"),
            "tool_choice": None if choice is None else _choice(fields.mapping(choice, "/tool_choice")),
        },
        schema_field="input_schema",
    )
    is_parallel = choice is None or not fields.boolean(
        choice, "disable_parallel_tool_use", False, within="/tool_choice"
    )
    return TextGeneration(
        messages=(*_system(body.get("system")), *_messages(body.get("messages"))),
        sampling=sampling,
        tools=tools.tools,
        tool_choice=tools.choice,
        named_tool=tools.named_tool,
        is_parallel_tool_calls=is_parallel,
        template_kwargs=_template_kwargs(body),
        separates_reasoning=True,
        constraint=read_message_format(body),
    )


def _template_kwargs(body: Mapping[str, Any]) -> dict[str, bool | str]:
    """Return the chat template variables for `thinking` and `output_config.effort`. `budget_tokens` has no effect."""
    switches: dict[str, bool] = {}
    thinking = body.get("thinking")
    if thinking is not None:
        switches["enable_thinking"] = fields.mapping(thinking, "/thinking").get("type") != "disabled"
    effort = fields.mapping(body.get("output_config") or {}, "/output_config").get("effort")
    return read_template_kwargs({"reasoning_effort": effort, "chat_template_kwargs": switches})


def _choice(value: dict[str, Any]) -> Any:
    """Return a tool choice in OpenAI's form."""
    kind = value.get("type")
    if kind == "tool":
        return {"type": "function", "name": value.get("name")}
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise BadInput("'/tool_choice/type' must be one of auto, any, tool, none")
    return _CHOICES[kind]


def _system(value: Any) -> tuple[ChatMessage, ...]:
    return () if value is None else (ChatMessage("system", join_text_parts(value, "/system")),)


def _messages(value: Any) -> tuple[ChatMessage, ...]:
    messages = fields.items(value, "/messages", maximum=MAX_MESSAGES)
    if not messages:
        raise BadInput("'/messages' must have 1 or more items")
    found = [
        each
        for index, message in enumerate(messages)
        for each in _message(fields.mapping(message, f"/messages/{index}"), f"/messages/{index}")
    ]
    if messages[-1].get("role") != "user":
        raise BadInput("'/messages' must end with a message of role user: assistant prefill is not supported")
    return tuple(found)


def _message(message: dict[str, Any], pointer: str) -> Iterator[ChatMessage]:
    role = message.get("role")
    if role not in ("user", "assistant"):
        raise BadInput(f"'{pointer}/role' must be one of user, assistant")
    pointer += "/content"
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list):
        raise BadInput(f"Type mismatch of '{pointer}', expected 'string' or 'array'")
    if not 1 <= len(blocks) <= MAX_CONTENT_PARTS:
        raise BadInput(f"'{pointer}' must have 1 to {MAX_CONTENT_PARTS} blocks")
    pointed = [
        (fields.mapping(block, f"{pointer}/{index}"), f"{pointer}/{index}") for index, block in enumerate(blocks)
    ]
    return _assistant_message(pointed, pointer) if role == "assistant" else _user_messages(pointed, pointer)


def _assistant_message(blocks: list[tuple[dict[str, Any], str]], pointer: str) -> Iterator[ChatMessage]:
    """Yield one message with its reasoning; the model's template decides whether the model sees earlier reasoning."""
    texts, calls, reasoning = [], [], []
    for block, where in blocks:
        if block.get("type") == "tool_use":
            calls.append(read_tool_call(block, where, arguments_field="input"))
        elif block.get("type") == "thinking":
            text = fields.text(block.get("thinking"), f"{where}/thinking", max_characters=MAX_TEXT_CHARACTERS)
            reasoning.append(text)
        elif block.get("type") != "redacted_thinking":
            texts.append(_text(block, pointer))
    yield ChatMessage("assistant", "\n".join(texts), tool_calls=tuple(calls), reasoning="\n".join(reasoning))


def _user_messages(blocks: list[tuple[dict[str, Any], str]], pointer: str) -> Iterator[ChatMessage]:
    """Yield one message for each tool result, then one with the user's text, if any."""
    texts = []
    for block, where in blocks:
        if block.get("type") == "tool_result":
            call_id = fields.text(block.get("tool_use_id"), f"{where}/tool_use_id", max_characters=MAX_ID_CHARACTERS)
            content = block.get("content")
            yield ChatMessage(
                "tool", "" if content is None else join_text_parts(content, f"{where}/content"), tool_call_id=call_id
            )
        else:
            texts.append(_text(block, pointer))
    if texts:
        yield ChatMessage("user", "\n".join(texts))


def _text(block: dict[str, Any], pointer: str) -> str:
    if block.get("type") != "text" or not isinstance(block.get("text"), str):
        raise BadInput(f"'{pointer}' may hold blocks of type text, tool_use, tool_result and thinking only")
    text: str = block["text"]
    return text
