"""The `/docs` page in a real browser without internet access: the page lists every operation and sends a call."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.clients.browser import Recorded
from tests.platform import Platform

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]

OPERATIONS = "details.operation"


def open_docs(platform: Platform, page: Page) -> str:
    """Open the page, type the account id, the token and the model, and return the origin."""
    origin = platform.base_url.removesuffix("/client/v4")
    page.goto(f"{origin}/docs")
    page.locator(OPERATIONS).first.wait_for()
    fields = {"account": platform.account_id, "token": platform.api_token, "model": platform.chat_model}
    for name, text in fields.items():
        page.locator(f"#{name}").fill(text)
    return origin


def test_first_call_of_the_page_works_as_shown_and_shows_no_secret(platform: Platform, page: Page):
    open_docs(platform, page)
    curl, python = (page.locator(f"#first-{name}").text_content() or "" for name in ("curl", "python"))
    assert platform.api_token not in (page.locator("body").text_content() or "")
    environ = {**os.environ, "TOKEN": platform.api_token}
    command = curl.replace("export TOKEN=...   # your API token\n", "")
    for program in (["sh", "-euc", command], [sys.executable, "-c", python]):
        done = subprocess.run(program, env=environ, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()
        assert '"success":false' not in done.stdout
    page.locator("#first-send").click()
    answer = page.locator("#first-answer").filter(has_text=re.compile("^[245]"))
    answer.wait_for()
    text = answer.text_content() or ""
    assert text.startswith("200")
    assert '"success":true' in text


def test_docs_page_works_without_internet_access(platform: Platform, page: Page, recorded: Recorded):
    origin = open_docs(platform, page)
    document = httpx.get(f"{origin}/openapi.json").json()
    assert page.locator(OPERATIONS).count() == sum(len(methods) for methods in document["paths"].values())
    assert document["info"]["version"] in (page.locator("#about").text_content() or "")

    summary = page.locator("code", has_text=re.compile(r"accounts/\{account_id\}/ai/v1/chat/completions$"))
    chat = page.locator(OPERATIONS, has=summary)
    chat.locator("summary").first.click()
    body = {"model": platform.chat_model, "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    chat.locator("textarea").fill(json.dumps(body))
    assert "temperature" in (chat.text_content() or "")
    chat.locator("form").evaluate("form => form.requestSubmit()")
    response = chat.locator("pre").last
    response.filter(has_text=re.compile(r"\[DONE\]|^[45]")).wait_for()
    text = response.text_content() or ""
    assert text.startswith("200")
    assert "chat.completion.chunk" in text
    chat.locator("button[type=button]").first.click()
    assert "curl -X POST" in (chat.locator("pre").first.text_content() or "")
    needed = {f"{origin}/docs", f"{origin}/docs/docs.js", f"{origin}/docs/docs.css", f"{origin}/openapi.json"}
    assert needed <= recorded.urls
    assert all(url.startswith(origin) for url in recorded.urls)
