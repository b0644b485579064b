"""The dashboard of a whole platform, and browsers of people who are signed in to it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from scripts import build_dashboard
from tests.clients.browser import Recorded, new_context
from tests.platform import Platform
from worker_runtime.node_js import ToolsMissing

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SCREENS = (
    "overview", "fleet", "models", "playground", "finetunes", "tokens", "usage", "logs", "jobs", "accounts", "audit",
    "settings", "health",
)  # fmt: skip


@pytest.fixture(scope="session")
def built_dashboard() -> None:
    """The build in gateway/static, made now if the sources have changed."""
    try:
        build_dashboard.build(build_dashboard.SOURCES, build_dashboard.OUTPUT)
    except (ToolsMissing, OSError) as error:
        pytest.skip(f"the dashboard cannot be built here: {error}")


class Dashboard:
    """The dashboard of a platform."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.origin = platform.base_url.removesuffix("/client/v4")

    def url(self, path: str) -> str:
        return f"{self.origin}/dashboard/{path}"

    def link(self, email: str = "") -> str:
        """Return a new sign-in link, of the local administrator or of another user."""
        options = ["--email", email] if email else []
        return str(self.platform.hearth("dashboard", *options)["sign_in_link"])

    def add_operator(self, email: str, *options: str) -> str:
        """Add an operator and return the password."""
        return str(self.platform.hearth("operator", "add", email, "--generate", *options)["password"])

    def sign_in(self, page: Page, email: str = "") -> None:
        page.goto(self.link(email))
        page.wait_for_url(self.url("overview*"))


@pytest.fixture(scope="package")
def dashboard(platform: Platform, built_dashboard: None) -> Dashboard:
    return Dashboard(platform)


@pytest.fixture
def signed_in(page: Page, dashboard: Dashboard) -> Page:
    """A page of the local administrator."""
    dashboard.sign_in(page)
    return page


@pytest.fixture
def page_of(browser: Browser, dashboard: Dashboard) -> Iterator[Callable[[str], Page]]:
    """Return a function that opens a page in a new browser, signed in as a user."""
    with contextlib.ExitStack() as contexts:
        recordings: list[Recorded] = []

        def open_page(email: str) -> Page:
            page = contexts.enter_context(new_context(browser)).new_page()
            recordings.append(Recorded())
            recordings[-1].watch(page)
            dashboard.sign_in(page, email)
            return page

        yield open_page
        assert [error for recorded in recordings for error in recorded.errors] == []
