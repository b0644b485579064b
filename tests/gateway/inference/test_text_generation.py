"""Text generation, whole and streamed, in the native and the OpenAI format."""

import json
import time

import httpx
import pytest

from gateway.streaming import COALESCE_S
from tests.fakes.node import WORDS
from tests.gateway.process import ALIAS, CHATTY, MANIFOLD, PARROT
from tests.gateway.site import Running

TEXT = "".join(WORDS)
HELLO = [{"role": "user", "content": "Say hello to me"}]


def script(**fields) -> str:
    return "!" + json.dumps(fields)


def events_of(response: httpx.Response) -> list[str]:
    """The data of each event; the frame's form is checked on the way."""
    assert response.headers["content-type"] == "text/event-stream", response.text
    *frames, end = response.text.split("\n\n")
    assert end == ""
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
    return [frame.removeprefix("data: ") for frame in frames]


def run(client: httpx.Client, running: Running, body: dict, model: str = PARROT, **options) -> httpx.Response:
    return client.post(f"{running.account_url}/ai/run/{model}", json=body, **options)


def heard_when_let_go_on(client: httpx.Client, running: Running, body: dict, path: str) -> tuple[str, list[str]]:
    """The id and the data of the events of a stream whose script holds it after its first token: until that has come,
    however long it takes a busy machine, so that what follows falls into a stream that has begun."""
    nodes = running.site.nodes.values()
    with client.stream("POST", f"{running.account_url}/ai/{path}", json=body | {"stream": True}) as response:
        lines = response.iter_lines()
        first = next(lines)
        for node in nodes:
            node.go_on()
        heard = [first, *filter(None, lines)]
    for node in nodes:
        node.hold()
    return response.headers["cf-ai-req-id"], [line.removeprefix("data: ") for line in heard]


def chat(client: httpx.Client, running: Running, body: dict, **options) -> httpx.Response:
    return client.post(f"{running.account_url}/ai/v1/chat/completions", json={"model": PARROT} | body, **options)


def test_native_response_has_the_envelope(client: httpx.Client, running: Running):
    response = run(client, running, {"prompt": "one two three"})
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.json() == {
        "result": {
            "response": TEXT,
            "usage": {
                "prompt_tokens": 3,
                "completion_tokens": 6,
                "total_tokens": 9,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
        },
        "success": True,
        "errors": [],
        "messages": [],
    }


def test_responses_of_a_model_have_its_headers(client: httpx.Client, running: Running):
    response = run(client, running, {"prompt": "one two three"}, headers={"x-request-id": "mine-1"})
    assert response.headers["cf-ai-req-id"] == response.headers["x-hearth-request-id"]
    assert response.headers["cf-ai-req-id"][14] == "7"
    assert response.headers["x-request-id"] == "mine-1"
    assert response.headers["cf-ray"].endswith("-LOCAL")
    assert response.headers["cf-ai-neurons"] == "0.01"
    refused = run(client, running, {"prompt": "x"}, headers={"authorization": "Bearer nonsense"})
    assert "cf-ai-req-id" not in refused.headers
    assert refused.headers["cf-ray"]


@pytest.mark.parametrize("bad", ["a b", "x" * 129, "é", ""])
def test_malformed_request_id_is_not_echoed(client: httpx.Client, running: Running, bad: str):
    response = client.get(f"{running.gateway.url}/healthz", headers={"x-request-id": bad.encode()})
    assert response.headers["x-request-id"] == response.headers["x-hearth-request-id"]


def test_native_stream_ends_with_usage_and_done(client: httpx.Client, running: Running):
    *events, last, done = events_of(run(client, running, {"messages": HELLO, "stream": True}))
    assert done == "[DONE]"
    parsed = [json.loads(event) for event in events]
    assert "".join(event["response"] for event in parsed) == TEXT
    assert all(set(event) == {"response", "p"} and event["p"].startswith("a") for event in parsed)
    assert json.loads(last)["response"] == ""
    assert json.loads(last)["usage"]["completion_tokens"] == 6


def test_string_booleans_and_numbers_are_coerced_and_any_content_type_is_json(client: httpx.Client, running: Running):
    body = json.dumps({"prompt": "x", "stream": "true", "max_tokens": "2", "raw": "true", "no_such_field": 1})
    for content_type in ("application/x-www-form-urlencoded", "text/plain", "", "application/json; charset=utf-8"):
        url = f"{running.account_url}/ai/run/{PARROT}"
        response = client.post(url, content=body, headers={"content-type": content_type})
        events = events_of(response)
        assert json.loads(events[-2])["usage"]["completion_tokens"] == 2
        task = running.site.execute_of(response).task
        assert (task.raw, task.sampling.max_tokens) == (True, 2)


def test_defaults_of_the_contract_reach_the_node(client: httpx.Client, running: Running):
    sampling = running.site.execute_of(run(client, running, {"prompt": "x"})).task.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.seed) == (256, 0.6, 1.0, None)


