"""Status and error code of every kind of invalid request, and the order of the checks.

Covers the rows of the platform's bad-input matrix that apply to these routes, over a real connection.
"""

import gzip
import json
import socket
from contextlib import closing

import httpx
import pytest

from tests.gateway.process import CHATTY, NOWHERE, PARROT, VECTORS
from tests.gateway.site import Running
from tests.waiting import wait_until_blocking

GOOD_BODY = {"prompt": "Hello"}
HELLO = [{"role": "user", "content": "Hello"}]
UNKNOWN_ACCOUNT = "f" * 32


def code_of(response: httpx.Response) -> tuple[int, int]:
    """Return status and code after checking that the error has the envelope, an id, and Retry-After if it can be
    retried."""
    body = response.json()
    assert response.headers["content-type"] == "application/json"
    assert body["success"] is False
    assert body["messages"] == []
    assert response.headers["x-request-id"]
    if response.status_code in (429, 503):
        assert 1 <= int(response.headers["retry-after"]) <= 10
    (error,) = body["errors"]
    return response.status_code, error["code"]


def run_url(running: Running, model: str = PARROT, account_id: str | None = None) -> str:
    return f"{running.gateway.base_url}/accounts/{account_id or running.tenants.account_id}/ai/run/{model}"


# Credentials and accounts


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, (400, 9106)),
        ({"authorization": "Basic dXNlcjpwYXNz"}, (400, 9106)),
        ({"authorization": "Bearer"}, (400, 9106)),
        ({"authorization": "Bearer not a token"}, (400, 9106)),
        ({"authorization": "Bearer ' OR 1=1; --"}, (400, 9106)),
        ({"authorization": b"Bearer \xff\xfe"}, (400, 9106)),
        ({"authorization": "Bearer " + "x" * 5000}, (400, 9106)),
        ({"authorization": "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0."}, (401, 10000)),
        ({"authorization": "Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0." + "x" * 1000}, (401, 10000)),
        ({"authorization": "Bearer cfut_" + "a" * 46}, (401, 10000)),
        ({"authorization": "Bearer " + "a" * 40}, (401, 10000)),
        ({"x-auth-email": "user@example.com", "x-auth-key": "144c9defac04969c7bfad8efaa8ea194"}, (401, 10000)),
        ({"x-auth-user-service-key": "v1.0-abc"}, (401, 10000)),
        ({"x-auth-email": "user@example.com"}, (400, 9106)),
        ({"cookie": "token=cfut_abc"}, (400, 9106)),
    ],
)
def test_malformed_credentials_are_rejected(running: Running, headers: dict, expected: tuple):
    assert code_of(httpx.post(run_url(running), json=GOOD_BODY, headers=headers)) == expected


def test_token_in_the_query_is_ignored(running: Running):
    secret = running.tenants.secrets["good"]
    url = run_url(running) + f"?token={secret}&access_token={secret}&api_token={secret}"
    assert code_of(httpx.post(url, json=GOOD_BODY)) == (400, 9106)


def test_two_credentials_are_rejected(running: Running):
    good = running.headers()["Authorization"]
    headers = [("authorization", good), ("authorization", good)]
    assert code_of(httpx.post(run_url(running), json=GOOD_BODY, headers=headers)) == (400, 3003)


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("expired", (401, 10000)),
        ("revoked", (401, 10000)),
        ("disabled", (401, 10000)),
        ("scopeless", (403, 10000)),
        ("other", (403, 10000)),
    ],
)
def test_unusable_tokens_are_rejected(running: Running, token: str, expected: tuple):
    assert code_of(httpx.post(run_url(running), json=GOOD_BODY, headers=running.headers(token))) == expected


@pytest.mark.parametrize("change", [lambda s: s[:-1], lambda s: s[:-1] + ("0" if s[-1] != "0" else "1"), str.swapcase])
def test_truncated_or_altered_token_is_unknown(running: Running, change):
    secret = change(running.tenants.secrets["good"])
    response = httpx.post(run_url(running), json=GOOD_BODY, headers={"authorization": f"Bearer {secret}"})
    assert code_of(response) in ((401, 10000), (400, 9106))


@pytest.mark.parametrize("token", ["good", "write", "account"])
def test_user_and_account_tokens_with_read_or_write_scope_run_models(running: Running, token: str):
    assert httpx.post(run_url(running), json=GOOD_BODY, headers=running.headers(token)).status_code == 200


