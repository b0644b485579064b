"""The OpenAPI document matches the routes, and the docs page loads nothing from the network."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import jsonschema_rs
import pytest
from openapi_spec_validator import validate

from gateway.app import ROUTES
from gateway.call import Endpoint
from tests.fakes.node import WORDS
from tests.gateway.process import CHATTY, HANDY, PARROT, VECTORS
from tests.gateway.site import Running

HELLO = [{"role": "user", "content": "Hello"}]
ACCOUNT = "/client/v4/accounts/{account_id}"


@pytest.fixture(scope="module")
def document(running: Running) -> dict:
    response = httpx.get(f"{running.gateway.url}/openapi.json")
    assert response.headers["content-type"] == "application/json"
    return response.json()


def test_document_is_valid_openapi(document: dict):
    validate(document)
    assert document["openapi"].startswith("3.1")


def test_every_route_is_described_with_a_summary(document: dict):
    paths = {path: set(operations) for path, operations in document["paths"].items()}
    own = {"/", "/openapi.json", "/docs", "/docs/docs.js", "/docs/docs.css"}
    for route in ROUTES:
        path = route.path.replace("...", "")
        if path in own or path.startswith(("/admin/", "/dashboard", "/v1/")):  # for browsers; described below `/ai/v1/`
            continue
        operation = document["paths"][path][route.method.lower()]
        paths[path].remove(route.method.lower())
        assert len(operation["summary"]) > 10, path
        assert bool(operation["security"]) == (route.access.name != "PUBLIC")
        if isinstance(route.endpoint, Endpoint):
            assert operation["requestBody"]["content"][route.endpoint.body_media_type]["schema"]
    assert not any(paths.values())
    ids = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))


def resolved(document: dict, schema: dict) -> jsonschema_rs.Validator:
    return jsonschema_rs.Draft202012Validator({"components": document["components"], **schema})


@pytest.mark.parametrize(
    ("path", "model", "body"),
    [
        ("/ai/run/{model}", PARROT, {"prompt": "x"}),
        ("/ai/run/{model}", CHATTY, {"messages": HELLO}),
        ("/ai/run/{model}", VECTORS, {"text": ["a", "b"]}),
        ("/ai/v1/chat/completions", PARROT, {"messages": HELLO}),
        ("/ai/v1/completions", PARROT, {"prompt": "x"}),
        ("/ai/v1/embeddings", VECTORS, {"input": "x"}),
        ("/ai/v1/responses", HANDY, {"input": "x"}),
        ("/ai/v1/messages", HANDY, {"messages": HELLO, "max_tokens": 9}),
    ],
)
def test_requests_and_responses_match_the_document(
    client: httpx.Client, running: Running, document: dict, path, model, body
):
    operation = document["paths"][ACCOUNT + path]["post"]
    url = running.account_url + path.replace("{model}", model)
    response = client.post(url, json=body | {"model": model})
    assert response.status_code == 200
    resolved(document, operation["requestBody"]["content"]["application/json"]["schema"]).validate(body)
    resolved(document, operation["responses"]["200"]["content"]["application/json"]["schema"]).validate(response.json())
    refused = client.post(url, json={"model": model})
    assert refused.status_code == 400
    resolved(document, operation["responses"]["4XX"]["content"]["application/json"]["schema"]).validate(refused.json())


def test_document_rejects_the_bodies_that_the_routes_reject(document: dict):
    body = document["paths"][ACCOUNT + "/ai/v1/chat/completions"]["post"]["requestBody"]
    schema = resolved(document, body["content"]["application/json"]["schema"])
    for bad in ({}, {"messages": []}, {"messages": HELLO, "temperature": 9}, {"messages": [{"content": "x"}]}):
        assert not schema.is_valid(bad)


def test_docs_page_loads_nothing_from_other_hosts(running: Running):
    page = httpx.get(f"{running.gateway.url}/docs")
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert set(loaded) == {"/docs/docs.css", "/docs/docs.js", "/openapi.json"}
    for path in loaded:
        response = httpx.get(running.gateway.url + path)
        assert response.status_code == 200
        assert response.headers["x-content-type-options"] == "nosniff"
        assert not re.search(r"https?://(?!www\.w3\.org)", response.text), path
    assert not re.search(
        r"\bstyle=|\bon[a-z]+=|innerHTML", page.text + httpx.get(f"{running.gateway.url}/docs/docs.js").text
    )


def test_docs_page_starts_with_a_first_call(running: Running):
    page = httpx.get(f"{running.gateway.url}/docs").text
    assert page.index('id="first-call"') < page.index('id="operations"')
    assert set(re.findall(r'byId\("([a-z-]+)"\)', script_of(running))) <= set(re.findall(r'id="([a-z-]+)"', page))


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
def test_examples_of_the_first_call_work_and_contain_no_token(running: Running, tmp_path: Path):
    """Runs the page's script in Node.js, with objects in place of the page's elements."""
    fields = {"account": running.tenants.account_id, "token": running.tenants.secrets["good"], "model": PARROT}
    page = f"""
        const fields = {json.dumps(fields)}, elements = {{}};
        const element = (id) => elements[id] ??= {{ value: fields[id], addEventListener() {{}} }};
        const document = {{ getElementById: element }};
        const location = {{ origin: {json.dumps(running.gateway.url)} }};
        const fetch = () => new Promise(() => {{}});
        {script_of(running)}
        console.log(JSON.stringify([elements["first-curl"].textContent, elements["first-python"].textContent]));
    """
    (tmp_path / "page.js").write_text(page)
    printed = subprocess.run(["node", tmp_path / "page.js"], capture_output=True, check=True, timeout=60).stdout
    curl, python = json.loads(printed)
    assert fields["token"] not in curl + python
    environ = {**os.environ, "TOKEN": fields["token"]}
    curl = curl.replace("export TOKEN=...   # your API token\n", "")
    for command in (["sh", "-euc", curl], [sys.executable, "-c", python]):
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert "".join(WORDS) in done.stdout


def script_of(running: Running) -> str:
    return httpx.get(f"{running.gateway.url}/docs/docs.js").text
