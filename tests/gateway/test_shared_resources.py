"""One account cannot take the conversion of files, the upload of finetunes, or a body's time from other accounts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from storage.database import Database
from tenants.credentials import api_tokens
from tests.catalog.adapters import config_bytes
from tests.documents import samples
from tests.gateway.inference.test_text_generation import script
from tests.gateway.process import HANDY, PARROT, PEPPER
from tests.gateway.site import ACCOUNT_READ, READ, WRITE, Running, Site
from tests.waiting import PATIENCE_S, wait_until, wait_until_blocking

PAGE = ("files", ("a.html", b"<h1>One</h1>", "text/html"))
SLOW_PAGE = ("files", ("a.html", b"<table><tr><td>" * 400_000, "text/html"))  # needs more than a file's CPU time
BOUNDARY = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.html"\r\n\r\n<p>'


@pytest.fixture(scope="module")
def running(new_site: Callable[..., Site]) -> Running:
    site = new_site()
    site.add_node("n1")
    objects = {
        "OBJECTS_URL": f"file://{site.folder / 'objects'}",
        "HEARTH_DOCUMENT_TIMEOUT_S": "10",
        "HEARTH_BATCH_MAX_CALLS": "2",
    }
    running = Running(site, site.gateway(**objects).start())
    tenants = running.tenants
    tenants.secrets["other write"] = asyncio.run(make_token(site, tenants.other_account_id))
    tenants.secrets["other reads"] = asyncio.run(make_token(site, tenants.other_account_id, READ, ACCOUNT_READ))
    tenants.secrets["reads"] = asyncio.run(make_token(site, tenants.account_id, READ, ACCOUNT_READ))
    return running


async def make_token(site: Site, account_id: str, *groups: str) -> str:
    database = Database.connect(site.database_url)
    try:
        return (await api_tokens.create(database, PEPPER, account_id, "made", groups or [WRITE])).secret
    finally:
        await database.close()


def url_of(running: Running, whose: str, path: str) -> str:
    account_id = running.tenants.other_account_id if whose.startswith("other") else running.tenants.account_id
    return f"{running.gateway.base_url}/accounts/{account_id}/ai/{path}"


@contextmanager
def unfinished_forms(running: Running, whose: str, path: str, count: int) -> Iterator[list[socket.socket]]:
    """Open connections that have sent the head of a request and the beginning of its form."""
    head = (
        f"POST {httpx.URL(url_of(running, whose, path)).path} HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: {running.headers(whose)['Authorization']}\r\n"
        "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 50000\r\n\r\n"
    )
    with ExitStack() as stack:
        opened = [
            stack.enter_context(socket.create_connection(("127.0.0.1", running.gateway.port), timeout=60))
            for _ in range(count)
        ]
        for connection in opened:
            connection.sendall(head.encode() + BOUNDARY)
        yield opened


def num_refused(connections: list[socket.socket]) -> int:
    """Return how many connections have received a response, all of which must be 429."""
    readable, _, _ = select.select(connections, [], [], 0)
    assert all(each.recv(4096, socket.MSG_PEEK).startswith(b"HTTP/1.1 429 ") for each in readable)
    return len(readable)


def test_slow_files_of_one_account_do_not_delay_files_of_another(running: Running):
    async def run() -> None:
        async with httpx.AsyncClient(timeout=120) as client:

            async def convert(whose: str, file: tuple[str, tuple[str, bytes, str]]) -> httpx.Response:
                return await client.post(
                    url_of(running, whose, "tomarkdown"), headers=running.headers(whose), files=[file]
                )

            slow = [asyncio.create_task(convert("other", SLOW_PAGE)) for _ in range(4)]
            await wait_until(lambda: running.gateway.metric("hearth_calls_in_flight") == 4)
            for _ in range(3):
                response = await convert("good", PAGE)
                assert (response.status_code, response.json()["result"][0]["data"]) == (200, "# One")
            assert not any(job.done() for job in slow), "the fast files did not wait for the slow files"
            for job in slow:
                job.cancel()
            await asyncio.gather(*slow, return_exceptions=True)

    asyncio.run(run())
    wait_until_blocking(lambda: running.gateway.metric("hearth_calls_in_flight") == 0)


def test_unfinished_forms_of_one_account_leave_room_for_other_accounts(running: Running):
    with unfinished_forms(running, "other", "tomarkdown", 64) as opened:
        wait_until_blocking(lambda: num_refused(opened) == 21)
        response = httpx.post(
            url_of(running, "good", "tomarkdown"), headers=running.headers(), files=[PAGE], timeout=60
        )
        assert response.status_code == 200, response.text


def test_unfinished_uploads_of_one_account_leave_room_for_other_accounts(running: Running):
    finetunes = {}
    for whose in ("write", "other write"):
        created = httpx.post(
            url_of(running, whose, "finetunes"),
            headers=running.headers(whose),
            json={"model": HANDY, "name": "uploaded"},
        )
        finetunes[whose] = f"finetunes/{created.json()['result']['id']}/finetune-assets"
    with unfinished_forms(running, "other write", finetunes["other write"], 12) as opened:
        wait_until_blocking(lambda: num_refused(opened) == 4)
        response = httpx.post(
            url_of(running, "write", finetunes["write"]),
            headers=running.headers("write"),
            data={"file_name": "adapter_config.json"},
            files={"file": ("adapter_config.json", config_bytes())},
            timeout=60,
        )
        assert response.status_code == 200, response.text


def test_form_that_arrives_slowly_is_rejected_although_it_never_stops(running: Running):
    with (
        running.beside(HEARTH_BODY_TIMEOUT_S="1") as gateway,
        unfinished_forms(Running(running.site, gateway), "good", "tomarkdown", 1) as (connection,),
    ):
        started_s = time.monotonic()
        while not select.select([connection], [], [], 0.2)[0]:
            connection.sendall(b"x")
            assert time.monotonic() - started_s < 60
        assert connection.recv(4096).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("selector", ["p " * 500, ", ".join(["p"] * 100)])
def test_selector_with_too_many_parts_is_rejected(running: Running, selector: str):
    response = httpx.post(
        url_of(running, "good", "tomarkdown"),
        headers=running.headers(),
        files=[PAGE],
        data={"conversionOptions": json.dumps({"html": {"cssSelector": selector}})},
    )
    assert response.status_code == 400
    assert "'/html/cssSelector' must have at most 24 parts" in response.json()["errors"][0]["message"]


def requests_of(running: Running, whose: str, body: bytes, count: int, stack: ExitStack) -> list[socket.socket]:
    """Send the same call on `count` connections."""
    head = (
        f"POST {httpx.URL(url_of(running, whose, f'run/{PARROT}')).raw_path.decode()} HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: {running.headers(whose)['Authorization']}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    opened = [
        stack.enter_context(socket.create_connection(("127.0.0.1", running.gateway.port), timeout=60))
        for _ in range(count)
    ]
    for connection in opened:
        connection.sendall(head.encode() + body)
    return opened


def test_many_large_bodies_of_one_account_do_not_delay_a_request_of_another(running: Running):
    """The other account sends first, and is still waiting for most responses when this account has its response."""
    body = json.dumps({"prompt": "x", "max_tokens": 1, "tags": [[]] * 48_000}).encode()
    with ExitStack() as stack:
        flood = requests_of(running, "other reads", body, 64, stack)
        (later,) = requests_of(running, "reads", body, 1, stack)
        assert later.recv(4096).startswith(b"HTTP/1.1 200 ")
        answered, _, _ = select.select(flood, [], [], 0)
        assert len(answered) <= 48
        assert all(each.recv(4096).startswith(b"HTTP/1.1 200 ") for each in flood)


def test_long_background_runs_of_one_account_do_not_delay_those_of_another(running: Running):
    def start(whose: str, prompt: str) -> str:
        response = httpx.post(
            url_of(running, whose, "run"),
            headers=running.headers(whose),
            json={"model": PARROT, "input": {"prompt": prompt}, "options": {"background": True}},
        )
        assert response.status_code == 200, response.text
        return response.json()["result"]["request_id"]

    node = running.site.nodes["n1"]
    for _ in range(8):
        start("other", script(held_after=0))
    wait_until_blocking(lambda: node.num_open_calls >= 1)
    run = start("good", "x")

    def is_done() -> bool:
        status = httpx.post(
            url_of(running, "good", f"run/{PARROT}"), headers=running.headers(), json={"request_id": run}
        )
        return "responses" in status.json()["result"]

    wait_until_blocking(is_done)
    assert node.num_open_calls >= 1, "the long runs are still running"
    node.go_on()


def test_native_abort_of_a_reader_leaves_the_log_readable(running: Running):
    """The reader of spreadsheets aborts on this file, and its native library writes to stderr."""
    far = '<row r="1"><c r="A1"><v>1</v></c></row><row r="1048576">' + "<c><v>1</v></c>" * 16_000 + "</row>"
    sheet = ("files", ("far.xlsx", samples.zipped(samples.sheet_parts(far)), ""))
    response = httpx.post(url_of(running, "good", "tomarkdown"), headers=running.headers(), files=[sheet], timeout=60)
    assert "exceeds the memory limit" in response.json()["result"][0]["error"]

    def reports() -> list[dict]:
        return [line for line in running.gateway.log_lines() if "wrote to stderr" in line["message"]]

    (report,) = wait_until_blocking(reports)
    assert 0 < report["bytes"] <= 2048


def test_unknown_sign_in_links_and_join_tokens_do_not_wait_for_the_database_writer(running: Running):
    """SQLite has one writer: anonymous clients must not occupy it."""
    enrollment = {"token": "x" * 40, "node_id": "n", "pop": "local", "public_key": "0" * 64}
    path = running.site.database_url.removeprefix("sqlite://")
    with contextlib.closing(sqlite3.connect(path, timeout=PATIENCE_S, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        same_page = {"sec-fetch-site": "same-origin"}
        link = httpx.post(f"{running.gateway.url}/admin/sign-in/link", json={"token": "unknown"}, headers=same_page)
        enrolled = httpx.post(f"{running.gateway.base_url}/nodes/enroll", json=enrollment)
        writer.execute("ROLLBACK")
    assert "used already or has expired" in link.text
    assert "the join token is unknown" in enrolled.text
