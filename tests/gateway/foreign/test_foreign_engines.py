"""Calls on a foreign engine: the same responses, metering and errors as on a node of the platform."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import httpx
import pytest

from tests.fakes.openai_server import WORDS, OpenAiServer
from tests.gateway.foreign.conftest import MODEL, EngineSite
from tests.waiting import wait_until_blocking

TEXT = "".join(WORDS)
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


def test_response_is_metered_with_the_usage_that_the_engine_reports(site: EngineSite):
    response = site.chat()
    body = response.json()
    assert response.status_code == 200, response.text
    assert body["choices"][0]["message"]["content"] == TEXT
    usage = {"prompt_tokens": 11, "completion_tokens": 4, "total_tokens": 15}
    assert usage.items() <= body["usage"].items()
    row = site.site.usage_row(response.headers["cf-ai-req-id"])
    assert (row["node_id"], row["prompt_tokens"], row["cached_tokens"]) == ("engine:one", 11, 3)
    assert row["micro_neurons"] == 11 * 10_000 + 4 * 100_000, "callers pay what the engine charges"


def test_response_is_streamed(site: EngineSite):
    response = site.chat(stream=True, stream_options={"include_usage": True})
    frames = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert frames[-1] == "[DONE]"
    chunks = [json.loads(frame) for frame in frames[:-1]]
    assert "".join(choice["delta"].get("content") or "" for c in chunks for choice in c["choices"]) == TEXT
    assert chunks[-1]["usage"]["completion_tokens"] == 4


def test_cache_salt_separates_accounts_and_hides_their_ids(site: EngineSite):
    site.chat()
    other = {"authorization": f"Bearer {site.site.tenants.secrets['other']}"}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
    httpx.post(f"{site.gateway.url}/v1/chat/completions", json=body, headers=other, timeout=60).raise_for_status()
    salts = [body["cache_salt"] for body in site.server.bodies]
    assert len(set(salts)) == 2
    assert all(len(salt) == 64 for salt in salts)
    assert site.site.tenants.account_id not in str(site.server.bodies)


def test_engine_receives_tools_format_and_sampling(site: EngineSite):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    site.chat(temperature=0.1, top_k=7, seed=5, stop=["x"], tools=[TOOL], tool_choice="required").raise_for_status()
    site.chat(response_format={"type": "json_schema", "json_schema": {"schema": schema}})
    first, second = site.server.bodies
    assert (first["temperature"], first["top_k"], first["seed"], first["stop"]) == (0.1, 7, 5, ["x"])
    assert first["tools"][0]["function"]["name"] == "weather"
    assert first["tool_choice"] == "required"
    assert second["response_format"]["json_schema"]["schema"] == schema


def test_tool_calls_are_returned(site: EngineSite):
    site.server.behavior = "tools"
    choice = site.chat(tools=[TOOL]).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city":"Lisbon"}'}


def test_several_choices_count_the_prompt_once(site: EngineSite):
    body = site.chat(n=2, seed=3).json()
    assert [choice["message"]["content"] for choice in body["choices"]] == [TEXT, TEXT]
    assert {"prompt_tokens": 11, "completion_tokens": 8}.items() <= body["usage"].items()
    assert sorted(each["seed"] for each in site.server.bodies) == [3, 4]


@pytest.mark.parametrize("behavior", ["no usage", "wrong usage"])
def test_usage_is_estimated_if_the_engine_reports_none_or_an_impossible_one(site: EngineSite, behavior: str):
    site.server.behavior = behavior
    usage = site.chat("x" * 40).json()["usage"]
    assert usage["completion_tokens"] == 4
    assert 1 <= usage["prompt_tokens"] <= 20


@pytest.mark.parametrize(
    ("behavior", "status", "message"),
    [
        ("garbage", 408, "sent a chunk that is no chat completion chunk"),
        ("late error", 408, "reported an error during the response"),
        ("cut", 408, "ended the response too early"),
        ("html", 408, "responded with a media type other than text/event-stream"),
        ("other model", 429, "responded with another model than the requested one"),
        ("500", 408, "responded with HTTP 500"),
        ("404", 429, "does not serve the model (HTTP 404)"),
        ("429", 429, "is at capacity (HTTP 429)"),
    ],
)
def test_fault_of_the_engine_is_an_error_and_one_log_line(site: EngineSite, behavior: str, status: int, message: str):
    site.server.behavior = behavior
    before = len(site.warnings())
    response = site.chat()
    assert response.status_code == status, response.text
    assert "error" in response.json()
    lines = wait_until_blocking(lambda: site.warnings()[before:])
    assert [(line["engine"], line["why"]) for line in lines] == [("one", message)]
    assert "Hello" not in json.dumps(lines)


def test_stream_that_breaks_ends_with_an_error_event_and_is_metered(site: EngineSite):
    site.server.behavior = "garbage"
    response = site.chat(stream=True)
    assert response.status_code == 200
    assert '"error"' in response.text
    assert "[DONE]" not in response.text
    assert site.site.usage_row(response.headers["cf-ai-req-id"])["completion_tokens"] == 1


@pytest.mark.full
def test_stalled_engine_ends_the_stream_with_an_error(site: EngineSite):
    site.server.behavior = "stall"
    started_s = time.monotonic()
    response = site.chat(stream=True)
    assert '"error"' in response.text
    assert time.monotonic() - started_s < 20
    assert site.site.usage_row(response.headers["cf-ai-req-id"])["completion_tokens"] == 2


def test_disconnect_of_the_client_stops_the_engine(site: EngineSite):
    site.server.behavior = "stall"
    before = site.server.num_disconnects
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    with site.client.stream("POST", f"{site.url}/chat/completions", json=body) as response:
        next(response.iter_lines())
        request_id = response.headers["cf-ai-req-id"]
    wait_until_blocking(lambda: site.server.num_disconnects > before)
    row = site.site.usage_row(request_id)
    assert row["status"] == "client_left"
    assert row["completion_tokens"] == 2


def test_input_that_the_engine_rejects_is_the_callers_error(site: EngineSite):
    site.server.behavior = "400"
    before = len(site.warnings())
    response = site.chat()
    assert response.status_code == 400
    assert "the input is too long for me" in response.text
    assert len(site.warnings()) == before


def test_option_that_the_engine_does_not_offer_is_rejected_by_name(
    site: EngineSite, new_server: Callable[..., OpenAiServer]
):
    plain = new_server(models=("p1",), owner="someone")
    model = {"name": "p1", "context_window": 100}
    site.manage("PUT", "/engines/plain", {"url": plain.url, "models": {"@cf/far/plain": model}}).raise_for_status()
    assert site.wait_reachable("plain")["kind"] == "openai"
    response = site.chat(model="@cf/far/plain", top_k=7)
    assert response.status_code == 400
    assert "top_k" in response.text
    assert site.chat(model="@cf/far/plain").status_code == 200
    assert "cache_salt" not in plain.bodies[-1]
    site.manage("DELETE", "/engines/plain").raise_for_status()
    removed = site.chat(model="@cf/far/plain")
    assert removed.status_code == 400
    assert "@cf/far/plain" in removed.text, "the card without weights left with its only engine"


def test_embeddings_of_an_engine(site: EngineSite, new_server: Callable[..., OpenAiServer]):
    server = new_server(models=("e1",))
    model = {"name": "e1", "context_window": 100, "output_dimensions": 2, "task": "Text Embeddings"}
    site.manage("PUT", "/engines/vectors", {"url": server.url, "models": {"@cf/far/vectors": model}}).raise_for_status()
    site.wait_reachable("vectors")
    body = {"model": "@cf/far/vectors", "input": ["a", "b"]}
    found = site.client.post(f"{site.url}/embeddings", json=body).json()
    assert [row["embedding"] for row in found["data"]] == [[0.5, -1.0]] * 2
    assert found["usage"]["prompt_tokens"] == 7
    server.behavior = "garbage"
    assert site.client.post(f"{site.url}/embeddings", json=body).status_code == 408
    site.manage("DELETE", "/engines/vectors").raise_for_status()


def test_call_moves_to_another_engine_when_the_first_fails(site: EngineSite, new_server: Callable[..., OpenAiServer]):
    second = new_server()
    site.register("two", url=second.url).raise_for_status()
    site.wait_reachable("two")
    site.server.behavior = second.behavior = "cut"
    broken = site.chat()
    assert broken.status_code == 408
    row = site.site.usage_row(broken.headers["cf-ai-req-id"])
    assert set(row["tried_nodes"].split(",")) == {"engine:one", "engine:two"}
    second.behavior = "words"
    assert {site.chat(f"{number}").status_code for number in range(6)} == {200}
    site.manage("DELETE", "/engines/two").raise_for_status()


def test_registration_and_removal_are_in_the_audit_log(site: EngineSite):
    site.register("audited", url="http://127.0.0.1:9/v1").raise_for_status()
    site.manage("DELETE", "/engines/audited").raise_for_status()
    assert site.manage("DELETE", "/engines/audited").status_code == 404
    entries = site.manage("GET", "/audit_logs").json()["result"]
    acts = [entry["action"]["type"] for entry in entries if "audited" in json.dumps(entry)]
    assert sorted(acts) == ["engine.register", "engine.remove"]


@pytest.mark.full
def test_engine_that_drops_the_model_gets_no_calls_until_it_returns(site: EngineSite):
    def replica() -> dict:
        nodes = {node["node_id"]: node for node in site.manage("GET", "/nodes").json()["result"]}
        return nodes["engine:one"]["replicas"][0]

    site.server.models = ("m2",)
    wait_until_blocking(lambda: replica()["state"] == "failed")
    assert replica()["detail"] == "the engine does not serve m1"
    assert site.chat().status_code == 429
    site.server.models = ("m1",)
    wait_until_blocking(lambda: replica()["state"] == "ready")
    assert site.chat().status_code == 200


def test_engine_without_a_pop_gets_no_calls_with_residency_rules(site: EngineSite):
    headers = {**site.headers, "x-hearth-region": "PT"}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
    assert httpx.post(f"{site.url}/chat/completions", json=body, headers=headers, timeout=60).status_code == 429
    assert not site.server.bodies
    site.register(pop="local", key="k" * 20).raise_for_status()
    site.wait_reachable()
    assert httpx.post(f"{site.url}/chat/completions", json=body, headers=headers, timeout=60).status_code == 200


@pytest.mark.full
def test_calls_with_zero_retention_run_only_on_engines_that_keep_no_content(site: EngineSite):
    def set_retention(value: str) -> None:
        account = f"accounts/{site.site.tenants.account_id}"
        changed = site.manage("PUT", account, {"name": "main", "settings": {"retention": value}})
        assert changed.status_code == 200, changed.text

    set_retention("zero")
    wait_until_blocking(lambda: site.chat().status_code == 429)
    site.register(keeps_no_content=True, key="k" * 20).raise_for_status()
    wait_until_blocking(lambda: site.chat().status_code == 200)
    set_retention("standard")


def test_key_is_stored_encrypted_and_is_not_sent_to_another_server(site: EngineSite):
    listed = site.manage("GET", "/engines")
    assert listed.json()["result"][0]["has_key"] is True
    assert "k" * 20 not in listed.text
    database = site.site.database_url.removeprefix("sqlite://")
    with open(database, "rb") as file:
        assert b"k" * 20 not in file.read()
    assert site.register().json()["result"]["has_key"] is True
    moved = site.register("one", url="http://127.0.0.1:9/v1").json()["result"]
    assert moved["has_key"] is False
    site.register(key="k" * 20).raise_for_status()
    site.wait_reachable()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"url": "ftp://example.org/v1"}, "url must be a URL"),
        ({"url": "http://me:secret@example.org/v1"}, "must have no user"),
        ({"url": "http://169.254.169.254/latest"}, "link-local"),
        ({"models": {}}, "models must have 1 to 100 members"),
        ({"models": {"nonsense": {"name": "x"}}}, "model id"),
        ({"models": {"@cf/far/unknown": {"name": "x"}}}, "context_window is needed"),
        ({"models": {"@cf/test/listener": {"name": "x"}}}, "which engines do not offer"),
        ({"kind": "other"}, "kind"),
        ({"max_calls": 0}, "max_calls"),
        ({"key": "two words"}, "key"),
    ],
)
def test_invalid_registration_names_the_field(site: EngineSite, fields: dict, message: str):
    response = site.register("bad", **fields)
    assert response.status_code == 400
    assert message in response.text
    assert "secret" not in response.text
