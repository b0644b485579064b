"""How one model's chat template writes calls of tools: found by having it write one, and used to show it others'.

`find_form` renders a call and looks which family's syntax it came out in. `template_messages` puts a conversation into
the shape that templates read: calls with arguments as objects (or as text, where a template joins strings), results
with the name and id of the call they answer. Knows templates by their output only.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.protocol.messages import ChatMessage
from engine.protocol.tools import Tool, ToolCall
from engine.text.template_pool import TemplateRefused
from engine.tool_calls.answer_parser import call_parser
from engine.tool_calls.families import FAMILIES
from engine.tool_calls.family import Family, ShownIds
from engine.tool_calls.parser import CallPiece

Render = Callable[..., str]  # a template's `render`

_PROBE = Tool(name="find_probe", description="A probe", parameters={"type": "object", "properties": {"probe": {}}})
_PROBED = ("north", "south")
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Form:
    """`takes_text`: the template wants arguments as JSON text. `takes_several`: it can show a turn of several calls;
    a model whose template cannot is asked for one at a time."""

    family: Family
    takes_text: bool = False
    takes_several: bool = True


def find_form(render: Render, family_name: str | None = None, words: Collection[str] = ()) -> Form | None:
    """The form of a model's calls; None when its template writes none that is known. `family_name` says the family
    where the template does not show it; otherwise, where a template tells the model in words how to write calls, one
    of its `words` may."""
    bare_last = sorted(FAMILIES.values(), key=lambda family: family.is_bare)  # they are read behind any mark
    for takes_text in (False, True):
        for family in bare_last:
            if _is_read_back(render, Form(family, takes_text), _PROBED[:1]):
                several = _is_read_back(render, Form(family, takes_text), _PROBED)
                return Form(FAMILIES[family_name] if family_name else family, takes_text, several)
    if family_name:
        return Form(FAMILIES[family_name])
    hinted = (family for family in FAMILIES.values() if any(hint in word for hint in family.hints for word in words))
    return next(map(Form, hinted), None)


def _is_read_back(render: Render, form: Form, probed: Sequence[str]) -> bool:
    """Whether the template writes these calls so that the family's parser finds exactly them."""
    calls = tuple(
        ToolCall(id=f"probe{place[:4]}", name=_PROBE.name, arguments=json.dumps({"probe": place})) for place in probed
    )
    messages = [ChatMessage("user", "Where?"), ChatMessage("assistant", tool_calls=calls)]
    try:
        text = render(template_messages(messages, form), tools=template_tools([_PROBE]), add_generation_prompt=False)
    except TemplateRefused:
        return False
    found = _arguments_in(_last_answer(text, form.family), form.family)
    return found == [{"probe": place} for place in probed]


def _last_answer(text: str, family: Family) -> str:
    """A family whose calls need no opening writes them at the beginning of an answer; the prompt before is cut off."""
    return text[max(0, text.find(family.begin_of(_PROBE.name))) :] if family.is_bare else text


def _arguments_in(text: str, family: Family) -> list[Any]:
    parser = call_parser(family, {_PROBE.name: _PROBE.parameters}, is_held=False, is_parallel=True)
    pieces = [piece for piece in parser.push(text) + parser.flush() if isinstance(piece, CallPiece)]
    return [json.loads(piece.arguments) for piece in pieces if piece.arguments]


def template_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools as templates list them. One without parameters gets the schema that says so."""
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


def template_messages(messages: Sequence[ChatMessage], form: Form | None) -> list[dict[str, Any]]:
    """Turns as templates read them. Without a form, calls are shown in the commonest."""
    ids = _CallIds("given" if form is None else form.family.shown_ids)
    takes_text = form is not None and form.takes_text
    turns = []
    for message in messages:
        turn: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.reasoning:
            turn |= {"reasoning_content": message.reasoning, "thinking": message.reasoning}
        if message.tool_calls:
            turn["tool_calls"] = [
                {
                    "id": ids.made(call),
                    "type": "function",
                    "function": {
                        "name": call.name,
                        "arguments": call.arguments if takes_text else json.loads(call.arguments),
                    },
                }
                for call in message.tool_calls
            ]
        if message.role == "tool":
            turn |= ids.answered(message)
        elif message.name is not None:
            turn["name"] = message.name
        turns.append(turn)
    return turns


class _CallIds:
    """The calls of a conversation that no result has answered yet, oldest first, and how their ids are shown.

    A client of the native form gives no ids: its results answer the calls in order, or the first of their name.
    """

    def __init__(self, shown_ids: ShownIds) -> None:
        self._shown_ids = shown_ids
        self._open: list[tuple[ToolCall, str]] = []  # and how its id is shown
        self._num_made = 0

    def made(self, call: ToolCall) -> str:
        """The id of a call."""
        number, self._num_made = self._num_made, self._num_made + 1
        call_id = call.id or f"call{self._num_made:05d}"
        shown = f"functions.{call.name}:{number}" if self._shown_ids == "numbered" else self._shown(call_id)
        self._open.append((ToolCall(id=call_id, name=call.name, arguments=""), shown))
        return shown

    def answered(self, message: ChatMessage) -> Mapping[str, str]:
        """Name and id of the call that a result answers, as far as they are known."""
        found = next((pair for pair in self._open if self._is_answer(message, pair[0])), None)
        if found is not None:
            self._open.remove(found)
        name = message.name or (found[0].name if found else None)
        unknown = self._shown(message.tool_call_id) if message.tool_call_id else None
        call_id = found[1] if found else unknown
        return ({"name": name} if name else {}) | ({"tool_call_id": call_id} if call_id else {})

    @staticmethod
    def _is_answer(message: ChatMessage, call: ToolCall) -> bool:
        if message.tool_call_id:
            return message.tool_call_id == call.id
        return message.name in (None, call.name)

    def _shown(self, call_id: str) -> str:
        if self._shown_ids != "short" or _SHORT_ID.fullmatch(call_id):
            return call_id
        digest = hashlib.sha256(call_id.encode()).digest()
        return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:9])
