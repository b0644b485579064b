"""Anthropic's Messages: whole, and as events in the order that clients expect."""

import json

import httpx
import pytest

from engine.protocol.messages import ChatMessage
from engine.protocol.tools import ToolCall
from tests.fakes.node import WORDS
from tests.gateway.process import ALIAS, HANDY, PARROT, VECTORS
from tests.gateway.site import Running

TEXT = "".join(WORDS)
HELLO = [{"role": "user", "content": "Say hello to me"}]
WEATHER = {"name": "get_weather", "description": "d", "input_schema": {"type": "object"}}


def ask(client: httpx.Client, running: Running, body: dict, **options) -> httpx.Response:
    defaults = {"model": HANDY, "max_tokens": 100, "messages": HELLO}
    return client.post(f"{running.account_url}/ai/v1/messages", json=defaults | body, **options)


def scripted(**fields) -> dict:
    return {"messages": [{"role": "user", "content": "!" + json.dumps(fields)}]}


def events_of(response: httpx.Response) -> list[dict]:
    """Each event, its name checked against its type."""
    assert response.headers["content-type"] == "text/event-stream"
    *frames, end = response.text.split("\n\n")
    assert end == ""
    events = []
    for frame in frames:
        name, data = frame.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def gathered(events: list[dict]) -> dict:
    """The message that the events of a stream make up, as Anthropic's clients gather it."""
    message: dict = {}
    texts: list[str] = []
    for event in events:
        kind = event["type"]
        if kind == "message_start":
            message = event["message"]
            assert message["content"] == []
        elif kind == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
            texts = []
        elif kind == "content_block_delta":
            assert event["index"] == len(message["content"]) - 1
            delta = event["delta"]
            block = message["content"][-1]
            assert delta["type"] == {"text": "text_delta", "tool_use": "input_json_delta"}[block["type"]]
            texts.append(delta["text"] if block["type"] == "text" else delta["partial_json"])
        elif kind == "content_block_stop":
            block = message["content"][event["index"]]
            if block["type"] == "text":
                block["text"] = "".join(texts)
            else:
                block["input"] = json.loads("".join(texts))
        elif kind == "message_delta":
            message |= event["delta"]
            message["usage"] |= event["usage"]
    assert [events[0]["type"], events[-1]["type"]] == ["message_start", "message_stop"]
    return message


def test_complete_message_has_content_and_usage(client: httpx.Client, running: Running):
    response = ask(client, running, {"model": PARROT, "max_tokens": 3})
    message = response.json()
    assert message.pop("id").startswith("msg_")
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": PARROT,
        "content": [{"type": "text", "text": "".join(WORDS[:3])}],
        "stop_reason": "max_tokens",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 4,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 3,
        },
    }
    assert response.headers["cf-ai-req-id"]


PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
FORMAT = {"type": "json_schema", "schema": PERSON}


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"output_config": {"format": FORMAT, "effort": None}}, "/output_config/format/schema"),
        ({"output_config": {"format": None}, "output_format": FORMAT}, "/output_format/schema"),
    ],
)
def test_output_format_is_a_json_schema_for_the_model(
    client: httpx.Client, running: Running, options: dict, field: str
):
    task = running.site.execute_of(ask(client, running, options)).task
    assert (task.constraint.kind, json.loads(task.constraint.text)) == ("json_schema", PERSON)
    assert task.constraint.field == field


def test_effort_is_passed_to_the_chat_template(client: httpx.Client, running: Running):
    task = running.site.execute_of(ask(client, running, {"model": PARROT, "output_config": {"effort": "high"}})).task
    assert task.template_kwargs == {"reasoning_effort": "high"}
    assert task.constraint is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"output_config": {"verbosity": "low"}}, "'/output_config/verbosity' is not supported"),
        ({"output_config": {"format": {"type": "text"}}}, "/output_config/format/type"),
        ({"output_config": {"format": FORMAT | {"strict": True}}}, "'/output_config/format/strict' is not supported"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "'/output_config/format/schema'"),
        ({"output_config": {"effort": "extreme"}}, "/output_config/effort"),
        ({"output_config": "json"}, "/output_config"),
        ({"output_format": {"type": "regex"}}, "/output_format/type"),
        (
            {"output_config": {"format": FORMAT}, "output_format": FORMAT},
            "'/output_config/format' and '/output_format' cannot be combined",
        ),
    ],
)
def test_unsupported_output_option_is_rejected_by_name(
    client: httpx.Client, running: Running, options: dict, says: str
):
    for path in ("messages", "messages/count_tokens"):
        body = {"model": HANDY, "messages": HELLO, "max_tokens": 9} | options
        response = client.post(f"{running.account_url}/ai/v1/{path}", json=body)
        assert response.status_code == 400
        assert says in response.json()["error"]["message"]


