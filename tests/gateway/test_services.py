"""Background jobs of the gateway: failed jobs are restarted, cancelled jobs end."""

import asyncio

import pytest

from gateway import services
from gateway.services import keep_running


async def test_failed_background_job_is_restarted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(services, "RESTART_PAUSE_S", 0)
    ends: list[BaseException] = [asyncio.CancelledError(), ValueError("x"), asyncio.CancelledError()]

    async def job() -> None:
        await asyncio.sleep(0)
        if ends:
            raise ends.pop()

    await keep_running(job)
    assert not ends


@pytest.mark.parametrize("last_words", [asyncio.CancelledError, ValueError])
async def test_cancelled_background_job_ends(last_words: type[BaseException]):
    has_begun = asyncio.Event()

    async def job() -> None:
        has_begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise last_words from None

    task = asyncio.create_task(keep_running(job))
    await has_begun.wait()
    task.cancel()
    with pytest.raises(last_words):
        await task
