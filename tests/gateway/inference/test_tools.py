"""Tools and JSON mode in the native and the OpenAI format: what nodes receive, and how tool calls are rendered."""

import json

import httpx
import pytest
from cloudflare import Cloudflare
from openai import BadRequestError, OpenAI

from engine.protocol.messages import ChatMessage
from engine.protocol.output_format import Constraint
from engine.protocol.tools import Tool, ToolCall
from tests.gateway.inference.test_text_generation import events_of, heard_when_let_go_on, script
from tests.gateway.process import CHATTY, HANDY, PARROT
from tests.gateway.site import Running

WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TOOLS = [{"type": "function", "function": WEATHER}]
CALLS = [["get_weather", '{"city": "Oslo"}'], ["get_weather", '{"city": "Rome"}']]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
HUGE = {"maximum": 99999999999999999999}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}}


def calling(*texts: str, calls=CALLS, **fields) -> list[dict]:
    """Return messages that make a fake node send these texts and then these tool calls."""
    content = script(tokens=texts, calls=calls, end="tool_calls", **fields)
    return [{"role": "user", "content": content}]


def run(client: httpx.Client, running: Running, body: dict, model: str = HANDY) -> httpx.Response:
    return client.post(f"{running.account_url}/ai/run/{model}", json=body)


def chat(client: httpx.Client, running: Running, body: dict) -> httpx.Response:
    return client.post(f"{running.account_url}/ai/v1/chat/completions", json={"model": HANDY} | body)


@pytest.mark.parametrize("tool", [WEATHER, TOOLS[0]])
def test_tools_of_both_forms_reach_the_node(client: httpx.Client, running: Running, tool: dict):
    body = {"messages": calling(), "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    task = running.site.execute_of(run(client, running, body)).task
    assert task.tools == (
        Tool(name="get_weather", description="The weather in a city", parameters=WEATHER["parameters"]),
    )
    assert (task.tool_choice, task.named_tool, task.is_parallel_tool_calls) == ("required", None, False)


def test_a_whole_tool_loop_reaches_the_node_in_either_form(client: httpx.Client, running: Running):
    user = {"role": "user", "content": "weather?"}
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    given = {"role": "tool", "tool_call_id": "c1", "content": "rain"}
    task = running.site.execute_of(chat(client, running, {"messages": [user, said, given], "tools": TOOLS})).task
    called = (ToolCall(id="c1", name="get_weather", arguments='{"city": "Oslo"}'),)
    assert task.messages[1:] == (
        ChatMessage("assistant", tool_calls=called),
        ChatMessage("tool", "rain", tool_call_id="c1"),
    )
    said = {"role": "assistant", "content": "", "tool_calls": [{"name": "get_weather", "arguments": {"city": "Oslo"}}]}
    given = {"role": "tool", "name": "get_weather", "content": "rain"}
    task = running.site.execute_of(run(client, running, {"messages": [user, said, given], "tools": [WEATHER]})).task
    called = (ToolCall(name="get_weather", arguments='{"city":"Oslo"}'),)
    assert task.messages[1:] == (
        ChatMessage("assistant", tool_calls=called),
        ChatMessage("tool", "rain", "get_weather"),
    )


def test_null_message_fields_are_omitted(client: httpx.Client, running: Running):
    user = {"role": "user", "content": "x", "name": None}
    said = {"role": "assistant", "content": "y", "name": None, "tool_calls": None, "tool_call_id": None}
    given = {"role": "tool", "content": "z", "name": None, "tool_call_id": None}
    for ask in (run, chat):
        task = running.site.execute_of(ask(client, running, {"messages": [user, said, given]})).task
        assert task.messages == (ChatMessage("user", "x"), ChatMessage("assistant", "y"), ChatMessage("tool", "z"))


def test_native_tool_calls_have_arguments_as_objects(client: httpx.Client, running: Running):
    result = run(client, running, {"messages": calling(), "tools": [WEATHER]}).json()["result"]
    assert result["response"] is None
    assert result["tool_calls"] == [
        {"name": "get_weather", "arguments": {"city": "Oslo"}},
        {"name": "get_weather", "arguments": {"city": "Rome"}},
    ]
    assert result["usage"]["completion_tokens"] == 6


def test_native_response_has_text_beside_tool_calls_and_an_empty_list_without_calls(
    client: httpx.Client, running: Running
):
    result = run(client, running, {"messages": calling("Let me", " see."), "tools": [WEATHER]}).json()["result"]
    assert (result["response"], len(result["tool_calls"])) == ("Let me see.", 2)
    result = run(client, running, {"messages": [{"role": "user", "content": "hi"}], "tools": [WEATHER]}).json()[
        "result"
    ]
    assert (result["response"], result["tool_calls"]) == ("Hello from the fake node ✓", [])


def test_native_stream_sends_tool_call_deltas_and_ends_each_call_with_nulls(client: httpx.Client, running: Running):
    body = {"messages": calling("Well."), "tools": [WEATHER], "stream": True}
    *events, last, done = events_of(run(client, running, body))
    assert done == "[DONE]"
    assert json.loads(last)["usage"]["completion_tokens"] == 7
    parsed = [json.loads(event) for event in events]
    assert parsed[0]["response"] == "Well."
    assert all(isinstance(event["response"], str) and event["p"].startswith("a") for event in parsed)
    entries = [entry for event in parsed[1:] for entry in event["tool_calls"]]
    assert entries[0] == {
        "index": 0, "id": "call_0", "type": "function", "function": {"name": "get_weather", "arguments": ""}
    }  # fmt: skip
    nothing = {"id": None, "type": None, "function": {"name": None, "arguments": None}}
    assert [entry["index"] for entry in entries if entry.items() >= nothing.items()] == [0, 1]
    assert entries[-1] == {"index": 1, **nothing}
    assert [entry["index"] for entry in entries] == sorted(entry["index"] for entry in entries)
    for index, (_name, arguments) in enumerate(CALLS):
        results = [entry["function"]["arguments"] or "" for entry in entries if entry["index"] == index]
        assert "".join(results) == arguments


def test_openai_tool_calls_have_arguments_as_strings(client: httpx.Client, running: Running):
    choice = chat(client, running, {"messages": calling(), "tools": TOOLS}).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"][1] == {
        "id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}
    }  # fmt: skip
    choice = chat(client, running, {"messages": calling("Hm."), "tools": TOOLS}).json()["choices"][0]
    assert choice["message"]["content"] == "Hm."


