"""CORS: pages of the origins in the setting may call the API, other pages and caches get nothing."""

from collections.abc import Iterator

import httpx
import pytest

from tests.fakes.node import WORDS
from tests.gateway.process import PARROT, GatewayProcess
from tests.gateway.site import Running

ORIGIN = "https://app.example"


@pytest.fixture(scope="module", params=["*", f"https://other.example,{ORIGIN}"])
def opened(request: pytest.FixtureRequest, running: Running) -> Iterator[tuple[GatewayProcess, str]]:
    """Yield a gateway that allows pages of ORIGIN, and the origin that it names in its responses to them."""
    with running.beside(HEARTH_CORS_ORIGINS=request.param) as gateway:
        yield gateway, "*" if request.param == "*" else ORIGIN


def test_pages_of_allowed_origins_may_call_the_api(
    client: httpx.Client, running: Running, opened: tuple[GatewayProcess, str]
):
    gateway, allowed = opened
    origin = {"origin": ORIGIN}
    request = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    url = f"{gateway.base_url}/accounts/{running.tenants.account_id}/ai/run/{PARROT}"
    preflight = httpx.options(url, headers=origin | request)
    assert (preflight.status_code, preflight.content) == (204, b"")
    assert preflight.headers["access-control-allow-origin"] == allowed
    assert preflight.headers["access-control-allow-headers"] == "authorization,content-type"
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in preflight.headers
    response = client.post(url, json={"prompt": "x"}, headers=origin)
    assert response.json()["result"]["response"] == "".join(WORDS)
    assert response.headers["access-control-allow-origin"] == allowed
    exposed = response.headers["access-control-expose-headers"].split(", ")
    assert {"allow", "cf-ai-req-id", "request-id", "x-request-id"} <= set(exposed)
    for refused in (httpx.post(url, headers=origin), httpx.post(f"{gateway.url}/nowhere", headers=origin)):
        assert refused.headers["access-control-allow-origin"] == allowed
    with client.stream("POST", url, json={"prompt": "x", "stream": True}, headers=origin) as stream:
        assert stream.headers["access-control-allow-origin"] == allowed


def test_every_response_varies_by_origin(opened: tuple[GatewayProcess, str]):
    """A cache must not give a page the response to another origin, or to a request without an origin."""
    gateway, _ = opened
    for headers in ({}, {"origin": ORIGIN}, {"origin": "https://evil.example"}):
        for path in ("/healthz", "/nowhere", "/openapi.json"):
            assert httpx.get(gateway.url + path, headers=headers).headers["vary"] == "origin"


@pytest.mark.parametrize("origins", [None, "", "https://app.example.org,http://app.example"])
def test_other_origins_get_no_permission(running: Running, origins: str | None):
    """Also if the setting is empty or missing."""
    environ = {} if origins is None else {"HEARTH_CORS_ORIGINS": origins}
    with running.beside(**environ) as gateway:
        url = f"{gateway.base_url}/accounts/{running.tenants.account_id}/ai/run/{PARROT}"
        request = {"origin": ORIGIN, "access-control-request-method": "POST"}
        preflight, response = httpx.options(url, headers=request), httpx.post(url, headers=request)
        assert preflight.status_code == 405
        for refused in (preflight, response):
            assert not [name for name in refused.headers if name.startswith("access-control")]


def test_response_without_an_origin_has_no_cors_headers(
    client: httpx.Client, running: Running, opened: tuple[GatewayProcess, str]
):
    url = f"{opened[0].base_url}/accounts/{running.tenants.account_id}/ai/run/{PARROT}"
    response = client.post(url, json={"prompt": "x"})
    assert not [name for name in response.headers if name.startswith("access-control")]
    options = httpx.options(url, headers={"origin": ORIGIN})
    assert options.status_code == 405


@pytest.mark.parametrize("wanted", ["x" * 3000, "a\tb", "evil: x"])
def test_malformed_requested_headers_are_not_echoed(opened: tuple[GatewayProcess, str], wanted: str):
    headers = {"origin": ORIGIN, "access-control-request-method": "POST", "access-control-request-headers": wanted}
    response = httpx.options(f"{opened[0].url}/v1/models", headers=headers)
    assert response.headers["access-control-allow-headers"] == "authorization"
