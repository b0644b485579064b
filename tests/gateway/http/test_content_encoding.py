"""Encoded bodies are refused on every route: no limit of this gateway counts the bytes of a decompressed body."""

import gzip

import httpx
import pytest

from tests.gateway.http.test_framing import exchange_raw, statuses
from tests.gateway.process import PARROT
from tests.gateway.site import Running

FORM = b'--b\r\nContent-Disposition: form-data; name="files"; filename="t.csv"\r\n\r\na,b\r\n--b--\r\n'
FORM_TYPE = {"content-type": "multipart/form-data; boundary=b"}


@pytest.mark.parametrize("body", [FORM, gzip.compress(FORM)], ids=["plain", "compressed"])
@pytest.mark.parametrize("encoding", ["gzip", "identity, gzip", "br", "x"])
@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("POST", "ai/tomarkdown", "good"),
        ("POST", "ai/finetunes/x/finetune-assets", "write"),
        ("POST", "ai/finetunes", "write"),
        ("POST", f"ai/run/{PARROT}", "good"),
        ("POST", "ai/v1/chat/completions", "good"),
        ("POST", "tokens", "keeper"),
        ("PUT", "ai/usage/budgets", "keeper"),
    ],
)
def test_encoded_body_is_refused_on_every_route(
    running: Running, method: str, path: str, name: str, encoding: str, body: bytes
):
    headers = running.headers(name) | FORM_TYPE | {"content-encoding": encoding}
    response = httpx.request(method, f"{running.account_url}/{path}", content=body, headers=headers)
    assert (response.status_code, response.json()["errors"][0]["code"]) == (415, 5004)


def test_every_content_encoding_header_is_checked(running: Running):
    head = (
        f"POST /client/v4/accounts/{running.tenants.account_id}/ai/tomarkdown HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: {running.headers()['Authorization']}\r\nContent-Type: {FORM_TYPE['content-type']}\r\n"
        f"Content-Encoding: identity\r\nContent-Encoding: gzip\r\nConnection: close\r\nContent-Length: {len(FORM)}"
    )
    assert statuses(exchange_raw(running, head.encode() + b"\r\n\r\n" + FORM)) == [415]
