"""Headless Chromium, driven by Playwright: pages that record their requests and errors."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "chrome-headless-shell")
CHROMIUM_OPTIONS = (
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--use-fake-device-for-media-stream",  # a microphone that beeps
    "--use-fake-ui-for-media-stream",  # pages may use the microphone without a question
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1 , EXCLUDE localhost",
)
_ROOT = Path(__file__).parent.parent.parent


def find_chromium() -> str | None:
    """Return the command of HEARTH_CHROMIUM, of a browser on PATH, or of the one that `scripts/clients.sh` installs."""
    brought = Path(os.environ.get("HEARTH_CLIENTS_ENV") or _ROOT / ".venv-clients") / "chromium"
    found = [os.environ.get("HEARTH_CHROMIUM"), *map(shutil.which, _NAMES)]
    if brought.exists():
        found.append(str(brought))
    return next(filter(None, found), None)


@contextlib.contextmanager
def running_browser() -> Iterator[Browser]:
    """Run a browser, or skip the test."""
    command = find_chromium()
    if command is None:
        pytest.skip("no Chromium: neither HEARTH_CHROMIUM nor on PATH, and `sh scripts/clients.sh` brought none")
    sync_api = pytest.importorskip("playwright.sync_api", reason="no Playwright: `sh scripts/clients.sh` installs it")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=command, args=list(CHROMIUM_OPTIONS), chromium_sandbox=False
        )
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Recorded:
    """Requests, uncaught errors, console errors and violations of the security policy of a page."""

    urls: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        page.on("request", lambda request: self.urls.add(request.url))
        page.on("pageerror", lambda error: self.errors.append(f"uncaught: {error}"))
        page.on("console", self._on_console)

    def _on_console(self, message: Any) -> None:
        # The browser logs every response of status 400 and above; tests look at the page instead.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self.errors.append(f"console: {message.text}")


@contextlib.contextmanager
def new_context(browser: Browser, **options: Any) -> Iterator[BrowserContext]:
    """Open a context, which has its own cookies."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE_S * 1000)
    try:
        yield context
    finally:
        context.close()
