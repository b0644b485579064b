"""Requests of a Worker's AI binding in its three forms, as recorded from real Workers. Tests with real Workers are in
tests/clients.
"""

import base64
import json
from urllib.parse import quote, urlencode

import httpx
import pytest

from tests.fakes.node import WORDS
from tests.gateway.inference.test_text_generation import events_of
from tests.gateway.process import ALIAS, CHATTY, PARROT, VECTORS
from tests.gateway.site import Running

TEXT = "".join(WORDS)
ORIGIN = "https://workers-binding.ai"
FORM = (
    b'------b\r\ncontent-disposition: form-data; name="prompt"\r\n\r\none two\r\n'
    b'------b\r\ncontent-disposition: form-data; name="max_tokens"\r\n\r\n3\r\n------b--\r\n'
)


def named(model: str = PARROT) -> dict[str, str]:
    return {"host": "workers-binding.ai", "cf-consn-sdk-version": "2.0.0", "cf-consn-model-id": model}


def run(client: httpx.Client, running: Running, inputs, *, model=PARROT, path="/run?version=3", options=None, **more):
    """Send a run as workerd sends it."""
    body = {"inputs": inputs, "options": options or {}}
    headers = named(model) | more.pop("headers", {})
    return client.post(running.gateway.url + path, json=body, headers=headers, **more)


def raw(client: httpx.Client, running: Running, body, kind: str, inputs=None, **options: str) -> httpx.Response:
    query = urlencode(options | {"version": "3", "userInputs": json.dumps(inputs or {})})
    headers = named() | {"content-type": kind}
    return client.post(f"{running.gateway.url}/run?{query}", content=body, headers=headers)


def miniflare(client: httpx.Client, url: str, path: str, headers: dict[str, str], method="POST", **more):
    """Send a request as miniflare's `ai` option sends it."""
    spread = {f"MF-Header-{name}": value for name, value in headers.items()}
    return client.request(
        method,
        url,
        headers={"MF-URL": ORIGIN + path, "MF-Binding": "AI", **spread, **more.pop("outer_headers", {})},
        **more,
    )


def test_run_response_has_no_envelope(client: httpx.Client, running: Running):
    response = run(client, running, {"prompt": "one two three"}, options={"returnRawResponse": False})
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.headers["cf-ai-req-id"] == response.headers["x-hearth-request-id"]
    assert response.json()["response"] == TEXT
    assert response.json().keys() == {"response", "usage"}
    row = running.site.usage_row(response.headers["cf-ai-req-id"])
    assert row["account_id"] == running.tenants.account_id


@pytest.mark.parametrize("path", ["/ai-gateway/run?version=3", "/run?version=2", "/run?version=3&gateway=undefined"])
def test_all_versions_and_ai_gateway_paths_run_the_model(client: httpx.Client, running: Running, path: str):
    assert run(client, running, {"prompt": "x"}, path=path).json()["response"] == TEXT


def test_every_native_format_is_returned_without_an_envelope(client: httpx.Client, running: Running):
    vectors = run(client, running, {"text": ["a", "bc"]}, model=VECTORS).json()
    assert vectors["shape"] == [2, 8]
    chat = run(client, running, {"messages": [{"role": "user", "content": "x"}]}, model=CHATTY).json()
    assert chat["object"] == "chat.completion"


def test_stream_equals_the_stream_of_ai_run(client: httpx.Client, running: Running):
    response = run(client, running, {"prompt": "x", "stream": True})
    *frames, done = events_of(response)
    assert "".join(json.loads(frame)["response"] for frame in frames) == TEXT
    assert done == "[DONE]"
    assert response.headers["cf-ai-req-id"]


