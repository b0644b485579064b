"""A zygote shared by the tests of one module: importing torch once is enough."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from engine.processes.zygote import RANK_MODULES, Zygote


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def zygote() -> AsyncIterator[Zygote]:
    """A zygote for modules whose tests share one event loop: `pytestmark =
    pytest.mark.asyncio(loop_scope="module")`."""
    zygote = Zygote(preload=(*RANK_MODULES, "tests.fakes.rank", "tests.fakes.child"))
    await zygote.start()
    yield zygote
    await zygote.close()
