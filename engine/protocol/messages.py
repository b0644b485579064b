"""Chat messages, and the reader of `messages` in request bodies of the native and OpenAI formats.

Content is a string or a list of parts: texts, and images in messages of users. An assistant's content may be null.
Readers raise `BadInput`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from msgspec import Struct, structs

from engine.protocol import fields
from engine.protocol.fields import BadInput
from engine.protocol.images import Image
from engine.protocol.tools import MAX_ID_CHARACTERS, ToolCall, read_message_tool_calls

MAX_MESSAGES = 1000
MAX_CONTENT_PARTS = 64
MAX_IMAGES = 16  # images per conversation

_ASSISTANT_PARTS = ("text", "refusal")

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


class ChatMessage(Struct, frozen=True, omit_defaults=True):
    """One message. `content` is plain text: control tokens inside it are not interpreted. `tool_calls` and `reasoning`
    belong to assistant messages; `tool_call_id` names the call that a tool message responds to. `images` stand in
    `content` at `image_offsets`, in ascending order."""

    role: str
    content: str = ""
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str = ""
    images: tuple[Image, ...] = ()
    image_offsets: tuple[int, ...] = ()


def read_messages(body: Mapping[str, Any]) -> tuple[ChatMessage, ...]:
    """Return the `messages` of a body. Raises BadInput."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise BadInput("required properties at '/' are 'messages'")
    if not 1 <= len(messages) <= MAX_MESSAGES:
        raise BadInput(f"'/messages' must have 1 to {MAX_MESSAGES} items")
    found = tuple([_message(i, message) for i, message in enumerate(messages)])
    if sum([len(message.images) for message in found]) > MAX_IMAGES:
        raise BadInput(f"'/messages' must have at most {MAX_IMAGES} images")
    return found


def with_image(messages: tuple[ChatMessage, ...], image: Image) -> tuple[ChatMessage, ...]:
    """Return the messages with an image before the text of the user's last message. Raises BadInput."""
    index = next((i for i in reversed(range(len(messages))) if messages[i].role == "user"), None)
    if index is None:
        raise BadInput("'/image' needs a message of the user")
    message = messages[index]
    images, offsets = (image, *message.images), (0, *message.image_offsets)
    if sum([len(each.images) for each in messages]) >= MAX_IMAGES:
        raise BadInput(f"'/messages' must have at most {MAX_IMAGES} images")
    changed = structs.replace(message, images=images, image_offsets=offsets)
    return (*messages[:index], changed, *messages[index + 1 :])


def _message(index: int, message: Any) -> ChatMessage:
    if not isinstance(message, dict):
        raise BadInput(f"Type mismatch of '/messages/{index}', expected 'object'")
    role = message.get("role")
    known_role = _ROLES.get(role) if isinstance(role, str) else None
    if known_role is None:
        raise BadInput(f"'/messages/{index}/role' must be one of system, user, assistant, tool")
    if known_role == "user" and _has_images(message.get("content")):
        return _message_with_images(message["content"], f"/messages/{index}/content")
    content = _content(index, message.get("content"), may_be_null=known_role == "assistant")
    if known_role == "assistant":
        calls = read_message_tool_calls(message, f"/messages/{index}")
        content = content or _optional_text(index, message, "refusal")
        return ChatMessage(known_role, content, tool_calls=calls, reasoning=_reasoning(index, message))
    if known_role == "tool":
        return ChatMessage(
            known_role,
            content,
            name=_label(index, message, "name"),
            tool_call_id=_label(index, message, "tool_call_id"),
        )
    return ChatMessage(known_role, content)


def _has_images(content: Any) -> bool:
    return isinstance(content, list) and any(
        isinstance(part, dict) and part.get("type") == "image_url" for part in content
    )


def _message_with_images(content: list[Any], pointer: str) -> ChatMessage:
    """Read the parts of a user's message with images."""
    texts: list[str] = []
    images: list[Image] = []
    offsets: list[int] = []
    if len(content) > MAX_CONTENT_PARTS:
        raise BadInput(f"'{pointer}' must have 1 to {MAX_CONTENT_PARTS} parts")
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "image_url":
            value = part.get("image_url")
            url = value.get("url") if isinstance(value, dict) else value
            if not isinstance(url, str):
                raise BadInput(f"Type mismatch of '{pointer}/{number}/image_url/url', expected 'string'")
            images.append(_image(url, f"{pointer}/{number}/image_url/url"))
            offsets.append(len("\n".join(texts)))
        elif kind == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            raise BadInput(f"'{pointer}' may hold parts of types 'text' and 'image_url' only")
    return ChatMessage("user", "\n".join(texts), images=tuple(images), image_offsets=tuple(offsets))


def _image(url: str, pointer: str) -> Image:
    return Image.of_url(url) if fields.is_web_url(url) else Image.of_file(fields.media_bytes(url, pointer))


def _content(index: int, content: Any, *, may_be_null: bool) -> str:
    if isinstance(content, str):
        return content
    if content is None and may_be_null:
        return ""
    if isinstance(content, list):
        return join_text_parts(content, f"/messages/{index}/content", _ASSISTANT_PARTS if may_be_null else ("text",))
    raise BadInput(f"Type mismatch of '/messages/{index}/content', expected 'string' or 'array'")


def _label(index: int, message: Mapping[str, Any], field: str) -> str | None:
    value = message.get(field)
    if value is None:
        return None
    return fields.text(value, f"/messages/{index}/{field}", max_characters=MAX_ID_CHARACTERS)


def _reasoning(index: int, message: Mapping[str, Any]) -> str:
    """Return the reasoning of an assistant message; clients send it under either of two names."""
    name = "reasoning_content" if message.get("reasoning_content") is not None else "reasoning"
    return _optional_text(index, message, name)


def _optional_text(index: int, message: Mapping[str, Any], name: str) -> str:
    value = message.get(name)
    if value is not None and not isinstance(value, str):
        raise BadInput(f"Type mismatch of '/messages/{index}/{name}', expected 'string'")
    return value or ""


def join_text_parts(content: Any, pointer: str, kinds: Container[str] = ("text",)) -> str:
    """Return a string, or the texts of a list of content parts joined by newlines. `kinds` are the part types allowed
    here; a `refusal` part counts as text. Raises BadInput."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadInput(f"Type mismatch of '{pointer}', expected 'string' or 'array'")
    if not 1 <= len(content) <= MAX_CONTENT_PARTS:
        raise BadInput(f"'{pointer}' must have 1 to {MAX_CONTENT_PARTS} parts")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("refusal" if kind == "refusal" else "text") if isinstance(kind, str) and kind in kinds else None
        if not isinstance(text, str):
            raise BadInput(f"'{pointer}' may hold parts of type 'text' only")
        texts.append(text)
    return "\n".join(texts)