def test_openai_stream_sends_tool_call_deltas(client: httpx.Client, running: Running):
    body = {"messages": calling(), "tools": TOOLS, "stream": True, "stream_options": {"include_usage": True}}
    *events, done = events_of(chat(client, running, body))
    assert done == "[DONE]"
    chunks = [json.loads(event) for event in events]
    assert chunks[0]["choices"][0]["delta"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"index": 0, "id": "call_0", "type": "function", "function": {"name": "get_weather", "arguments": ""}}
        ],
    }
    deltas = [entry for chunk in chunks[:-2] for entry in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert [delta["index"] for delta in deltas] == [0, 0, 0, 1, 1, 1]
    assert [set(delta) for delta in deltas[1:3]] == [{"index", "function"}] * 2
    assert "".join(delta["function"]["arguments"] for delta in deltas[3:]) == CALLS[1][1]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * 6 + ["tool_calls"]
    assert chunks[-1]["usage"]["completion_tokens"] == 6


def test_text_between_tool_call_deltas_is_streamed_in_order(client: httpx.Client, running: Running):
    body = {"messages": calling("a", "b", "c", gap_s=0.0), "tools": TOOLS, "stream": True}
    *events, _done = events_of(chat(client, running, body))
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events]
    kinds = ["text" if delta.get("content") else "call" for delta in deltas if delta]
    assert kinds == sorted(kinds, reverse=True)
    assert "".join(delta.get("content") or "" for delta in deltas) == "abc"


def test_legacy_functions_get_legacy_responses(client: httpx.Client, running: Running):
    body = {"messages": calling(calls=CALLS[:1]), "functions": [WEATHER]}
    choice = chat(client, running, body).json()["choices"][0]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    assert "tool_calls" not in choice["message"]
    *events, _done = events_of(chat(client, running, body | {"stream": True}))
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events]
    results = [delta["function_call"] for delta in deltas if "function_call" in delta]
    assert results[0] == {"name": "get_weather", "arguments": ""}
    assert "".join(piece["arguments"] for piece in results) == '{"city": "Oslo"}'
    assert json.loads(events[-1])["choices"][0]["finish_reason"] == "function_call"