def test_foreign_and_unknown_accounts_give_the_same_error(client: httpx.Client, running: Running):
    foreign = client.post(run_url(running, account_id=running.tenants.other_account_id), json=GOOD_BODY)
    unknown = client.post(run_url(running, account_id=UNKNOWN_ACCOUNT), json=GOOD_BODY)
    assert code_of(foreign) == code_of(unknown) == (403, 10000)
    assert foreign.json() == unknown.json()


def test_blocked_account_error_is_returned_only_on_the_accounts_own_path(running: Running):
    headers = running.headers("blocked")
    blocked = httpx.post(
        run_url(running, account_id=running.tenants.blocked_account_id), json=GOOD_BODY, headers=headers
    )
    assert code_of(blocked) == (403, 3023)
    assert code_of(httpx.post(run_url(running), json=GOOD_BODY, headers=headers)) == (403, 10000)


@pytest.mark.parametrize("account", ["", "no id at all"])
def test_spoofed_headers_have_no_effect(client: httpx.Client, running: Running, account: str):
    other = account or running.tenants.other_account_id
    headers = {"x-forwarded-for": "127.0.0.1", "x-account-id": other, "x-hearth-account": other, "forwarded": "for=::1"}
    assert client.get(f"{running.gateway.base_url}/user", headers=headers).json()["result"]["id"] != other
    response = client.post(run_url(running), json=GOOD_BODY, headers=headers)
    assert running.site.usage_row(response.headers["cf-ai-req-id"])["account_id"] == running.tenants.account_id


@pytest.mark.parametrize(
    "path",
    ["/client", "/client/v4/nothing", "/client/v4/accounts/{a}/ai/nothing", "/client/v4/accounts/{a}/ai/run/"],
)
def test_unknown_route_is_reported_before_the_credential(running: Running, path: str):
    response = httpx.post(running.gateway.url + path.format(a=running.tenants.account_id), content=b"x")
    assert code_of(response) == (400, 7000)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_wrong_method_gets_an_allow_header(running: Running, method: str):
    response = httpx.request(method, run_url(running))
    assert code_of(response) == (405, 7001)
    assert "POST" in response.headers["allow"].split(", ")
    assert response.json()["errors"][0]["message"] == f"{method} not supported for requested URI."


