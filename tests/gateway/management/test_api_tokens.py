"""Tokens and accounts over HTTP: every family is made, listed, found after a restart, changed and deleted; a condition
holds on every call; what is changed through a gateway holds there at once, and elsewhere within seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from cloudflare import AsyncCloudflare, Cloudflare

from gateway.management.api_token_bodies import render_token
from tenants.credentials.api_tokens import ApiToken
from tests.gateway.process import PARROT
from tests.gateway.site import USER_EMAIL, Running, Site
from tests.waiting import wait_until_blocking

AI_READ, AI_WRITE = "a92d2450e05d4e7bb7d0a64968f83d11", "bacc64e0f6c34fc0883a1223f938a104"
SETTINGS_READ = "6c80e02421494afc9ae14414ed442632"
API_TOKENS_WRITE = "686d18d5ac6c441c867cbf6771e58a0a"
ALL_ACCOUNTS = "com.cloudflare.api.account.*"
PROMPT = {"prompt": "Hello"}
HTTP = httpx.Client(timeout=30)  # one for all: a client costs more than a call


def policy(*groups: str, on: str = ALL_ACCOUNTS, effect: str = "allow") -> dict[str, Any]:
    return {"effect": effect, "permission_groups": [{"id": group} for group in groups], "resources": {on: "*"}}


@pytest.fixture(scope="module", autouse=True)
def _closing() -> Iterator[None]:
    yield
    HTTP.close()


class Api:
    """The API as one credential sees it."""

    def __init__(self, base_url: str, headers: dict[str, str]) -> None:
        self._base_url, self._headers = base_url, headers

    def call(self, method: str, path: str, body: object = None) -> httpx.Response:
        return HTTP.request(method, self._base_url + path, json=body, headers=self._headers)

    def result(self, method: str, path: str, body: object = None) -> Any:
        answer = self.call(method, path, body)
        assert answer.status_code == 200, answer.text
        return answer.json()["result"]

    def refusal(self, method: str, path: str, body: object = None) -> tuple[int, int, str]:
        answer = self.call(method, path, body)
        assert answer.json()["result"] is None
        (error,) = answer.json()["errors"]
        return answer.status_code, error["code"], error["message"]


@pytest.fixture
def api(running: Running) -> Callable[[str], Api]:
    """By the name of a seeded credential, or the secret of a token that the test made."""

    def make(name: str) -> Api:
        known = name in running.tenants.secrets
        return Api(running.gateway.base_url, running.headers(name) if known else {"Authorization": f"Bearer {name}"})

    return make


def runs(running: Running, secret: str, account_id: str = "", **headers: str) -> int:
    """The status of an inference call with this secret: the code of its error, or 200."""
    url = f"{running.gateway.base_url}/accounts/{account_id or running.tenants.account_id}/ai/run/{PARROT}"
    answer = HTTP.post(url, json=PROMPT, headers={"Authorization": f"Bearer {secret}", **headers})
    return 200 if answer.status_code == 200 else answer.json()["errors"][0]["code"]


@pytest.mark.parametrize("kind", ["user", "account"])
@pytest.mark.parametrize("actor", ["keeper", "global key"])
def test_the_life_of_a_token(running: Running, api: Callable[[str], Api], kind: str, actor: str):
    """Made, listed, found, changed, rolled and deleted; its secret is told once, and opens what it should meanwhile."""
    keeper = api(actor)
    account_id = running.tenants.account_id
    base = "/user/tokens" if kind == "user" else f"/accounts/{account_id}/tokens"
    on = f"com.cloudflare.api.account.{account_id}"
    made = keeper.result("POST", base, {"name": "ci", "policies": [policy(AI_READ, on=on)]})
    secret, path = made.pop("value"), f"{base}/{made['id']}"
    assert secret.startswith("cfut_" if kind == "user" else "cfat_")
    assert made["status"] == "active"
    (shown,) = made["policies"]
    assert shown["permission_groups"] == [{"id": AI_READ, "name": "Workers AI Read"}]
    assert shown["resources"] == {on: "*"}
    assert keeper.result("GET", path) == made
    assert made in keeper.result("GET", f"{base}?per_page=1000")
    assert keeper.call("GET", f"{base}?page=999").json()["result"] == []
    assert runs(running, secret) == 200
    assert api(secret).result("GET", f"{base}/verify") == {"id": made["id"], "status": "active"}

    changed = keeper.result("PUT", path, {"name": "CI", "policies": [policy(SETTINGS_READ, on=on)]})
    assert (changed["name"], changed["policies"][0]["permission_groups"][0]["id"]) == ("CI", SETTINGS_READ)
    assert runs(running, secret) == 10000
    assert api(secret).result("GET", f"/accounts/{account_id}")["id"] == account_id

    again = keeper.result("PUT", f"{path}/value", {})
    assert again != secret
    assert api(again).result("GET", f"/accounts/{account_id}")["id"] == account_id
    assert api(secret).call("GET", f"{base}/verify").status_code == 401

    assert keeper.result("DELETE", path) == {"id": made["id"]}
    assert api(again).call("GET", f"{base}/verify").status_code == 401
    assert keeper.refusal("GET", path)[:2] == keeper.refusal("DELETE", path)[:2] == (404, 7003)
    assert keeper.refusal("PUT", f"{path}/value", {})[:2] == (404, 7003)
    assert keeper.refusal("GET", f"{base}/%00")[:2] == (404, 7003)


def test_a_disabled_token_is_told_so_and_comes_back(running: Running, api: Callable[[str], Api]):
    keeper = api("keeper")
    body = {"name": "x", "policies": [policy(AI_READ)]}
    made = keeper.result("POST", "/user/tokens", body)
    path, secret = f"/user/tokens/{made['id']}", made["value"]
    assert runs(running, secret) == 200
    keeper.result("PUT", path, {**body, "status": "disabled"})
    assert runs(running, secret) == 10000
    assert api(secret).result("GET", "/user/tokens/verify")["status"] == "disabled"
    keeper.result("PUT", path, {**body, "status": "active"})
    assert runs(running, secret) == 200


def test_conditions_are_kept_on_every_call(running: Running, api: Callable[[str], Api]):
    """Networks let in and kept out, and times, each with its own answer; the body's word on the address counts
    for nothing."""
    keeper = api("keeper")

    def made(**fields: object) -> str:
        body = {"name": "x", "policies": [policy(AI_READ)], **fields}
        return str(keeper.result("POST", "/user/tokens", body)["value"])

    def from_networks(**lists: list[str]) -> str:
        return made(condition={"request_ip": lists})

    here, elsewhere = ["127.0.0.0/8", "::1/128"], ["192.0.2.0/24", "2001:db8::/32"]
    assert runs(running, from_networks(**{"in": here})) == 200
    assert runs(running, from_networks(not_in=elsewhere)) == 200
    outside = from_networks(**{"in": elsewhere})
    assert runs(running, outside) == 10001
    assert runs(running, outside, **{"x-forwarded-for": "192.0.2.7"}) == 10001
    assert runs(running, from_networks(**{"in": here, "not_in": ["127.0.0.1"]})) == 10001
    assert api(outside).refusal("GET", "/user/tokens/verify")[:2] == (403, 10001)
    assert api(outside).refusal("GET", f"/accounts/{running.tenants.account_id}/ai/models/search")[:2] == (403, 10001)

    now = datetime.now(UTC)
    later = made(not_before=(now + timedelta(hours=1)).isoformat())
    assert runs(running, later) == 10000
    verified = api(later).call("GET", "/user/tokens/verify").json()
    assert verified["result"]["status"] == "disabled"
    assert verified["messages"][0]["message"] == "This API Token is not valid yet"
    body = {"name": "x", "policies": [policy(AI_READ)], "expires_on": (now + timedelta(hours=1)).isoformat()}
    token = keeper.result("POST", "/user/tokens", body)
    assert runs(running, token["value"]) == 200
    keeper.result("PUT", f"/user/tokens/{token['id']}", {**body, "expires_on": now.isoformat()})
    wait_until_blocking(lambda: runs(running, token["value"]) == 10000)
    expired = api(token["value"]).result("GET", "/user/tokens/verify")
    assert expired["status"] == "expired"
    names = {row["id"] for row in keeper.result("GET", "/user/tokens?per_page=1000")}
    assert expired["id"] not in names
    names = {row["id"] for row in keeper.result("GET", "/user/tokens?per_page=1000&include_expired=true")}
    assert expired["id"] in names


def test_deny_beats_allow_and_one_token_may_open_several_accounts(running: Running, api: Callable[[str], Api]):
    owner, tenants = api("global key"), running.tenants
    other = f"com.cloudflare.api.account.{tenants.other_account_id}"
    everywhere = owner.result("POST", "/user/tokens", {"name": "x", "policies": [policy(AI_READ)]})["value"]
    assert [runs(running, everywhere, id_) for id_ in (tenants.account_id, tenants.other_account_id)] == [200, 200]
    assert runs(running, everywhere, tenants.blocked_account_id) == 10000
    policies = [policy(AI_WRITE), policy(AI_READ, on=other, effect="deny")]
    but_one = owner.result("POST", "/user/tokens", {"name": "x", "policies": policies})["value"]
    assert [runs(running, but_one, id_) for id_ in (tenants.account_id, tenants.other_account_id)] == [200, 10000]
    row = HTTP.post(
        f"{running.gateway.base_url}/accounts/{tenants.other_account_id}/ai/run/{PARROT}",
        json=PROMPT,
        headers={"Authorization": f"Bearer {everywhere}"},
    )
    usage = running.site.usage_row(row.headers["cf-ai-req-id"])
    assert usage["account_id"] == tenants.other_account_id


def test_a_tokens_keeper_keeps_to_its_own(running: Running, api: Callable[[str], Api]):
    """Neither another account's tokens nor another account's resources; nothing at all without the permission."""
    tenants = running.tenants
    made = api("global key").result("POST", "/user/tokens", {"name": "x", "policies": [policy(AI_READ)]})
    keeper = api("keeper")
    assert keeper.refusal("GET", f"/user/tokens/{made['id']}")[:2] == (404, 7003)
    assert keeper.refusal("DELETE", f"/user/tokens/{tenants.token_ids['other']}")[:2] == (404, 7003)
    assert keeper.refusal("GET", f"/accounts/{tenants.other_account_id}/tokens")[:2] == (403, 10000)
    foreign = policy(AI_READ, on=f"com.cloudflare.api.account.{tenants.other_account_id}")
    assert keeper.refusal("POST", "/user/tokens", {"name": "x", "policies": [foreign]})[:2] == (400, 1004)
    base = f"/accounts/{tenants.account_id}/tokens"
    assert keeper.refusal("POST", base, {"name": "x", "policies": [policy(API_TOKENS_WRITE)]})[:2] == (400, 1004)
    for path in ("/user/tokens", base, "/accounts", f"/accounts/{tenants.account_id}"):
        assert api("good").refusal("GET", path)[:2] == (403, 10000)
    assert api("account").refusal("GET", "/user")[:2] == (403, 10000)
    assert api("keeper").refusal("POST", "/accounts", {"name": "mine"})[:2] == (403, 10000)


GOOD = {"name": "x", "policies": [policy(AI_READ)]}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": 5}, "name"),
        ({"name": " "}, "a name"),
        ({"policies": []}, "policies"),
        ({"policies": "all"}, "policies"),
        ({"policies": [{**GOOD["policies"][0], "effect": "maybe"}]}, "policies/0/effect"),
        ({"policies": [{**GOOD["policies"][0], "resources": {"com.cloudflare.api.account.*": "x"}}]}, "resources"),
        ({"policies": [policy("f" * 32)]}, "policies/0/permission_groups/0/id"),
        ({"policies": [policy(AI_READ, on="com.cloudflare.api.account.zone.*")]}, "policies/0/resources"),
        ({"policies": [policy(AI_READ)] * 51}, "1 to 50"),
        ({"condition": {"request_ip": {"in": ["nowhere"]}}}, "condition/request_ip/in"),
        ({"condition": {"request_ip": {"in": ["10.0.0.0/8"] * 101}}}, "at most 100"),
        ({"condition": {"weekday": "Monday"}}, "condition"),
        ({"expires_on": "tomorrow"}, "expires_on"),
        ({"expires_on": "2097-01-01T00:00:00"}, "expires_on"),
        ({"not_before": "0001-01-01T00:00:00+23:59"}, "not_before"),
        ({"expires_on": "2097-01-01T00:00:00Z", "not_before": "2097-01-01T00:00:00Z"}, "not_before"),
        ({"status": "revoked"}, "status"),
    ],
)
def test_a_body_that_is_no_token_is_refused_by_its_field(api: Callable[[str], Api], change: dict[str, Any], field: str):
    status, code, message = api("keeper").refusal("POST", "/user/tokens", {**GOOD, **change})
    assert (status, code) == (400, 1004)
    assert field in message
    assert "nowhere" not in message


def test_bodies_that_cannot_be_read(running: Running):
    url = f"{running.gateway.base_url}/user/tokens"
    for body, expected in ((b"", 3003), (b"{", 1004), (b"[]", 1004), (b'{"a":1,"a":2}', 1004), (b" " * 200_000, 3006)):
        answer = HTTP.post(url, content=body, headers=running.headers("keeper"))
        assert answer.json()["errors"][0]["code"] == expected, body[:20]


def test_permission_groups_are_those_that_such_a_token_may_have(running: Running, api: Callable[[str], Api]):
    keeper = api("keeper")
    users = keeper.result("GET", "/user/tokens/permission_groups")
    accounts = keeper.result("GET", f"/accounts/{running.tenants.account_id}/tokens/permission_groups")
    row = {
        "id": AI_READ,
        "name": "Workers AI Read",
        "scopes": ["com.cloudflare.api.account"],
        "category": "ai_and_machine_learning",
    }
    assert row in users
    assert row in accounts
    assert API_TOKENS_WRITE in {group["id"] for group in users} - {group["id"] for group in accounts}
    assert keeper.result("GET", "/user/tokens/permission_groups?name=workers%20ai%20read") == [row]


def test_the_life_of_an_account(running: Running, api: Callable[[str], Api]):
    """Made by a user, seen by what the user holds, changed, and gone with its tokens."""
    owner = api("global key")
    everywhere = owner.result("POST", "/user/tokens", {"name": "x", "policies": [policy(AI_READ, SETTINGS_READ)]})
    given = {"enforce_twofactor": True, "abuse_contact_email": "abuse@example.com"}
    settings = given
    made = owner.result("POST", "/accounts", {"name": "Lab", "type": "standard", "settings": given})
    assert (made["name"], made["type"], made["settings"]) == ("Lab", "standard", settings)
    path = f"/accounts/{made['id']}"
    assert owner.result("GET", path) == made
    assert runs(running, everywhere["value"], made["id"]) == 200
    assert made["id"] in {row["id"] for row in api(everywhere["value"]).result("GET", "/accounts?per_page=50")}
    assert [row["account"]["id"] for row in owner.result("GET", "/memberships?name=lab")] == [made["id"]]

    other = owner.result("POST", "/accounts", {"name": "Other lab"})["id"]
    (membership,) = owner.result("GET", "/memberships?name=other%20lab")
    rejected = owner.result("PUT", f"/memberships/{membership['id']}", {"status": "rejected"})
    assert (rejected["account"]["id"], rejected["status"]) == (other, "rejected")
    assert owner.call("GET", f"/accounts/{other}").status_code == 403

    changed = owner.result("PUT", path, {"name": "Lab 2", "type": "standard"})
    assert (changed["name"], changed["settings"]) == ("Lab 2", settings)
    assert owner.refusal("PUT", path, {"name": "Lab", "type": "enterprise"})[:2] == (400, 1004)
    assert owner.refusal("POST", "/accounts", {"name": ""})[:2] == (400, 1004)
    own = owner.result("POST", f"{path}/tokens", {"name": "x", "policies": [policy(AI_READ)]})["value"]
    assert runs(running, own, made["id"]) == 200

    assert owner.result("DELETE", path) == {"id": made["id"]}
    assert runs(running, own, made["id"]) == 10000
    assert owner.call("GET", path).status_code == 403
    assert made["id"] not in {row["id"] for row in owner.result("GET", "/accounts")}
    assert runs(running, everywhere["value"]) == 200


def test_who_am_i(running: Running, api: Callable[[str], Api]):
    owner, good = api("global key"), api("good")
    assert owner.result("GET", "/user")["email"] == USER_EMAIL
    assert good.result("GET", "/user")["id"] == running.tenants.account_id
    (membership,) = good.result("GET", "/memberships")
    assert (membership["account"]["name"], membership["status"]) == ("main", "accepted")
    assert good.result("GET", f"/memberships/{membership['id']}") == membership
    assert good.refusal("DELETE", f"/memberships/{membership['id']}")[:2] == (403, 10000)
    assert good.refusal("GET", "/memberships/none")[:2] == (404, 7003)
    where = f"/memberships/{membership['id']}"
    assert good.result("PUT", where, {"status": "accepted"}) == membership
    assert good.refusal("PUT", where, {"status": "rejected"})[:2] == (403, 10000)
    assert good.refusal("PUT", where, {"status": "maybe"})[:2] == (400, 1004)
    ids = {row["account"]["id"] for row in owner.result("GET", "/memberships")}
    assert {running.tenants.account_id, running.tenants.other_account_id} <= ids
    wrong = {"X-Auth-Email": USER_EMAIL, "X-Auth-Key": "0" * 37}
    assert HTTP.get(f"{running.gateway.base_url}/user", headers=wrong).status_code == 401


def test_a_user_says_who_they_are(running: Running, api: Callable[[str], Api]):
    owner = api("global key")
    before = owner.result("GET", "/user")
    said = {"first_name": "Ada", "last_name": "Lovelace", "country": "GB", "telephone": "+44 1", "zipcode": "N1"}
    assert owner.result("PATCH", "/user", said) == before | said
    assert owner.result("PATCH", "/user", {"country": None, "zipcode": ""}) == before | said | dict.fromkeys(
        ("country", "zipcode")
    )
    assert owner.result("PATCH", "/user", {}) == owner.result("GET", "/user")
    for body in ({"first_name": ""}, {"first_name": "x" * 61}, {"country": 5}, {"zipcode": "a\n"}):
        status, code, message = owner.refusal("PATCH", "/user", body)
        assert (status, code, message.split()[0].rstrip(":")) == (400, 1004, next(iter(body)))
    assert api("good").refusal("PATCH", "/user", said)[:2] == (403, 10000)
    owner.result("PATCH", "/user", {name: before[name] for name in said})


def test_a_token_s_last_use_is_shown():
    then = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    token = ApiToken("t", "a", "n", "user", "active", (), then, None, None, last_used_at=then)
    assert render_token(token)["last_used_on"] == "2026-01-02T03:04:05Z"


@pytest.fixture(scope="module")
def second(running: Running) -> Iterator[Running]:
    """A gateway that started later on the same stores, and trusts proxies."""
    with running.beside(HEARTH_TRUSTED_PROXIES="127.0.0.0/8, 10.0.0.0/8") as gateway:
        yield Running(running.site, gateway)


def live_on(first: Running, second: Running) -> None:
    """Tokens and accounts made through one gateway are found, good and deleted through another."""
    owner = Api(first.gateway.base_url, first.headers("global key"))
    account = owner.result("POST", "/accounts", {"name": "Lab"})
    base = f"/accounts/{account['id']}/tokens"
    condition = {"request_ip": {"in": ["127.0.0.1/32"]}}
    tokens = [
        owner.result("POST", path, {"name": "x", "policies": [policy(AI_READ)], "condition": condition})
        for path in ("/user/tokens", base)
    ]
    owner = Api(second.gateway.base_url, second.headers("global key"))
    assert account in owner.result("GET", "/accounts?per_page=1000")
    for made, path in zip(tokens, ("/user/tokens", base), strict=True):
        secret = made.pop("value")
        assert made in owner.result("GET", f"{path}?per_page=1000")
        assert owner.result("GET", f"{path}/{made['id']}") == made
        assert runs(second, secret, account["id"], **{"x-forwarded-for": ""}) == 200
        owner.result("DELETE", f"{path}/{made['id']}")
        wait_until_blocking(lambda secret=secret: runs(second, secret, account["id"]) == 10000)
        assert made not in owner.result("GET", f"{path}?per_page=1000")
    owner.result("DELETE", f"/accounts/{account['id']}")
    assert owner.refusal("GET", f"/accounts/{account['id']}")[0] in (403, 404)


def test_what_was_made_is_there_for_a_gateway_that_starts_later(running: Running, second: Running):
    live_on(running, second)


@pytest.mark.full
def test_what_was_made_outlives_its_gateway_on_postgres(new_site: Callable[..., Site], migrated_postgres_url: str):
    site = new_site(migrated_postgres_url)
    site.add_node("n1")
    first, later = site.gateway().start(), site.gateway().start()
    live_on(Running(site, first), Running(site, later))
    first.stop()
    later.stop()


def test_a_trusted_proxy_tells_the_address(running: Running, second: Running):
    keeper = Api(running.gateway.base_url, running.headers("keeper"))
    condition = {"request_ip": {"in": ["192.0.2.0/24"]}}
    secret = keeper.result("POST", "/user/tokens", {**GOOD, "condition": condition})["value"]
    for forwarded, expected in (
        ("192.0.2.7", 200),
        ("198.51.100.1, 192.0.2.7, 10.1.2.3", 200),
        ("192.0.2.7, 198.51.100.1", 10001),
        ("192.0.2.7, nonsense", 10001),
        ("", 10001),
    ):
        assert runs(second, secret, **{"x-forwarded-for": forwarded}) == expected, forwarded


def test_the_official_client_keeps_tokens_and_accounts(running: Running):
    account_id = running.tenants.account_id
    url, key = running.gateway.base_url, running.tenants.secrets["global key"]
    with Cloudflare(base_url=url, api_email=USER_EMAIL, api_key=key, _strict_response_validation=True) as client:
        policies: Any = [policy(AI_READ)]
        made = client.user.tokens.create(name="sdk", policies=policies, expires_on="2099-01-01T00:00:00Z")
        assert made is not None
        assert made.id is not None
        assert made.value is not None
        with Cloudflare(base_url=url, api_token=made.value, _strict_response_validation=True) as holder:
            verified = holder.user.tokens.verify()
            assert verified is not None
            assert (verified.id, verified.status) == (made.id, "active")
        assert made.id in {token.id for token in client.user.tokens.list(per_page=5)}
        assert client.user.tokens.get(made.id).name == "sdk"  # type: ignore[union-attr]
        assert client.user.tokens.update(made.id, name="sdk 2", policies=policies).name == "sdk 2"  # type: ignore[union-attr]
        assert client.user.tokens.value.update(made.id).startswith("cfut_")
        assert client.user.tokens.delete(made.id).id == made.id  # type: ignore[union-attr]
        tokens = client.accounts.tokens
        of_account = tokens.create(account_id=account_id, name="sdk", policies=policies)
        assert of_account is not None
        assert of_account.id is not None
        assert tokens.get(of_account.id, account_id=account_id).id == of_account.id  # type: ignore[union-attr]
        assert of_account.id in {token.id for token in tokens.list(account_id=account_id, per_page=5)}
        assert tokens.value.update(of_account.id, account_id=account_id).startswith("cfat_")
        assert tokens.delete(of_account.id, account_id=account_id).id == of_account.id  # type: ignore[union-attr]
        assert AI_READ in {group.id for group in client.user.tokens.permission_groups.list()}
        assert AI_READ in {group.id for group in tokens.permission_groups.list(account_id=account_id)}
        assert account_id in {account.id for account in client.accounts.list(per_page=1)}
        assert client.accounts.get(account_id=account_id).name == "main"  # type: ignore[union-attr]
        assert account_id in {row.account.id for row in client.memberships.list(per_page=1) if row.account}
        assert client.user.get().email == USER_EMAIL  # type: ignore[union-attr]


async def test_the_official_client_keeps_accounts_async(running: Running):
    url, key = running.gateway.base_url, running.tenants.secrets["global key"]
    client = AsyncCloudflare(base_url=url, api_email=USER_EMAIL, api_key=key, _strict_response_validation=True)
    async with client:
        made = await client.accounts.create(name="SDK", type="standard")
        assert made is not None
        changed = await client.accounts.update(account_id=made.id, id=made.id, name="SDK 2", type="standard")
        assert changed is not None
        assert changed.name == "SDK 2"
        assert made.id in [account.id async for account in client.accounts.list(per_page=2)]
        gone = await client.accounts.delete(account_id=made.id)
        assert gone is not None
        assert gone.id == made.id
