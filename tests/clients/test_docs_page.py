"""The `/docs` page in a real browser without internet access: the page lists every operation and sends a call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.clients.browser import Browser, find_chromium
from tests.clients.conftest import ROOT
from tests.platform import Platform

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]

CHAT = (
    "[...document.querySelectorAll('details.operation')]"
    ".find((box) => box.querySelector('code').textContent.endsWith('/ai/v1/chat/completions'))"
)


@pytest.fixture
def browser() -> Iterator[Browser]:
    command = find_chromium(Path(os.environ.get("HEARTH_CLIENTS_ENV") or ROOT / ".venv-clients"))
    if command is None:
        pytest.skip("no Chromium: neither HEARTH_CHROMIUM nor on PATH, and `sh scripts/clients.sh` brought none")
    browser = Browser(command)
    yield browser
    browser.close()


def fill(platform: Platform, browser: Browser) -> None:
    """Type the account id, the token and the model."""
    fields = {"account": platform.account_id, "token": platform.api_token, "model": platform.chat_model}
    for name, text in fields.items():
        field = f"document.getElementById('{name}')"
        browser.value(f"{field}.value = {json.dumps(text)}")
        browser.value(f"{field}.dispatchEvent(new Event('input', {{bubbles: true}}))")


def test_first_call_of_the_page_works_as_shown_and_shows_no_secret(platform: Platform, browser: Browser):
    browser.open(f"{platform.base_url.removesuffix('/client/v4')}/docs")
    browser.wait_for("document.querySelectorAll('details.operation').length")
    fill(platform, browser)
    curl, python = (
        browser.value(f"document.getElementById('first-{name}').textContent") for name in ("curl", "python")
    )
    assert platform.api_token not in browser.value("document.body.textContent")
    environ = {**os.environ, "TOKEN": platform.api_token}
    command = curl.replace("export TOKEN=...   # your API token\n", "")
    for program in (["sh", "-euc", command], [sys.executable, "-c", python]):
        done = subprocess.run(program, env=environ, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()
        assert '"success":false' not in done.stdout
    browser.value("document.getElementById('first-send').click()")
    answer = browser.wait_for(
        "document.getElementById('first-answer').textContent", lambda text: text[:1] in ("2", "4", "5")
    )
    assert answer.startswith("200")
    assert '"success":true' in answer


def test_docs_page_works_without_internet_access(platform: Platform, browser: Browser):
    origin = platform.base_url.removesuffix("/client/v4")
    document = httpx.get(f"{origin}/openapi.json").json()
    browser.open(f"{origin}/docs")
    count = "document.querySelectorAll('details.operation').length"
    assert browser.wait_for(count) == sum(len(methods) for methods in document["paths"].values())
    assert document["info"]["version"] in browser.value("document.getElementById('about').textContent")

    fill(platform, browser)
    browser.value(f"{CHAT}.open = true")
    body = {"model": platform.chat_model, "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    browser.wait_for(f"{CHAT}.querySelector('textarea') !== null")
    assert "temperature" in browser.value(f"{CHAT}.textContent")
    browser.value(f"{CHAT}.querySelector('textarea').value = {json.dumps(json.dumps(body))}")
    browser.value(f"{CHAT}.querySelector('form').requestSubmit()")
    shown = f"[...{CHAT}.querySelectorAll('pre')].pop().textContent"
    response = browser.wait_for(shown, lambda text: "[DONE]" in text or text[:1] in "45")
    assert response.startswith("200")
    assert "chat.completion.chunk" in response
    browser.value(f"{CHAT}.querySelector('button[type=button]').click()")
    assert "curl -X POST" in browser.value(f"{CHAT}.querySelector('pre').textContent")

    urls = {event["request"]["url"] for event in browser.event_params("Network.requestWillBeSent")}
    assert {f"{origin}/docs", f"{origin}/docs/docs.js", f"{origin}/docs/docs.css", f"{origin}/openapi.json"} <= urls
    assert all(url.startswith(origin) for url in urls)
    assert browser.event_params("Runtime.exceptionThrown") == []
    errors = [event["entry"] for event in browser.event_params("Log.entryAdded") if event["entry"]["level"] == "error"]
    assert [entry for entry in errors if "favicon" not in entry.get("url", "")] == []
