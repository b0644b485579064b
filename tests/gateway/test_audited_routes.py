"""Every management route that changes something writes an audit entry; a new route must be classified here."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import httpx

from gateway.app import ACCOUNT, BASE, ROUTES
from gateway.call import Endpoint
from gateway.routing import Access
from tenants.credentials.roles import role_id
from tests.catalog.adapters import config_bytes
from tests.gateway.process import HANDY
from tests.gateway.site import Running

Ids = dict[str, str]
ACCESS_GROUP = "Workers AI Read"

# POST, PUT and DELETE routes that only return data, or change only the account's own content.
READ_ONLY = {
    ("POST", ACCOUNT + "/ai/tomarkdown"): "converts files",
    ("POST", BASE + "/nodes/enroll"): "needs a join token instead of a credential, and appends node.enroll",
    ("POST", BASE + "/nodes/ring"): "reads the public keys of services",
    ("POST", "/to-everything/markdown/transformer"): "converts files of a Worker",
    ("POST", ACCOUNT + "/ai/price/{model...}"): "computes a price",
    ("DELETE", ACCOUNT + "/ai/v1/responses/{response_id}"): "deletes a response of the account",
    ("DELETE", "/v1/responses/{response_id}"): "deletes a response of the account",
    ("POST", ACCOUNT + "/ai/v1/responses/{response_id}/cancel"): "ends a call of the account",
    ("POST", "/v1/responses/{response_id}/cancel"): "ends a call of the account",
    ("PUT", BASE + "/finetunes/{finetune_id}/approval"): "management/test_finetune_approval.py reads its audit entry",
    (
        "DELETE",
        BASE + "/finetunes/{finetune_id}/approval",
    ): "management/test_finetune_approval.py reads its audit entry",
    ("POST", ACCOUNT + "/ai/batches/{batch_id}/cancel"): "ends calls of the account",
    ("PUT", ACCOUNT + "/operation"): "management/test_platform_routes.py reads its audit entry",
    ("PUT", ACCOUNT + "/ai/models/disabled/{model...}"): "management/test_platform_routes.py reads its audit entry",
    ("DELETE", ACCOUNT + "/ai/models/disabled/{model...}"): "management/test_platform_routes.py reads its audit entry",
    ("PUT", BASE + "/aliases/{model...}"): "management/test_platform_routes.py reads its audit entry",
    ("DELETE", BASE + "/aliases/{model...}"): "management/test_platform_routes.py reads its audit entry",
    ("PUT", BASE + "/deprecations/{model...}"): "management/test_platform_routes.py reads its audit entry",
    ("DELETE", BASE + "/deprecations/{model...}"): "management/test_platform_routes.py reads its audit entry",
    ("POST", BASE + "/publications"): "management/test_publications.py reads its audit entry",
    ("DELETE", BASE + "/publications/{publication_id}"): "management/test_publications.py reads its audit entry",
    ("PUT", BASE + "/engines/{name}"): "foreign/test_foreign_engines.py reads its audit entry",
    ("DELETE", BASE + "/engines/{name}"): "foreign/test_foreign_engines.py reads its audit entry",
    ("POST", BASE + "/nodes/{node_id}/drain"): "management/test_fleet.py reads its audit entry",
    ("POST", BASE + "/nodes/{node_id}/undrain"): "management/test_fleet.py reads its audit entry",
    ("POST", BASE + "/pops/{pop}/drain"): "management/test_fleet.py reads its audit entry",
    ("POST", BASE + "/pops/{pop}/undrain"): "management/test_fleet.py reads its audit entry",
    ("POST", BASE + "/nodes/{node_id}/pins"): "management/test_fleet.py reads its audit entry",
    ("DELETE", BASE + "/nodes/{node_id}/pins/{model...}"): "management/test_fleet.py reads its audit entry",
    ("POST", BASE + "/nodes/{node_id}/replicas"): "management/test_fleet.py reads its audit entry",
    ("DELETE", BASE + "/nodes/{node_id}/replicas/{model...}"): "management/test_fleet.py reads its audit entry",
    ("PUT", BASE + "/scaling/overrides/{model...}"): "management/test_scaling.py reads its audit entry",
    ("DELETE", BASE + "/scaling/overrides/{model...}"): "management/test_scaling.py reads its audit entry",
    ("PUT", ACCOUNT + "/ai/reserved_capacity/{model...}"): "management/test_scaling.py reads its audit entry",
    ("DELETE", ACCOUNT + "/ai/reserved_capacity/{model...}"): "management/test_scaling.py reads its audit entry",
    ("POST", "/admin/sign-in/password"): "opens a session; test_user_sign_in.py reads its audit entry",
    ("POST", "/admin/sign-in/link"): "opens a session; test_user_sign_in.py reads its audit entry",
    ("POST", "/admin/sign-out"): "ends an operator's session; test_sign_in.py reads its audit entry",
}


def test_every_changing_route_is_classified():
    changing = {
        (route.method, route.path)
        for route in ROUTES
        if route.method != "GET" and not isinstance(route.endpoint, Endpoint)
    }  # fmt: skip
    assert not any(route.access is Access.PUBLIC for route in ROUTES if route.method != "GET"), (
        "a public route would have no actor"
    )
    assert sorted(changing) == sorted([*READ_ONLY, *((method, path) for method, path, *_ in ACTS)])


def policy(account_id: str, group_id: str) -> dict[str, Any]:
    resources = {f"com.cloudflare.api.account.{account_id}": "*"}
    return {"effect": "allow", "permission_groups": [{"id": group_id}], "resources": resources}


def token_body(ids: Ids) -> dict[str, Any]:
    return {"json": {"name": "x", "policies": [policy(ids["account_id"], ids["group"])]}}


def asset(_ids: Ids) -> dict[str, Any]:
    return {"data": {"file_name": "adapter_config.json"}, "files": {"file": ("adapter_config.json", config_bytes())}}


def of(**body: Any) -> Callable[[Ids], dict[str, Any]]:
    return lambda _ids: {"json": body}


def nothing(_ids: Ids) -> dict[str, Any]:
    return {}


def invitation(name: str) -> Callable[[Ids], dict[str, Any]]:
    return of(email=f"{name}@example.com", roles=[role_id("viewer")])


def new_role(_ids: Ids) -> dict[str, Any]:
    return {"json": {"roles": [{"id": role_id("developer")}]}}


CREATED = ["account.create", "membership.create"]
USER_TOKENS, TOKENS = BASE + "/user/tokens", ACCOUNT + "/tokens"
# In an order in which the requests succeed: method, path, body, expected audit entries, and the name under which later
# paths refer to the returned id.
ACTS: list[tuple[str, str, Callable[[Ids], dict[str, Any]], list[str], str]] = [
    ("POST", BASE + "/accounts", of(name="Lab", type="standard"), CREATED, "account_id"),
    ("PUT", ACCOUNT, of(name="Lab 2", type="standard"), ["account.update"], ""),
    ("PUT", ACCOUNT + "/ai/usage/budgets", of(amount=5, unit="neurons"), ["budget.set"], ""),
    ("DELETE", ACCOUNT + "/ai/usage/budgets", nothing, ["budget.remove"], ""),
    ("PUT", ACCOUNT + "/ai/webhooks/key", nothing, ["webhook_key.replace"], ""),
    ("DELETE", ACCOUNT + "/ai/webhooks/key", nothing, ["webhook_key.remove"], ""),
    ("POST", USER_TOKENS, token_body, ["api_token.create"], "api_token_id"),
    ("PUT", USER_TOKENS + "/{api_token_id}", token_body, ["api_token.update"], ""),
    ("PUT", USER_TOKENS + "/{api_token_id}/value", of(), ["api_token.roll"], ""),
    ("DELETE", USER_TOKENS + "/{api_token_id}", nothing, ["api_token.revoke"], ""),
    ("POST", TOKENS, token_body, ["api_token.create"], "api_token_id"),
    ("PUT", TOKENS + "/{api_token_id}", token_body, ["api_token.update"], ""),
    ("PUT", TOKENS + "/{api_token_id}/value", of(), ["api_token.roll"], ""),
    ("DELETE", TOKENS + "/{api_token_id}", nothing, ["api_token.revoke"], ""),
    ("POST", ACCOUNT + "/ai/finetunes", of(model=HANDY, name="tuned"), ["finetune.create"], "finetune_id"),
    ("POST", ACCOUNT + "/ai/finetunes/{finetune_id}/finetune-assets", asset, ["finetune.upload"], ""),
    ("DELETE", ACCOUNT + "/ai/finetunes/{finetune_id}", nothing, ["finetune.delete"], ""),
    ("POST", ACCOUNT + "/members", invitation("cy"), ["membership.invite"], "member_id"),
    ("PUT", ACCOUNT + "/members/{member_id}", new_role, ["membership.role"], ""),
    ("DELETE", ACCOUNT + "/members/{member_id}", nothing, ["membership.uninvite"], ""),
    ("DELETE", ACCOUNT, nothing, ["account.delete"], ""),
    ("PUT", BASE + "/memberships/{membership_id}", of(status="rejected"), ["membership.delete"], ""),
    ("DELETE", BASE + "/memberships/{membership_id}", nothing, ["membership.delete"], ""),
    ("PATCH", BASE + "/user", of(country="GB"), ["user.update"], ""),
]  # fmt: skip


def entries(running: Running) -> list[tuple[str, str]]:
    """Return actor and action of every audit entry, in chain order."""
    path = running.site.database_url.removeprefix("sqlite://")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return list(connection.execute("SELECT actor, action FROM audit_entries ORDER BY sequence"))


def test_every_changing_route_writes_an_audit_entry_with_its_actor(running: Running):
    with httpx.Client(headers=running.headers("global key"), timeout=60) as client:

        def result(method: str, path: str, **sent: Any) -> Any:
            response = client.request(method, running.gateway.url + path, **sent)
            assert response.status_code == 200, (method, path, response.text)
            return response.json()["result"]

        groups = result("GET", USER_TOKENS + "/permission_groups")
        values = {"group": next(group["id"] for group in groups if group["name"] == ACCESS_GROUP)}
        before = entries(running)
        for method, path, sent, actions, name in ACTS:
            if "{membership_id}" in path:
                made = result("POST", BASE + "/accounts", json={"name": f"Lab {method}", "type": "standard"})
                (found,) = result("GET", BASE + f"/memberships?name=Lab%20{method}")
                values |= {"membership_id": found["id"], "account_id": made["id"]}
                before = entries(running)
            reply = result(method, path.format(**values), **sent(values))
            after = entries(running)
            new = after[len(before) :]
            assert [action for _, action in new] == actions, (method, path)
            assert all(actor and actor != "cli" for actor, _ in new), (method, path)
            before = after
            if name:
                values[name] = reply["id"]


def test_refused_call_has_no_usage_entry(running: Running):
    before = entries(running)
    with httpx.Client(headers=running.headers("good"), timeout=60) as client:
        for method, path, sent, *_ in ACTS:
            values = dict.fromkeys(("group", "api_token_id", "finetune_id", "membership_id", "member_id"), "f" * 32)
            values["account_id"] = running.tenants.account_id
            response = client.request(method, running.gateway.url + path.format(**values), **sent(values))
            assert response.status_code >= 400, (method, path, response.text)
    assert entries(running) == before
