"""Tools in a body -> `Tool`s and what is asked of them, whichever of the forms that clients send.

A tool is OpenAI's `{type, function: {name, description, parameters, strict}}`, or the same fields flat; OpenAI's older
`functions` and `function_call` mean the same. A function's `code` is for whoever answers its calls, at the client: it
is never looked at. Reading raises `BadInput`. Pure; knows no model, and no family's syntax.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from engine.protocol import fields
from engine.protocol.fields import BadInput
from engine.protocol.tasks import Tool, ToolCall

MAX_TOOLS = 128
MAX_TOOLS_BYTES = 256 * 1024
MAX_DEPTH = 32  # of one tool's parameters
MAX_CALLS = 128  # in one earlier turn
MAX_ID_CHARACTERS = 128

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,127}")
_CHOICES: dict[str, Literal["auto", "none", "required"]] = {
    "auto": "auto",
    "none": "none",
    "required": "required",
    "any": "required",  # what Workers AI's provider for the AI SDK says
}


class ToolUse(NamedTuple):
    """What a body says about tools."""

    tools: tuple[Tool, ...] = ()
    choice: Literal["auto", "none", "required"] = "auto"
    named_tool: str | None = None
    is_parallel: bool = True


def is_legacy(body: Mapping[str, Any]) -> bool:
    """Whether a body speaks of tools in OpenAI's older words, in which the answer is to be told too."""
    return not body.get("tools") and bool(body.get("functions"))


def tool_use(body: Mapping[str, Any], *, schema_field: str = "parameters") -> ToolUse:
    """The tools of a body and which of them the model may or must call. Raises BadInput."""
    is_old = is_legacy(body)
    field = "functions" if is_old else "tools"
    choice_field = "function_call" if is_old and body.get("function_call") is not None else "tool_choice"
    tools = _tools(body.get(field), field, schema_field)
    asked = body.get(choice_field)
    if isinstance(asked, dict) and asked.get("type") == "allowed_tools":
        asked, tools = _allowed(asked, f"/{choice_field}", tools)
    choice, named = _choice(asked, choice_field)
    if not tools and (choice == "required" or named is not None):
        raise BadInput(f"'/{choice_field}' needs '/{field}'")
    if named is not None and all(tool.name != named for tool in tools):
        raise BadInput(f"'/{choice_field}' must name one of '/{field}'")
    is_parallel = fields.boolean(body, "parallel_tool_calls", True) and not is_old
    return ToolUse(tools, choice, named, is_parallel)


def _tools(value: Any, field: str, schema_field: str) -> tuple[Tool, ...]:
    items = fields.items(value, f"/{field}", maximum=MAX_TOOLS)
    if len(msgspec.json.encode(items)) > MAX_TOOLS_BYTES:
        raise BadInput(f"'/{field}' must have <= {MAX_TOOLS_BYTES} bytes as JSON")
    tools = tuple(_tool(item, f"/{field}/{index}", schema_field) for index, item in enumerate(items))
    if len({tool.name for tool in tools}) < len(tools):
        raise BadInput(f"'/{field}' must not have two tools of one name")
    return tools


def _tool(value: Any, pointer: str, schema_field: str) -> Tool:
    item = fields.mapping(value, pointer)
    if item.get("type") not in (None, "function", "custom" if schema_field == "input_schema" else None):
        raise BadInput(f"'{pointer}/type' must be 'function'")
    if "function" in item:
        pointer += "/function"
        item = fields.mapping(item["function"], pointer)
    fields.text(item.get("code") or "", f"{pointer}/code", max_characters=MAX_TOOLS_BYTES)  # its client's to run
    where = f"{pointer}/{schema_field}"
    parameters = item.get(schema_field)
    parameters = {} if parameters is None else fields.mapping(parameters, where)
    fields.check_size(parameters, where, max_bytes=MAX_TOOLS_BYTES, max_depth=MAX_DEPTH)
    fields.check_whole_numbers(parameters, where)
    return Tool(
        name=tool_name(item.get("name"), f"{pointer}/name"),
        description=fields.text(
            item.get("description") or "", f"{pointer}/description", max_characters=MAX_TOOLS_BYTES
        ),
        parameters=parameters,
        is_strict=fields.boolean(item, "strict", False, within=pointer),
    )


