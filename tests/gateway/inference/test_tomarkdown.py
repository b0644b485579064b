"""`A/ai/tomarkdown` and `/supported`: one row for each file, and refusals of whole requests."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import socket
from typing import Any

import httpx
import pytest
from PIL import Image

from documents.converter import Converter
from documents.messages import NO_TEXT
from gateway.errors import Reason, Refusal
from gateway.inference import markdown_conversion, tomarkdown
from gateway.inference.markdown_conversion import Documents
from tests.fakes.pictures import picture
from tests.gateway.process import DESCRIBER, DETECTOR
from tests.gateway.site import Running
from tests.gateway.test_fair_share import set_limits
from tests.waiting import wait_until_blocking

PAGE = ("a.html", b"<h1>One</h1><p>two <a href='/x'>three</a>", "text/html")


def url(running: Running, suffix: str = "") -> str:
    return f"{running.account_url}/ai/tomarkdown{suffix}"


def code_of(response: httpx.Response) -> tuple[int, int]:
    return response.status_code, response.json()["errors"][0]["code"]


@pytest.mark.parametrize("field", ["files", "files[]"])
def test_response_has_a_row_for_each_file_in_order(running: Running, client: httpx.Client, field: str):
    files = [(field, PAGE), (field, ("b.csv", b"a,b\n1,2\n", "text/csv")), (field, ("c.docx", b"PK not", "")),
             (field, ("d.png", b"\x89PNG", "image/png")), (field, ("e.exe", b"MZ", "application/x-msdownload")),
             (field, ("f.pdf", b"", "application/pdf"))]  # fmt: skip
    options = {"conversionOptions": json.dumps({"html": {"hostname": "a.example"}})}
    response = client.post(url(running), files=files, data=options)
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    page, table, word, picture, program, empty = response.json()["result"]
    assert page == {"id": page["id"], "name": "a.html", "mimeType": "text/html", "format": "markdown",
                    "tokens": page["tokens"], "data": "# One\n\ntwo [three](https://a.example/x)"}  # fmt: skip
    assert isinstance(page["tokens"], int)
    assert table["data"] == "| a | b |\n| --- | --- |\n| 1 | 2 |"
    assert len({row["id"] for row in (page, table, word)}) == 3
    for row, why in ((word, "damaged"), (picture, "no image description model"), (program, "supported"),
                     (empty, "empty")):  # fmt: skip
        assert row["format"] == "error"
        assert why in row["error"]
        assert "data" not in row


def test_single_file_gives_a_list_and_text_is_returned_unchanged(running: Running, client: httpx.Client):
    data = {"conversionOptions": '{"output": {"format": "text"}}'}
    response = client.post(url(running), files={"files": PAGE}, data=data)
    (row,) = response.json()["result"]
    assert (row["format"], row["data"]) == ("text", "One\n\ntwo three")


def test_supported_file_types_are_listed(running: Running, client: httpx.Client):
    listed = client.get(url(running, "/supported")).json()["result"]
    assert {"extension": ".pdf", "mimeType": "application/pdf"} in listed
    assert {row["extension"] for row in listed} >= {".html", ".docx", ".xlsx", ".pptx", ".odt", ".csv", ".png", ".xml"}


def test_malformed_conversion_request_is_rejected_as_a_whole(running: Running, client: httpx.Client):
    def post(**body: Any) -> tuple[int, int]:
        return code_of(client.post(url(running), **body))

    assert post(content=b"x", headers={"content-type": "text/plain"}) == (400, 5004)
    assert post(files={"other": PAGE}) == (400, 5004)
    assert post(data={"conversionOptions": "{}"}, files={"x": (None, "y")}) == (400, 5006)
    assert post(files={"files": PAGE}, data={"conversionOptions": "{"}) == (400, 5004)
    assert post(files={"files": PAGE}, data={"conversionOptions": '{"output": {"format": "x"}}'}) == (400, 5006)
    assert post(files=[("files", PAGE)] * 51) == (400, 5006)
    assert post(files=[("files", PAGE)] * 60) == (400, 5004)
    assert post(files={"files": ("a.pdf", bytes(33 << 20), "")}) == (413, 3006)
    assert post(files={"files": PAGE}, headers={"authorization": "Bearer x"}) == (400, 9106)
    assert post(files={"files": PAGE}, headers=running.headers("scopeless")) == (403, 10000)


def test_files_in_json_are_accepted_in_the_binding_format():
    file = {"name": "a.csv", "mimeType": "text/csv", "data": base64.b64encode(b"a,b").decode()}
    ask = tomarkdown.read_json({"files": [file, file], "options": {"output": {"format": "text"}}})
    assert [each.data for each in ask.documents] == [b"a,b", b"a,b"]
    assert ask.options.output_format == "text"
    bad: list[dict[str, Any]] = [{}, {"files": []}, {"files": "x"}, {"files": [1]}, {"files": [file] * 51}]
    bad += [{"files": [file | change]} for change in ({"data": "!"}, {"name": "a\n"}, {"mimeType": 1})]
    for body in (*bad, {"files": [file], "options": []}):
        with pytest.raises(Refusal):
            tomarkdown.read_json(body)


def test_disconnect_ends_a_conversion(running: Running):
    page = b"<table><tr><td>" * 400_000  # more than a file's time to read
    form = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.html"\r\n\r\n' + page + b"\r\n--x--\r\n"
    head = [
        f"POST /client/v4/accounts/{running.tenants.account_id}/ai/tomarkdown HTTP/1.1", "Host: x",
        f"Authorization: {running.headers()['Authorization']}", "Content-Type: multipart/form-data; boundary=x",
        f"Content-Length: {len(form)}",
    ]  # fmt: skip

    def num_calls() -> float:
        return running.gateway.metric("hearth_calls_in_flight")

    with socket.create_connection(("127.0.0.1", running.gateway.port), timeout=60) as connection:
        connection.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + form)
        wait_until_blocking(lambda: num_calls() == 1)
    wait_until_blocking(lambda: num_calls() == 0)


def test_number_of_concurrent_file_bodies_is_limited():
    held = Documents(Converter(), max_bytes=1 << 20)
    with contextlib.ExitStack() as stack:
        for number in range(markdown_conversion.MAX_BODIES):
            stack.enter_context(held.room(f"account {number}"))
        with pytest.raises(Refusal) as refused, held.room("another account"):
            pass
        assert refused.value.reason is Reason.OUT_OF_CAPACITY
    with held.room("another account"):
        pass


def test_conversion_has_one_usage_entry(running: Running, client: httpx.Client):
    response = client.post(url(running), files=[("files", PAGE), ("files", ("e.exe", b"MZ", ""))])
    assert response.status_code == 200
    row = running.site.usage_row(response.headers["x-hearth-request-id"])
    assert (row["task"], row["model"], row["status"], row["is_useful"]) == ("to-markdown", "to-markdown", "stop", 1)
    assert (row["bytes_in"], row["micro_neurons"], row["completion_tokens"]) == (len(PAGE[1]) + 2, 0, 0)
    assert row["bytes_out"] == len(response.json()["result"][0]["data"].encode())
    useless = client.post(url(running), files=[("files", ("e.exe", b"MZ", ""))])
    assert running.site.usage_row(useless.headers["x-hearth-request-id"])["is_useful"] == 0


def test_conversion_is_subject_to_task_and_concurrency_limits(running: Running):
    account_id = running.tenants.other_account_id
    url = f"{running.gateway.base_url}/accounts/{account_id}/ai/tomarkdown"
    with httpx.Client(headers=running.headers("other"), timeout=60) as client:

        def statuses(count: int) -> list[int]:
            return [client.post(url, files=[("files", PAGE)]).status_code for _ in range(count)]

        asyncio.run(set_limits(running.site, account_id, "to-markdown=2/86400"))
        try:
            wait_until_blocking(lambda: statuses(1) == [429])
            refused = client.post(url, files=[("files", PAGE)])
            assert code_of(refused) == (429, 3040)
            assert 86_000 < int(refused.headers["retry-after"]) <= 86_400
        finally:
            asyncio.run(set_limits(running.site, account_id, ""))
        wait_until_blocking(lambda: statuses(1) == [200])


def test_image_model_converts_images_and_scanned_pages_and_each_image_is_a_charged_call(running: Running):
    scan = io.BytesIO()
    pages = [Image.new("RGB", (600, 300), "white") for _ in range(2)]
    pages[0].save(scan, "PDF", save_all=True, append_images=pages[1:])
    files = [("files", ("a.png", picture(64, 32), "image/png")), ("files", ("b.pdf", scan.getvalue(), "")),
             ("files", ("c.jpg", b"no image", "image/jpeg"))]  # fmt: skip
    with running.beside(HEARTH_DOCUMENT_IMAGE_MODELS=DESCRIBER) as gateway:
        url = f"{gateway.base_url}/accounts/{running.tenants.account_id}/ai/tomarkdown"
        response = httpx.post(url, files=files, headers=running.headers(), timeout=60)
    image, scanned, damaged = response.json()["result"]
    assert (image["format"], image["data"]) == ("markdown", "64 x 32:")
    assert scanned["data"] == "### Page 1\n\n1250 x 625:\n\n### Page 2\n\n1250 x 625:"
    assert damaged["format"] == "error"
    assert "the image is damaged" in damaged["error"]
    request_id = response.headers["x-hearth-request-id"]

    def rows() -> list[dict]:
        found = [running.site.usage_rows(f"{request_id}-{number}") for number in range(1, 5)]
        return [row for each in found for row in each]

    wait_until_blocking(lambda: len(rows()) == 3)
    assert sorted(row["num_image_tiles"] for row in rows()) == [1, 6, 6]
    assert all(row["micro_neurons"] > 0 for row in rows())


def test_object_detection_model_names_the_objects_of_images_but_not_of_scanned_pages(running: Running):
    scan = io.BytesIO()
    Image.new("RGB", (600, 300), "white").save(scan, "PDF")
    files = [("files", ("a.png", picture(64, 32), "image/png")), ("files", ("b.pdf", scan.getvalue(), ""))]
    with running.beside(HEARTH_DOCUMENT_IMAGE_MODELS=f"{DESCRIBER}, @cf/test/absent, {DETECTOR}") as gateway:
        url = f"{gateway.base_url}/accounts/{running.tenants.account_id}/ai/tomarkdown"
        response = httpx.post(url, files=files, headers=running.headers(), timeout=60)
    image, scanned = response.json()["result"]
    assert image["data"] == "64 x 32:\n\nObjects: image"
    assert scanned["data"] == "1250 x 625:"
    with running.beside(HEARTH_DOCUMENT_IMAGE_MODELS=DETECTOR) as gateway:
        url = f"{gateway.base_url}/accounts/{running.tenants.account_id}/ai/tomarkdown"
        image, scanned = httpx.post(url, files=files, headers=running.headers(), timeout=60).json()["result"]
    assert image["data"] == "Objects: image"
    assert scanned["format"] == "error"
    assert NO_TEXT in scanned["error"]
