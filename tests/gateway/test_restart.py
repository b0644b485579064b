"""Objects of every type survive a gateway restart unchanged, and a deleted object stays deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from tests.catalog.adapters import config_bytes, weights_bytes
from tests.gateway.process import HANDY, GatewayProcess
from tests.gateway.site import Site
from tests.waiting import wait_until_blocking

AI_READ = "a92d2450e05d4e7bb7d0a64968f83d11"
POLICIES = [
    {
        "effect": "allow",
        "permission_groups": [{"id": AI_READ}],
        "resources": {"com.cloudflare.api.account.*": "*"},
    }
]
FILES = {"adapter_config.json": config_bytes(), "adapter_model.safetensors": weights_bytes(seed=1)}


class Api:
    """Client of one gateway that authenticates with a global key."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def result(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        response = self.client.request(method, path, json=body, **options)
        assert response.status_code == 200, (method, path, response.text)
        document = response.json()
        return document.get("result", document)

    def status(self, method: str, path: str) -> int:
        return self.client.request(method, path).status_code


def make(api: Api, account: str) -> dict[str, dict[str, Any]]:
    """Create one object of each type and return the objects by path."""
    lab = api.result("POST", "/accounts", {"name": "Lab"})
    made = {f"/accounts/{lab['id']}": lab}
    api.result("POST", "/accounts", {"name": "Club"})
    (membership,) = api.result("GET", "/memberships?name=Club")
    made[f"/memberships/{membership['id']}"] = membership
    for base in ("/user/tokens", f"{account}/tokens"):
        token = api.result("POST", base, {"name": "ci", "policies": POLICIES})
        made[f"{base}/{token['id']}"] = {name: value for name, value in token.items() if name != "value"}
    finetune = api.result("POST", f"{account}/ai/finetunes", {"model": HANDY, "name": "mine", "description": "d"})
    where = f"{account}/ai/finetunes/{finetune['id']}"
    for name, content in FILES.items():
        form = {"data": {"file_name": name}, "files": {"file": (name, content)}}
        assert api.result("POST", f"{where}/finetune-assets", **form) is None
    made[where] = api.result("GET", where)
    response = api.result("POST", f"{account}/ai/v1/responses", {"model": HANDY, "input": "Hello"})
    made[f"{account}/ai/v1/responses/{response['id']}"] = response
    return made


def test_objects_survive_a_restart_until_deleted(new_site: Callable[..., Site]):
    site = new_site()
    site.add_node("n1")
    headers = {"X-Auth-Email": "ada@example.com", "X-Auth-Key": site.tenants.secrets["global key"]}
    account = f"/accounts/{site.tenants.account_id}"
    objects = f"file://{site.folder / 'objects'}"

    first = site.gateway(OBJECTS_URL=objects).start()
    with client_of(first, headers) as client:
        made = make(Api(client), account)
    first.stop()
    second = site.gateway(OBJECTS_URL=objects).start()
    with client_of(second, headers) as client:
        check(Api(client), account, made)


def client_of(gateway: GatewayProcess, headers: dict[str, str]) -> httpx.Client:
    return httpx.Client(base_url=gateway.base_url, headers=headers, timeout=30)


def check(api: Api, account: str, made: dict[str, dict[str, Any]]) -> None:
    """Assert that every object is unchanged, can be used and updated, and is gone after deletion."""
    for where, what in made.items():
        assert api.result("GET", where) == what, where
        if "/responses/" not in where:  # stored responses expire and have no list route
            assert what in api.result("GET", f"{where.rpartition('/')[0]}?per_page=1000"), where
    changed = api.result(
        "PUT", next(path for path in made if "/user/tokens/" in path), {"name": "b", "policies": POLICIES}
    )
    assert changed["name"] == "b"
    used = {"prompt": "x", "lora": "mine"}
    assert api.result("POST", f"{account}/ai/run/{HANDY}", used)["response"]
    for where in reversed(made):
        api.result("DELETE", where)
        wait_until_blocking(lambda where=where: api.status("GET", where) in (403, 404))
        if "/responses/" not in where:
            rows = api.result("GET", f"{where.rpartition('/')[0]}?per_page=1000")
            assert where.rpartition("/")[2] not in [row["id"] for row in rows], where
