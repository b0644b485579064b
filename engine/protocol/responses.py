"""OpenAI's Responses bodies -> typed tasks: `input` as text or items, tools, output format. Pure.

Reading raises `BadInput`, which names the field and never the value. What chat says in the same words is read by the
same functions. How answers look is the gateway's business; what an earlier response said comes from elsewhere and is
put in front by `with_earlier`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from engine.protocol import fields, openai
from engine.protocol.fields import BadInput
from engine.protocol.messages import joined_texts
from engine.protocol.output_format import format_constraint
from engine.protocol.tasks import ChatMessage, TextGeneration
from engine.protocol.tools import MAX_ID_CHARACTERS, earlier_call, tool_use
from engine.protocol.vllm_fields import with_min_tokens

MAX_ITEMS = 1000

_RESPONSE_ID = re.compile(r"resp_[0-9a-f]{32}")
_ITEM_ID = re.compile(r"(?:msg|fc|rs|in)_([0-9a-f]{32})[0-9a-f]{2,4}")
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "refusal"})
_THOUGHTS = frozenset({"reasoning_text", "text"})
_WITH_LOGPROBS = "message.output_text.logprobs"
_UNSUPPORTED = {
    "conversation": "is not supported: use '/previous_response_id', or send its items in '/input'",
    "prompt": "is not supported: there are no stored prompts",
}


@dataclass(frozen=True)
class ResponseRequest:
    """What a body asks for. `task` has the `instructions` and the `turns` of this body alone; `previous_id` names the
    response whose turns come before them. `is_background`: nobody waits for it. Items of earlier responses that `items`
    only names are missing in the turns until `with_items` has them; `references` are their ids."""

    task: TextGeneration
    instructions: tuple[ChatMessage, ...]
    turns: tuple[ChatMessage, ...]
    previous_id: str | None
    is_stored: bool
    is_background: bool = False
    items: tuple[dict[str, Any], ...] = ()
    references: tuple[str, ...] = ()

    def with_items(self, known: Mapping[str, Mapping[str, Any]]) -> ResponseRequest:
        """With the items that it names, by their ids. Raises BadInput."""
        items = list(self.items)
        for index, item in enumerate(items):
            if _is_reference(item):
                if item["id"] not in known:
                    raise BadInput(f"'/input/{index}/id' names no item of a response that is kept")
                items[index] = dict(known[item["id"]])
        return replace(self, turns=_turns(items), references=())

    def with_earlier(self, earlier: tuple[ChatMessage, ...]) -> TextGeneration:
        """The task with the turns of earlier responses in front of this body's. Raises BadInput."""
        if len(earlier) + len(self.turns) > MAX_ITEMS:
            raise BadInput(f"'/previous_response_id' and '/input' make more than {MAX_ITEMS} turns")
        return msgspec.structs.replace(self.task, messages=(*self.instructions, *earlier, *self.turns))


def response_request(body: Mapping[str, Any], *, default_max_tokens: int, context_window: int) -> ResponseRequest:
    """Raises BadInput."""
    openai.refuse_unsafe_fields(body)
    for name, why in _UNSUPPORTED.items():
        if body.get(name):
            raise BadInput(f"'/{name}' {why}")
    has_logprobs = _WITH_LOGPROBS in fields.items(body.get("include"), "/include", maximum=16)
    words = {**body, "logprobs": has_logprobs, "top_logprobs": body.get("top_logprobs") if has_logprobs else None}
    sampling = openai.sampling(
        words, "max_output_tokens", default_max_tokens=default_max_tokens, context_window=context_window
    )
    instructions = _instructions(body.get("instructions"))
    given = body.get("input")
    references = _references(given)
    turns = _turns(given, may_be_empty=bool(references))
    use = tool_use(body)
    reasoning = fields.mapping(body.get("reasoning") or {}, "/reasoning")
    constraint = format_constraint(fields.mapping(body.get("text") or {}, "/text").get("format"), "/text/format")
    task = TextGeneration(
        messages=(*instructions, *turns),
        sampling=with_min_tokens(body, sampling, is_held=constraint is not None or bool(use.tools)),
        tools=use.tools,
        tool_choice=use.choice,
        named_tool=use.named_tool,
        is_parallel_tool_calls=use.is_parallel,
        template_kwargs=openai.template_kwargs({"reasoning_effort": reasoning.get("effort")}),
        tells_reasoning=True,
        constraint=constraint,
    )
    is_stored, is_background = fields.boolean(body, "store", True), fields.boolean(body, "background", False)
    if is_background and not is_stored:
        raise BadInput("'/background' needs '/store': what nobody waits for is asked for later")
    previous_id = _previous_id(body.get("previous_response_id"))
    items = tuple(given or ()) if references else ()
    return ResponseRequest(task, instructions, turns, previous_id, is_stored, is_background, items, references)


