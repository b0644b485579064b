"""Tests of tools and tool calls: every form is read as the same tools and calls, and errors name the field."""

import json

import msgspec
import pytest

from engine.protocol.chat_completions import read_chat_request
from engine.protocol.fields import BadInput
from engine.protocol.messages import ChatMessage
from engine.protocol.tools import MAX_TOOLS_BYTES, Tool, ToolCall, ToolOptions, read_tool_options, uses_legacy_functions

USER = {"role": "user", "content": "Hi"}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FLAT = {"name": "get_weather", "description": "The weather", "parameters": PARAMETERS}
WRAPPED = {"type": "function", "function": FLAT}
TOOL = Tool(name="get_weather", description="The weather", parameters=PARAMETERS)
BARE = {"name": "now"}


def allowed(*tools, mode="auto"):
    return {"tools": [BARE], "tool_choice": {"type": "allowed_tools", "mode": mode, "tools": list(tools)}}


def read(**fields):
    return read_chat_request({"messages": [USER], **fields}, default_max_tokens=256, context_window=2048)


@pytest.mark.parametrize("tool", [FLAT, WRAPPED, {"type": "function", **FLAT}])
def test_every_form_of_a_tool_is_read(tool):
    assert read_tool_options({"tools": [tool]}).tools == (TOOL,)


def test_omitted_tool_fields_are_empty():
    assert read_tool_options({"tools": [{"type": "function", "function": {**BARE, "description": None}}]}).tools == (
        Tool(name="now"),
    )
    assert read_tool_options({"tools": [{"type": "function", "function": {**BARE, "strict": True}}]}).tools[0].is_strict


def test_body_without_tools_has_default_options():
    assert read_tool_options({}) == read_tool_options({"tools": [], "tool_choice": "auto"}) == ToolOptions()


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", ("auto", None)),
        ("none", ("none", None)),
        ("required", ("required", None)),
        ("any", ("required", None)),
        ({"type": "function", "function": {"name": "now"}}, ("required", "now")),
        ({"type": "function", "name": "now"}, ("required", "now")),
        ({"type": "tool", "name": "now"}, ("required", "now")),
        ({"type": "any"}, ("required", None)),
    ],
)
def test_every_form_of_tool_choice_is_read(choice, expected):
    options = read_tool_options({"tools": [WRAPPED, BARE], "tool_choice": choice})
    assert (options.choice, options.named_tool) == expected


@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize("is_flat", [True, False])
def test_only_allowed_tools_are_shown_to_the_model(mode, is_flat):
    names = [BARE] if is_flat else [{"type": "function", "function": BARE}]
    allowed = {"mode": mode, "tools": names}
    choice = {"type": "allowed_tools", **(allowed if is_flat else {"allowed_tools": allowed})}
    options = read_tool_options({"tools": [WRAPPED, BARE], "tool_choice": choice})
    assert options == ToolOptions((Tool(name="now"),), mode)


def test_legacy_functions_allow_one_call():
    body = {"functions": [FLAT, BARE], "function_call": {"name": "now"}, "parallel_tool_calls": True}
    assert read_tool_options(body) == ToolOptions((TOOL, Tool(name="now")), "required", "now", is_parallel=False)
    assert uses_legacy_functions(body)
    assert not uses_legacy_functions(body | {"tools": [BARE]})
    assert not uses_legacy_functions({"tools": [], "functions": []})
    assert read_tool_options({"functions": [BARE], "tool_choice": "required"}).choice == "required"


