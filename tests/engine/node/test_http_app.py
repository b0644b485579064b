"""The node's HTTP endpoint: events as JSON lines with a service token; health, readiness, status and metrics
without."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.node.http_app import HttpApp
from engine.protocol.events import Failed, Finished, Started, Token, Usage
from engine.protocol.status import NodeStatus
from engine.serving.addresses import parse_http_address
from engine.serving.calls import Calls
from engine.serving.http_server import HttpServer
from engine.serving.model_store import ModelUnavailable
from engine.serving.replicas import Replicas
from engine.tasks.loading import ModelDeviceLost
from engine.tasks.work import Refused
from tests.fakes.task_models import FakeLoaders, FakeStore
from tests.service_keys import service_keys
from tests.waiting import wait_until


def bearer() -> dict[str, str]:
    """Return headers with a new token. A token can be used once."""
    return {"authorization": f"Bearer {service_keys().identity('gateway/gateway').sign('node/n1')}"}


ASK = {"model": "a", "task": {"type": "text-generation", "prompt": "Hi"}}


class AppUnderTest:
    def __init__(self) -> None:
        self.loaders = FakeLoaders()
        self.store = FakeStore()
        self.replicas = Replicas(self.store, self.loaders, 4)
        self.calls = Calls(self.replicas, 8)
        self.is_ready = False
        identity = service_keys().identity("node/n1")
        app = HttpApp(self.calls, self.replicas, self.store, identity, self.status, lambda: self.is_ready)
        self.server = HttpServer(app)

    def status(self) -> NodeStatus:
        return NodeStatus(node_id="n", pop="p", address="unix:///x", replicas=self.replicas.statuses())

    def runs(self) -> list[Any]:
        return self.loaders.models["a"].runs if "a" in self.loaders.models else []


@pytest.fixture
async def app(short_tmp_path: Path) -> AsyncIterator[AppUnderTest]:
    app = AppUnderTest()
    await app.server.open(parse_http_address(f"unix://{short_tmp_path}/http.sock"))
    yield app
    await app.server.close()
    await app.replicas.close()


@pytest.fixture
async def http(app: AppUnderTest, short_tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.AsyncHTTPTransport(uds=f"{short_tmp_path}/http.sock")
    async with httpx.AsyncClient(transport=transport, base_url="http://node", timeout=60) as client:
        yield client


async def test_events_are_streamed_as_lines(app: AppUnderTest, http: httpx.AsyncClient) -> None:
    async with http.stream("POST", "/execute", json=ASK, headers=bearer()) as response:
        assert response.headers["content-type"] == "application/x-ndjson"
        await wait_until(app.runs)
        lines = response.aiter_lines()
        app.runs()[0].say(Started(2), Token("\u2615"))
        assert json.loads(await anext(lines)) == {"type": "started", "prompt_tokens": 2}
        assert json.loads(await anext(lines)) == {"type": "token", "text": "\u2615"}
        app.runs()[0].say(Finished("stop", Usage(prompt_tokens=2)))
        assert json.loads(await anext(lines)) == {"type": "finished", "reason": "stop", "usage": {"prompt_tokens": 2}}
        assert [line async for line in lines] == []


async def test_calls_share_a_namespace_only_if_they_name_it(app: AppUnderTest, http: httpx.AsyncClient) -> None:
    for named in ({}, {}, {"namespace": "ab" * 32}):
        before = len(app.runs())
        async with http.stream("POST", "/execute", json={**ASK, **named}, headers=bearer()) as response:
            await wait_until(lambda before=before: len(app.runs()) > before)
            app.runs()[-1].say(Failed("internal"))
            await response.aread()
    namespaces = [run.work.namespace for run in app.runs()]
    assert len(set(namespaces)) == 3
    assert namespaces[2] == bytes.fromhex("ab" * 32)


async def test_disconnected_client_cancels_its_call(app: AppUnderTest, http: httpx.AsyncClient) -> None:
    async with http.stream("POST", "/execute", json=ASK, headers=bearer()):
        await wait_until(app.runs)
    await wait_until(lambda: app.runs()[0].is_cancelled)
    assert len(app.calls) == 0


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer x"}, {"authorization": "a.b.c"}, {"authorization": "Basic x"}]
)
async def test_request_without_token_is_rejected(
    app: AppUnderTest, http: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    response = await http.post("/execute", json=ASK, headers=headers)
    assert response.status_code == 401
    assert app.loaders.num_loads == 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"model":"a"}',
        b'{"model":1,"task":{"type":"text-generation"}}',
        b'{"model":"a","task":{"type":"magic"}}',
        b'{"model":"a","task":{"type":"text-generation","prompt":"x"},"namespace":"abc"}',
        b'{"model":"a","task":{"type":"text-generation","prompt":"x"},"namespace":"abcd"}',
        b'{"task":' * 5000,
    ],
)
async def test_malformed_body_is_rejected_with_400(app: AppUnderTest, http: httpx.AsyncClient, body: bytes) -> None:
    response = await http.post("/execute", content=body, headers=bearer())
    assert response.status_code == 400
    assert response.json()["error"]
    assert app.loaders.num_loads == 0


async def test_unknown_model_is_rejected_with_404(app: AppUnderTest, http: httpx.AsyncClient) -> None:
    async def unknown(_name: str) -> str:
        raise ModelUnavailable("x is not published")

    app.store.current_revision = unknown
    assert (await http.post("/execute", json=ASK, headers=bearer())).status_code == 404


async def test_body_over_the_limit_is_rejected_with_413(
    app: AppUnderTest, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.node.http_app.MAX_BODY_BYTES", 1000)
    response = await http.post("/execute", content=b"x" * 2000, headers=bearer())
    assert response.status_code == 413


async def test_readiness_and_health_are_separate(app: AppUnderTest, http: httpx.AsyncClient) -> None:
    assert (await http.get("/healthz")).status_code == 200
    assert (await http.get("/readyz")).status_code == 503
    app.is_ready = True
    assert (await http.get("/readyz")).status_code == 200


async def test_readiness_names_a_lost_device(app: AppUnderTest, http: httpx.AsyncClient) -> None:
    app.loaders.error = ModelDeviceLost("cuda:0 cannot create a context")
    with pytest.raises(Refused):
        await app.replicas.acquire("a", "r")
    response = await http.get("/readyz")
    assert (response.status_code, response.json()) == (
        503,
        {"ready": False, "reason": "cuda:0 cannot create a context"},
    )
    (replica,) = (await http.get("/status")).json()["replicas"]
    assert (replica["state"], replica["detail"]) == ("failed", "cuda:0 cannot create a context")


async def test_status_and_metrics_list_loaded_models(app: AppUnderTest, http: httpx.AsyncClient) -> None:
    app.replicas.release(await app.replicas.acquire("a", "r"))
    assert (await http.get("/status")).json()["replicas"][0]["state"] == "ready"
    text = (await http.get("/metrics")).text
    assert 'hearth_replica_running{model="a"} 0.0' in text
    assert "hearth_node_calls 0.0" in text


async def test_model_is_loaded_and_unloaded_on_request(app: AppUnderTest, http: httpx.AsyncClient) -> None:
    body = {"model": "a"}
    assert (await http.post("/load", json=body)).status_code == 401
    assert (await http.post("/unload", json=body)).status_code == 401
    assert (await http.post("/load", json=body, headers=bearer())).status_code == 200
    assert app.replicas.is_model_ready("a")
    response = await http.post("/unload", json=body, headers=bearer())
    assert (response.status_code, app.replicas.statuses()) == (200, ())
    response = await http.post("/unload", json=body, headers=bearer())
    assert (response.status_code, response.json()) == (404, {"error": "a is not loaded"})
    app.store.unknown.add("b")
    response = await http.post("/load", json={"model": "b"}, headers=bearer())
    assert (response.status_code, response.json()) == (404, {"error": "b is not published"})
    assert (await http.post("/load", content=b"{}", headers=bearer())).status_code == 400


async def test_model_in_use_is_unloaded_only_on_request_to_wait(app: AppUnderTest, http: httpx.AsyncClient) -> None:
    async with http.stream("POST", "/execute", json=ASK, headers=bearer()) as call:
        await wait_until(app.runs)
        response = await http.post("/unload", json={"model": "a"}, headers=bearer())
        assert (response.status_code, response.json()) == (409, {"error": "1 calls use a"})
        assert app.replicas.is_model_ready("a")
        body = {"model": "a", "waits": True}
        unloading = asyncio.create_task(http.post("/unload", json=body, headers=bearer()))
        await wait_until(lambda: app.replicas.statuses()[0].state == "draining")
        app.runs()[0].say(Finished("stop", Usage(prompt_tokens=2)))
        await call.aread()
    assert (await unloading).status_code == 200
    assert app.loaders.models["a"].is_closed


@pytest.mark.parametrize(("method", "path"), [("GET", "/"), ("GET", "/execute"), ("POST", "/status")])
async def test_other_routes_return_404(http: httpx.AsyncClient, method: str, path: str) -> None:
    assert (await http.request(method, path)).status_code == 404