def test_only_an_explicit_max_tokens_must_fit_the_context(client: httpx.Client, running: Running):
    def has_explicit_max_tokens(response: httpx.Response) -> bool:
        return running.site.execute_of(response).task.sampling.has_explicit_max_tokens

    assert not has_explicit_max_tokens(run(client, running, {"prompt": "x", "max_tokens": None}))
    assert has_explicit_max_tokens(run(client, running, {"prompt": "x", "max_tokens": "3"}))
    assert not has_explicit_max_tokens(chat(client, running, {"messages": HELLO}))
    assert has_explicit_max_tokens(chat(client, running, {"messages": HELLO, "max_completion_tokens": 3}))


def test_assistant_message_without_text_is_accepted_by_both_formats(client: httpx.Client, running: Running):
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "assistant"}, *HELLO]
    for ask in (run, chat):
        messages = running.site.execute_of(ask(client, running, {"messages": turns})).task.messages
        assert [message.content for message in messages] == [HELLO[0]["content"], "", "", HELLO[0]["content"]]


@pytest.mark.parametrize("written", [PARROT, "@cf%2Ftest%2Fparrot", "%40cf/test/parrot", "workers-ai/" + PARROT])
def test_encoded_model_ids_run_the_same_model(client: httpx.Client, running: Running, written: str):
    assert run(client, running, {"prompt": "x"}, written).status_code == 200


def test_alias_response_has_the_alias_name_and_a_header_with_the_model(client: httpx.Client, running: Running):
    response = chat(client, running, {"messages": HELLO, "model": ALIAS})
    assert response.json()["model"] == ALIAS
    assert response.headers["x-hearth-model"] == PARROT
    assert "x-hearth-model" not in chat(client, running, {"messages": HELLO}).headers


