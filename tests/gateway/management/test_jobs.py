"""Batches and webhook deliveries of an account: list, progress, cancellation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.fakes.receiver import Receiver
from tests.gateway.inference.test_text_generation import script
from tests.gateway.jobs.test_background import start_run
from tests.gateway.jobs.test_batches import polled, queue
from tests.gateway.process import PARROT
from tests.gateway.site import Running
from tests.waiting import wait_until_blocking


@pytest.fixture
def keeper(running: Running) -> Iterator[httpx.Client]:
    base = f"{running.account_url}/ai/"
    with httpx.Client(headers=running.headers("keeper"), timeout=60, base_url=base) as client:
        yield client


def result(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()["result"]


def test_batch_is_listed_with_its_progress(client: httpx.Client, running: Running, keeper: httpx.Client):
    batch_id = queue(client, running, [{"prompt": "x"}, {"prompt": "x", "temperature": 9}])
    polled(client, running, batch_id)
    batch = result(keeper.get(f"batches/{batch_id}"))
    assert (batch["state"], batch["kind"], batch["model"]) == ("finished", "run", PARROT)
    assert batch["progress"] == {"done": 2, "failed": 1, "total": 2}
    assert batch["created_at"] <= batch["started_at"] <= batch["finished_at"] < batch["expires_at"]
    page = keeper.get("batches", params={"per_page": 1}).json()
    assert [row["id"] for row in page["result"]] == [batch_id], "the newest batch is first"
    assert page["result_info"]["total_count"] >= 1
    other = f"{running.gateway.base_url}/accounts/{running.tenants.other_account_id}/ai/batches/{batch_id}"
    with running.signed_in("viewer") as browser:
        assert browser.get(other).status_code == 404, "a batch belongs to one account"
        assert result(browser.get(f"{running.account_url}/ai/batches/{batch_id}")) == batch


def test_cancelled_batch_ends_its_calls_and_reports_the_rest_as_failed(
    client: httpx.Client, running: Running, keeper: httpx.Client
):
    slow = script(repeat=100, gap_s=0.05)
    batch_id = queue(client, running, [{"prompt": slow} for _ in range(3)])
    wait_until_blocking(lambda: result(keeper.get(f"batches/{batch_id}"))["state"] == "running")
    url = f"{running.account_url}/ai/batches/{batch_id}/cancel"
    assert result(client.post(url))["state"] in ("cancelling", "cancelled")
    batch = wait_until_blocking(lambda: (row := result(keeper.get(f"batches/{batch_id}")))["finished_at"] and row)
    assert (batch["state"], batch["progress"]) == ("cancelled", {"done": 3, "failed": 3, "total": 3})
    items = polled(client, running, batch_id)["responses"]
    assert {item["errors"][0]["code"] for item in items} == {3008}
    assert result(client.post(url)) == batch, "a second cancellation changes nothing"


def test_only_credentials_that_may_run_models_cancel(running: Running, keeper: httpx.Client):
    assert keeper.post(f"batches/{'0' * 36}/cancel").status_code == 403
    headers = running.headers("good")
    assert httpx.post(f"{running.account_url}/ai/batches/{'0' * 36}/cancel", headers=headers).status_code == 404


def deliveries(keeper: httpx.Client, batch_id: str) -> dict[str, Any] | None:
    rows = result(keeper.get("webhooks/deliveries", params={"per_page": 1000}))
    return next((row for row in rows if row["batch_id"] == batch_id), None)


def test_delivery_is_shown_from_its_first_attempt_to_its_end(
    client: httpx.Client, running: Running, keeper: httpx.Client, receiver: Receiver
):
    receiver.statuses += [500]
    batch_id = start_run(client, running, PARROT, {"prompt": "x"}, webhookUrl=receiver.url)
    failed = wait_until_blocking(lambda: (row := deliveries(keeper, batch_id)) and row["outcome"] and row)
    assert failed["host"] == "127.0.0.1"
    if failed["state"] == "retrying":  # the next attempt follows after a second
        assert (failed["outcome"], failed["num_attempts"]) == ("refused", 1)
        assert failed["next_attempt_at"] > failed["last_attempt_at"]
    done = wait_until_blocking(lambda: (row := deliveries(keeper, batch_id)) and row["state"] == "delivered" and row)
    assert (done["outcome"], done["num_attempts"], done["next_attempt_at"]) == ("delivered", 2, None)
    assert receiver.url not in str(done), "the URL may contain a secret"
