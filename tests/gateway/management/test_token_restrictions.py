"""A token that manages tokens never grants or gains more than it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.gateway.management.test_api_tokens import AI_READ, ALL_ACCOUNTS, API_TOKENS_WRITE, Api, policy
from tests.gateway.process import HANDY, PARROT, POCKET
from tests.gateway.site import Running
from tests.gateway.test_fair_share import set_limits
from tests.waiting import wait_until_blocking

SOON = (datetime.now(UTC) + timedelta(days=1)).isoformat()
LATER = (datetime.now(UTC) + timedelta(days=2)).isoformat()
HERE = ["127.0.0.0/8", "::1/128"]
EU = {"jurisdictions": ["eu"]}


def networks(*within: str, not_in: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"request_ip": {"in": list(within), "not_in": list(not_in)}}


HELD = {
    "models": {"models": [PARROT, HANDY]},
    "condition": {"condition": networks(*HERE, not_in=("127.9.0.0/16",))},
    "expires_on": {"expires_on": SOON},
    "region": {"region": {"countries": ["US"], "jurisdictions": ["eu"]}},
    "limits": {"limits": "token=1000/60, token.tokens=100000/60"},
}
WIDER: dict[str, list[dict[str, Any]]] = {
    "models": [{}, {"models": [PARROT, POCKET]}, {"models": None}],
    "condition": [
        {},
        {"condition": networks("0.0.0.0/0", not_in=("127.9.0.0/16",))},
        {"condition": networks("127.0.0.0/8")},
        {"condition": networks(not_in=("127.9.0.0/16",))},
        {"condition": networks("127.0.0.0/8", not_in=("127.9.9.0/24",))},
    ],
    "expires_on": [{}, {"expires_on": LATER}],
    "region": [{}, {"region": {"countries": ["CA"]}}, {"region": {"jurisdictions": ["eea"]}}],
    "limits": [
        {},
        {"limits": "token=1000/60"},
        {"limits": "token=1001/60, token.tokens=1/60"},
        {"limits": "token=1000/59, token.tokens=1/60"},
    ],
}
WITHIN: dict[str, list[dict[str, Any]]] = {
    "models": [{"models": [HANDY]}, {"models": []}],
    "condition": [
        {"condition": networks("127.0.0.1", not_in=("127.9.0.0/16",))},
        {"condition": networks("127.1.0.0/16")},
        {"condition": networks("127.0.0.0/8", not_in=("127.8.0.0/15",))},
    ],
    "expires_on": [{"expires_on": SOON}],
    "region": [{"region": EU}, {"region": {"countries": ["DE", "US"]}}],
    "limits": [{"limits": "token=1000/60, token.tokens=5/60, text-generation=3/60"}],
}


def body(*groups: str, **fields: Any) -> dict[str, Any]:
    return {"name": "x", "policies": [policy(*groups or (AI_READ,))], **fields}


@pytest.fixture
def owner(running: Running) -> Iterator[Api]:
    """Yield the API with the global key of a user. The tokens of a test are deleted, because users may have only 50."""
    owner = Api(running.gateway.base_url, running.headers("global key"))

    def token_ids() -> set[str]:
        return {row["id"] for row in owner.result("GET", "/user/tokens?per_page=1000")}

    before = token_ids()
    yield owner
    for token_id in token_ids() - before:
        owner.result("DELETE", f"/user/tokens/{token_id}")


@pytest.fixture
def manager(running: Running, owner: Api) -> Callable[..., tuple[str, Api]]:
    """Return a function that creates a token which may create tokens, and returns its id and the API with it."""

    def make(**fields: Any) -> tuple[str, Api]:
        created = owner.result("POST", "/user/tokens", body(AI_READ, API_TOKENS_WRITE, **fields))
        return created["id"], Api(running.gateway.base_url, {"Authorization": f"Bearer {created['value']}"})

    return make


@pytest.mark.parametrize("restriction", HELD)
def test_restricted_token_grants_no_more_than_it_holds(
    owner: Api, manager: Callable[..., tuple[str, Api]], restriction: str
):
    _, api = manager(**HELD[restriction])
    other = owner.result("POST", "/user/tokens", body())
    for fields in WIDER[restriction]:
        for method, path in (("POST", "/user/tokens"), ("PUT", f"/user/tokens/{other['id']}")):
            status, code, message = api.refusal(method, path, body(**fields))
            assert (status, code) == (403, 10005), fields
            assert f"more than it holds: {restriction}" in message
    for fields in WITHIN[restriction]:
        assert api.result("POST", "/user/tokens", body(**fields))["value"], fields


@pytest.mark.parametrize("restriction", HELD)
def test_token_cannot_remove_its_own_restriction(manager: Callable[..., tuple[str, Api]], restriction: str):
    token_id, api = manager(**HELD[restriction])
    path, groups = f"/user/tokens/{token_id}", (AI_READ, API_TOKENS_WRITE)
    assert restriction in api.refusal("PUT", path, body(*groups))[2]
    assert api.result("PUT", path, body(*groups, **HELD[restriction]))["id"] == token_id


def test_token_cannot_give_itself_more_permissions(
    running: Running, owner: Api, manager: Callable[..., tuple[str, Api]]
):
    account = f"com.cloudflare.api.account.{running.tenants.account_id}"
    narrow = {"name": "x", "policies": [policy(API_TOKENS_WRITE, on=ALL_ACCOUNTS), policy(AI_READ, on=account)]}
    created = owner.result("POST", "/user/tokens", narrow)
    api = Api(running.gateway.base_url, {"Authorization": f"Bearer {created['value']}"})
    path = f"/user/tokens/{created['id']}"
    for groups in ((AI_READ, API_TOKENS_WRITE), ("bacc64e0f6c34fc0883a1223f938a104", API_TOKENS_WRITE)):
        status, _, message = api.refusal("PUT", path, body(*groups))
        assert status == 403
        assert "policies" in message
    assert api.result("PUT", path, narrow | {"name": "renamed"})["name"] == "renamed"


def test_restricted_token_cannot_obtain_the_secret_of_a_wider_token(
    owner: Api, manager: Callable[..., tuple[str, Api]]
):
    wide = owner.result("POST", "/user/tokens", body())
    narrow = owner.result("POST", "/user/tokens", body(models=[HANDY]))
    _, api = manager(**HELD["models"])
    assert "models" in api.refusal("PUT", f"/user/tokens/{wide['id']}/value", {})[2]
    assert api.result("PUT", f"/user/tokens/{narrow['id']}/value", {}).startswith("cfut_")


def test_limits_of_a_token_cannot_exceed_those_of_the_account(running: Running, owner: Api):
    account_id = running.tenants.other_account_id
    asyncio.run(set_limits(running.site, account_id, "account=500/60"))
    try:
        path = f"/accounts/{account_id}/tokens"
        raised = body(limits="account=501/60")
        wait_until_blocking(lambda: owner.call("POST", path, raised).status_code == 403)
        assert "limits must have 'account' at most as high as the account" in owner.refusal("POST", path, raised)[2]
        assert owner.result("POST", path, body(limits="account=500/60, token=9/60"))["value"]
    finally:
        asyncio.run(set_limits(running.site, account_id, ""))
