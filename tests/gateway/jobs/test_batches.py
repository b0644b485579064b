"""Batches, queued or synchronous: every request has its own result and usage entry."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from storage.database import Database
from tenants.credentials import user_tokens
from tenants.credentials.policies import Policy
from tenants.credentials.scopes import GROUPS
from tenants.credentials.user_tokens import TokenOwner, TokenSpec
from tests.fakes.node import WORDS
from tests.faults.test_gateway_faults import open_call
from tests.gateway.inference.test_text_generation import run, script
from tests.gateway.process import ALIAS, CHATTY, HANDY, MANIFOLD, PARROT, PEPPER, VECTORS
from tests.gateway.site import Running
from tests.waiting import wait_until_blocking

TEXT = "".join(WORDS)
QUEUED = {"queueRequest": "true"}


def queue(client: httpx.Client, running: Running, requests: Any, model: str = PARROT, **options: Any) -> str:
    """Queue a batch and return its id."""
    response = run(client, running, {"requests": requests}, model, params=QUEUED, **options)
    assert response.status_code == 200, response.text
    result = response.json()["result"]
    assert result == {"status": "queued", "request_id": response.headers["cf-ai-req-id"], "model": model}
    return str(result["request_id"])


def polled(client: httpx.Client, running: Running, batch_id: str, model: str = PARROT) -> dict[str, Any]:
    """Wait for a batch to finish and return its results."""

    def ask() -> dict[str, Any] | None:
        result = run(client, running, {"request_id": batch_id}, model, params=QUEUED).json()["result"]
        if "responses" in result:
            return result
        assert result.keys() == {"status", "request_id"}
        assert result["status"] in ("queued", "running")
        assert result["request_id"] == batch_id
        return None

    found = wait_until_blocking(ask, interval_s=0.05)
    assert found is not None
    return found


def test_batch_results_are_in_order_with_references(client: httpx.Client, running: Running):
    batch_id = queue(
        client, running, [{"prompt": "one two", "external_reference": "a"}, {"prompt": "x", "stream": True}]
    )
    found = polled(client, running, batch_id)
    one, other = found["responses"]
    assert (one["id"], one["success"], one["external_reference"]) == (0, True, "a")
    assert one["result"]["response"] == TEXT
    assert (other["id"], other["success"]) == (1, True)
    assert "external_reference" not in other
    assert found["usage"] == {"prompt_tokens": 3, "completion_tokens": 12, "total_tokens": 15}


def test_each_request_of_a_batch_has_one_entry(client: httpx.Client, running: Running):
    batch_id = queue(client, running, [{"prompt": "one two"}, {"prompt": "three"}])
    polled(client, running, batch_id)
    for number, prompt_tokens in enumerate((2, 1)):
        (row,) = running.site.usage_rows(f"{batch_id}-{number}")
        assert (row["status"], row["prompt_tokens"], row["completion_tokens"]) == ("stop", prompt_tokens, 6)
        assert row["account_id"] == running.tenants.account_id


def test_each_prompt_has_its_own_usage_entry(client: httpx.Client, running: Running):
    batch_id = queue(client, running, [{"prompt": ["one two", "three"]}], MANIFOLD)
    (item,) = polled(client, running, batch_id, MANIFOLD)["responses"]
    assert [choice["text"] for choice in item["result"]["choices"]] == [TEXT, TEXT]
    entries = [running.site.usage_rows(f"{batch_id}-{name}") for name in ("0", "0-1")]
    assert [row["prompt_tokens"] for (row,) in entries] == [2, 1]


def test_invalid_request_of_a_batch_fails_alone(client: httpx.Client, running: Running):
    requests = [{"prompt": "x", "temperature": 9}, {"prompt": "x"}, {"nothing": 1, "external_reference": "c"}]
    bad, good, empty = polled(client, running, queue(client, running, requests))["responses"]
    assert good["success"]
    for item in (bad, empty):
        assert (item["success"], item["result"]) == (False, {})
        assert item["errors"][0]["code"] == 5006
    assert "temperature" in bad["errors"][0]["message"]
    assert empty["external_reference"] == "c"


def test_results_of_several_pages_are_complete(client: httpx.Client, running: Running):
    texts = [{"text": "x" * (1 + number)} for number in range(300)]
    batch_id = queue(client, running, texts, VECTORS)
    found = polled(client, running, batch_id, VECTORS)
    assert [item["id"] for item in found["responses"]] == list(range(300))
    assert [item["result"]["data"][0][0] for item in found["responses"]] == [1.0 + number for number in range(300)]
    assert found["usage"]["prompt_tokens"] == 300


def test_batch_responses_have_the_format_of_their_model(client: httpx.Client, running: Running):
    batch_id = queue(client, running, [{"messages": [{"role": "user", "content": "x"}]}], CHATTY)
    (item,) = polled(client, running, batch_id, CHATTY)["responses"]
    assert item["result"]["choices"][0]["message"]["content"] == TEXT


@pytest.mark.parametrize("how", ["body", "single", "alias"])
def test_batch_options_are_accepted_in_query_and_body(client: httpx.Client, running: Running, how: str):
    model = ALIAS if how == "alias" else PARROT
    if how == "body":
        response = run(client, running, {"requests": [{"prompt": "x"}], "options": {"queueRequest": True}})
    elif how == "single":
        response = run(client, running, {"prompt": "x"}, params=QUEUED)
    else:
        response = run(client, running, {"requests": [{"prompt": "x"}]}, ALIAS, params=QUEUED)
    batch_id = response.json()["result"]["request_id"]

    def ask() -> Any:
        return run(client, running, {"request_id": batch_id}, model).json()["result"].get("responses")

    (item,) = wait_until_blocking(ask, interval_s=0.05)
    assert item["result"]["response"] == TEXT


def test_undefined_option_is_ignored(client: httpx.Client, running: Running):
    response = run(client, running, {"prompt": "x"}, params={"queueRequest": "undefined"})
    assert response.json()["result"]["response"] == TEXT


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({"requests": "x"}, "'/requests'"),
        ({"requests": []}, "'/requests' must have 1 to"),
        ({"requests": [{"prompt": "x"}, 1]}, "'/requests/1'"),
        ({"requests": [{"prompt": "x", "external_reference": 7}]}, "'/requests/0/external_reference'"),
        ({"requests": [{"prompt": "x", "external_reference": "x" * 513}]}, "at most 512 characters"),
        ({"request_id": 7}, "'/request_id'"),
    ],
)
@pytest.mark.parametrize("params", [QUEUED, {}])
def test_malformed_batch_is_rejected(client, running: Running, body: dict, what: str, params: dict):
    response = run(client, running, body, params=params)
    assert (response.status_code, response.json()["errors"][0]["code"]) == (400, 5006)
    assert what in response.json()["errors"][0]["message"]


def test_batch_with_too_many_requests_is_rejected(client: httpx.Client, running: Running):
    for params, most in ((QUEUED, 10_000), ({}, 100)):
        response = run(client, running, {"requests": [{"prompt": ""}] * (most + 1)}, params=params)
        assert response.status_code == 400
        assert f"1 to {most} items" in response.json()["errors"][0]["message"]


def test_batch_is_visible_only_to_its_account_and_model(client: httpx.Client, running: Running):
    batch_id = queue(client, running, [{"prompt": "x"}])
    polled(client, running, batch_id)
    other_url = f"{running.gateway.base_url}/accounts/{running.tenants.other_account_id}/ai/run/{PARROT}"
    foreign = client.post(other_url, json={"request_id": batch_id}, headers=running.headers("other"))
    other_model = run(client, running, {"request_id": batch_id}, HANDY)
    never = run(client, running, {"request_id": batch_id[:-1] + "x"})
    for response in (foreign, other_model, never):
        assert (response.status_code, response.json()["errors"][0]["code"]) == (404, 7003)


def test_token_bound_to_a_model_can_neither_run_nor_queue_another(client: httpx.Client, running: Running):
    async def make() -> str:
        account_id, everything = running.tenants.account_id, tuple(group.group_id for group in GROUPS)
        policy = Policy("p", "allow", everything, (f"com.cloudflare.api.account.{account_id}",))
        spec = TokenSpec("narrow", (policy,), models=(PARROT,))
        database = Database.connect(running.site.database_url)
        created = await user_tokens.create(database, PEPPER, TokenOwner("account", account_id), spec)
        await database.close()
        return created.secret

    headers = {"Authorization": f"Bearer {asyncio.run(make())}"}
    one, batch = {"prompt": "x"}, {"requests": [{"prompt": "x"}]}
    assert run(client, running, one, headers=headers).status_code == 200
    assert run(client, running, batch, headers=headers, params=QUEUED).status_code == 200
    for body, params in ((one, {}), (batch, {}), (batch, QUEUED)):
        refused = run(client, running, body, CHATTY, headers=headers, params=params)
        assert refused.status_code == 403, (body, params, refused.text)


def test_requests_without_queue_option_run_now(client: httpx.Client, running: Running):
    requests = [{"prompt": "one two", "external_reference": "a"}, {"prompt": "x", "max_tokens": 0}, {"prompt": "x"}]
    response = run(client, running, {"requests": requests})
    assert response.status_code == 200
    first, bad, last = response.json()["result"]["responses"]
    assert (first["result"]["response"], first["external_reference"]) == (TEXT, "a")
    assert (bad["success"], bad["errors"][0]["code"]) == (False, 5006)
    assert last["success"]
    assert response.json()["result"]["usage"]["total_tokens"] == 15
    assert running.site.usage_row(f"{response.headers['cf-ai-req-id']}-2")["status"] == "stop"


def test_disconnect_ends_all_calls_of_a_synchronous_batch(running: Running):
    nodes = running.site.nodes.values()
    before = sum(len(node.cancels) for node in nodes)
    with open_call(running, {"requests": [{"prompt": script(held_after=0, message="in a batch")}] * 3}):
        wait_until_blocking(lambda: sum("in a batch" in repr(e.task) for node in nodes for e in node.executes) == 3)
    wait_until_blocking(lambda: sum(len(node.cancels) for node in nodes) == before + 3)


def test_batch_content_is_encrypted_in_the_stores(client: httpx.Client, running: Running):
    marker = "marker-7f3a"
    polled(client, running, queue(client, running, [{"prompt": marker, "external_reference": marker}]))
    file = running.site.database_url.removeprefix("sqlite://")
    for name in (file, file + "-wal"):
        with open(name, "rb") as stored:
            assert marker.encode() not in stored.read()
    assert marker not in str(running.site.redis_dump())
    assert marker not in running.gateway.log_text()
    assert json.dumps(marker) not in running.gateway.log_text()