def response_of(item_id: str) -> str:
    """The id of the response that an item is of."""
    found = _ITEM_ID.fullmatch(item_id)
    assert found is not None
    return f"resp_{found[1]}"


def _is_reference(item: Any) -> bool:
    """Whether it only names an item; the type may be left out."""
    return isinstance(item, dict) and (
        item.get("type") == "item_reference" or (item.get("type") is None and "id" in item and "role" not in item)
    )


def _references(given: Any) -> tuple[str, ...]:
    found = []
    for index, item in enumerate(given if isinstance(given, list) else ()):
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


def _instructions(value: Any) -> tuple[ChatMessage, ...]:
    if value is None:
        return ()
    if not isinstance(value, str):
        raise BadInput("Type mismatch of '/instructions', expected 'string'")
    return (ChatMessage("system", value),)


def _turns(value: Any, *, may_be_empty: bool = False) -> tuple[ChatMessage, ...]:
    """The items of `input` as turns, but for those that are only named; an assistant's thoughts, words and calls after
    each other are of one turn."""
    if isinstance(value, str):
        return (ChatMessage("user", value),)
    items = fields.items(value, "/input", maximum=MAX_ITEMS)
    if not items:
        raise BadInput("required properties at '/' are 'input'" if value is None else "'/input' must have >= 1 items")
    turns: list[ChatMessage] = []
    for index, item in enumerate(items):
        if _is_reference(item):
            continue
        turn = _turn(fields.mapping(item, f"/input/{index}"), f"/input/{index}")
        if turn is None:
            continue
        if turns and turn.role == "assistant" and _goes_on(turns[-1], turn):
            before = turns.pop()
            turn = msgspec.structs.replace(
                before, content=before.content or turn.content, tool_calls=(*before.tool_calls, *turn.tool_calls)
            )
        turns.append(turn)
    if not turns and not may_be_empty:
        raise BadInput("'/input' must hold a message")
    return tuple(turns)


def _goes_on(before: ChatMessage, turn: ChatMessage) -> bool:
    """Whether an assistant's `turn` is a part of the one before it: calls after words, or anything after thoughts."""
    is_only_thought = bool(before.reasoning and not before.content and not before.tool_calls)
    return before.role == "assistant" and not turn.reasoning and (bool(turn.tool_calls) or is_only_thought)


def _turn(item: dict[str, Any], pointer: str) -> ChatMessage | None:
    """One item; None for thoughts whose text is not there."""
    kind = item.get("type") or "message"
    if kind == "message":
        role = item.get("role")
        known_role = _ROLES.get(role) if isinstance(role, str) else None
        if known_role is None:
            raise BadInput(f"'{pointer}/role' must be one of system, developer, user, assistant")
        return ChatMessage(known_role, joined_texts(item.get("content"), f"{pointer}/content", _TEXT_PARTS))
    if kind == "function_call":
        return ChatMessage("assistant", tool_calls=(earlier_call(item, pointer, id_field="call_id"),))
    if kind == "function_call_output":
        call_id = fields.text(item.get("call_id"), f"{pointer}/call_id", max_characters=MAX_ID_CHARACTERS)
        return ChatMessage(
            "tool", joined_texts(item.get("output"), f"{pointer}/output", _TEXT_PARTS), tool_call_id=call_id
        )
    if kind == "reasoning":
        thoughts = item.get("content")
        return (
            ChatMessage("assistant", reasoning=joined_texts(thoughts, f"{pointer}/content", _THOUGHTS))
            if thoughts
            else None
        )
    raise BadInput(
        f"'{pointer}/type' must be one of message, function_call, function_call_output, reasoning, item_reference"
    )
