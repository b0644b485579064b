"""The process that forks the workers of one test module."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from engine.processes.zygote import Zygote


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def zygote() -> AsyncIterator[Zygote]:
    zygote = Zygote()
    await zygote.start()
    yield zygote
    await zygote.close()