def test_every_response_has_its_request_id(client: httpx.Client, running: Running):
    for response in (
        ask(client, running, {}),
        ask(client, running, {"max_tokens": 0}),
        client.get(f"{running.account_url}/ai/v1/messages"),
    ):
        assert response.headers["request-id"] == response.headers["x-hearth-request-id"]


def test_cached_tokens_are_reported_separately(client: httpx.Client, running: Running):
    usage = ask(client, running, scripted(cached=1, tokens=["a"])).json()["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (3, 1, 1)


def test_content_blocks_become_conversation_messages(client: httpx.Client, running: Running):
    messages = [
        {"role": "user", "content": [
            {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"},
        ]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "Wait"},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}},
            {"type": "tool_use", "id": "t2", "name": "g", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "one"}]},
            {"type": "tool_result", "tool_use_id": "t2", "content": "two", "is_error": True},
            {"type": "tool_result", "tool_use_id": "t3"},
            {"type": "text", "text": "Go on"},
        ]},
    ]  # fmt: skip
    system = [{"type": "text", "text": "Rules"}, {"type": "text", "text": "More"}]
    response = ask(client, running, {"messages": messages, "system": system, "tools": [WEATHER]})
    assert running.site.execute_of(response).task.messages == (
        ChatMessage("system", "Rules\nMore"),
        ChatMessage("user", "a\nb"),
        ChatMessage(
            "assistant",
            "Wait",
            tool_calls=(ToolCall(id="t1", name="f", arguments='{"x":1}'), ToolCall(id="t2", name="g", arguments="{}")),
            reasoning="hm",
        ),
        ChatMessage("tool", "one", tool_call_id="t1"),
        ChatMessage("tool", "two", tool_call_id="t2"),
        ChatMessage("tool", "", tool_call_id="t3"),
        ChatMessage("user", "Go on"),
    )


def test_settings_reach_the_node(client: httpx.Client, running: Running):
    body = {
        "system": "Rules", "max_tokens": 7, "temperature": 0, "top_p": 0.5, "top_k": 3, "stop_sequences": ["x", "yz"],
        "tools": [WEATHER, WEATHER | {"name": "other", "type": "custom"}],
        "tool_choice": {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
        "metadata": {"user_id": "u"},
    }  # fmt: skip
    task = running.site.execute_of(ask(client, running, body)).task
    sampling = task.sampling
    assert (sampling.max_tokens, sampling.has_explicit_max_tokens, sampling.temperature) == (7, True, 0)
    assert (sampling.top_p, sampling.top_k, sampling.stop) == (0.5, 3, ("x", "yz"))
    assert ([tool.name for tool in task.tools], task.named_tool) == (["get_weather", "other"], "get_weather")
    assert task.is_parallel_tool_calls is False
    assert task.tools[0].parameters == {"type": "object"}


@pytest.mark.parametrize(("said", "meant"), [("auto", "auto"), ("any", "required"), ("none", "none")])
def test_tool_choice_is_translated(client: httpx.Client, running: Running, said: str, meant: str):
    response = ask(client, running, {"tools": [WEATHER], "tool_choice": {"type": said}})
    task = running.site.execute_of(response).task
    assert (task.tool_choice, task.is_parallel_tool_calls) == (meant, True)


def test_tool_calls_are_separate_content_blocks(client: httpx.Client, running: Running):
    body = scripted(calls=[("get_weather", '{"city": "Paris"}'), ("get_weather", "{}")], end="tool_calls")
    message = ask(client, running, body | {"tools": [WEATHER]}).json()
    assert message["stop_reason"] == "tool_use"
    assert message["content"] == [
        {"type": "text", "text": TEXT},
        {"type": "tool_use", "id": "call_0", "name": "get_weather", "input": {"city": "Paris"}},
        {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {}},
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tokens": []},
        {"cached": 1, "gap_s": 0.03},
        {"calls": [("get_weather", '{"city": "Paris"}'), ("get_weather", "{}")], "end": "tool_calls"},
        {"tokens": [], "calls": [("get_weather", "{}")], "end": "tool_calls"},
        {"end": "length"},
        {"stop": "\n\nHuman"},
    ],
    ids=str,
)
def test_accumulated_stream_equals_the_whole_message(client: httpx.Client, running: Running, fields: dict):
    body = scripted(**fields) | {"tools": [WEATHER]}
    whole = ask(client, running, body).json()
    streamed = gathered(events_of(ask(client, running, body | {"stream": True})))
    assert streamed.pop("id").startswith("msg_")
    whole.pop("id")
    if not whole["content"][0].get("text", "x"):
        whole["content"] = []  # a stream opens no block for an empty response
    assert streamed == whole


def test_matched_stop_sequence_is_reported(client: httpx.Client, running: Running):
    message = ask(client, running, scripted(stop="\n\nHuman")).json()
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "\n\nHuman")