def test_function_code_in_tools_is_not_run_by_the_gateway(client: httpx.Client, running: Running):
    body = {"messages": calling(calls=[["sum", '{"a": 1}']]), "functions": [{"name": "sum", "code": "throw 1"}]}
    response = run(client, running, body)
    assert running.site.execute_of(response).task.tools == (Tool(name="sum", description="", parameters={}),)
    assert response.json()["result"]["tool_calls"] == [{"name": "sum", "arguments": {"a": 1}}]


def test_all_tokens_of_a_tool_call_are_metered_with_the_finish_reason(client: httpx.Client, running: Running):
    for is_stream in (False, True):
        response = chat(client, running, {"messages": calling("x"), "tools": TOOLS, "stream": is_stream})
        row = running.site.usage_row(response.headers["cf-ai-req-id"])
        assert (row["status"], row["completion_tokens"]) == ("tool_calls", 7)
        assert row["micro_neurons"] == row["prompt_tokens"] * 100 + 7 * 1000


@pytest.mark.usefixtures("relinks")
def test_tool_call_tokens_are_metered_when_the_node_dies(client: httpx.Client, running: Running):
    messages = calling("x", then_after=1, then="die")
    response = chat(client, running, {"messages": messages, "tools": TOOLS, "stream": True})
    assert "error" in json.loads(events_of(response)[-1])
    assert running.site.usage_row(response.headers["cf-ai-req-id"])["completion_tokens"] == 7


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"response_format": {"type": "json_object"}}, Constraint("json_object")),
        ({"response_format": {"type": "json_schema"}}, Constraint("json_object")),
        ({"response_format": {"type": "json_schema", "json_schema": SCHEMA}}, Constraint("json_schema", "SCHEMA")),
        ({"response_format": JSON_SCHEMA}, Constraint("json_schema", "SCHEMA")),
        ({"guided_json": SCHEMA}, Constraint("json_schema", "SCHEMA")),
        ({"response_format": {"type": "text"}}, None),
    ],
)
def test_output_format_reaches_the_node_from_every_endpoint(
    client: httpx.Client, running: Running, fields: dict, expected: Constraint | None
):
    value = script(tokens=['{"a": 1}'])
    for ask, body in ((run, {"prompt": value}), (run, {"messages": [{"role": "user", "content": value}]}),
                      (chat, {"messages": [{"role": "user", "content": value}]})):  # fmt: skip
        constraint = running.site.execute_of(ask(client, running, body | fields)).task.constraint
        assert constraint is None if expected is None else constraint.kind == expected.kind
        assert not constraint or not constraint.text or json.loads(constraint.text) == SCHEMA


def test_native_json_mode_returns_the_value_and_openai_returns_text(client: httpx.Client, running: Running):
    body = {"messages": [{"role": "user", "content": script(tokens=['{"a":', " 1}"])}], "response_format": JSON_SCHEMA}
    assert run(client, running, body).json()["result"]["response"] == {"a": 1}
    assert chat(client, running, body).json()["choices"][0]["message"]["content"] == '{"a": 1}'
    *events, _last, _done = events_of(run(client, running, body | {"stream": True}))
    assert "".join(json.loads(event)["response"] for event in events) == '{"a": 1}'


def test_too_deeply_nested_json_is_a_client_visible_error_not_an_internal_error(client: httpx.Client, running: Running):
    deep = '{"a": ' + "[" * 3000 + "]" * 3000 + "}"
    messages = [{"role": "user", "content": script(tokens=[deep])}]
    response = run(client, running, {"messages": messages, "response_format": {"type": "json_object"}})
    assert (response.status_code, response.json()["errors"][0]["code"]) == (400, 5024)
    response = run(client, running, {"messages": calling(calls=[["get_weather", deep]]), "tools": [WEATHER]})
    assert response.json()["result"]["tool_calls"] == [{"name": "get_weather", "arguments": deep}]


def test_json_mode_preserves_every_digit_of_numbers(client: httpx.Client, running: Running):
    written = '{"n": 123456789012345678901234567890, "x": 1.10}'
    messages = [{"role": "user", "content": script(tokens=[written])}]
    response = run(client, running, {"messages": messages, "response_format": {"type": "json_object"}})
    assert f'"response":{written}' in response.text
    response = run(client, running, {"messages": calling(calls=[["get_weather", written]]), "tools": [WEATHER]})
    assert f'"arguments":{written}' in response.text