def test_model_prefix_alias_and_string_booleans_are_accepted(client: httpx.Client, running: Running):
    response = run(client, running, {"prompt": "x", "stream": "false", "max_tokens": "9"}, model=f"mine:{ALIAS}")
    assert response.json()["response"] == TEXT
    assert response.headers["x-hearth-model"] == PARROT


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"model": "@cf/no/such"}, 400, 5007),
        ({"model": "nonsense"}, 404, 3042),
        ({"inputs": {"prompt": 5}}, 400, 5006),
        ({"inputs": []}, 400, 5006),
        ({"options": "x"}, 400, 5006),
        ({"path": "/run?version=1"}, 405, 5019),
        ({"headers": {"authorization": "Bearer cfut_" + "a" * 46}}, 401, 10000),
        ({"headers": {"authorization": "none"}}, 400, 9106),
        ({"headers": {"x-hearth-account": "f" * 32}}, 403, 10000),
        ({"headers": {"x-hearth-account": "x"}}, 404, 7003),
    ],
)
def test_error_has_the_binding_format_and_the_envelope(
    client: httpx.Client, running: Running, change: dict, status: int, code: int
):
    response = run(client, running, **{"inputs": {"prompt": "x"}, **change})
    error = response.json()
    assert (response.status_code, error["internalCode"], error["httpCode"]) == (status, code, status)
    assert error["name"] == "AiError"
    (entry,) = error["errors"]
    assert entry["code"] == code
    assert entry["message"].startswith(error["message"])  # followed by a hint, which Workers could not parse
    assert str(code) not in error["description"]
    assert not error["description"].startswith("AiError")
    assert error["requestId"] == response.headers["cf-ai-req-id"]
    assert response.headers["content-type"] == "application/json"


def test_model_is_named_by_the_header_only(client: httpx.Client, running: Running):
    headers = {"host": "workers-binding.ai"}
    response = client.post(f"{running.gateway.url}/run?version=3", json={"inputs": {"prompt": "x"}}, headers=headers)
    assert (response.status_code, response.json()["internalCode"]) == (400, 3003)


def test_account_comes_from_the_token_or_the_header(client: httpx.Client, running: Running):
    """A user's global key has no account of its own and needs the header; an API token has one."""
    key = running.headers("global key")
    other = running.tenants.other_account_id
    with httpx.Client(headers=key) as holder:
        response = run(holder, running, {"prompt": "x"}, headers={"x-hearth-account": other})
        assert response.status_code == 200
        assert running.site.usage_row(response.headers["cf-ai-req-id"])["account_id"] == other
    own = {"x-hearth-account": running.tenants.account_id}
    assert run(client, running, {"prompt": "x"}, headers=own).status_code == 200
    assert run(client, running, {"prompt": "x"}, headers={"x-hearth-account": other}).status_code == 403


def test_models_are_listed_in_an_envelope(client: httpx.Client, running: Running):
    headers = {"host": "workers-binding.ai"}
    query = "search=parrot&task=undefined&per_page=undefined&page=1"
    response = client.get(f"{running.gateway.url}/ai-api/models/search?{query}", headers=headers)
    assert [row["name"] for row in response.json()["result"]] == [PARROT]
    assert response.headers["cf-ai-req-id"]
    with httpx.Client(headers=headers) as unauthenticated:
        assert unauthenticated.get(f"{running.gateway.url}/ai-api/models/search").json()["internalCode"] == 9106


def test_unknown_paths_get_errors_in_the_binding_format(client: httpx.Client, running: Running):
    headers = {"host": "workers-binding.ai"}
    for path in ("/autorag/rags", "/ai-gateway/gateways/x/logs/y", "/anything"):
        response = client.get(running.gateway.url + path, headers=headers)
        assert (response.status_code, response.json()["internalCode"]) == (400, 7000)
    assert client.get(f"{running.gateway.url}/run?version=3&body=x", headers=headers).status_code == 405


def test_files_are_converted_to_markdown(client: httpx.Client, running: Running):
    data = base64.b64encode(b"a,b\n1,2\n").decode()
    files = {"files": [{"name": "t.csv", "mimeType": "text/csv", "data": data}], "options": {}}
    headers = {"host": "workers-binding.ai"}
    url = f"{running.gateway.url}/to-everything/markdown"
    (row,) = client.post(f"{url}/transformer", json=files, headers=headers).json()["result"]
    assert (row["name"], row["format"]) == ("t.csv", "markdown")
    assert "| 1 | 2 |" in row["data"]
    kinds = client.get(f"{url}/supported", headers=headers).json()["result"]
    assert {"extension": ".csv", "mimeType": "text/csv"} in kinds
    refused = client.post(f"{url}/transformer", json={"files": [{"name": "x"}]}, headers=headers)
    assert (refused.status_code, refused.json()["internalCode"]) == (400, 5006)


