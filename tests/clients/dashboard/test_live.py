"""Screens that change by themselves while they are open: a publication, a killed node, a restarted gateway."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from storage.objects import Objects
from tests.catalog.cards import write_model_folder
from tests.clients.dashboard.conftest import Dashboard
from tests.platform import Platform

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]

MODEL_BYTES = 48 << 20
RESTART_MS = 180_000  # a node loads torch and its model


@pytest.fixture(scope="module")
def own_dashboard(tmp_path_factory: pytest.TempPathFactory, built_dashboard: None) -> Iterator[Dashboard]:
    """The dashboard of a platform whose processes the tests may kill."""
    timeouts = {"HEARTH_FIRST_EVENT_TIMEOUT_S": "60", "HEARTH_STALL_TIMEOUT_S": "60"}
    running = Platform(tmp_path_factory.mktemp("live"), environ=timeouts).start()
    yield Dashboard(running)
    running.stop()


@contextmanager
def no_restarts(platform: Platform) -> Iterator[None]:
    """Suspend `hearth up`, which would start a killed process again before the page shows its absence."""
    os.kill(platform.dev["pid"], signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(platform.dev["pid"], signal.SIGCONT)


def test_publication_shows_its_progress_and_then_the_model(signed_in: Page, dashboard: Dashboard, tmp_path: Path):
    page, platform = signed_in, dashboard.platform

    async def upload() -> None:
        objects = Objects.connect(platform.dev["objects_url"])
        for path in write_model_folder(tmp_path / "model", weight_bytes=MODEL_BYTES).iterdir():
            await objects.put_file(f"uploads/large/{path.name}", path)
        await objects.close()

    with ThreadPoolExecutor() as thread:  # Playwright's event loop runs in this one
        thread.submit(lambda: asyncio.run(upload())).result()
    page.goto(dashboard.url("models"))
    page.get_by_role("button", name="Publish a model").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("From the object store").click()
    dialog.get_by_label("Folder").fill("uploads/large")
    dialog.get_by_label("Model id").fill("@cf/acme/large")
    dialog.get_by_role("button", name="Publish", exact=True).click()
    row = page.get_by_role("row").filter(has_text="@cf/acme/large")
    row.get_by_text(re.compile("^(waiting|queued|running|done)$", re.IGNORECASE)).wait_for()
    row.get_by_text(re.compile("^done$", re.IGNORECASE)).wait_for()
    row.get_by_role("link", name="@cf/acme/large").click()
    page.get_by_role("heading", name="@cf/acme/large").or_(page.get_by_role("heading", name="large")).first.wait_for()


def test_killed_node_leaves_the_fleet_screen_and_comes_back(page: Page, own_dashboard: Dashboard):
    platform = own_dashboard.platform
    own_dashboard.sign_in(page)
    page.goto(own_dashboard.url("fleet"))
    row = page.get_by_role("row").filter(has_text="local-2")
    row.get_by_text("ready", exact=True).wait_for()
    with no_restarts(platform):
        os.kill(platform.node_pid("local-2"), signal.SIGKILL)
        row.get_by_text("gone", exact=True).wait_for(timeout=RESTART_MS)
    row.get_by_text("ready", exact=True).wait_for(timeout=RESTART_MS)


def test_page_reconnects_by_itself_after_the_gateway_was_restarted(page: Page, own_dashboard: Dashboard):
    platform = own_dashboard.platform
    own_dashboard.sign_in(page)
    page.goto(own_dashboard.url("fleet"))
    page.get_by_role("row").filter(has_text="local-1").wait_for()
    page.evaluate("window.hearthSamePage = true")
    with no_restarts(platform):
        os.kill(int(platform.dev["pids"]["gateway"]), signal.SIGKILL)
        page.get_by_text("The gateway cannot be reached").wait_for(timeout=RESTART_MS)
    page.get_by_text("The gateway cannot be reached").wait_for(state="detached", timeout=RESTART_MS)
    page.get_by_role("row").filter(has_text="local-1").wait_for()
    assert page.evaluate("window.hearthSamePage") is True, "the page was loaded again"
