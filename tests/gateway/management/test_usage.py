"""The usage routes: sums, calls, latencies, exports, prices, and budgets that reject calls."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import httpx
import pytest

from storage.database import Database
from tenants import accounts
from tests.gateway.process import PARROT
from tests.gateway.site import Running, Site
from tests.waiting import wait_until_blocking


@pytest.fixture(scope="module")
def running(new_site: Callable[..., Site]) -> Running:
    site = new_site()
    site.add_node("n1")
    return Running(site, site.gateway(HEARTH_FREE_NEURONS_PER_DAY="1", HEARTH_QUOTA_TIMEOUT_S="10").start())


@pytest.fixture
def keeper(running: Running) -> Iterator[httpx.Client]:
    for of_other_tests in ("hearth_calls_in_flight", "hearth_usage_backlog"):
        wait_until_blocking(lambda name=of_other_tests: running.gateway.metric(name) == 0)
    base = f"{running.account_url}/ai/"
    with httpx.Client(headers=running.headers("keeper"), timeout=60, base_url=base) as client:
        yield client


def run(running: Running, prompt: str = "hello there", **headers: str) -> httpx.Response:
    url = f"{running.account_url}/ai/run/{PARROT}"
    return httpx.post(url, json={"prompt": prompt}, headers=running.headers() | headers, timeout=60)


def sums(keeper: httpx.Client, **query: str) -> list[dict]:
    return keeper.get("usage", params=query).raise_for_status().json()["result"]["sums"]


def num_calls(keeper: httpx.Client) -> int:
    return sum(row["num_calls"] for row in sums(keeper))


def num_useful(keeper: httpx.Client) -> int:
    return sum(row["num_useful"] for row in sums(keeper))


def test_calls_are_summed_with_their_cost(running: Running, keeper: httpx.Client):
    def of_parrot() -> dict:
        rows = sums(keeper, by="model", model=PARROT)
        return rows[0] if rows else {"num_calls": 0, "num_useful": 0, "bytes_in": 0}

    before, first = num_calls(keeper), of_parrot()
    responses = [run(running) for _ in range(3)]
    assert {response.status_code for response in responses} == {200}
    wait_until_blocking(lambda: num_calls(keeper) == before + 3)
    row = of_parrot()
    assert row["num_calls"] == first["num_calls"] + 3
    assert row["num_useful"] == first["num_useful"] + 3
    assert row["micro_neurons"] > 0
    assert row["usd"] == pytest.approx(row["neurons"] * 0.011 / 1000, abs=1e-6)
    assert row["bytes_in"] == first["bytes_in"] + 3 * len(b'{"prompt":"hello there"}')
    for by in ("day", "hour", "minute", "token", "pop", "status", "task"):
        assert sum(row["num_calls"] for row in sums(keeper, by=by)) == before + 3
    assert sums(keeper, status="error") == []
    assert sums(keeper, until="2020-01-01", since="2019-01-01") == []


def test_response_requested_again_is_not_useful(running: Running, keeper: httpx.Client):
    calls, replies = num_calls(keeper), num_useful(keeper)
    assert run(running, "once more", **{"x-stainless-retry-count": "0"}).status_code == 200
    wait_until_blocking(lambda: num_calls(keeper) == calls + 1)
    assert num_useful(keeper) == replies + 1
    assert run(running, "once more", **{"x-stainless-retry-count": "1"}).status_code == 200
    wait_until_blocking(lambda: num_calls(keeper) == calls + 2)
    assert num_useful(keeper) == replies + 1


def test_calls_latencies_and_exports(running: Running, keeper: httpx.Client):
    request_id = run(running).headers["cf-ai-req-id"]

    def newest() -> dict:
        return keeper.get("usage/calls", params={"limit": 1}).json()["result"][0]

    wait_until_blocking(lambda: newest()["request_id"] == request_id)
    assert newest()["model"] == PARROT
    earlier = keeper.get("usage/calls", params={"before": request_id}).json()["result"]
    assert request_id not in {call["request_id"] for call in earlier}
    [row] = keeper.get("usage/latency").json()["result"]
    assert 0 < row["total_ms"]["p50"] <= row["total_ms"]["p95"] <= row["total_ms"]["p99"]
    text = keeper.get("usage/export").raise_for_status()
    assert "attachment" in text.headers["content-disposition"]
    lines = list(csv.DictReader(io.StringIO(text.text)))
    assert lines[-1]["request_id"] == request_id


def test_parquet_export_has_the_rows_of_the_csv_export(running: Running, keeper: httpx.Client):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed (pip install 'hearth[parquet]')")
    run(running)
    lines = list(csv.DictReader(io.StringIO(keeper.get("usage/export").text)))
    content = keeper.get("usage/export", params={"format": "parquet"}).raise_for_status().content
    rows = parquet.read_table(io.BytesIO(content)).to_pylist()
    assert [row["request_id"] for row in rows] == [line["request_id"] for line in lines]
    assert [str(row["micro_neurons"]) for row in rows] == [line["micro_neurons"] for line in lines]


@pytest.mark.skipif(find_spec("pyarrow") is not None, reason="pyarrow is installed")
def test_parquet_export_without_pyarrow_explains_how_to_install_it(keeper: httpx.Client):
    response = keeper.get("usage/export", params={"format": "parquet"})
    assert response.status_code == 400
    assert "pip install 'hearth[parquet]'" in response.json()["errors"][0]["message"]


def test_price_is_estimated_without_running_the_call(running: Running):
    before = running.site.num_executes
    url = f"{running.account_url}/ai/price/{PARROT}"
    body = httpx.post(url, json={"prompt": "x" * 400, "max_tokens": 10}, headers=running.headers()).json()["result"]
    assert (body["model"], body["prompt_tokens"], body["max_completion_tokens"]) == (PARROT, 100, 10)
    assert body["at_most"]["neurons"] == pytest.approx((100 * 100 + 10 * 1000) / 1e6)
    assert httpx.post(url, json={"prompt": 7}, headers=running.headers()).status_code == 400
    assert running.site.num_executes == before


def test_forecast_is_at_least_the_usage_so_far(keeper: httpx.Client):
    body = keeper.get("usage/forecast").json()["result"]
    assert body["expected"]["neurons"] >= body["used"]["neurons"]
    assert 0 <= body["days_left"] <= 31


def test_exhausted_budget_rejects_calls_until_it_is_deleted(running: Running, keeper: httpx.Client):
    put = keeper.put("usage/budgets", json={"amount": 0.000001, "unit": "neurons", "alert_percents": [100]})
    assert put.json()["result"]["refuses"] is True
    try:
        refused = run(running)
        assert refused.status_code == 429
        assert refused.json()["errors"][0]["code"] == 3036
        assert "budget" in refused.json()["errors"][0]["message"]
        assert 1 <= int(refused.headers["retry-after"]) <= 31 * 86_400
        assert keeper.get("usage/budgets").json()["result"] == [put.json()["result"]]
    finally:
        assert keeper.delete("usage/budgets", params={"unit": "neurons"}).status_code == 200
    assert run(running).status_code == 200
    assert keeper.delete("usage/budgets", params={"unit": "neurons"}).status_code == 404


def test_token_budget_rejects_only_that_token(running: Running, keeper: httpx.Client):
    token_id = running.tenants.token_ids["write"]
    budget = {"amount": 0.000001, "unit": "usd", "api_token_id": token_id}
    assert keeper.put("usage/budgets", json=budget).json()["result"]["api_token_id"] == token_id

    def ask(token: str) -> int:
        return run(running, **running.headers(token)).status_code

    try:
        assert ask("write") == 429
        assert ask("good") == 200
    finally:
        query = {"unit": "usd", "api_token_id": token_id}
        assert keeper.delete("usage/budgets", params=query).status_code == 200
    assert ask("write") == 200


def test_exhausted_free_plan_returns_the_contract_error(running: Running):
    async def be_free() -> None:
        database = Database.connect(running.site.database_url)
        await accounts.set_terms(database, running.tenants.other_account_id, plan="free")
        await database.close()

    asyncio.run(be_free())
    url = f"{running.gateway.base_url}/accounts/{running.tenants.other_account_id}/ai/run/{PARROT}"

    def ask(max_tokens: int) -> httpx.Response:
        headers = running.headers("other")
        return httpx.post(url, json={"prompt": "hello", "max_tokens": max_tokens}, headers=headers, timeout=60)

    assert ask(1).status_code == 200
    refused = wait_until_blocking(lambda: (response := ask(2000)).status_code == 429 and response)
    [error] = refused.json()["errors"]
    assert error["code"] == 3036
    assert "you have used up your daily free allocation of 1 neurons" in error["message"]
    assert 1 <= int(refused.headers["retry-after"]) <= 86_400
    assert ask(1).status_code == 200, "what is left is still there"

    prompts = {"model": PARROT, "prompt": ["one", "two"], "max_tokens": 600}
    listed = f"{running.gateway.base_url}/accounts/{running.tenants.other_account_id}/ai/v1/completions"
    dear = httpx.post(listed, json=prompts, headers=running.headers("other"), timeout=60)
    assert dear.status_code == 429, "what the answers to all prompts may cost is reserved"

    queued = {"params": {"queueRequest": "true"}, "headers": running.headers("other"), "timeout": 20}
    requests = [{"prompt": "hello", "max_tokens": 2000}, {"prompt": "hello", "max_tokens": 1}]
    batch = httpx.post(url, json={"requests": requests}, **queued).json()["result"]
    poll = {"request_id": batch["request_id"]}

    def finished() -> list | None:
        return httpx.post(url, json=poll, **queued).json()["result"].get("responses")

    too_dear, small = wait_until_blocking(finished)
    assert (too_dear["success"], small["success"]) == (False, True), "queued requests have the same allowance"
    assert "daily free allocation" in str(too_dear)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"amount": "7"},
        {"amount": -1},
        {"amount": 1, "unit": "eur"},
        {"amount": 1, "api_token_id": "x"},
        {"amount": 1, "api_token_id": "0" * 32},
        {"amount": 1, "refuses": 1},
        {"amount": 1, "alert_percents": [True]},
    ],
)
def test_invalid_budget_is_rejected(keeper: httpx.Client, body: dict):
    assert keeper.put("usage/budgets", json=body).json()["errors"][0]["code"] == 1004


@pytest.mark.parametrize("query", ["by=account", "since=yesterday", "since=2026-02-02&until=2026-02-01"])
def test_invalid_query_is_rejected(keeper: httpx.Client, query: str):
    assert keeper.get(f"usage?{query}").json()["errors"][0]["code"] == 3003


def test_token_that_may_only_run_models_cannot_read_usage(running: Running):
    for path in ("", "/calls", "/export", "/budgets", "/alerts", "/forecast", "/latency"):
        assert httpx.get(f"{running.account_url}/ai/usage{path}", headers=running.headers()).status_code == 403
    response = httpx.put(
        f"{running.account_url}/ai/usage/budgets", json={"amount": 1}, headers=running.headers("scopeless")
    )
    assert response.status_code == 403


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("usage?model=%00", (400, 3003)),
        ("usage/export?status=a%00b", (400, 3003)),
        ("usage/calls?before=%00", (400, 3003)),
        ("../audit_logs?action.type=%00", (400, 3003)),
        ("finetunes/%00", (403, 10000)),
    ],
)
def test_null_character_never_reaches_the_database(keeper: httpx.Client, path: str, expected: tuple[int, int]):
    response = keeper.get(path)
    assert (response.status_code, response.json()["errors"][0]["code"]) == expected


def test_names_with_a_null_character_are_rejected(running: Running):
    response = httpx.delete(f"{running.account_url}/ai/finetunes/%00", headers=running.headers("write"))
    assert (response.status_code, response.json()["errors"][0]["code"]) == (404, 7003)
