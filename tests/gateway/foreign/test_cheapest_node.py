"""Calls go to the cheapest node that is fast enough: a node of the platform, or a foreign engine."""

from __future__ import annotations

import httpx
import pytest

from tests.gateway.foreign.conftest import EngineSite
from tests.gateway.process import PARROT
from tests.gateway.site import Running
from tests.waiting import wait_until_blocking

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def both(engine_site: EngineSite) -> EngineSite:
    """A platform whose node and engine serve the same model; the engine costs 1 and 2 dollars per million tokens."""
    engine_site.site.add_node("n1")
    model = {"name": "m1", "input_usd": 1, "output_usd": 2}
    fields = {"url": engine_site.server.url, "models": {PARROT: model}, "key": "k" * 20}
    engine_site.manage("PUT", "/engines/one", fields).raise_for_status()
    return engine_site


@pytest.mark.parametrize(
    ("environ", "node_id"),
    [
        ({}, "n1"),
        ({"HEARTH_POP_PRICES": "local=0.5/0.5"}, "n1"),
        ({"HEARTH_POP_PRICES": "local=3/3"}, "engine:one"),
        ({"HEARTH_POP_PRICES": "elsewhere=3/3"}, "n1"),
    ],
)
def test_call_runs_on_the_cheapest_node_and_explains_the_cost(both: EngineSite, environ: dict[str, str], node_id: str):
    gateway = both.site.gateway(**environ).start()
    with Running(both.site, gateway).signed_in() as operator:
        path = f"accounts/{both.site.tenants.account_id}/ai"

        def ranked() -> list[dict]:
            found = operator.get(f"{path}/placement/explain", params={"model": PARROT}).json()["result"]
            return found["ranked"]

        wait_until_blocking(lambda: len(ranked()) == 2)
        assert ranked()[0]["node_id"] == node_id
        assert all("about $" in each["reason"] for each in ranked())
        url = f"{gateway.base_url}/{path}/run/{PARROT}"
        response = httpx.post(url, headers=both.headers, json={"prompt": "Hi", "max_tokens": 8}, timeout=60)
    assert response.status_code == 200
    assert both.site.usage_row(response.headers["cf-ai-req-id"])["node_id"] == node_id
    gateway.stop()
