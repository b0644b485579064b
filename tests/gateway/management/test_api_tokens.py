"""API tokens, accounts and users over HTTP: create, list, read, change, roll and delete, conditions on every call, and
changes that take effect at other gateways.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

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
HTTP = httpx.Client(timeout=30)  # shared, because creating a client takes longer than a call
atexit.register(HTTP.close)  # other modules use the client too


def policy(*groups: str, on: str = ALL_ACCOUNTS, effect: str = "allow") -> dict[str, Any]:
    return {"effect": effect, "permission_groups": [{"id": group} for group in groups], "resources": {on: "*"}}


class Api:
    """The API with one credential."""

    def __init__(self, base_url: str, headers: dict[str, str]) -> None:
        self._base_url, self._headers = base_url, headers

    def call(self, method: str, path: str, body: object = None) -> httpx.Response:
        return HTTP.request(method, self._base_url + path, json=body, headers=self._headers)

    def result(self, method: str, path: str, body: object = None) -> Any:
        response = self.call(method, path, body)
        assert response.status_code == 200, response.text
        return response.json()["result"]

    def refusal(self, method: str, path: str, body: object = None) -> tuple[int, int, str]:
        response = self.call(method, path, body)
        assert response.json()["result"] is None
        (error,) = response.json()["errors"]
        return response.status_code, error["code"], error["message"]


@pytest.fixture
def api(running: Running) -> Callable[[str], Api]:
    """Return a function that takes the name of a seeded credential or the secret of a token."""

    def make(name: str) -> Api:
        known = name in running.tenants.secrets
        return Api(running.gateway.base_url, running.headers(name) if known else {"Authorization": f"Bearer {name}"})

    return make


def runs(running: Running, secret: str, account_id: str = "", **headers: str) -> int:
    """Run a model and return 200, or the code of the error."""
    url = f"{running.gateway.base_url}/accounts/{account_id or running.tenants.account_id}/ai/run/{PARROT}"
    response = HTTP.post(url, json=PROMPT, headers={"Authorization": f"Bearer {secret}", **headers})
    return 200 if response.status_code == 200 else response.json()["errors"][0]["code"]


@pytest.mark.parametrize("kind", ["user", "account"])
@pytest.mark.parametrize("credential", ["keeper", "global key"])
def test_token_lifecycle(running: Running, api: Callable[[str], Api], kind: str, credential: str):
    """Create, list, get, change, roll and delete. The secret is returned once."""
    manager = api(credential)
    account_id = running.tenants.account_id
    base = "/user/tokens" if kind == "user" else f"/accounts/{account_id}/tokens"
    on = f"com.cloudflare.api.account.{account_id}"
    created = manager.result("POST", base, {"name": "ci", "policies": [policy(AI_READ, on=on)]})
    secret, path = created.pop("value"), f"{base}/{created['id']}"
    assert secret.startswith("cfut_" if kind == "user" else "cfat_")
    assert created["status"] == "active"
    (shown,) = created["policies"]
    assert shown["permission_groups"] == [{"id": AI_READ, "name": "Workers AI Read"}]
    assert shown["resources"] == {on: "*"}
    assert manager.result("GET", path) == created
    assert created in manager.result("GET", f"{base}?per_page=1000")
    assert manager.call("GET", f"{base}?page=999").json()["result"] == []
    assert runs(running, secret) == 200
    assert api(secret).result("GET", f"{base}/verify") == {"id": created["id"], "status": "active"}

    changed = manager.result("PUT", path, {"name": "CI", "policies": [policy(SETTINGS_READ, on=on)]})
    assert (changed["name"], changed["policies"][0]["permission_groups"][0]["id"]) == ("CI", SETTINGS_READ)
    assert runs(running, secret) == 10000
    assert api(secret).result("GET", f"/accounts/{account_id}")["id"] == account_id

    again = manager.result("PUT", f"{path}/value", {})
    assert again != secret
    assert api(again).result("GET", f"/accounts/{account_id}")["id"] == account_id
    assert api(secret).call("GET", f"{base}/verify").status_code == 401

    assert manager.result("DELETE", path) == {"id": created["id"]}
    assert api(again).call("GET", f"{base}/verify").status_code == 401
    assert manager.refusal("GET", path)[:2] == manager.refusal("DELETE", path)[:2] == (404, 7003)
    assert manager.refusal("PUT", f"{path}/value", {})[:2] == (404, 7003)
    assert manager.refusal("GET", f"{base}/%00")[:2] == (404, 7003)


def test_disabled_token_reports_its_status_and_can_be_enabled(running: Running, api: Callable[[str], Api]):
    manager = api("keeper")
    body = {"name": "x", "policies": [policy(AI_READ)]}
    created = manager.result("POST", "/user/tokens", body)
    path, secret = f"/user/tokens/{created['id']}", created["value"]
    assert runs(running, secret) == 200
    manager.result("PUT", path, {**body, "status": "disabled"})
    assert runs(running, secret) == 10000
    assert api(secret).result("GET", "/user/tokens/verify")["status"] == "disabled"
    manager.result("PUT", path, {**body, "status": "active"})
    assert runs(running, secret) == 200


def test_conditions_are_enforced_on_every_call(running: Running, api: Callable[[str], Api]):
    """Allowed and denied networks, `not_before` and `expires_on`. Forwarded addresses are ignored."""
    manager = api("keeper")

    def create(**fields: object) -> str:
        body = {"name": "x", "policies": [policy(AI_READ)], **fields}
        return str(manager.result("POST", "/user/tokens", body)["value"])

    def from_networks(**lists: list[str]) -> str:
        return create(condition={"request_ip": lists})

    own_networks, other_networks = ["127.0.0.0/8", "::1/128"], ["192.0.2.0/24", "2001:db8::/32"]
    assert runs(running, from_networks(**{"in": own_networks})) == 200
    assert runs(running, from_networks(not_in=other_networks)) == 200
    outside = from_networks(**{"in": other_networks})
    assert runs(running, outside) == 10001
    assert runs(running, outside, **{"x-forwarded-for": "192.0.2.7"}) == 10001
    assert runs(running, from_networks(**{"in": own_networks, "not_in": ["127.0.0.1"]})) == 10001
    assert api(outside).refusal("GET", "/user/tokens/verify")[:2] == (403, 10001)
    assert api(outside).refusal("GET", f"/accounts/{running.tenants.account_id}/ai/models/search")[:2] == (403, 10001)

    now = datetime.now(UTC)
    later = create(not_before=(now + timedelta(hours=1)).isoformat())
    assert runs(running, later) == 10000
    verified = api(later).call("GET", "/user/tokens/verify").json()
    assert verified["result"]["status"] == "disabled"
    assert verified["messages"][0]["message"] == "This API Token is not valid yet"
    body = {"name": "x", "policies": [policy(AI_READ)], "expires_on": (now + timedelta(hours=1)).isoformat()}
    token = manager.result("POST", "/user/tokens", body)
    assert runs(running, token["value"]) == 200
    manager.result("PUT", f"/user/tokens/{token['id']}", {**body, "expires_on": now.isoformat()})
    wait_until_blocking(lambda: runs(running, token["value"]) == 10000)
    expired = api(token["value"]).result("GET", "/user/tokens/verify")
    assert expired["status"] == "expired"
    names = {row["id"] for row in manager.result("GET", "/user/tokens?per_page=1000")}
    assert expired["id"] not in names
    names = {row["id"] for row in manager.result("GET", "/user/tokens?per_page=1000&include_expired=true")}
    assert expired["id"] in names


def test_deny_overrides_allow_and_a_token_may_cover_several_accounts(running: Running, api: Callable[[str], Api]):
    owner, tenants = api("global key"), running.tenants
    other = f"com.cloudflare.api.account.{tenants.other_account_id}"
    everywhere = owner.result("POST", "/user/tokens", {"name": "x", "policies": [policy(AI_READ)]})["value"]
    assert [runs(running, everywhere, id_) for id_ in (tenants.account_id, tenants.other_account_id)] == [200, 200]
    assert runs(running, everywhere, tenants.blocked_account_id) == 10000
    policies = [policy(AI_WRITE), policy(AI_READ, on=other, effect="deny")]
    all_but_one = owner.result("POST", "/user/tokens", {"name": "x", "policies": policies})["value"]
    assert [runs(running, all_but_one, id_) for id_ in (tenants.account_id, tenants.other_account_id)] == [200, 10000]
    row = HTTP.post(
        f"{running.gateway.base_url}/accounts/{tenants.other_account_id}/ai/run/{PARROT}",
        json=PROMPT,
        headers={"Authorization": f"Bearer {everywhere}"},
    )
    usage = running.site.usage_row(row.headers["cf-ai-req-id"])
    assert usage["account_id"] == tenants.other_account_id


def test_token_manager_has_no_access_to_other_accounts(running: Running, api: Callable[[str], Api]):
    """No access to tokens or resources of other accounts, and none at all without the permission."""
    tenants = running.tenants
    created = api("global key").result("POST", "/user/tokens", {"name": "x", "policies": [policy(AI_READ)]})
    manager = api("keeper")
    assert manager.refusal("GET", f"/user/tokens/{created['id']}")[:2] == (404, 7003)
    assert manager.refusal("DELETE", f"/user/tokens/{tenants.token_ids['other']}")[:2] == (404, 7003)
    assert manager.refusal("GET", f"/accounts/{tenants.other_account_id}/tokens")[:2] == (403, 10000)
    foreign = policy(AI_READ, on=f"com.cloudflare.api.account.{tenants.other_account_id}")
    assert manager.refusal("POST", "/user/tokens", {"name": "x", "policies": [foreign]})[:2] == (400, 1004)
    base = f"/accounts/{tenants.account_id}/tokens"
    assert manager.refusal("POST", base, {"name": "x", "policies": [policy(API_TOKENS_WRITE)]})[:2] == (400, 1004)
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
def test_invalid_token_body_is_rejected_naming_the_field(api: Callable[[str], Api], change: dict[str, Any], field: str):
    status, code, message = api("keeper").refusal("POST", "/user/tokens", {**GOOD, **change})
    assert (status, code) == (400, 1004)
    assert field in message
    assert "nowhere" not in message


def test_unparsable_bodies_are_rejected(running: Running):
    url = f"{running.gateway.base_url}/user/tokens"
    for body, expected in ((b"", 3003), (b"{", 1004), (b"[]", 1004), (b'{"a":1,"a":2}', 1004), (b" " * 200_000, 3006)):
        response = HTTP.post(url, content=body, headers=running.headers("keeper"))
        assert response.json()["errors"][0]["code"] == expected, body[:20]


def test_permission_groups_match_the_kind_of_token(running: Running, api: Callable[[str], Api]):
    manager = api("keeper")
    users = manager.result("GET", "/user/tokens/permission_groups")
    accounts = manager.result("GET", f"/accounts/{running.tenants.account_id}/tokens/permission_groups")
    row = {
        "id": AI_READ,
        "name": "Workers AI Read",
        "scopes": ["com.cloudflare.api.account"],
        "category": "ai_and_machine_learning",
    }
    assert row in users
    assert row in accounts
    assert API_TOKENS_WRITE in {group["id"] for group in users} - {group["id"] for group in accounts}
    assert manager.result("GET", "/user/tokens/permission_groups?name=workers%20ai%20read") == [row]


def test_account_lifecycle(running: Running, api: Callable[[str], Api]):
    """Create, list, change and delete an account. Deletion ends its tokens."""
    owner = api("global key")
    everywhere = owner.result("POST", "/user/tokens", {"name": "x", "policies": [policy(AI_READ, SETTINGS_READ)]})
    given = {"enforce_twofactor": True, "abuse_contact_email": "abuse@example.com"}
    settings = given
    created = owner.result("POST", "/accounts", {"name": "Lab", "type": "standard", "settings": given})
    assert (created["name"], created["type"], created["settings"]) == ("Lab", "standard", settings)
    path = f"/accounts/{created['id']}"
    assert owner.result("GET", path) == created
    assert runs(running, everywhere["value"], created["id"]) == 200
    assert created["id"] in {row["id"] for row in api(everywhere["value"]).result("GET", "/accounts?per_page=50")}
    assert [row["account"]["id"] for row in owner.result("GET", "/memberships?name=lab")] == [created["id"]]

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
    assert runs(running, own, created["id"]) == 200

    assert owner.result("DELETE", path) == {"id": created["id"]}
    assert runs(running, own, created["id"]) == 10000
    assert owner.call("GET", path).status_code == 403
    assert created["id"] not in {row["id"] for row in owner.result("GET", "/accounts")}
    assert runs(running, everywhere["value"]) == 200


def test_user_and_memberships_of_the_caller(running: Running, api: Callable[[str], Api]):
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


def test_user_changes_their_profile(running: Running, api: Callable[[str], Api]):
    owner = api("global key")
    before = owner.result("GET", "/user")
    profile = {"first_name": "Ada", "last_name": "Lovelace", "country": "GB", "telephone": "+44 1", "zipcode": "N1"}
    assert owner.result("PATCH", "/user", profile) == before | profile
    assert owner.result("PATCH", "/user", {"country": None, "zipcode": ""}) == before | profile | dict.fromkeys(
        ("country", "zipcode")
    )
    assert owner.result("PATCH", "/user", {}) == owner.result("GET", "/user")
    for body in ({"first_name": ""}, {"first_name": "x" * 61}, {"country": 5}, {"zipcode": "a\n"}):
        status, code, message = owner.refusal("PATCH", "/user", body)
        assert (status, code, message.split()[0].rstrip(":")) == (400, 1004, next(iter(body)))
    assert api("good").refusal("PATCH", "/user", profile)[:2] == (403, 10000)
    owner.result("PATCH", "/user", {name: before[name] for name in profile})


def test_last_use_of_a_token_is_rendered():
    then = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    token = ApiToken("t", "a", "n", "user", "active", (), then, None, None, last_used_at=then)
    assert render_token(token)["last_used_on"] == "2026-01-02T03:04:05Z"


@pytest.fixture(scope="module")
def second(running: Running) -> Iterator[Running]:
    """A second gateway on the same stores, which trusts reverse proxies."""
    with running.beside(HEARTH_TRUSTED_PROXIES="127.0.0.0/8, 10.0.0.0/8") as gateway:
        yield Running(running.site, gateway)


def check_shared_between(first: Running, second: Running) -> None:
    """Check that tokens and accounts of the first gateway are visible, valid and deletable at the second."""
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
    for created, path in zip(tokens, ("/user/tokens", base), strict=True):
        secret = created.pop("value")
        assert created in owner.result("GET", f"{path}?per_page=1000")
        assert owner.result("GET", f"{path}/{created['id']}") == created
        assert runs(second, secret, account["id"], **{"x-forwarded-for": ""}) == 200
        owner.result("DELETE", f"{path}/{created['id']}")
        wait_until_blocking(lambda secret=secret: runs(second, secret, account["id"]) == 10000)
        assert created not in owner.result("GET", f"{path}?per_page=1000")
    owner.result("DELETE", f"/accounts/{account['id']}")
    assert owner.refusal("GET", f"/accounts/{account['id']}")[0] in (403, 404)


def test_tokens_and_accounts_are_shared_with_a_later_gateway(running: Running, second: Running):
    check_shared_between(running, second)


@pytest.mark.full
def test_tokens_and_accounts_are_shared_on_postgres(new_site: Callable[..., Site], migrated_postgres_url: str):
    site = new_site(migrated_postgres_url)
    site.add_node("n1")
    first, later = site.gateway().start(), site.gateway().start()
    check_shared_between(Running(site, first), Running(site, later))
    first.stop()
    later.stop()


def test_client_address_comes_from_a_trusted_proxy(running: Running, second: Running):
    manager = Api(running.gateway.base_url, running.headers("keeper"))
    condition = {"request_ip": {"in": ["192.0.2.0/24"]}}
    secret = manager.result("POST", "/user/tokens", {**GOOD, "condition": condition})["value"]
    for forwarded, expected in (
        ("192.0.2.7", 200),
        ("198.51.100.1, 192.0.2.7, 10.1.2.3", 200),
        ("192.0.2.7, 198.51.100.1", 10001),
        ("192.0.2.7, nonsense", 10001),
        ("", 10001),
    ):
        assert runs(second, secret, **{"x-forwarded-for": forwarded}) == expected, forwarded