def test_parallel_calls_are_enabled_by_default():
    assert read_tool_options({"tools": [BARE]}).is_parallel
    assert not read_tool_options({"tools": [BARE], "parallel_tool_calls": False}).is_parallel


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": {}}, "'/tools', expected 'array'"),
        ({"tools": [5]}, "'/tools/0', expected 'object'"),
        ({"tools": [{}]}, "'/tools/0/name'"),
        ({"tools": [{"name": "two words"}]}, "'/tools/0/name' must be"),
        ({"tools": [{"name": "x" * 129}]}, "'/tools/0/name' must be"),
        ({"tools": [{"name": 'a"b'}]}, "'/tools/0/name' must be"),
        ({"tools": [{"type": "web_search"}]}, "'/tools/0/type' must be 'function'"),
        ({"tools": [{"type": "function", "function": 1}]}, "'/tools/0/function', expected 'object'"),
        ({"tools": [{**BARE, "parameters": []}]}, "'/tools/0/parameters', expected 'object'"),
        ({"tools": [{**BARE, "description": 1}]}, "'/tools/0/description', expected 'string'"),
        ({"tools": [BARE, {**BARE, "strict": "yes"}]}, "'/tools/1/strict', expected 'boolean'"),
        ({"tools": [BARE, FLAT, BARE]}, "two tools of one name"),
        ({"tools": [{"name": f"t{i}"} for i in range(129)]}, "'/tools' must have <= 128 items"),
        ({"tools": [{**BARE, "description": "x" * MAX_TOOLS_BYTES}]}, f"'/tools' must have <= {MAX_TOOLS_BYTES} bytes"),
        ({"tools": [BARE], "tool_choice": "sometimes"}, "'/tool_choice' must be one of"),
        ({"tools": [BARE], "tool_choice": 3}, "'/tool_choice' must be one of"),
        ({"tools": [BARE], "tool_choice": {"type": "function"}}, "'/tool_choice' must be one of"),
        ({"tools": [BARE], "tool_choice": {"type": ["auto"]}}, "'/tool_choice' must be one of"),
        ({"tools": [BARE], "tool_choice": {"type": {}}}, "'/tool_choice' must be one of"),
        ({"tools": [BARE], "tool_choice": {"function": {"name": "other"}}}, "must name one of '/tools'"),
        ({"tool_choice": "required"}, "'/tool_choice' needs '/tools'"),
        (allowed(BARE, {"name": "other"}), "'/tool_choice/tools/1' must name one of '/tools'"),
        (allowed({"name": ["now"]}), "'/tool_choice/tools/0' must name one of '/tools'"),
        (allowed(), "'/tool_choice/tools' must have >= 1 items"),
        (allowed(BARE, mode="none"), "'/tool_choice/mode' must be one of auto, required"),
        ({"functions": [BARE], "function_call": {"name": "other"}}, "'/function_call' must name one of '/functions'"),
        ({"tools": [BARE], "parallel_tool_calls": 1}, "'/parallel_tool_calls'"),
    ],
)
def test_invalid_tools_are_rejected_with_the_name_of_the_field(fields, message):
    with pytest.raises(BadInput) as caught:
        read_tool_options(fields)
    assert message in str(caught.value)


def test_parameters_nested_beyond_the_limit_are_rejected():
    def nested(depth: int) -> dict:
        schema: dict = {}
        for _ in range(depth - 1):
            schema = {"items": schema}
        return schema

    assert read_tool_options({"tools": [{**BARE, "parameters": nested(32)}]}).tools
    with pytest.raises(BadInput, match="'/tools/0/parameters' must not be nested deeper than 32"):
        read_tool_options({"tools": [{**BARE, "parameters": nested(33)}]})


@pytest.mark.parametrize("limit", [2**64, -(2**63) - 1])
def test_integers_over_64_bits_in_parameters_are_rejected(limit: int):
    def limited(number: int) -> dict:
        return {"tools": [{**BARE, "parameters": {"properties": {"n": {"enum": [1, number, True]}}}}]}

    with pytest.raises(BadInput, match="'/tools/0/parameters' must not hold whole numbers of more than 64 bits"):
        read_tool_options(limited(limit))
    nearest = limit - 1 if limit > 0 else limit + 1
    assert msgspec.msgpack.encode(read_tool_options(limited(nearest)).tools)


