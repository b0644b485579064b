"""Anthropic's Messages bodies -> typed tasks: system text, turns of blocks, tools. Pure.

Reading raises `BadInput`, which names the field and never the value. How answers look is the gateway's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from engine.protocol import fields, openai
from engine.protocol.fields import BadInput
from engine.protocol.messages import MAX_CONTENT_PARTS, MAX_MESSAGES, joined_texts
from engine.protocol.tasks import ChatMessage, TextGeneration
from engine.protocol.tools import MAX_ID_CHARACTERS, earlier_call, tool_use

MAX_TEXT_CHARACTERS = 10 * 1024 * 1024  # what a body can hold

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def message_request(body: Mapping[str, Any], *, default_max_tokens: int, context_window: int) -> TextGeneration:
    """The task in a Messages body. Raises BadInput."""
    openai.refuse_unsafe_fields(body)
    words = {**body, "stop": body.get("stop_sequences")}
    sampling = openai.sampling(words, default_max_tokens=default_max_tokens, context_window=context_window)
    choice = body.get("tool_choice")
    use = tool_use(
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
        messages=(*_system(body.get("system")), *_turns(body.get("messages"))),
        sampling=sampling,
        tools=use.tools,
        tool_choice=use.choice,
        named_tool=use.named_tool,
        is_parallel_tool_calls=is_parallel,
        template_kwargs=_thinking(body.get("thinking")),
        tells_reasoning=True,
    )


def _thinking(value: Any) -> dict[str, bool | str]:
    """What the template is told about thinking: nothing where the caller says nothing. How much cannot be bounded."""
    if value is None:
        return {}
    is_on = fields.mapping(value, "/thinking").get("type") != "disabled"
    return openai.template_kwargs({"chat_template_kwargs": {"enable_thinking": is_on}})


def _choice(value: dict[str, Any]) -> Any:
    """A tool choice in OpenAI's words."""
    kind = value.get("type")
    if kind == "tool":
        return {"type": "function", "name": value.get("name")}
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise BadInput("'/tool_choice/type' must be one of auto, any, tool, none")
    return _CHOICES[kind]


def _system(value: Any) -> tuple[ChatMessage, ...]:
    return () if value is None else (ChatMessage("system", joined_texts(value, "/system")),)


def _turns(value: Any) -> tuple[ChatMessage, ...]:
    messages = fields.items(value, "/messages", maximum=MAX_MESSAGES)
    if not messages:
        raise BadInput("'/messages' must have 1 or more items")
    turns = [
        turn
        for index, message in enumerate(messages)
        for turn in _message(fields.mapping(message, f"/messages/{index}"), f"/messages/{index}")
    ]
    if messages[-1].get("role") != "user":
        raise BadInput("'/messages' must end with one of role user: an answer that was begun is not continued")
    return tuple(turns)


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
    placed = [(fields.mapping(block, f"{pointer}/{index}"), f"{pointer}/{index}") for index, block in enumerate(blocks)]
    return _assistants(placed, pointer) if role == "assistant" else _users(placed, pointer)


def _assistants(blocks: list[tuple[dict[str, Any], str]], pointer: str) -> Iterator[ChatMessage]:
    """One turn, with the thoughts before it; the model's template decides whether they are shown to it again."""
    texts, calls, thoughts = [], [], []
    for block, where in blocks:
        if block.get("type") == "tool_use":
            calls.append(earlier_call(block, where, arguments_field="input"))
        elif block.get("type") == "thinking":
            thoughts.append(fields.text(block.get("thinking"), f"{where}/thinking", max_characters=MAX_TEXT_CHARACTERS))
        elif block.get("type") != "redacted_thinking":
            texts.append(_text(block, pointer))
    yield ChatMessage("assistant", "\n".join(texts), tool_calls=tuple(calls), reasoning="\n".join(thoughts))


def _users(blocks: list[tuple[dict[str, Any], str]], pointer: str) -> Iterator[ChatMessage]:
    """What tools gave back, each a turn of its own, then what the user says."""
    texts = []
    for block, where in blocks:
        if block.get("type") == "tool_result":
            call_id = fields.text(block.get("tool_use_id"), f"{where}/tool_use_id", max_characters=MAX_ID_CHARACTERS)
            content = block.get("content")
            yield ChatMessage(
                "tool", "" if content is None else joined_texts(content, f"{where}/content"), tool_call_id=call_id
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