def test_message_stream_has_one_block_after_another(client: httpx.Client, running: Running):
    body = scripted(calls=[("get_weather", '{"a": 1}')], end="tool_calls") | {"tools": [WEATHER], "stream": True}
    kinds = [event["type"] for event in events_of(ask(client, running, body))]
    assert [kind for i, kind in enumerate(kinds) if kind != kinds[i - 1]] == [
        "message_start", "ping", "content_block_start", "content_block_delta", "content_block_stop",
        "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip


@pytest.mark.usefixtures("relinks")
def test_broken_stream_ends_with_an_error(client: httpx.Client, running: Running):
    *_, last = events_of(ask(client, running, scripted(then_after=2, then="die", gap_s=0.03) | {"stream": True}))
    assert last == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "AiError: The request was aborted before it was finished",
            "code": 3008,
        },
    }


def test_failure_before_the_first_event_is_an_error_response(client: httpx.Client, running: Running):
    response = ask(client, running, scripted(tokens=[], end="out_of_capacity") | {"stream": True})
    assert (response.status_code, response.headers["content-type"]) == (429, "application/json")
    assert response.json()["error"]["type"] == "rate_limit_error"


def test_alias_call_has_a_usage_entry(client: httpx.Client, running: Running):
    response = ask(client, running, {"model": ALIAS})
    assert response.json()["model"] == ALIAS
    assert response.headers["x-hearth-model"] == PARROT
    assert running.site.usage_row(response.headers["cf-ai-req-id"])["completion_tokens"] == 6


BAD = [
    {"messages": []},
    {"messages": None},
    {"messages": [{"role": "system", "content": "x"}]},
    {"messages": [{"role": "user"}]},
    {"messages": [{"role": "user", "content": []}]},
    {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]}]},
    {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]},
    {"messages": [*HELLO, {"role": "assistant", "content": "I begin"}]},
    {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": 1}]}, *HELLO]},
    {"max_tokens": None},
    {"max_tokens": 0},
    {"max_tokens": 3000},
    {"temperature": 9},
    {"stop_sequences": ["x"] * 17},
    {"stop_sequences": [""]},
    {"system": [{"type": "image"}]},
    {"tools": [{"name": "x y", "input_schema": {}}]},
    {"tools": [{"type": "web_search_20250305", "name": "web_search", "input_schema": {}}]},
    {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "other"}},
    {"tool_choice": {"type": "any"}},
    {"stream": "yes"},
    {"chat_template": "x"},
]  # fmt: skip


@pytest.mark.parametrize("body", BAD, ids=lambda body: json.dumps(body)[:60])
def test_invalid_field_is_named_in_both_error_formats(client: httpx.Client, running: Running, body: dict):
    response = ask(client, running, body)
    document = response.json()
    assert response.status_code == 400
    assert document["type"] == "error"
    assert document["error"] == {
        "type": "invalid_request_error",
        "message": document["errors"][0]["message"],
        "code": document["errors"][0]["code"],
    }
    assert (document["errors"][0]["code"], document["success"], document["result"]) == (5006, False, {})


@pytest.mark.parametrize(
    ("path", "options", "expected"),
    [
        ("messages", {"headers": {"authorization": "Bearer cfut_" + "a" * 46}}, (401, "authentication_error")),
        ("messages", {"json": {"model": "x"}}, (404, "not_found_error")),
        ("messages", {"json": {"model": VECTORS, "max_tokens": 1, "messages": HELLO}}, (400, "invalid_request_error")),
        ("messages", {"content": b"{"}, (400, "invalid_request_error")),
        ("messages/nothing", {}, (400, "invalid_request_error")),
    ],
)
def test_every_error_of_the_route_has_the_anthropic_format(
    client: httpx.Client, running: Running, path, options, expected
):
    response = client.post(f"{running.account_url}/ai/v1/{path}", **options)
    assert (response.status_code, response.json()["error"]["type"]) == expected
    assert response.json()["errors"]


def test_token_counting_is_free(client: httpx.Client, running: Running):
    body = {"model": HANDY, "messages": [{"role": "user", "content": "three short words"}]}
    response = client.post(f"{running.account_url}/ai/v1/messages/count_tokens", json=body)
    assert response.json() == {"input_tokens": 3}
    assert running.site.execute_of(response).task.only_counts
    row = running.site.usage_row(response.headers["cf-ai-req-id"])
    assert (row["prompt_tokens"], row["completion_tokens"], row["micro_neurons"]) == (0, 0, 0)
    refused = client.post(f"{running.account_url}/ai/v1/messages/count_tokens", json={"model": HANDY})
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")


def test_token_is_accepted_in_x_api_key(running: Running):
    def status(**headers: str) -> int:
        body = {"model": PARROT, "max_tokens": 1, "messages": HELLO}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.post(f"{running.account_url}/ai/v1/messages", json=body, headers=named).status_code

    good, other = running.tenants.secrets["good"], running.tenants.secrets["other"]
    assert status(x_api_key=good, anthropic_version="2023-06-01") == 200
    assert status(x_api_key=other) == 403
    assert status(x_api_key="nonsense") == 400
    assert status(x_api_key=good, authorization=f"Bearer {other}") == 403