# A single input as the body


def test_boundary_of_a_form_is_taken_from_its_first_line(client: httpx.Client, running: Running):
    response = raw(client, running, FORM, "multipart/form-data", gateway="undefined")
    assert response.json()["response"] == "".join(WORDS[:3])
    assert running.site.execute_of(response).task.sampling.max_tokens == 3
    assert raw(client, running, iter([FORM[:30], FORM[30:]]), "multipart/form-data; boundary=----b").status_code == 200
    assert raw(client, running, FORM[:-8], "multipart/form-data").json()["internalCode"] == 5004


def test_raw_text_body_is_the_prompt(client: httpx.Client, running: Running):
    response = raw(client, running, b"one two three", "text/plain", {"max_tokens": 2})
    task = running.site.execute_of(response).task
    assert (task.prompt, task.sampling.max_tokens) == ("one two three", 2)


@pytest.mark.parametrize(("kind", "name"), [("image/png", "image"), ("audio/mpeg", "audio"), ("", "image")])
def test_binary_body_is_rejected_by_a_text_model(client, running: Running, kind: str, name: str):
    error = raw(client, running, b"\x89PNG", kind, {"prompt": "What is this?"}).json()
    assert error["internalCode"] == 5006
    assert f"'/{name}'" in error["description"]


def test_invalid_raw_requests_are_rejected(client: httpx.Client, running: Running):
    assert raw(client, running, b"", "image/png").json()["internalCode"] == 3003
    query = urlencode({"version": "3", "userInputs": "{"})
    response = client.post(f"{running.gateway.url}/run?{query}", content=b"x", headers=named())
    assert response.json()["internalCode"] == 5004
    inputs = {"prompt": "x", "": ["not", "ours"]}
    assert run(client, running, inputs).json()["response"] == TEXT


# Through miniflare


def test_request_is_unwrapped_from_miniflare_headers(running: Running):
    url = f"{running.gateway.url}/mf/{running.tenants.account_id}"
    secret = running.tenants.secrets["good"]
    body = {"inputs": {"prompt": "x"}, "options": {}}
    with httpx.Client() as client:
        for path, outer_headers in (
            (f"{url}/{secret}", {}),
            (f"{url}?token={quote(secret)}", {}),
            (url, running.headers()),
        ):
            response = miniflare(client, path, "/run?version=3", named(), json=body, outer_headers=outer_headers)
            assert response.json()["response"] == TEXT, path
            assert response.headers["content-type"] == "application/json"
        listed = miniflare(client, f"{url}/{secret}", "/ai-api/models/search?search=parrot", {}, "GET")
        assert [row["name"] for row in listed.json()["result"]] == [PARROT]


@pytest.mark.parametrize(
    "path",
    [
        "/metrics",
        "/admin/session",
        "/docs",
        "",
        "//metrics",
        "/run/../metrics",
        "/run/%2e%2e/metrics",
        "/ai-api/../metrics",
        "/ai-api//metrics",
        "/ai-api/models/search/../../../metrics",
        "/mf/x/y",
        "/client/v4/user/tokens/verify",
        "/client/v4/accounts/{account}/ai/models/search",
    ],
)
def test_wrapped_request_reaches_only_paths_of_the_binding(client: httpx.Client, running: Running, path: str):
    """A reverse proxy that denies a path must be able to rely on the path that it sees."""
    tenants, url = running.tenants, running.gateway.url
    target = ORIGIN + path.format(account=tenants.account_id)
    through_miniflare = f"{url}/mf/{tenants.account_id}/{tenants.secrets['good']}"
    for outer, headers in (
        (through_miniflare, {"MF-URL": target}),
        (f"{url}/mf/{tenants.account_id}", {"MF-URL": target}),
        (f"{running.account_url}/ai/run/proxy", {"X-Forwarded": target}),
    ):
        response = client.get(outer, headers=headers)
        assert (response.status_code, response.json()["errors"][0]["code"]) == (400, 7000)