def tool_name(value: Any, pointer: str) -> str:
    """The name of a tool. Raises BadInput."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise BadInput(f"'{pointer}' must be 1 to 128 of A-Z a-z 0-9 _ . : / -")
    return value


def _choice(value: Any, field: str) -> tuple[Literal["auto", "none", "required"], str | None]:
    """The choice left to the model, and the tool that is named."""
    if value is None:
        return "auto", None
    word = value
    if isinstance(value, dict):
        inner = value.get("function")
        named: dict[str, Any] = inner if isinstance(inner, dict) else value
        if "name" in named:
            return "required", tool_name(named["name"], f"/{field}/function/name")
        word = value.get("type")
    if isinstance(word, str) and word in _CHOICES:
        return _CHOICES[word], None
    raise BadInput(f"'/{field}' must be one of auto, none, required, or name a function or the allowed tools")


def _allowed(value: Mapping[str, Any], pointer: str, tools: tuple[Tool, ...]) -> tuple[str, tuple[Tool, ...]]:
    """The choice left to the model among some of `tools`, and these: it is told of no others. Chat completions wrap
    what the Responses API has flat."""
    if "allowed_tools" in value:
        pointer += "/allowed_tools"
        value = fields.mapping(value["allowed_tools"], pointer)
    mode = value.get("mode", "auto")
    if mode not in ("auto", "required"):
        raise BadInput(f"'{pointer}/mode' must be one of auto, required")
    names = set()
    for index, item in enumerate(fields.items(value.get("tools"), f"{pointer}/tools", maximum=MAX_TOOLS)):
        where = f"{pointer}/tools/{index}"
        entry = fields.mapping(item, where)
        inner = entry.get("function")
        name = (inner if isinstance(inner, dict) else entry).get("name")
        if all(tool.name != name for tool in tools):
            raise BadInput(f"'{where}' must name one of '/tools'")
        names.add(name)
    if not names:
        raise BadInput(f"'{pointer}/tools' must have >= 1 items")
    return mode, tuple(tool for tool in tools if tool.name in names)


def earlier_calls(message: Mapping[str, Any], pointer: str) -> tuple[ToolCall, ...]:
    """The calls that an assistant's turn says it made. Raises BadInput."""
    legacy = message.get("function_call")
    if legacy is not None and not message.get("tool_calls"):
        return (earlier_call(legacy, f"{pointer}/function_call"),)
    calls = fields.items(message.get("tool_calls"), f"{pointer}/tool_calls", maximum=MAX_CALLS)
    return tuple(earlier_call(call, f"{pointer}/tool_calls/{index}") for index, call in enumerate(calls))


def earlier_call(value: Any, pointer: str, *, id_field: str = "id", arguments_field: str = "arguments") -> ToolCall:
    """One call, its name and arguments flat or in `function`. Raises BadInput."""
    call = fields.mapping(value, pointer)
    call_id = fields.text(call.get(id_field) or "", f"{pointer}/{id_field}", max_characters=MAX_ID_CHARACTERS)
    if "function" in call:
        pointer += "/function"
        call = fields.mapping(call["function"], pointer)
    return ToolCall(
        id=call_id,
        name=tool_name(call.get("name"), f"{pointer}/name"),
        arguments=_arguments(call.get(arguments_field), f"{pointer}/{arguments_field}"),
    )


def _arguments(value: Any, pointer: str) -> str:
    """Arguments given as an object or as its JSON text, as JSON text."""
    if value is None or value == "":
        return "{}"
    try:
        found = msgspec.json.decode(value) if isinstance(value, str) else value
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise BadInput(f"'{pointer}' must be JSON text") from error
    fields.check_size(fields.mapping(found, pointer), pointer, max_bytes=MAX_TOOLS_BYTES, max_depth=MAX_DEPTH)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
