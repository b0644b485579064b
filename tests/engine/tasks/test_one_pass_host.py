"""Items of many calls share batches fairly, and each call ends exactly once, whatever happens to its worker."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engine.processes import child_link
from engine.processes.zygote import Zygote
from engine.protocol.events import Event, Failed, Finished, Result, Started, Usage
from engine.tasks.loading import ModelLoadError
from engine.tasks.one_pass import host as module
from engine.tasks.one_pass.host import Job, OnePassHost
from engine.tasks.work import Refused
from telemetry.child_process import Child
from tests.fakes.one_pass import Number, load_request
from tests.processes import is_running
from tests.waiting import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENTRY = "tests.fakes.one_pass:Doubler"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "model.json").write_text('{"name": "double"}')
    return folder


@pytest_asyncio.fixture(loop_scope="module")
async def host(zygote: Zygote, folder: Path) -> AsyncIterator[OnePassHost]:
    host = await OnePassHost.start(load_request(zygote, folder), ENTRY, max_batch_cost=4)
    yield host
    await host.close()


class Caller:
    """One call and its events."""

    def __init__(self, host: OnePassHost, *items: Number) -> None:
        self.events: list[Event] = []
        self.job: Job = host.submit(items, lambda outputs: Result({"doubled": outputs}), self.events.append)

    @property
    def is_over(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], Finished | Failed)

    @property
    def outputs(self) -> list[int]:
        _, result, _ = self.events
        assert isinstance(result, Result)
        found: list[int] = result.fields["doubled"]
        return found

    async def end(self) -> Event:
        await wait_until(lambda: self.is_over)
        return self.events[-1]


async def test_a_call_gets_its_outputs_in_order_and_usage_counts_its_cost(host: OnePassHost) -> None:
    assert host.info == {"name": "double on cpu"}
    call = Caller(host, *(Number(value, cost=2) for value in range(5)))
    end = await call.end()
    assert call.outputs == [0, 2, 4, 6, 8]
    assert call.events[0] == Started(10)
    assert isinstance(end, Finished)
    assert end.usage.prompt_tokens == 10
    status = host.status()
    assert (status.num_computed_tokens, status.num_steps) == (10, 3)
    assert (status.num_running, status.num_waiting, status.queued_tokens) == (0, 0, 0)


async def test_device_time_is_shared_by_cost(host: OnePassHost) -> None:
    small, large = Caller(host, Number(1, cost=1, seconds=0.05)), Caller(host, Number(1, cost=3))
    usages = [(await call.end()).usage.device_us for call in (small, large)]  # type: ignore[union-attr]
    assert usages[1] == pytest.approx(3 * usages[0], rel=0.01)
    assert sum(usages) == pytest.approx(host.status().busy_us, abs=1)


async def test_calls_that_arrive_together_share_a_batch(host: OnePassHost) -> None:
    calls = [Caller(host, Number(value)) for value in range(4)]
    for value, call in enumerate(calls):
        await call.end()
        assert call.outputs == [2 * value]
    assert host.status().num_steps == 1


async def test_a_call_with_many_items_does_not_delay_a_call_with_one(host: OnePassHost) -> None:
    many = Caller(host, *(Number(value, seconds=0.01) for value in range(40)))
    await wait_until(lambda: host.status().num_running > 0)
    one = Caller(host, Number(7))
    await one.end()
    assert one.outputs == [14]
    assert not many.is_over
    await many.end()
    assert many.outputs == [2 * value for value in range(40)]


async def test_an_item_above_the_budget_of_a_batch_runs_alone(host: OnePassHost) -> None:
    calls = [Caller(host, Number(1, cost=99), Number(2)), Caller(host, Number(3))]
    for call in calls:
        await call.end()
    assert [call.outputs for call in calls] == [[2, 4], [6]]
    assert host.status().num_steps == 2


async def test_a_cancelled_call_leaves_the_queue_and_gets_no_event(host: OnePassHost) -> None:
    call = Caller(host, *(Number(value, seconds=0.02) for value in range(40)))
    await wait_until(lambda: host.status().num_running > 0)
    assert call.job.cancel() == Usage()
    assert host.status().num_waiting == 0
    assert host.status().queued_tokens == 4  # the batch in the worker still counts
    await Caller(host, Number(1)).end()
    assert call.events == []


async def test_too_many_waiting_items_are_refused_as_retryable(
    host: OnePassHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_ITEMS", 3)
    with pytest.raises(Refused) as caught:
        Caller(host, *(Number(value) for value in range(4)))
    assert (caught.value.failure.reason, caught.value.failure.is_retryable) == ("out_of_capacity", True)
    await Caller(host, *(Number(value) for value in range(3))).end()


async def test_a_call_whose_result_cannot_be_rendered_fails_alone(host: OnePassHost) -> None:
    events: list[Event] = []

    def render(_outputs: list[Any]) -> Result:
        raise ValueError("a defect")

    host.submit([Number(1)], render, events.append)
    other = Caller(host, Number(1))
    assert isinstance(await other.end(), Finished)
    (failed,) = events
    assert isinstance(failed, Failed)
    assert (failed.reason, failed.is_retryable) == ("internal", False)


async def test_a_worker_that_dies_fails_its_calls_as_retryable_and_is_reported(zygote: Zygote, folder: Path) -> None:
    exits: list[str] = []
    host = await OnePassHost.start(load_request(zygote, folder, exits.append), ENTRY)
    call = Caller(host, Number(1, seconds=60), Number(2))
    await wait_until(lambda: host.status().num_running > 0)
    os.kill(host.pid, signal.SIGKILL)
    failed = await call.end()
    assert isinstance(failed, Failed)
    assert (failed.reason, failed.is_retryable, failed.num_crashes) == ("internal", True, 1)
    await wait_until(lambda: exits)
    assert "signal 9" in exits[0]
    with pytest.raises(Refused) as caught:
        Caller(host, Number(1))
    assert caught.value.failure.is_retryable
    await host.close()


async def test_a_model_that_cannot_be_loaded_raises_with_the_reason(zygote: Zygote, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"model\.json"):
        await OnePassHost.start(load_request(zygote, tmp_path), ENTRY)
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(ModelLoadError, match="KeyError: 'name'"):
        await OnePassHost.start(load_request(zygote, tmp_path), ENTRY)


async def test_a_cancelled_start_kills_a_worker_that_is_still_loading(
    zygote: Zygote, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_fork = zygote.fork
    pids: list[int] = []

    async def fork(_entry: str, arguments: bytes, name: str) -> Child:
        child = await real_fork("tests.fakes.child:deaf", arguments, name=name)
        pids.append(child.pid)
        return child

    monkeypatch.setattr(zygote, "fork", fork)
    monkeypatch.setattr(child_link, "EXIT_TIMEOUT_S", 3600.0)
    starting = asyncio.create_task(OnePassHost.start(load_request(zygote, folder), ENTRY))
    await wait_until(lambda: pids)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not is_running(pids[0])
