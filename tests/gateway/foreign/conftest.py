"""Fixtures: a gateway without nodes of its own, and foreign engines registered over the management API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.openai_server import OpenAiServer
from tests.gateway.process import GatewayProcess
from tests.gateway.site import Running, Site, making_sites
from tests.waiting import wait_until_blocking

MODEL = "@cf/far/model"


class EngineSite:
    """A site, its gateway, and one registered engine."""

    def __init__(self, site: Site, gateway: GatewayProcess, server: OpenAiServer, operator: httpx.Client) -> None:
        self.site, self.gateway, self.server, self.operator = site, gateway, server, operator
        account = f"/client/v4/accounts/{site.tenants.account_id}/ai"
        self.url = f"{gateway.url}{account}/v1"
        self.run_url = f"{gateway.url}{account}/run"
        self.headers = {"authorization": f"Bearer {site.tenants.secrets['good']}"}
        self.client = httpx.Client(headers=self.headers, timeout=60)

    def manage(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        return self.operator.request(method, path, json=body)

    def register(self, name: str = "one", **fields: Any) -> httpx.Response:
        model = {"name": "m1", "context_window": 4096, "input_usd": 0.11, "output_usd": 1.1}
        return self.manage("PUT", f"/engines/{name}", {"url": self.server.url, "models": {MODEL: model}, **fields})

    def wait_reachable(self, name: str = "one") -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            engines = {each["name"]: each for each in self.manage("GET", "/engines").json()["result"]}
            return engines[name] if name in engines and engines[name]["is_reachable"] else None

        return wait_until_blocking(found)

    def chat(self, text: str = "Hello there", **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 16, **fields}
        return self.client.post(f"{self.url}/chat/completions", json=body)

    def warnings(self) -> list[dict[str, Any]]:
        return [line for line in self.gateway.log_lines() if line["message"] == "foreign engine failed"]


@pytest.fixture(scope="module")
def engine_site(migrated_sqlite_file: Path) -> Iterator[EngineSite]:
    server = OpenAiServer(api_key="k" * 20).start()
    for new_site in making_sites(migrated_sqlite_file):
        site = new_site()
        gateway = site.gateway(
            HEARTH_FIRST_EVENT_TIMEOUT_S="1",
            HEARTH_STALL_TIMEOUT_S="2",
            HEARTH_CALL_TIMEOUT_S="30",
            HEARTH_LOCATIONS="local=PT",
            HEARTH_RETRY_BURST="100",
            HEARTH_EJECT_AFTER_FAILURES="1000",
            HEARTH_EJECT_FAILURE_RATIO="1",
        )
        gateway.launch()
        gateway.wait_listening()
        with Running(site, gateway).signed_in() as operator:
            made = EngineSite(site, gateway, server, operator)
            response = made.register(key="k" * 20)
            assert response.status_code == 200, gateway.log_text()
            made.wait_reachable()
            yield made
            made.client.close()
    server.stop()


@pytest.fixture
def site(engine_site: EngineSite) -> Iterator[EngineSite]:
    engine_site.server.behavior = "words"
    engine_site.server.resume.clear()
    engine_site.server.bodies.clear()
    yield engine_site
    engine_site.server.resume.set()


@pytest.fixture
def new_server() -> Iterator[Callable[..., OpenAiServer]]:
    made: list[OpenAiServer] = []

    def make(**fields: Any) -> OpenAiServer:
        made.append(OpenAiServer(**fields).start())
        return made[-1]

    yield make
    for server in made:
        server.stop()
