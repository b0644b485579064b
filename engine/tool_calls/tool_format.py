"""The syntax in which a model's chat template renders tool calls, and conversations in the form templates expect.

`find_tool_format` renders a call and looks for the family whose parser finds the call in the rendered text.
`template_messages` gives calls arguments as objects (or as text, for templates that concatenate strings), and tool
results the name and id of their call. Templates are known only by their output.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.protocol.messages import ChatMessage
from engine.protocol.tools import Tool, ToolCall
from engine.text.files import TokenizerUnusable
from engine.text.template_pool import TemplateRefused
from engine.text.tokenizer import Tokenizer
from engine.tool_calls.call_parser import ToolCallPiece
from engine.tool_calls.families import FAMILIES
from engine.tool_calls.family import Family, IdStyle
from engine.tool_calls.output_parser import make_call_parser

Render = Callable[..., str]  # `render` of a chat template

_PROBE = Tool(name="find_probe", description="A probe", parameters={"type": "object", "properties": {"probe": {}}})
_PROBE_VALUES = ("north", "south")
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class ToolFormat:
    """The call syntax of one chat template. `arguments_as_text`: the template expects arguments as JSON text.
    `supports_parallel`: the template can render several calls in one turn; otherwise the model is limited to one call
    per turn."""

    family: Family
    arguments_as_text: bool = False
    supports_parallel: bool = True


def find_tool_format(render: Render, family_name: str | None = None, words: Collection[str] = ()) -> ToolFormat | None:
    """Return the call syntax of a chat template; None if it is unknown. `family_name` is the family given by the model
    card, for templates that do not render calls. Otherwise the template's string constants `words` are searched for the
    families' hints."""
    bare_last = sorted(
        FAMILIES.values(), key=lambda family: family.is_bare
    )  # a bare family also parses calls of families with an opening
    for arguments_as_text in (False, True):
        for family in bare_last:
            if _renders(render, ToolFormat(family, arguments_as_text), _PROBE_VALUES[:1]):
                several = _renders(render, ToolFormat(family, arguments_as_text), _PROBE_VALUES)
                return ToolFormat(FAMILIES[family_name] if family_name else family, arguments_as_text, several)
    if family_name:
        return ToolFormat(FAMILIES[family_name])
    hinted = (family for family in FAMILIES.values() if any(hint in word for hint in family.hints for word in words))
    return next(map(ToolFormat, hinted), None)


def supports_tools(model_dir: Path) -> bool:
    """Return True if the model's chat template has a known syntax for tool calls."""
    try:
        template = Tokenizer(model_dir).chat_template
    except TokenizerUnusable:
        return False
    return template is not None and find_tool_format(template.render) is not None


def _renders(render: Render, form: ToolFormat, values: Sequence[str]) -> bool:
    """Return True if the template renders these calls so that the family's parser finds exactly these."""
    calls = tuple(
        ToolCall(id=f"probe{value[:4]}", name=_PROBE.name, arguments=json.dumps({"probe": value})) for value in values
    )
    messages = [ChatMessage("user", "Where?"), ChatMessage("assistant", tool_calls=calls)]
    try:
        text = render(template_messages(messages, form), tools=template_tools([_PROBE]), add_generation_prompt=False)
    except TemplateRefused:
        return False
    found = _arguments_in(_without_prompt(text, form.family), form.family)
    return found == [{"probe": value} for value in values]


def _without_prompt(text: str, family: Family) -> str:
    """Return the rendered text without the prompt, for families whose calls have no opening and begin the output."""
    return text[max(0, text.find(family.begin_of(_PROBE.name))) :] if family.is_bare else text


def _arguments_in(text: str, family: Family) -> list[Any]:
    parser = make_call_parser(family, {_PROBE.name: _PROBE.parameters}, is_constrained=False, is_parallel=True)
    pieces = [piece for piece in parser.push(text) + parser.flush() if isinstance(piece, ToolCallPiece)]
    return [json.loads(piece.arguments) for piece in pieces if piece.arguments]


def template_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Return tools in the form templates expect. A tool without parameters gets an empty object schema."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters or {"type": "object", "properties": {}},
            },
        }
        for tool in tools
    ]


def template_messages(messages: Sequence[ChatMessage], form: ToolFormat | None) -> list[dict[str, Any]]:
    """Return the conversation in the form templates expect. Without a format, calls have arguments as objects."""
    ids = _CallIds("given" if form is None else form.family.id_style)
    arguments_as_text = form is not None and form.arguments_as_text
    turns = []
    for message in messages:
        turn: dict[str, Any] = {"role": message.role, "content": _content(message)}
        if message.reasoning:
            turn |= {"reasoning_content": message.reasoning, "thinking": message.reasoning}
        if message.tool_calls:
            turn["tool_calls"] = [
                {
                    "id": ids.add(call),
                    "type": "function",
                    "function": {
                        "name": call.name,
                        "arguments": call.arguments if arguments_as_text else json.loads(call.arguments),
                    },
                }
                for call in message.tool_calls
            ]
        if message.role == "tool":
            turn |= ids.match_result(message)
        elif message.name is not None:
            turn["name"] = message.name
        turns.append(turn)
    return turns


def _content(message: ChatMessage) -> str | list[dict[str, str]]:
    """Return the text of a message, or its parts if it has images."""
    if not message.images:
        return message.content
    parts: list[dict[str, str]] = []
    start = 0
    for offset in (*message.image_offsets, None):
        text = message.content[start:offset]
        if start:
            text = text.removeprefix("\n")  # the line break that joins the texts of parts
        if text:
            parts.append({"type": "text", "text": text})
        if offset is not None:
            parts.append({"type": "image"})
            start = offset
    return parts


class _CallIds:
    """Calls of a conversation without a result yet, oldest first, and the ids shown to the template.

    Native clients send no ids: their results answer the calls in order, or the first call of the same name.
    """

    def __init__(self, id_style: IdStyle) -> None:
        self._shown_ids = id_style
        self._open: list[tuple[ToolCall, str]] = []  # calls and the ids shown
        self._num_made = 0

    def add(self, call: ToolCall) -> str:
        """Return the id to show for a call."""
        number, self._num_made = self._num_made, self._num_made + 1
        call_id = call.id or f"call{self._num_made:05d}"
        shown = f"functions.{call.name}:{number}" if self._shown_ids == "numbered" else self._shown(call_id)
        self._open.append((ToolCall(id=call_id, name=call.name, arguments=""), shown))
        return shown

    def match_result(self, message: ChatMessage) -> Mapping[str, str]:
        """Return name and id of the call that a tool result answers, as far as known."""
        found = next((pair for pair in self._open if self._is_result_of(message, pair[0])), None)
        if found is not None:
            self._open.remove(found)
        name = message.name or (found[0].name if found else None)
        unknown = self._shown(message.tool_call_id) if message.tool_call_id else None
        call_id = found[1] if found else unknown
        return ({"name": name} if name else {}) | ({"tool_call_id": call_id} if call_id else {})

    @staticmethod
    def _is_result_of(message: ChatMessage, call: ToolCall) -> bool:
        if message.tool_call_id:
            return message.tool_call_id == call.id
        return message.name in (None, call.name)

    def _shown(self, call_id: str) -> str:
        if self._shown_ids != "short" or _SHORT_ID.fullmatch(call_id):
            return call_id
        digest = hashlib.sha256(call_id.encode()).digest()
        return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:9])
