"""Isolation of tenants, seen by clients: credentials, prefix caches, usage."""

from __future__ import annotations

import random
import time

import pytest

from tests.platform import Platform, wait_for

WORDS = "river stone lamp green seven cloud paper iron quiet window bread north copper little garden".split()


def long_prompt(seed: int | str) -> str:
    """Return about 200 words that no other test sends."""
    choose = random.Random(seed)
    return " ".join(choose.choice(WORDS) for _ in range(200))


def run(platform: Platform, prompt: str, *, account: tuple[str, str] | None = None, **fields):
    account_id, token = account or (platform.account_id, platform.api_token)
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 4, "temperature": 0, **fields}
    with platform.client(token) as client:
        return client.post(
            f"{platform.ai_url(account_id)}/v1/chat/completions", json=body | {"model": platform.chat_model}
        )


def cached_tokens(response) -> int:
    assert response.status_code == 200, response.text
    return response.json()["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)


@pytest.fixture(scope="module")
def other(platform: Platform) -> tuple[str, str]:
    """A second account, as (account_id, secret)."""
    return platform.new_account("neighbour")


def test_prefix_is_cached_only_for_its_account(platform: Platform, other: tuple[str, str]):
    prompt = long_prompt(1)
    assert cached_tokens(run(platform, prompt)) < 64
    assert cached_tokens(run(platform, prompt)) >= 160
    assert cached_tokens(run(platform, prompt, account=other)) < 64
    assert cached_tokens(run(platform, prompt, account=other)) >= 160


@pytest.mark.parametrize("field", ["namespace", "account_id", "tenant"])
def test_salt_in_the_body_does_not_give_access_to_another_cache(platform: Platform, other: tuple[str, str], field: str):
    prompt = long_prompt(field)
    run(platform, prompt)
    assert cached_tokens(run(platform, prompt)) >= 160
    assert cached_tokens(run(platform, prompt, account=other, **{field: platform.account_id})) < 64


def test_cache_salt_field_is_rejected(platform: Platform):
    response = run(platform, "Hello", cache_salt=platform.account_id)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "cache_salt")


def test_wrong_foreign_and_missing_credentials_are_rejected_on_every_route(platform: Platform, other: tuple[str, str]):
    _other_id, other_token = other
    url = f"{platform.ai_url()}/run/{platform.chat_model}"
    body = {"prompt": "Hello"}
    with platform.client(platform.api_token[:-1] + ("0" if platform.api_token[-1] != "0" else "1")) as wrong:
        response = wrong.post(url, json=body)
        assert (response.status_code, response.json()["errors"][0]["code"]) == (401, 10000)
    with platform.client(other_token) as foreign:
        response = foreign.post(url, json=body)
        assert (response.status_code, response.json()["errors"][0]["code"]) == (403, 10000)
        unknown = foreign.post(f"{platform.ai_url('f' * 32)}/run/{platform.chat_model}", json=body)
        assert unknown.json()["errors"] == response.json()["errors"]
    with platform.client() as client:
        response = client.post(url, json=body, headers={"Authorization": "Basic abc"})
        assert (response.status_code, response.json()["errors"][0]["code"]) == (400, 9106)


def test_revoked_token_is_rejected_within_five_seconds(platform: Platform):
    def seconds_until_refused() -> float:
        created = platform.hearth("token", "create", "--account", platform.account_id, "--name", "short-lived")
        with platform.client(created["secret"]) as client:
            url = f"{platform.base_url}/user/tokens/verify"
            assert client.get(url).status_code == 200
            platform.hearth("token", "revoke", created["api_token_id"], "--account", platform.account_id)
            began_s = time.monotonic()
            wait_for("the revoked token is refused", lambda: client.get(url).status_code == 401)
            return time.monotonic() - began_s

    assert any(seconds_until_refused() <= 5 for _ in range(3))  # repeated because the machine may be suspended


def test_every_call_has_one_usage_row_that_matches_its_response(platform: Platform):
    response = run(platform, "Hello")
    request_id = response.headers["cf-ai-req-id"]
    (row,) = wait_for("the usage row", lambda: platform.usage_rows(request_id))
    usage = response.json()["usage"]
    assert row["account_id"] == platform.account_id
    assert (row["prompt_tokens"], row["completion_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert row["micro_neurons"] > 0


def test_unknown_model_is_an_error(platform: Platform):
    with platform.client() as client:
        response = client.post(f"{platform.ai_url()}/run/@cf/nobody/nothing", json={"prompt": "Hello"})
    assert (response.status_code, response.json()["errors"][0]["code"]) == (400, 5007)