CALL = {"name": "get_weather", "arguments": {"city": "Oslo"}}


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (
            {"id": "c1", "type": "function", "function": {"name": "now", "arguments": '{"a": 1}'}},
            ToolCall(id="c1", name="now", arguments='{"a": 1}'),
        ),
        (CALL, ToolCall(name="get_weather", arguments='{"city":"Oslo"}')),
        ({"name": "now"}, ToolCall(name="now", arguments="{}")),
        ({"name": "now", "arguments": ""}, ToolCall(name="now", arguments="{}")),
        ({"id": None, "name": "now", "arguments": "{}"}, ToolCall(name="now", arguments="{}")),
    ],
)
def test_every_form_of_an_earlier_call_is_read(call, expected):
    task = read(messages=[USER, {"role": "assistant", "content": None, "tool_calls": [call]}])
    assert task.messages[1] == ChatMessage("assistant", "", tool_calls=(expected,))


def test_legacy_function_call_and_its_result_are_read():
    message = {"role": "assistant", "function_call": {"name": "now", "arguments": "{}"}}
    task = read(messages=[USER, message, {"role": "function", "name": "now", "content": "noon"}])
    assert task.messages[1:] == (
        ChatMessage("assistant", tool_calls=(ToolCall(name="now", arguments="{}"),)),
        ChatMessage("tool", "noon", name="now"),
    )


def test_tool_message_has_the_id_of_its_call():
    task = read(messages=[USER, {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "x"}]}])
    assert task.messages[1] == ChatMessage("tool", "x", tool_call_id="c1")


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"role": "assistant", "tool_calls": 5}, "'/messages/0/tool_calls', expected 'array'"),
        ({"role": "assistant", "tool_calls": [5]}, "'/messages/0/tool_calls/0', expected 'object'"),
        ({"role": "assistant", "tool_calls": [{}]}, "'/messages/0/tool_calls/0/name' must be"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": ""}}]}, "tool_calls/0/function/name' must be"),
        ({"role": "assistant", "tool_calls": [{**CALL, "arguments": "{"}]}, "arguments' must be JSON text"),
        ({"role": "assistant", "tool_calls": [{**CALL, "arguments": "[]"}]}, "arguments', expected 'object'"),
        ({"role": "assistant", "tool_calls": [{**CALL, "arguments": 7}]}, "arguments', expected 'object'"),
        ({"role": "assistant", "tool_calls": [{**CALL, "id": "x" * 129}]}, "id' must have <= 128 characters"),
        ({"role": "assistant", "tool_calls": [CALL] * 129}, "must have <= 128 items"),
        ({"role": "tool", "content": None}, "'/messages/0/content'"),
        ({"role": "tool", "content": "x", "tool_call_id": 5}, "'/messages/0/tool_call_id', expected 'string'"),
        ({"role": "tool", "content": "x", "name": []}, "'/messages/0/name', expected 'string'"),
    ],
)
def test_invalid_earlier_calls_are_rejected_with_the_name_of_the_field(message, error):
    with pytest.raises(BadInput) as caught:
        read(messages=[message])
    assert error in str(caught.value)


def test_deeply_nested_arguments_are_rejected():
    deep = "[" * 5000 + "]" * 5000
    for arguments in (f'{{"a": {deep}}}', json.dumps({"a": json.loads("[" * 40 + "]" * 40)})):
        with pytest.raises(BadInput, match="arguments'"):
            read(messages=[{"role": "assistant", "tool_calls": [{**CALL, "arguments": arguments}]}])


def test_tool_options_reach_the_task():
    task = read(tools=[WRAPPED, BARE], tool_choice={"function": {"name": "now"}}, parallel_tool_calls=False)
    assert (task.tools, task.tool_choice, task.named_tool) == ((TOOL, Tool(name="now")), "required", "now")
    assert not task.is_parallel_tool_calls
