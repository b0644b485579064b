"""Every error code of the contract that these routes can return, produced by a real request."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from bench import figures
from storage.database import Database
from tenants import accounts
from tenants.credentials import api_tokens
from tests.gateway.process import HANDY, NOWHERE, OVER, PARROT, PEPPER, VECTORS, GatewayProcess
from tests.gateway.site import Running

HELLO = [{"role": "user", "content": "Hello"}]
AI_READ = "a92d2450e05d4e7bb7d0a64968f83d11"
SCHEMA = "AiError: Bad input: Error: "


def run(running: Running, body: object = None, model: str = PARROT, token: str = "good", **options) -> httpx.Response:
    url = f"{running.account_url}/ai/run/{model}"
    if body is not None:
        options |= {"json": body}
    return httpx.post(url, **options | {"headers": running.headers(token) | options.get("headers", {})})


def scripted(running: Running, **fields) -> httpx.Response:
    return run(running, {"prompt": "!" + json.dumps(fields)})


def verify(running: Running, token: str) -> httpx.Response:
    return httpx.get(f"{running.gateway.base_url}/user/tokens/verify", headers=running.headers(token))


def from_elsewhere(running: Running) -> httpx.Response:
    """Send a token that is restricted to another client address."""
    policy = {
        "effect": "allow",
        "permission_groups": [{"id": AI_READ}],
        "resources": {"com.cloudflare.api.account.*": "*"},
    }
    body = {"name": "x", "policies": [policy], "condition": {"request_ip": {"in": ["192.0.2.1/32"]}}}
    made = httpx.post(f"{running.gateway.base_url}/user/tokens", json=body, headers=running.headers("keeper"))
    return run(running, {"prompt": "x"}, headers={"Authorization": f"Bearer {made.json()['result']['value']}"})


def through_an_empty_finetune(running: Running) -> httpx.Response:
    """Use a finetune whose files have not been uploaded."""
    own = f"{running.account_url}/ai/finetunes"
    made = httpx.post(own, json={"model": HANDY, "name": "empty"}, headers=running.headers("write"))
    body = run(running, {"prompt": "x", "lora": made.json()["result"]["id"]}, HANDY)
    httpx.delete(f"{own}/{made.json()['result']['id']}", headers=running.headers("write"))
    return body


def by_an_old_binding(running: Running) -> httpx.Response:
    """Send a request in the format of an outdated Worker binding."""
    headers = {"host": "workers-binding.ai", "cf-consn-model-id": PARROT, **running.headers()}
    return httpx.post(f"{running.gateway.url}/run?version=1", json={"inputs": {"prompt": "x"}}, headers=headers)


Ask = Callable[[Running], httpx.Response]
UNKNOWN = {"Authorization": "Bearer cfut_" + "a" * 46}

HINT = (
    "Send an API token as `Authorization: Bearer <token>`. "
    "`hearth up` prints one, and `hearth token create` creates more."
)
LISTING = "GET /client/v4/accounts/<account_id>/ai/models/search lists the models."

ROWS: list[tuple[int, int, str, Ask]] = [
    (7000, 400, "No route for that URI", lambda r: httpx.get(f"{r.gateway.base_url}/nowhere")),
    (7001, 405, "GET not supported for requested URI.", lambda r: httpx.get(f"{r.account_url}/ai/run/{PARROT}")),
    (7003, 404, "Could not route to /client/v4/accounts/x/ai/run/m, perhaps your object identifier is invalid?",
     lambda r: httpx.post(f"{r.gateway.base_url}/accounts/x/ai/run/m")),
    (9106, 400, "Authentication failed (status: 400). " + HINT,
     lambda r: httpx.post(f"{r.account_url}/ai/run/{PARROT}")),
    (9106, 400, "Authentication failed (status: 400). " + HINT,
     lambda r: run(r, {}, headers={"Authorization": "Bearer no"})),
    (10000, 401, "Authentication error. " + HINT, lambda r: run(r, {}, headers=UNKNOWN)),
    (10000, 401, "Authentication error. " + HINT, lambda r: run(r, {}, token="revoked")),
    (10000, 403, "Authentication error", lambda r: run(r, {}, token="scopeless")),
    (10000, 403, "Authentication error", lambda r: run(r, {}, token="other")),
    (1000, 401, "Invalid API Token", lambda r: verify(r, "account")),
    (5007, 400, "No such model @cf/no/thing or task. " + LISTING, lambda r: run(r, {}, "@cf/no/thing")),
    (3042, 404, "Invalid model name. A model id has the form @cf/<author>/<model>. " + LISTING,
     lambda r: run(r, {}, "llama")),
    (5004, 400, "AiError: Invalid data: the body is not valid JSON", lambda r: run(r, content=b"{")),
    (5006, 400, SCHEMA + "oneOf at '/' not met, 0 matches: required properties at '/' are 'prompt', "
     "required properties at '/' are 'messages'", lambda r: run(r, {})),
    (5006, 400, SCHEMA + "Type mismatch of '/prompt', 'array' not in 'string'", lambda r: run(r, {"prompt": []})),
    (5006, 400, SCHEMA + "'/top_k' must be <= 50", lambda r: run(r, {"prompt": "x", "top_k": 51})),
    (3003, 400, "The request has no body", lambda r: run(r)),
    (3023, 403, "This account is blocked", lambda r: httpx.post(
        f"{r.gateway.base_url}/accounts/{r.tenants.blocked_account_id}/ai/run/{PARROT}", headers=r.headers("blocked"))),
    (5005, 405, "AiError: This model does not support LoRA", lambda r: run(r, {"prompt": "x", "lora": "mine"})),
    (3006, 413, "The request body is larger than 10485760 bytes",
     lambda r: run(r, content=b" " * (10 * 1024 * 1024 + 1))),
    (3006, 413, "AiError: The prompt is longer than the model's context",
     lambda r: scripted(r, tokens=[], end="context_too_long")),
    (3007, 408, "AiError: Request timed out", lambda r: scripted(r, tokens=[], end="timeout")),
    (3008, 408, "AiError: The request was aborted before it was finished",
     lambda r: scripted(r, tokens=[], end="internal")),
    (3040, 429, "AiError: Capacity temporarily exceeded, please try again.",
     lambda r: run(r, {"prompt": "x"}, NOWHERE)),
    (10001, 403, "This credential may not be used from this address", from_elsewhere),
    (3039, 400, "AiError: The finetune lacks files: adapter_config.json, adapter_model.safetensors",
     through_an_empty_finetune),
    (3042, 404, "No such finetune", lambda r: run(r, {"prompt": "x", "lora": "nobody-s"}, HANDY)),
    (5028, 410, "AiError: This model was deprecated on 2026-02-03. Please use @cf/test/parrot instead. The operator "
     f"can serve another model under this name with `hearth model alias {OVER} <model>`.",
     lambda r: run(r, {"prompt": "x"}, OVER)),
    (5004, 415, "AiError: Content-Encoding is not supported",
     lambda r: run(r, {"prompt": "x"}, headers={"content-encoding": "br"})),
    (3003, 400, "x-session-affinity must be 1 to 128 of A-Z a-z 0-9 . _ : -",
     lambda r: run(r, {"prompt": "x"}, headers={"x-session-affinity": "a b"})),
    (5024, 400, "AiError: JSON Mode couldn't be met", lambda r: run(
        r, {"prompt": '!{"tokens": ["no"]}', "response_format": {"type": "json_object"}}, HANDY)),
]  # fmt: skip

# Error codes that cannot be produced in this file, with the test that covers each or the reason why no request produces
# it.
ELSEWHERE = {
    6003: "an older form of 9106",
    9109: "an older form of 10000",
    1031: "the binding's proxy",
    3030: "image models, which nodes do not run yet",
    5016: "models with terms: none has any here",
    5018: "private models: there are none",
    3041: "private models: there are none",
    5035: "models of a paid plan: every model is for every plan",
    5019: "below, as the binding tells it",
    3036: "below, with its allocation used",
    4006: "its text is that of 3036, which is the reported number",
    3046: "a variant of 3007",
    2001: "named gateways, which there are not yet",
    971: "below, with limits set",
}


@pytest.mark.parametrize(
    ("code", "status", "message", "ask"), ROWS, ids=[f"{row[1]}-{row[0]}-{row[2]}" for row in ROWS]
)
def test_request_gets_the_documented_status_and_code(running: Running, code: int, status: int, message: str, ask: Ask):
    response = ask(running)
    body = response.json()
    (error,) = body["errors"]
    assert (response.status_code, error["code"], error["message"]) == (status, code, message)
    assert ("source" in error) == (code == 5006)
    assert (body["success"], body["messages"]) == (False, [])
    assert body["result"] == ({} if message.startswith("AiError: ") else None)
    assert response.headers["cf-ray"]
    assert ("retry-after" in response.headers) == (status in (429, 503))
    assert not {row[0] for row in ROWS} & ELSEWHERE.keys()


def test_old_binding_version_is_rejected_in_the_binding_format(running: Running):
    response = by_an_old_binding(running)
    body = response.json()
    assert (response.status_code, body["internalCode"], body["errors"][0]["code"]) == (405, 5019, 5019)


@pytest.fixture(scope="module")
def limited(running: Running) -> Iterator[GatewayProcess]:
    """Run another gateway of the same site with limits."""
    rules = "text-generation=3/86400, text-embeddings=100/86400, token=6/86400"
    settings = {"HEARTH_RATE_LIMITS": rules, "HEARTH_QUOTA_TIMEOUT_S": "10", "HEARTH_FREE_NEURONS_PER_DAY": "1"}
    with running.beside(**settings) as gateway:
        yield gateway


def test_exhausted_daily_allocation_of_the_free_plan_is_reported(running: Running, limited: GatewayProcess):
    async def make() -> tuple[str, str]:
        database = Database.connect(running.site.database_url)
        account_id = (await accounts.create(database, "thrifty", plan="free")).account_id
        secret = (await api_tokens.create(database, PEPPER, account_id, "x", [AI_READ])).secret
        await database.close()
        return account_id, secret

    account_id, secret = asyncio.run(make())
    url = f"{limited.base_url}/accounts/{account_id}/ai/run/{PARROT}"
    body = {"prompt": "x", "max_tokens": 2000}  # costs more than one neuron
    refused = httpx.post(url, json=body, headers={"Authorization": f"Bearer {secret}"})
    message = (
        "AiError: you have used up your daily free allocation of 1 neurons, please upgrade to a paid plan if you would "
        "like to continue usage."
    )
    assert (refused.status_code, refused.json()["errors"]) == (429, [{"code": 3036, "message": message}])
    assert refused.headers["x-should-retry"] == "false"
    assert int(refused.headers["retry-after"]) > 0


def test_limits_are_reported_in_headers_and_have_their_own_error_codes(running: Running, limited: GatewayProcess):
    def ask(token: str, task: str) -> httpx.Response:
        path, body = {
            "text": (f"run/{PARROT}", {"prompt": "x"}),
            "vectors": ("v1/embeddings", {"model": "@hf/test/vectors", "input": "x"}),
        }[task]
        url = f"{limited.base_url}/accounts/{running.tenants.account_id}/ai/{path}"
        return httpx.post(url, json=body, headers=running.headers(token))

    first = ask("good", "text")
    assert first.status_code == 200
    assert first.headers["ratelimit-policy"] == '"default";q=3;w=86400'
    assert first.headers["ratelimit"].startswith('"default";r=2;t=')
    assert [ask("good", "text").status_code for _ in range(3)] == [200, 200, 429]
    refused = ask("write", "text")
    assert refused.json()["errors"] == [
        {"code": 3040, "message": "AiError: Rate limit of this task exceeded, please wait"}
    ]
    assert int(refused.headers["retry-after"]) > 0
    assert refused.headers["ratelimit"].startswith('"default";r=0;t=')
    assert [ask("good", "vectors").status_code for _ in range(4)] == [200, 200, 200, 429]
    assert ask("good", "vectors").json()["errors"][0]["code"] == 971
    assert ask("write", "vectors").status_code == 200
    assert "ratelimit" not in run(running, {"prompt": "x"}).headers


def test_token_limits_and_allowed_models_apply_to_that_token_only(running: Running, limited: GatewayProcess):
    resources = {"com.cloudflare.api.account.*": "*"}
    policy = {"effect": "allow", "permission_groups": [{"id": AI_READ}], "resources": resources}
    body = {"name": "x", "policies": [policy], "models": [VECTORS], "limits": "token=2/86400"}
    made = httpx.post(f"{running.gateway.base_url}/user/tokens", json=body, headers=running.headers("keeper"))
    secret = made.json()["result"]["value"]

    def ask(model: str, token: str = "") -> httpx.Response:
        url = f"{limited.base_url}/accounts/{running.tenants.account_id}/ai/run/{model}"
        headers = running.headers(token) if token else {"Authorization": f"Bearer {secret}"}
        return httpx.post(url, json={"text": "x"}, headers=headers, timeout=30)

    foreign = ask(PARROT)
    assert (foreign.status_code, foreign.json()["errors"][0]["code"]) == (403, 10000)
    responses = [ask(VECTORS) for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]
    assert responses[-1].json()["errors"][0]["code"] == 971
    assert ask(VECTORS, "account").status_code == 200


@pytest.mark.full
def test_concurrency_limit_holds_across_three_gateways(running: Running):
    rules = "account=50/86400"
    beside = contextlib.ExitStack()
    settings = {"HEARTH_RATE_LIMITS": rules, "HEARTH_QUOTA_TIMEOUT_S": "30"}
    gateways = [beside.enter_context(running.beside(**settings)) for _ in range(3)]
    other = running.tenants.other_account_id

    async def ask_all() -> list[int]:
        async with httpx.AsyncClient(headers=running.headers("other"), timeout=60) as client:

            async def ask(number: int) -> int:
                url = f"{gateways[number % 3].base_url}/accounts/{other}/ai/run/{PARROT}"
                return (await client.post(url, json={"prompt": "x"})).status_code

            return await asyncio.gather(*(ask(number) for number in range(200)))

    statuses = asyncio.run(ask_all())
    assert (statuses.count(200), statuses.count(429)) == (50, 150)
    figures.record("P8", "50 of 200 calls through 3 gateways admitted, room for 50", f"pytest {Path(__file__).name}")
    beside.close()
