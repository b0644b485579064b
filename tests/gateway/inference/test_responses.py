"""OpenAI's Responses: whole and as events, with tools and formats, stored and continued."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing

import httpx
import openai as openai_sdk
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response, ResponseFunctionToolCall, ResponseOutputMessage

from engine.protocol.messages import ChatMessage
from engine.protocol.tools import ToolCall
from gateway.inference.response_renderer import request_id_of
from tests.fakes.node import WORDS
from tests.gateway.process import HANDY, PARROT, VECTORS
from tests.gateway.site import Running
from tests.waiting import wait_until_blocking

TEXT = "".join(WORDS)
INPUT_A = {"type": "input_text", "text": "a"}
WEATHER = {"type": "function", "name": "get_weather", "description": "d", "parameters": {"type": "object"}}


@pytest.fixture
def openai(running: Running) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{running.account_url}/ai/v1", api_key=running.tenants.secrets["good"]) as client:
        yield client


def respond(client: httpx.Client, running: Running, body: dict, **options) -> httpx.Response:
    return client.post(f"{running.account_url}/ai/v1/responses", json={"model": HANDY} | body, **options)


def task_of(client: httpx.Client, running: Running, body: dict):
    response = respond(client, running, body)
    assert response.status_code == 200, response.text
    return running.site.execute_of(response).task


def script(**fields) -> str:
    return "!" + json.dumps(fields)


def test_complete_response_has_output_and_usage(openai: OpenAI):
    response = openai.responses.create(
        model=PARROT, input="Hello", instructions="Be kind", max_output_tokens=3, temperature=0.5, metadata={"a": "b"}
    )
    assert response.output_text == "".join(WORDS[:3])
    assert response.id.startswith("resp_")
    assert (response.object, response.status, response.model) == ("response", "incomplete", PARROT)
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (3, 3, 6)
    assert (response.instructions, response.temperature, response.metadata) == ("Be kind", 0.5, {"a": "b"})


def test_complete_response_has_status_completed(openai: OpenAI):
    response = openai.responses.create(model=PARROT, input=[{"role": "user", "content": script(cached=1)}])
    assert (response.status, response.incomplete_details, response.error) == ("completed", None, None)
    (message,) = response.output
    assert isinstance(message, ResponseOutputMessage)
    assert (message.status, message.role, message.content[0].text) == ("completed", "assistant", TEXT)
    assert response.usage is not None
    assert response.usage.input_tokens_details.cached_tokens == 1


def test_input_items_become_conversation_messages(client: httpx.Client, running: Running):
    items = [
        {"role": "developer", "content": "Rules"},
        {"type": "message", "role": "user", "content": [INPUT_A, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "reasoning", "id": "rs_2", "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Wait"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x": 1}'},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
    ]  # fmt: skip
    task = task_of(client, running, {"input": items, "instructions": "First", "tools": [WEATHER]})
    assert task.messages == (
        ChatMessage("system", "First"),
        ChatMessage("system", "Rules"),
        ChatMessage("user", "a\nb"),
        ChatMessage(
            "assistant",
            "Wait",
            tool_calls=(ToolCall(id="c1", name="f", arguments='{"x": 1}'), ToolCall(id="c2", name="g", arguments="{}")),
            reasoning="hm",
        ),
        ChatMessage("tool", "one", tool_call_id="c1"),
        ChatMessage("tool", "two", tool_call_id="c2"),
    )


def test_settings_reach_the_node(client: httpx.Client, running: Running):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    body = {
        "input": "x", "max_output_tokens": 7, "temperature": 0, "top_p": 0.5, "tools": [WEATHER],
        "tool_choice": {"type": "function", "name": "get_weather"}, "parallel_tool_calls": False,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}},
        "include": ["message.output_text.logprobs"], "top_logprobs": 2,
    }  # fmt: skip
    task = task_of(client, running, body)
    sampling = task.sampling
    assert (sampling.max_tokens, sampling.has_explicit_max_tokens, sampling.temperature, sampling.top_p) == (
        7,
        True,
        0,
        0.5,
    )
    assert sampling.logprobs == 2
    assert (task.named_tool, task.is_parallel_tool_calls) == ("get_weather", False)
    assert json.loads(task.constraint.text) == schema


def test_tool_calls_are_separate_output_items(openai: OpenAI):
    request = script(
        calls=[("get_weather", '{"city": "Paris"}'), ("get_weather", '{"city": "Rome"}')], end="tool_calls"
    )
    response = openai.responses.create(model=HANDY, input=request, tools=[WEATHER])
    message, *calls = response.output
    assert isinstance(message, ResponseOutputMessage)
    assert all(isinstance(call, ResponseFunctionToolCall) for call in calls)
    assert [(call.name, call.arguments, call.call_id) for call in calls] == [
        ("get_weather", '{"city": "Paris"}', "call_0"),
        ("get_weather", '{"city": "Rome"}', "call_1"),
    ]
    alone = script(tokens=[], calls=[("get_weather", "{}")], end="tool_calls")
    assert [item.type for item in openai.responses.create(model=HANDY, input=alone, tools=[WEATHER]).output] == [
        "function_call"
    ]


def test_stream_events_are_numbered_named_and_complete(client: httpx.Client, running: Running):
    request = script(calls=[("get_weather", '{"city": "Paris"}')], end="tool_calls", gap_s=0.03)
    for _ in range(5):
        response = respond(client, running, {"input": request, "tools": [WEATHER], "stream": True})
        if (
            response.text.count("event: response.output_text.delta\n") > 1
        ):  # or else the gateway was as slow as all of it
            break
    assert response.headers["content-type"] == "text/event-stream"
    *frames, end = response.text.split("\n\n")
    assert end == ""
    names, events = zip(
        *((frame.split("\n")[0], json.loads(frame.split("\ndata: ")[1])) for frame in frames), strict=True
    )
    assert [f"event: {event['type']}" for event in events] == list(names)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert [kind for i, kind in enumerate(kinds) if kind != kinds[i - 1]] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    assert kinds.count("output_text.delta") > 1
    assert "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta") == TEXT
    assert (
        "".join(e["delta"] for e in events if e["type"] == "response.function_call_arguments.delta")
        == '{"city": "Paris"}'
    )
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["response"]["output"] == done
    assert events[-1]["response"]["id"] == events[0]["response"]["id"]
    assert events[-1]["response"]["usage"]["output_tokens"] == len(WORDS) + 3


@pytest.mark.parametrize("text", ["Hello", script(tokens=[]), script(calls=[("get_weather", "{}")], end="tool_calls")])
def test_stream_ends_with_the_whole_response(openai: OpenAI, text: str):
    whole = openai.responses.create(model=HANDY, input=text, tools=[WEATHER]).to_dict()
    *_, last = openai.responses.create(model=HANDY, input=text, tools=[WEATHER], stream=True)
    streamed = last.to_dict()["response"]
    for response in (whole, streamed):
        response.pop("id")
        response.pop("created_at")
        for item in response["output"]:
            item.pop("id")
    assert streamed == whole


async def test_accumulated_events_equal_the_whole_response(running: Running):
    async with AsyncOpenAI(base_url=f"{running.account_url}/ai/v1", api_key=running.tenants.secrets["good"]) as client:
        async with client.responses.stream(model=PARROT, input="Hello") as stream:
            texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            final = await stream.get_final_response()
        assert "".join(texts) == final.output_text == TEXT


def test_broken_stream_ends_with_an_error_that_clients_raise(
    client: httpx.Client, running: Running, openai: OpenAI, relinks: Callable[[], None]
):
    broken = script(then_after=2, then="die", gap_s=0.03)
    response = respond(client, running, {"input": broken, "stream": True})
    last = response.text.split("\n\n")[-2]
    assert last.startswith("event: error\n")
    event = json.loads(last.split("\ndata: ")[1])
    assert (event["type"], event["error"]["code"]) == ("error", 3008)
    assert "response.completed" not in response.text
    relinks()
    with pytest.raises(openai_sdk.APIError):
        list(openai.responses.create(model=PARROT, input=broken, stream=True))


# Threads


def test_response_continues_from_an_earlier_one(openai: OpenAI, running: Running, client: httpx.Client):
    first = openai.responses.create(model=PARROT, input="One", instructions="Only now")
    second = openai.responses.create(model=PARROT, input="Two", previous_response_id=first.id, stream=True)
    *_, last = second
    assert last.type == "response.completed"
    assert last.response.previous_response_id == first.id
    third = respond(client, running, {"model": PARROT, "input": "Three", "previous_response_id": last.response.id})
    said = [(turn.role, turn.content) for turn in running.site.execute_of(third).task.messages]
    assert said == [("user", "One"), ("assistant", TEXT), ("user", "Two"), ("assistant", TEXT), ("user", "Three")]


def test_partial_tool_call_is_omitted_from_the_stored_conversation(
    openai: OpenAI, running: Running, client: httpx.Client
):
    calls = [["get_weather", "{}"], ["get_weather", '{"city": "Os']]
    request = script(tokens=["Well"], calls=calls, end="length")
    first = openai.responses.create(model=HANDY, input=request, tools=[WEATHER])
    assert [item.status for item in first.output if item.type == "function_call"] == ["completed", "incomplete"]
    turns = task_of(client, running, {"input": "Go on", "previous_response_id": first.id, "tools": [WEATHER]}).messages
    assert [call.arguments for turn in turns for call in turn.tool_calls] == ["{}"]


def test_tool_calls_of_an_earlier_response_accept_results(openai: OpenAI, running: Running, client: httpx.Client):
    request = script(tokens=[], calls=[("get_weather", '{"city": "Paris"}')], end="tool_calls")
    first = openai.responses.create(model=HANDY, input=request, tools=[WEATHER])
    output = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "sunny"}
    body = {"input": [output], "previous_response_id": first.id, "tools": [WEATHER]}
    _user, called, result = task_of(client, running, body).messages
    assert called.tool_calls == (ToolCall(id="call_0", name="get_weather", arguments='{"city": "Paris"}'),)
    assert result == ChatMessage("tool", "sunny", tool_call_id="call_0")


def test_item_references_are_filled_from_stored_responses(openai: OpenAI, running: Running, client: httpx.Client):
    first = openai.responses.create(model=PARROT, input="One")
    request = script(tokens=[], calls=[("get_weather", "{}")], end="tool_calls")
    second = openai.responses.create(model=HANDY, input=request, tools=[WEATHER])
    (words,) = openai.responses.input_items.list(first.id).data
    output = {"type": "function_call_output", "call_id": second.output[0].call_id, "output": "sunny"}
    named = [
        {"id": words.id},
        {"type": "item_reference", "id": first.output[0].id},
        {"role": "user", "content": "Two"},
        {"type": "item_reference", "id": second.output[0].id},
        output,
    ]
    user, parrot, _two, called, result = task_of(client, running, {"input": named, "instructions": "Go on"}).messages[
        1:
    ]
    assert [(turn.role, turn.content) for turn in (user, parrot)] == [("user", "One"), ("assistant", TEXT)]
    assert called.tool_calls == (ToolCall(id="call_0", name="get_weather", arguments="{}"),)
    assert result == ChatMessage("tool", "sunny", tool_call_id="call_0")
    for unknown in ("msg_" + "0" * 34, first.output[0].id[:-2] + "07"):
        refused = respond(client, running, {"input": [*named, {"id": unknown}]})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input[5].id")
    other = f"{running.gateway.base_url}/accounts/{running.tenants.other_account_id}/ai/v1/responses"
    body = {"model": PARROT, "input": named}
    assert httpx.post(other, json=body, headers=running.headers("other")).json()["error"]["param"] == "input[0].id"


def test_unstored_and_foreign_responses_are_unknown(openai: OpenAI, running: Running, client: httpx.Client):
    unstored = openai.responses.create(model=PARROT, input="One", store=False)
    assert unstored.store is False
    stored = openai.responses.create(model=PARROT, input="One")
    unknown = "resp_" + "0" * 32
    for response_id in (unstored.id, unknown):
        response = respond(client, running, {"input": "x", "previous_response_id": response_id})
        assert (response.status_code, response.json()["error"]["code"]) == (400, 5006)
        assert "'/previous_response_id' names no stored response" in response.json()["error"]["message"]
    other = f"{running.gateway.base_url}/accounts/{running.tenants.other_account_id}/ai/v1/responses"
    body = {"model": PARROT, "input": "x", "previous_response_id": stored.id}
    assert httpx.post(other, json=body, headers=running.headers("other")).status_code == 400


@pytest.mark.parametrize("is_stream", [False, True])
def test_stored_response_can_be_retrieved_and_deleted(openai: OpenAI, running: Running, is_stream: bool):
    items = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    if is_stream:
        with openai.responses.stream(model=PARROT, input=items) as stream:
            made = stream.get_final_response()
    else:
        made = openai.responses.create(model=PARROT, input=items, metadata={"a": "b"})
    again = openai.responses.retrieve(made.id)
    assert (again.output_text, again.usage, again.metadata) == (TEXT, made.usage, made.metadata)
    assert again.created_at == made.created_at
    result = openai.responses.input_items.list(made.id, order="asc").data
    assert [(item.role, item.content[0].text) for item in result] == [("user", "a"), ("assistant", "b"), ("user", "c")]
    page = openai.responses.input_items.list(made.id, limit=2)
    assert [item.content[0].text for item in page.data] == ["c", "b"]
    assert page.has_more
    assert [item.content[0].text for item in page.get_next_page().data] == ["a"]
    others = OpenAI(
        base_url=f"{running.gateway.base_url}/accounts/{running.tenants.other_account_id}/ai/v1",
        api_key=running.tenants.secrets["other"],
    )
    with others, pytest.raises(openai_sdk.NotFoundError):
        others.responses.retrieve(made.id)
    openai.responses.delete(made.id)
    for gone in (openai.responses.retrieve, openai.responses.delete, openai.responses.input_items.list):
        with pytest.raises(openai_sdk.NotFoundError):
            gone(made.id)
    with pytest.raises(openai_sdk.BadRequestError, match="previous_response_id"):
        openai.responses.create(model=PARROT, input="d", previous_response_id=made.id)


def test_unstored_response_cannot_be_retrieved(openai: OpenAI, client: httpx.Client, running: Running):
    made = openai.responses.create(model=PARROT, input="a", store=False)
    with pytest.raises(openai_sdk.NotFoundError) as caught:
        openai.responses.retrieve(made.id)
    assert str(caught.value.code) == "7003"
    response_id = openai.responses.create(model=PARROT, input="a").id
    for query in ("limit=0", "limit=101", "limit=x", "order=up"):
        response = client.get(f"{running.account_url}/ai/v1/responses/{response_id}/input_items?{query}")
        assert (response.status_code, response.json()["error"]["code"]) == (400, 3003)


def test_stored_responses_are_encrypted(openai: OpenAI, running: Running):
    response = openai.responses.create(model=PARROT, input="s3cret-marker " * 50)
    path = running.site.database_url.removeprefix("sqlite://")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        query = "SELECT record, turns FROM responses WHERE response_id = ?"
        ((record, turns),) = connection.execute(query, (response.id,))
    assert record
    assert turns
    for marker in (b"s3cret", WORDS[-1].strip().encode() * 2, running.tenants.account_id.encode()):
        assert marker not in record + turns


# In the background


def finished(openai: OpenAI, response_id: str) -> Response:
    """Once its status will not change any more."""

    def look() -> Response | None:
        response = openai.responses.retrieve(response_id)
        return None if response.status in ("queued", "in_progress") else response

    found = wait_until_blocking(look, interval_s=0.05)
    assert found is not None
    return found


def test_background_response_can_be_continued(openai: OpenAI, running: Running):
    made = openai.responses.create(model=PARROT, input="one two", background=True, metadata={"a": "b"})
    assert (made.status, made.background, made.output) == ("queued", True, [])
    (item,) = openai.responses.input_items.list(made.id).data
    assert item.content[0].text == "one two"
    again = finished(openai, made.id)
    assert (again.status, again.output_text, again.metadata) == ("completed", TEXT, {"a": "b"})
    assert again.usage is not None
    row = running.site.usage_row(request_id_of(made.id))
    assert (row["prompt_tokens"], row["completion_tokens"]) == (again.usage.input_tokens, again.usage.output_tokens)
    second = openai.responses.create(model=PARROT, input="more", previous_response_id=made.id)
    assert second.previous_response_id == made.id
    openai.responses.delete(made.id)
    with pytest.raises(openai_sdk.NotFoundError):
        openai.responses.retrieve(made.id)
    assert not running.site.usage_rows(f"{request_id_of(made.id)}-0")


def test_cancelled_background_response_is_charged_for_its_tokens(openai: OpenAI, running: Running):
    made = openai.responses.create(model=PARROT, input=script(tokens=["x"] * 400, gap_s=0.02), background=True)
    wait_until_blocking(lambda: openai.responses.retrieve(made.id).status == "in_progress")
    with pytest.raises(openai_sdk.BadRequestError, match="cancel it first"):
        openai.responses.delete(made.id)
    assert openai.responses.cancel(made.id).status == "cancelled"
    row = running.site.usage_row(request_id_of(made.id))
    assert row["completion_tokens"] < 400
    assert openai.responses.cancel(made.id).status == openai.responses.retrieve(made.id).status == "cancelled"
    with pytest.raises(openai_sdk.BadRequestError, match="previous_response_id"):
        openai.responses.create(model=PARROT, input="d", previous_response_id=made.id)
    waited = openai.responses.create(model=PARROT, input="One")
    with pytest.raises(openai_sdk.BadRequestError, match="background"):
        openai.responses.cancel(waited.id)


def test_failed_background_response_has_an_error(openai: OpenAI):
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    request = script(end="constraint_failed")
    made = openai.responses.create(model=HANDY, input=request, text={"format": schema}, background=True)
    failed = finished(openai, made.id)
    assert failed.status == "failed"
    assert failed.error is not None
    assert (failed.error.code, failed.error.message) == ("invalid_prompt", "AiError: JSON Mode couldn't be met")


@pytest.mark.parametrize("is_background", [False, True])
def test_lost_stream_resumes_after_the_last_event(openai: OpenAI, is_background: bool):
    request = script(calls=[("get_weather", '{"city": "Paris"}')], end="tool_calls")
    options = {"model": HANDY, "input": request, "tools": [WEATHER], "background": is_background}
    if is_background:
        events = list(openai.responses.create(**options, stream=True))
        response_id = events[0].response.id
        assert [event.type for event in events[:3]] == [
            "response.created", "response.queued", "response.in_progress",
        ]  # fmt: skip
    else:
        response_id = openai.responses.create(**options).id
        events = list(openai.responses.retrieve(response_id, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(texts) == TEXT
    assert events[-1].type == "response.completed"
    assert events[-1].response == openai.responses.retrieve(response_id)
    remaining = list(openai.responses.retrieve(response_id, stream=True, starting_after=4))
    assert remaining == events[5:]


def test_input_token_count_equals_the_usage_of_the_response(openai: OpenAI, running: Running):
    before = running.site.num_executes
    first = openai.responses.create(model=PARROT, input="one two three")
    assert first.usage is not None
    counted = openai.responses.input_tokens.count(model=PARROT, input="one two three")
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", first.usage.input_tokens)
    longer = openai.responses.input_tokens.count(model=PARROT, input="four", previous_response_id=first.id)
    assert longer.input_tokens > counted.input_tokens
    assert running.site.num_executes == before + 3


BAD = [
    {},
    {"input": []},
    {"input": ""},
    {"input": 1},
    {"input": [1]},
    {"input": [{"type": "reasoning"}]},
    {"input": [{"role": "wizard", "content": "x"}]},
    {"input": [{"role": "user"}]},
    {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://127.0.0.1/x"}]}]},
    {"input": [{"type": "item_reference", "id": "x"}]},
    {"input": [{"type": "function_call", "call_id": "c", "name": "bad name!", "arguments": "{}"}]},
    {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}]},
    {"input": [{"type": "function_call_output", "output": "x"}]},
    {"input": "x", "instructions": 1},
    {"input": "x", "max_output_tokens": 0},
    {"input": "x", "background": True, "store": False},
    {"input": "x", "conversation": "c"},
    {"input": "x", "previous_response_id": "../x"},
    {"input": "x", "tools": [{"type": "web_search"}]},
    {"input": "x", "text": {"format": {"type": "xml"}}},
    {"input": "x", "tool_choice": "required"},
    {"input": "x", "chat_template": "{{7*7}}"},
]


@pytest.mark.parametrize("body", BAD, ids=lambda body: json.dumps(body)[:60])
def test_invalid_field_is_named(client: httpx.Client, running: Running, body: dict):
    response = respond(client, running, body)
    assert (response.status_code, response.json()["error"]["code"]) == (400, 5006), response.text
    assert response.json()["errors"][0]["message"].startswith("AiError: Bad input: Error: ")


def test_format_is_rejected_for_a_model_without_json_mode(client: httpx.Client, running: Running):
    assert respond(client, running, {"model": VECTORS, "input": "x"}).json()["errors"][0]["code"] == 5007
    request = {"model": PARROT, "input": "x", "text": {"format": {"type": "json_object"}}}
    response = respond(client, running, request)
    assert response.json()["error"]["message"].endswith("'/text/format' is not supported: the model lacks json_mode")
    assert respond(client, running, {"model": PARROT, "input": "x", "tools": [WEATHER]}).status_code == 400
