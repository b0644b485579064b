"""Tools and tool calls, and the readers of both in request bodies of every API family.

A tool is OpenAI's `{type, function: {name, description, parameters, strict}}`, or the same fields without the
`function` object; OpenAI's older `functions` and `function_call` are accepted too. A tool's `code` is for the client
and is ignored. Readers raise `BadInput`. Models and the syntaxes of their tool calls are the engine's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from engine.protocol import fields
from engine.protocol.fields import BadInput

MAX_TOOLS = 128
MAX_TOOLS_BYTES = 256 * 1024
MAX_DEPTH = 32  # nesting of one tool's parameters
MAX_CALLS = 128  # per message
MAX_ID_CHARACTERS = 128

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,127}")
ToolChoice = Literal["auto", "none", "required"]

_CHOICES: dict[str, ToolChoice] = {
    "auto": "auto",
    "none": "none",
    "required": "required",
    "any": "required",  # sent by Workers AI's provider for the AI SDK
}


class Tool(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A function that the model may call. `parameters` is a JSON schema of type object. With `is_strict` the arguments
    always match the schema, even if the model chooses freely whether to call the tool."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    is_strict: bool = False


class ToolCall(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A call in an assistant message. `arguments` is the JSON text of an object."""

    id: str = ""
    name: str
    arguments: str


class ToolOptions(NamedTuple):
    """The tools of a request, and which of them the model may or must call. `named_tool` is the tool that it must
    call, if the request names one."""

    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = "auto"
    named_tool: str | None = None
    is_parallel: bool = True


def uses_legacy_functions(body: Mapping[str, Any]) -> bool:
    """Return True if a body has OpenAI's older `functions`; its response must use `function_call` then."""
    return not body.get("tools") and bool(body.get("functions"))


def read_tool_options(body: Mapping[str, Any], *, schema_field: str = "parameters") -> ToolOptions:
    """Read the tools of a body and the choice among them. `schema_field` is the field with a tool's JSON schema.

    Raises BadInput.
    """
    is_legacy = uses_legacy_functions(body)
    field = "functions" if is_legacy else "tools"
    choice_field = "function_call" if is_legacy and body.get("function_call") is not None else "tool_choice"
    tools = _tools(body.get(field), field, schema_field)
    value = body.get(choice_field)
    if isinstance(value, dict) and value.get("type") == "allowed_tools":
        value, tools = _allowed_tools(value, f"/{choice_field}", tools)
    choice, named = _choice(value, choice_field)
    if not tools and (choice == "required" or named is not None):
        raise BadInput(f"'/{choice_field}' needs '/{field}'")
    if named is not None and all(tool.name != named for tool in tools):
        raise BadInput(f"'/{choice_field}' must name one of '/{field}'")
    is_parallel = fields.boolean(body, "parallel_tool_calls", True) and not is_legacy
    return ToolOptions(tools, choice, named, is_parallel)


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
    fields.text(item.get("code") or "", f"{pointer}/code", max_characters=MAX_TOOLS_BYTES)
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
    """Return a valid tool name. Raises BadInput."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise BadInput(f"'{pointer}' must be 1 to 128 of A-Z a-z 0-9 _ . : / -")
    return value


def _choice(value: Any, field: str) -> tuple[ToolChoice, str | None]:
    """Return the choice left to the model, and the named tool, if any."""
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


def _allowed_tools(value: Mapping[str, Any], pointer: str, tools: tuple[Tool, ...]) -> tuple[str, tuple[Tool, ...]]:
    """Read a choice of type `allowed_tools`: return its mode and the allowed tools; the model sees no others. Chat
    completions nest these fields in an `allowed_tools` object, the Responses API does not."""
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


def read_message_tool_calls(message: Mapping[str, Any], pointer: str) -> tuple[ToolCall, ...]:
    """Return the tool calls of an assistant message. Raises BadInput."""
    legacy = message.get("function_call")
    if legacy is not None and not message.get("tool_calls"):
        return (read_tool_call(legacy, f"{pointer}/function_call"),)
    calls = fields.items(message.get("tool_calls"), f"{pointer}/tool_calls", maximum=MAX_CALLS)
    return tuple(read_tool_call(call, f"{pointer}/tool_calls/{index}") for index, call in enumerate(calls))


def read_tool_call(value: Any, pointer: str, *, id_field: str = "id", arguments_field: str = "arguments") -> ToolCall:
    """Return one tool call; name and arguments may be nested in `function`. Raises BadInput."""
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
    """Return the JSON text of arguments that are an object or its JSON text."""
    if value is None or value == "":
        return "{}"
    try:
        found = msgspec.json.decode(value) if isinstance(value, str) else value
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise BadInput(f"'{pointer}' must be JSON text") from error
    fields.check_size(fields.mapping(found, pointer), pointer, max_bytes=MAX_TOOLS_BYTES, max_depth=MAX_DEPTH)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