def test_openai_response_has_no_envelope(client: httpx.Client, running: Running):
    body = chat(client, running, {"messages": HELLO, "max_completion_tokens": 2}).json()
    assert body["object"] == "chat.completion"
    assert body["model"] == PARROT
    choice = body["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "Hello from", "refusal": None}
    assert choice["finish_reason"] == "length"
    assert body["usage"]["total_tokens"] == 6


def test_openai_stream_starts_with_the_role_and_ends_with_the_finish_reason(client: httpx.Client, running: Running):
    *events, done = events_of(chat(client, running, {"messages": HELLO, "stream": True}))
    assert done == "[DONE]"
    chunks = [json.loads(event) for event in events]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == TEXT
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert all("usage" not in chunk for chunk in chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_openai_stream_includes_usage_on_request(client: httpx.Client, running: Running):
    body = {"messages": [{"role": "user", "content": script(cached=2)}], "stream": True}
    *events, done = events_of(chat(client, running, body | {"stream_options": {"include_usage": True}}))
    assert done == "[DONE]"
    last = json.loads(events[-1])
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 6
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


TWINS = ["".join(WORDS), "".join(f"{word}1" for word in WORDS), "".join(f"{word}2" for word in WORDS)]


def test_multiple_choices_are_ordered_and_the_prompt_is_counted_once(client: httpx.Client, running: Running):
    body = {"messages": HELLO, "n": 3, "model": CHATTY, "seed": 5, "logit_bias": {"7": 2}, "stop_token_ids": [3]}
    for response in (chat(client, running, body), run(client, running, body, CHATTY)):
        found = response.json()
        whole = found.get("result", found)
        assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
        assert [choice["message"]["content"] for choice in whole["choices"]] == TWINS
        assert [choice["finish_reason"] for choice in whole["choices"]] == ["stop"] * 3
        assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (4, 18)
        row = running.site.usage_row(response.headers["cf-ai-req-id"])
        assert (row["prompt_tokens"], row["completion_tokens"], row["micro_neurons"]) == (4, 18, 4 * 100 + 18 * 1000)
        task = running.site.execute_of(response).task
        assert (task.num_choices, task.sampling.seed) == (3, 5)
        assert (task.sampling.logit_bias, task.sampling.stop_token_ids) == (((7, 2.0),), (3,))


@pytest.mark.parametrize("is_native", [True, False])
def test_stream_of_multiple_choices_has_role_text_and_end_for_each(
    client: httpx.Client, running: Running, is_native: bool
):
    body = {"messages": HELLO, "n": 3, "model": CHATTY, "stream": True, "stream_options": {"include_usage": True}}
    response = run(client, running, body, CHATTY) if is_native else chat(client, running, body)
    *events, last, done = events_of(response)
    assert done == "[DONE]"
    assert json.loads(last)["usage"]["completion_tokens"] == 18
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    for index, text in enumerate(TWINS):
        own = [choice for choice in choices if choice["index"] == index]
        assert own[0]["delta"]["role"] == "assistant"
        assert "".join(choice["delta"].get("content", "") for choice in own) == text
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["stop"]


@pytest.mark.parametrize(
    ("model", "fields", "message"),
    [
        (CHATTY, {"n": 9}, "'/n' must be <= 8"),
        (PARROT, {"n": 2}, "'/n' must be <= 1"),
        (CHATTY, {"logit_bias": {"x": 1}}, "'/logit_bias' must have token ids as its keys"),
        (CHATTY, {"top_logprobs": 3}, "'/top_logprobs' needs '/logprobs' to be true"),
        (CHATTY, {"stop": ["a"] * 16, "stop_token_ids": [1]}, "'/stop_token_ids' must have <= 0 items"),
    ],
)
def test_invalid_n_and_logit_bias_errors_name_the_field_and_limit(
    client: httpx.Client, running: Running, model: str, fields: dict, message: str
):
    response = chat(client, running, {"messages": HELLO, "model": model} | fields)
    assert (response.status_code, response.json()["errors"][0]["code"]) == (400, 5006)
    assert message in response.json()["errors"][0]["message"]


def test_native_chat_model_returns_a_chat_completion_in_the_envelope(client: httpx.Client, running: Running):
    body = run(client, running, {"messages": HELLO}, CHATTY).json()
    assert body["success"] is True
    assert body["result"]["choices"][0]["message"]["content"] == TEXT
    *events, done = events_of(run(client, running, {"messages": HELLO, "stream": True}, CHATTY))
    assert done == "[DONE]"
    assert json.loads(events[0])["object"] == "chat.completion.chunk"


def test_model_with_three_formats_uses_the_format_of_the_present_field(client: httpx.Client, running: Running):
    response = run(client, running, {"input": "x"}, MANIFOLD).json()["result"]
    assert (response["object"], response["output"][0]["content"][0]["text"]) == ("response", TEXT)
    chatted = run(client, running, {"messages": HELLO}, MANIFOLD).json()["result"]
    assert (chatted["object"], chatted["choices"][0]["message"]["content"]) == ("chat.completion", TEXT)
    completion = run(client, running, {"prompt": "x"}, MANIFOLD).json()["result"]
    assert (completion["object"], completion["choices"][0]["text"]) == ("text_completion", TEXT)
    assert "response.completed" in run(client, running, {"input": "x", "stream": True}, MANIFOLD).text
    refused = run(client, running, {}, MANIFOLD).json()
    assert refused["errors"][0]["code"] == 5006
    schema = client.get(f"{running.account_url}/ai/models/schema", params={"model": MANIFOLD}).json()["result"]
    assert [variant["required"][0] for variant in schema["input"]["oneOf"]] == ["input", "messages", "prompt"]


def test_close_tokens_share_a_frame_and_the_first_is_sent_at_once(client: httpx.Client, running: Running):
    words = [f" w{i}" for i in range(60)]
    prompt = script(tokens=words, gap_s=0.002)
    for _ in range(10):  # on a busy machine words come more slowly, or two before the first is read
        started_s = time.monotonic()
        *events, _usage, _done = events_of(run(client, running, {"prompt": prompt, "stream": True}))
        elapsed_s = time.monotonic() - started_s
        texts = [json.loads(event)["response"] for event in events]
        assert "".join(texts) == "".join(words)
        assert len(texts) <= elapsed_s / COALESCE_S + 2
        if texts[0] == " w0" and len(texts) < len(words) / 2:
            return
    pytest.fail(f"never so in ten streams; the last frames were {texts}")


def test_every_call_has_one_usage_entry_that_agrees_with_its_response(client: httpx.Client, running: Running):
    for is_stream in (False, True):
        response = run(client, running, {"prompt": script(cached=1), "stream": is_stream})
        row = running.site.usage_row(response.headers["cf-ai-req-id"])
        assert (row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"]) == (2, 1, 6)
        assert row["micro_neurons"] == 1 * 100 + 1 * 10 + 6 * 1000
        assert (row["status"], row["attempts"], bool(row["is_stream"])) == ("stop", 1, is_stream)
        assert row["account_id"] == running.tenants.account_id
        assert row["api_token_id"] == running.tenants.token_ids["good"]
        assert row["node_id"] in running.site.nodes
        assert 0 < row["ttft_ms"] <= row["duration_ms"]


def test_cache_namespace_depends_on_the_account_only(client: httpx.Client, running: Running):
    mine = running.site.execute_of(run(client, running, {"prompt": "x"}))
    salted = run(client, running, {"prompt": "x", "namespace": "y", "cache_salt": "z", "account_id": "w"})
    assert running.site.execute_of(salted).namespace == mine.namespace
    url = f"{running.gateway.base_url}/accounts/{running.tenants.other_account_id}/ai/run/{PARROT}"
    other = running.site.execute_of(client.post(url, json={"prompt": "x"}, headers=running.headers("other")))
    assert other.namespace != mine.namespace
    assert other.tenant != mine.tenant
    assert len(mine.namespace) == 32


def test_session_stays_on_its_node(client: httpx.Client, running: Running):
    for session in ("s1", "s2", "s3"):
        before = {node_id: len(node.executes) for node_id, node in running.site.nodes.items()}
        for i in range(4):
            run(client, running, {"prompt": f"{i}"}, headers={"x-session-affinity": session})
        grown = [node_id for node_id, node in running.site.nodes.items() if len(node.executes) != before[node_id]]
        assert len(grown) == 1