@pytest.mark.parametrize("fields", [{"end": "constraint_failed"}, {"end": "stop"}])
def test_incomplete_json_output_is_a_metered_error(client: httpx.Client, running: Running, fields: dict):
    messages = [{"role": "user", "content": script(tokens=['{"a":', " 1"], **fields)}]
    response = run(client, running, {"messages": messages, "response_format": JSON_SCHEMA})
    assert response.status_code == 400
    assert response.json()["errors"] == [{"code": 5024, "message": "AiError: JSON Mode couldn't be met"}]
    assert response.json()["result"] == {}
    row = running.site.usage_row(response.headers["cf-ai-req-id"])
    assert (row["status"], row["completion_tokens"]) == (fields["end"], 2)


def test_stream_of_incomplete_json_output_ends_with_an_error(client: httpx.Client, running: Running):
    messages = [{"role": "user", "content": script(tokens=['{"a":', " 1"], held_after=1, end="constraint_failed")}]
    body = {"model": HANDY, "messages": messages, "response_format": JSON_SCHEMA}
    _, heard = heard_when_let_go_on(client, running, body, "v1/chat/completions")
    assert json.loads(heard[-1])["errors"][0]["code"] == 5024


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "'/tools/0/function/name' must be 1 to 128"),
        ({"tools": TOOLS * 2}, "'/tools' must not have two tools of one name"),
        ({"tools": TOOLS * 129}, "'/tools' must have <= 128 items"),
        ({"tools": TOOLS, "tool_choice": "maybe"}, "'/tool_choice' must be one of"),
        ({"tools": TOOLS, "tool_choice": {"function": {"name": "x"}}}, "must name one of '/tools'"),
        ({"tool_choice": "required"}, "'/tool_choice' needs '/tools'"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"n": HUGE}}}}]},
            "'/tools/0/function/parameters' must not hold whole numbers of more than 64 bits",
        ),
        ({"functions": [{"name": "f", "code": 5}]}, "'/functions/0/code'"),
        ({"response_format": {"type": "yaml"}}, "'/response_format/type' must be one of"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"enum": ["x" * 66000]}}},
            "'/response_format' must have <= 65536 bytes",
        ),
    ],
)
def test_bad_tools_and_formats_are_rejected_by_both_endpoints(
    client: httpx.Client, running: Running, body: dict, message: str
):
    before = running.site.num_executes
    for ask in (run, chat):
        response = ask(client, running, {"messages": [{"role": "user", "content": "x"}], **body})
        assert (response.status_code, response.json()["errors"][0]["code"]) == (400, 5006)
        assert message in response.json()["errors"][0]["message"]
    assert running.site.num_executes == before


@pytest.mark.parametrize("field", [{"tools": TOOLS}, {"response_format": {"type": "json_object"}}])
def test_tools_and_formats_are_rejected_for_models_without_the_capability(
    client: httpx.Client, running: Running, field: dict
):
    body = {"messages": [{"role": "user", "content": "x"}], **field}
    responses = [run(client, running, body, PARROT), run(client, running, body, CHATTY)]
    responses.append(chat(client, running, body | {"model": PARROT}))
    for response in responses:
        assert response.status_code == 400
        assert "the model lacks" in response.json()["errors"][0]["message"]


def test_official_clients_parse_tool_calls(running: Running):
    base_url, api_token = f"{running.account_url}/ai/v1", running.tenants.secrets["good"]
    with OpenAI(base_url=base_url, api_key=api_token, max_retries=0) as client:
        response = client.chat.completions.create(model=HANDY, messages=calling(), tools=TOOLS)
        called = [call.function.arguments for call in response.choices[0].message.tool_calls or ()]
        assert called == [arguments for _name, arguments in CALLS]
        with client.chat.completions.stream(model=HANDY, messages=calling("Hm."), tools=TOOLS) as stream:
            final = stream.get_final_completion()
        assert [call.function.name for call in final.choices[0].message.tool_calls or ()] == ["get_weather"] * 2
        assert final.choices[0].message.content == "Hm."
        with pytest.raises(BadRequestError, match="needs '/tools'"):
            client.chat.completions.create(model=HANDY, messages=calling(), tool_choice="required")
    with Cloudflare(base_url=running.gateway.base_url, api_token=api_token) as client:
        result = client.ai.run(HANDY, account_id=running.tenants.account_id, messages=calling(), tools=[WEATHER])
    assert result["tool_calls"][0] == {"name": "get_weather", "arguments": {"city": "Oslo"}}