def test_wrapped_target_has_the_limit_of_request_targets(client: httpx.Client, running: Running):
    headers = {"X-Forwarded": f"{ORIGIN}/ai-api/models/search?search={'x' * 9000}"}
    assert client.get(f"{running.account_url}/ai/run/proxy", headers=headers).status_code == 414


def test_token_in_the_url_and_outer_connection_headers_take_precedence(running: Running):
    url = f"{running.gateway.url}/mf/{running.tenants.account_id}"
    inner = named() | {"authorization": "Bearer x", "content-length": "0", "x-forwarded-for": "1.2.3.4", "host": "x y"}
    body = {"inputs": {"prompt": "x"}}
    with httpx.Client() as client:
        path = f"{url}/{running.tenants.secrets['good']}"
        assert miniflare(client, path, "/run?version=3", inner, json=body).status_code == 200
        # Without a token in the URL, the wrapped credential overrides the outer one.
        refused = miniflare(client, url, "/run?version=3", inner, json=body, outer_headers=running.headers())
        assert refused.json()["internalCode"] == 9106


@pytest.mark.parametrize(
    ("path", "headers", "code"),
    [
        ("/mf/{account}/{secret}?MF-Binding=AI", {"Upgrade": "websocket", "Connection": "Upgrade"}, 3003),
        ("/mf/{account}/{secret}", {"MF-URL": "no url"}, 3003),
        ("/mf/{account}/{secret}", {"MF-URL": "https://[/run"}, 3003),
        ("/mf/{account}/{secret}", {"MF-URL": "https://x/mf/y/z"}, 7000),
        ("/mf/{account}", {"MF-URL": ORIGIN + "/ai-api/models/search"}, 9106),
        ("/mf/short/{secret}", {"MF-URL": ORIGIN + "/ai-api/models/search"}, 7003),
        ("/mf/{other}/{secret}", {"MF-URL": ORIGIN + "/ai-api/models/search"}, 10000),
    ],
)
def test_malformed_miniflare_url_is_rejected_without_echoing_the_token(
    running: Running, path: str, headers: dict, code: int
):
    tenants = running.tenants
    secret = tenants.secrets["good"]
    path = path.format(account=tenants.account_id, secret=secret, other=tenants.other_account_id)
    with httpx.Client() as client:
        response = client.get(running.gateway.url + path, headers=headers)
        assert response.json()["internalCode"] == code
        assert secret not in response.text
        assert "Cloudflare Access" not in response.text
        assert client.get(f"{running.gateway.url}/healthz").status_code == 200
    assert secret not in running.gateway.log_text()


# Through wrangler


def test_request_through_wrangler_takes_its_url_from_a_header(client: httpx.Client, running: Running):
    proxy = f"{running.account_url}/ai/run/proxy"
    headers = named() | {"X-Forwarded": f"{ORIGIN}/run?version=3"}
    del headers["host"]
    response = client.post(proxy, json={"inputs": {"prompt": "x"}, "options": {}}, headers=headers)
    assert response.json()["response"] == TEXT
    listed = client.get(proxy, headers={"X-Forwarded": f"{ORIGIN}/ai-api/models/search?search=parrot"})
    assert [row["name"] for row in listed.json()["result"]] == [PARROT]
    foreign = proxy.replace(running.tenants.account_id, running.tenants.other_account_id)
    assert client.post(foreign, json={}, headers=headers).json()["errors"][0]["code"] == 10000
    missing = client.post(proxy, json={})
    assert (missing.status_code, missing.json()["errors"][0]["code"]) == (400, 3003)


def test_base64_inputs_with_a_content_type_are_unwrapped(client: httpx.Client, running: Running):
    prompt = {"body": base64.b64encode(b"x").decode(), "contentType": "text/plain"}
    response = run(client, running, {"prompt": prompt})
    assert running.site.execute_of(response).task.prompt == prompt["body"]