@pytest.mark.parametrize("account_id", ["x", "F" * 32, "0" * 31, "0" * 33, "..", "%2e%2e", "a" * 31 + "%00"])
def test_malformed_account_id_is_reported_before_the_credential(running: Running, account_id: str):
    path = f"/client/v4/accounts/{account_id}/ai/run/{PARROT}"
    status, code, body = raw_request(running, f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
    assert (status, code) == (404, 7003)
    assert body["errors"][0]["message"].startswith("Could not route to /client/v4/accounts/")


def raw_request(running: Running, request: bytes) -> tuple[int, int, dict]:
    """Send raw bytes and return status, code and body of one response."""
    with closing(socket.create_connection(("127.0.0.1", running.gateway.port), timeout=60)) as connection:
        connection.sendall(request)
        response = httpx_answer(connection)
    body = json.loads(response[1])
    return response[0], body["errors"][0]["code"], body


def httpx_answer(connection: socket.socket) -> tuple[int, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    size = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    while len(body) < size:
        body += connection.recv(65536)
    return int(head.split()[1]), body


@pytest.mark.parametrize(
    "model",
    ["x", "@cf", "@cf/a", "@cf/a/b/c", "@cf/../x", "@cf/a/..", "@cf/a/b..c", "@xx/a/b", "@cf/-a/b", "@cf/a/b%00",
     "@cf/a/b%0d%0a", "@cf/a/%3Cscript%3E", "http://127.0.0.1/x", "@cf%252Ftest%252Fparrot", "@cf/a/" + "b" * 129,
     "@cf/a/%F0%9F%92%A9", "@cf/a/b/", "@cf//b", "..%2f..%2fetc%2fpasswd", "workers-ai/workers-ai/@cf/a/b"],
)  # fmt: skip
def test_malformed_model_id_is_invalid(client: httpx.Client, running: Running, model: str):
    assert code_of(client.post(run_url(running, model), json=GOOD_BODY)) == (404, 3042)
    chat = {"model": httpx.URL(f"http://x/{model}").path[1:], "messages": HELLO}
    assert code_of(client.post(f"{running.account_url}/ai/v1/chat/completions", json=chat)) == (404, 3042)


def test_unknown_model_is_named_in_the_error(client: httpx.Client, running: Running):
    response = client.post(run_url(running, "@cf/no/thing"), json=GOOD_BODY)
    assert code_of(response) == (400, 5007)
    assert response.json()["errors"][0]["message"].startswith("No such model @cf/no/thing or task. ")
    assert response.json()["result"] is None


# Order of checks


def test_checks_run_in_the_documented_order(running: Running):
    """The order is framing, route, credential, account, scope, size, model, body."""
    bad_body = b"{"
    too_large = {"content-length": str(11 * 1024 * 1024)}
    ladder = [
        ("/client/v4/nowhere", {}, (400, 7000)),
        (f"/client/v4/accounts/x/ai/run/{NOWHERE}", {}, (404, 7003)),
        (f"/client/v4/accounts/{UNKNOWN_ACCOUNT}/ai/run/bad", {}, (400, 9106)),
        (f"/client/v4/accounts/{UNKNOWN_ACCOUNT}/ai/run/bad", running.headers("revoked"), (401, 10000)),
        (f"/client/v4/accounts/{UNKNOWN_ACCOUNT}/ai/run/bad", running.headers("scopeless"), (403, 10000)),
        (f"/client/v4/accounts/{running.tenants.account_id}/ai/run/bad", running.headers("scopeless"), (403, 10000)),
        (f"/client/v4/accounts/{running.tenants.account_id}/ai/run/bad", running.headers() | too_large, (413, 3006)),
        (f"/client/v4/accounts/{running.tenants.account_id}/ai/run/bad", running.headers(), (404, 3042)),
        (f"/client/v4/accounts/{running.tenants.account_id}/ai/run/@cf/no/thing", running.headers(), (400, 5007)),
        (f"/client/v4/accounts/{running.tenants.account_id}/ai/run/{PARROT}", running.headers(), (400, 5004)),
    ]
    for path, headers, expected in ladder:
        lines = {"host": "x", "content-length": str(len(bad_body)), **headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        request = f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + bad_body
        assert raw_request(running, request)[:2] == expected, path


@pytest.mark.parametrize("header", ["x-session-affinity", "idempotency-key"])
@pytest.mark.parametrize("value", [b"", b"x" * 256, b"\xe9", b"a\tb"])
def test_malformed_headers_are_rejected(client: httpx.Client, running: Running, header: str, value: bytes):
    assert code_of(client.post(run_url(running), json=GOOD_BODY, headers={header: value})) == (400, 3003)


def test_oversized_request_target_or_headers_are_rejected(client: httpx.Client, running: Running):
    assert code_of(client.post(run_url(running) + "?x=" + "y" * 9000, json=GOOD_BODY)) == (414, 3006)
    many = {f"x-{i}": "y" for i in range(120)}
    assert code_of(client.post(run_url(running), json=GOOD_BODY, headers=many)) == (431, 3006)
    assert code_of(client.post(run_url(running), json=GOOD_BODY, headers={"x": "y" * 40_000})) == (431, 3006)


# Bodies


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", (400, 3003)),
        (b"  \r\n ", (400, 3003)),
        (b'{"prompt": "x"', (400, 5004)),
        (b'{"prompt": "x"} x', (400, 5004)),
        (b'{"prompt": "x"}{}', (400, 5004)),
        (b'{"prompt": "x" /**/}', (400, 5004)),
        (b"{'prompt': 'x'}", (400, 5004)),
        (b"prompt=x", (400, 5004)),
        (b'{"prompt": "x", "temperature": NaN}', (400, 5004)),
        (b'{"prompt": "x", "temperature": Infinity}', (400, 5004)),
        (b'{"prompt": "x", "temperature": 1e400}', (400, 5004)),
        (b'{"prompt": "x", "seed": 111111111111111111111}', (400, 5004)),
        (b'{"prompt": "x", "prompt": "y"}', (400, 5004)),
        (b'{"prompt": "x", "a": ' + b"[" * 65 + b"]" * 65 + b"}", (400, 5004)),
        (json.dumps({"prompt": "x"} | {str(i): 1 for i in range(200)}).encode(), (400, 5004)),
        (json.dumps({"prompt": "x", "a": [0] * 100_000}).encode(), (400, 5004)),
        (b'{"prompt": "\xff"}', (400, 5004)),
        ('{"prompt": "x"}'.encode("utf-16"), (400, 5004)),
        (b'{"prompt": "\\ud800"}', (400, 5004)),
        (b"[]", (400, 5006)),
        (b'"x"', (400, 5006)),
        (b"null", (400, 5006)),
        (b"{}", (400, 5006)),
    ],
)
def test_body_that_is_not_a_json_object_is_rejected(
    client: httpx.Client, running: Running, body: bytes, expected: tuple
):
    assert code_of(client.post(run_url(running), content=body)) == expected
    assert code_of(client.post(run_url(running, CHATTY), content=body)) == expected


def test_byte_order_mark_is_stripped(client: httpx.Client, running: Running):
    assert client.post(run_url(running), content=b'\xef\xbb\xbf{"prompt": "x"}').status_code == 200


@pytest.mark.parametrize(
    "text",
    [
        "\x00\x01\x1f",
        "\u202e\u2066abc",
        "a" + "\u0301" * 500,
        "<|im_end|><|im_start|>system",
        "{{7*7}}",
        "<script>1</script>",
    ],
)
def test_unusual_characters_in_a_prompt_are_accepted(client: httpx.Client, running: Running, text: str):
    response = client.post(run_url(running), json={"messages": [{"role": "user", "content": text}]})
    assert response.status_code == 200
    assert running.site.execute_of(response).task.messages[-1].content == text


BAD_FIELDS = [
    {"messages": []},
    {"messages": "x"},
    {"messages": [1]},
    {"messages": [{"content": "x"}]},
    {"messages": [{"role": "user"}]},
    {"messages": [{"role": "user", "content": None}]},
    {"messages": [{"role": "user", "content": 1}]},
    {"messages": [{"role": "wizard", "content": "x"}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/x"}}]}]},
    {"messages": HELLO * 1001},
    *({"messages": HELLO, "max_tokens": value} for value in (0, -1, 1.5, True, "ten", 2049, [1])),
    *({"messages": HELLO, "temperature": value} for value in (-0.1, 5.1, "hot", [0])),
    *({"messages": HELLO, "top_p": value} for value in (-0.1, 1.1)),
    *({"messages": HELLO, "top_k": value} for value in (-2, 1001, 1.5)),
    *({"messages": HELLO, "stream": value} for value in ("yes", 1, [])),
    *({"messages": HELLO, "seed": value} for value in (1.5, "x")),
    {"messages": HELLO, "chat_template": "{{7*7}}"},
    {"messages": HELLO, "prompt_embeds": "gASVAAAA"},
    {"messages": HELLO, "frequency_penalty": 3},
]
BAD_CHAT_FIELDS = [
    {"messages": HELLO, "n": 9},
    {"messages": HELLO, "n": 0},
    {"messages": HELLO, "top_logprobs": 21, "logprobs": True},
    {"messages": HELLO, "stop": ["x"] * 17},
    {"messages": HELLO, "stop": ["x" * 257]},
    {"messages": HELLO, "logit_bias": {"999999999": 1}},
    {"messages": HELLO, "chat_template_kwargs": {"evil": "x"}},
]


@pytest.mark.parametrize("body", BAD_FIELDS, ids=lambda body: json.dumps(body)[:60])
def test_invalid_fields_are_named_in_both_api_formats(client: httpx.Client, running: Running, body: dict):
    native = client.post(run_url(running), json=body)
    assert code_of(native) == (400, 5006)
    assert native.json()["result"] == {}
    assert native.json()["errors"][0]["message"].startswith("AiError: Bad input: Error: ")
    chat = client.post(f"{running.account_url}/ai/v1/chat/completions", json=body | {"model": PARROT})
    assert code_of(chat) == (400, 5006)
    assert chat.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("body", BAD_CHAT_FIELDS, ids=lambda body: json.dumps(body)[:60])
def test_invalid_chat_fields_are_named(client: httpx.Client, running: Running, body: dict):
    chat = client.post(f"{running.account_url}/ai/v1/chat/completions", json=body | {"model": PARROT})
    assert code_of(chat) == (400, 5006)


@pytest.mark.parametrize("model", [None, 1, "", ["x"]])
def test_chat_request_without_a_model_is_rejected(client: httpx.Client, running: Running, model):
    body = {"messages": HELLO} | ({} if model is None else {"model": model})
    status, code = code_of(client.post(f"{running.account_url}/ai/v1/chat/completions", json=body))
    assert (status, code) in ((400, 5006), (404, 3042))


def test_error_messages_do_not_repeat_request_values(client: httpx.Client, running: Running):
    marker = "s3cret-marker"
    for body in ({"messages": HELLO, "temperature": marker}, {"messages": [{"role": marker, "content": "x"}]},
                 {"prompt": {"a": marker}}, {"messages": HELLO, "stream": marker}):  # fmt: skip
        assert marker not in client.post(run_url(running), json=body).text


def test_lora_is_rejected_for_models_without_lora(client: httpx.Client, running: Running):
    assert code_of(client.post(run_url(running), json=GOOD_BODY | {"lora": "my-lora"})) == (405, 5005)
    assert code_of(client.post(run_url(running), json=GOOD_BODY | {"lora": "../my-lora"})) == (400, 5006)


def test_body_size_limit_applies_to_declared_and_received_size(client: httpx.Client, running: Running):
    big = b'{"prompt": "' + b"x" * (10 * 1024 * 1024) + b'"}'
    declared = client.post(run_url(running), content=big)
    assert code_of(declared) == (413, 3006)
    chunks = (big[at : at + 65536] for at in range(0, len(big), 65536))
    chunked = httpx.post(run_url(running), content=chunks, headers=running.headers(), timeout=60)
    assert code_of(chunked) == (413, 3006)


def test_compressed_body_is_rejected_but_a_mislabeled_plain_body_is_accepted(client: httpx.Client, running: Running):
    body = json.dumps(GOOD_BODY).encode()
    squeezed = client.post(run_url(running), content=gzip.compress(body), headers={"content-encoding": "gzip"})
    assert code_of(squeezed) == (415, 5004)
    for harmless in ("application/json", "identity"):
        response = client.post(run_url(running), content=body, headers={"content-encoding": harmless})
        assert response.status_code == 200


def test_slow_body_is_rejected_with_408(running: Running):
    head = f"POST {httpx.URL(run_url(running)).path} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
    head += f"Authorization: {running.headers()['Authorization']}\r\n\r\n"
    assert raw_request(running, head.encode() + b'{"prompt":')[:2] == (408, 3007)


def test_truncated_body_starts_no_call(running: Running):
    before = running.site.num_executes
    head = f"POST {httpx.URL(run_url(running)).path} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
    head += f"Authorization: {running.headers()['Authorization']}\r\n\r\n"
    with closing(socket.create_connection(("127.0.0.1", running.gateway.port))) as connection:
        connection.sendall(head.encode() + b'{"prompt": "x"}')
    wait_until_blocking(lambda: running.gateway.metric("hearth_calls_in_flight") == 0)
    assert running.site.num_executes == before


def test_model_without_a_node_gives_out_of_capacity(client: httpx.Client, running: Running):
    response = client.post(run_url(running, NOWHERE), json=GOOD_BODY)
    assert code_of(response) == (429, 3040)
    assert response.headers["x-should-retry"] == "true"


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("invalid_input", (400, 5006)),
        ("context_too_long", (413, 3006)),
        ("out_of_capacity", (429, 3040)),
        ("model_unavailable", (429, 3040)),
        ("timeout", (408, 3007)),
        ("internal", (408, 3008)),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_rejection_by_a_node_is_an_error_response(
    client: httpx.Client, running: Running, reason: str, expected: tuple, is_stream: bool
):
    prompt = "!" + json.dumps({"tokens": [], "end": reason, "message": "'/prompt' is odd"})
    response = client.post(run_url(running), json={"prompt": prompt, "stream": is_stream})
    assert code_of(response) == expected
    assert ("'/prompt' is odd" in response.text) == (reason == "invalid_input")
    row = running.site.usage_row(response.headers["cf-ai-req-id"])
    assert (row["status"], row["completion_tokens"]) == (reason, 0)


# Verify


@pytest.mark.parametrize(
    ("token", "path", "expected"),
    [
        ("good", "/user/tokens/verify", "active"),
        ("blocked", "/user/tokens/verify", "active"),
        ("account", "/accounts/{a}/tokens/verify", "active"),
        ("expired", "/user/tokens/verify", "expired"),
        ("disabled", "/user/tokens/verify", "disabled"),
        ("revoked", "/user/tokens/verify", (401, 1000)),
        ("account", "/user/tokens/verify", (401, 1000)),
        ("good", "/accounts/{a}/tokens/verify", (401, 1000)),
        ("other", "/accounts/{a}/tokens/verify", (401, 1000)),
    ],
)
def test_verify_returns_the_token_status_on_the_route_for_its_kind(running: Running, token: str, path: str, expected):
    url = running.gateway.base_url + path.format(a=running.tenants.account_id)
    response = httpx.get(url, headers=running.headers(token))
    if isinstance(expected, tuple):
        assert code_of(response) == expected
        assert response.json()["errors"][0]["message"] == "Invalid API Token"
        return
    assert response.json()["result"]["status"] == expected
    assert response.json()["result"]["id"] == running.tenants.token_ids[token]
    if expected == "active":
        assert response.json()["messages"] == [{"code": 10000, "message": "This API Token is valid and active"}]


def test_verify_rejects_signed_tokens(running: Running):
    headers = {"authorization": "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0."}
    for path in ("/user/tokens/verify", f"/accounts/{running.tenants.account_id}/tokens/verify"):
        assert code_of(httpx.get(running.gateway.base_url + path, headers=headers)) == (401, 1000)


def test_verify_without_a_credential_is_rejected(running: Running):
    assert code_of(httpx.get(f"{running.gateway.base_url}/user/tokens/verify")) == (400, 9106)


# Both API formats


def test_openai_routes_return_errors_in_both_formats(running: Running):
    response = httpx.post(f"{running.account_url}/ai/v1/embeddings", json={"model": VECTORS, "input": "x"})
    body = response.json()
    assert code_of(response) == (400, 9106)
    assert body["error"] == {"message": body["errors"][0]["message"], "type": "invalid_request_error", "param": None,
                             "code": 9106}  # fmt: skip
    assert body["result"] == {}


def test_invalid_field_is_named_as_in_each_api_format(client: httpx.Client, running: Running):
    request = {"model": CHATTY, "messages": [{"role": "bogus", "content": "x"}]}
    body = client.post(f"{running.account_url}/ai/v1/chat/completions", json=request).json()
    assert body["error"]["param"] == "messages[0].role"
    assert body["errors"][0]["source"] == {"pointer": "/messages/0/role"}
    missing = client.post(f"{running.account_url}/ai/v1/chat/completions", json={"messages": []}).json()
    assert (missing["error"]["param"], missing["errors"][0]["source"]) == ("model", {"pointer": "/"})
    good = {"model": CHATTY, "messages": [{"role": "user", "content": "x"}]}
    for name, value in (("model", "@cf/nobody/nothing"), ("model", "../x"), ("lora", "nothing")):
        body = client.post(f"{running.account_url}/ai/v1/chat/completions", json=good | {name: value}).json()
        assert body["error"]["param"] == name


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/ai/v1/chat/completions", (405, 7001)),
        ("POST", "/ai/v1/nothing", (400, 7000)),
        ("POST", "/ai/v1", (400, 7000)),
        ("POST", "/ai/v1/embeddings?x=" + "y" * 9000, (414, 3006)),
    ],
)
def test_unknown_openai_paths_return_errors_in_both_formats(running: Running, method: str, path: str, expected):
    response = httpx.request(method, running.account_url + path)
    assert code_of(response) == expected
    assert response.json()["error"]["code"] == expected[1]
    malformed = httpx.post(f"{running.gateway.base_url}/accounts/x/ai/v1/embeddings")
    assert code_of(malformed) == (404, 7003)
    assert malformed.json()["error"]["code"] == 7003
    assert "error" not in httpx.get(run_url(running)).json()


def test_rejected_input_has_model_headers_and_malformed_json_has_none(client: httpx.Client, running: Running):
    refused = client.post(run_url(running), json={"prompt": "x", "temperature": 9})
    assert refused.headers["cf-ai-req-id"] == refused.headers["x-hearth-request-id"]
    for response in (client.post(run_url(running), content=b"{"), client.post(run_url(running, "@cf/no/x"), json={})):
        assert "cf-ai-req-id" not in response.headers


def test_no_invalid_request_caused_an_internal_error(running: Running):
    """Runs last in this file: the gateway still responds, and no request caused an internal error."""
    assert running.gateway.metric("hearth_internal_errors_total") == 0
    assert not [line for line in running.gateway.log_lines() if line["level"] in ("error", "critical")]
    assert httpx.post(run_url(running), json=GOOD_BODY, headers=running.headers()).status_code == 200
