"""The HTTP layer against raw sockets: ambiguous, malformed and slow requests are rejected, and the connection is
closed.

After each bad request, a valid one follows on the same connection. The valid one must get no response: otherwise a part
of the bad request was executed as a request.
"""

import json
import re
import select
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import pytest

from tests.gateway.process import PARROT
from tests.gateway.site import Running
from tests.waiting import PATIENCE_S, wait_until_blocking

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
BODY = b'{"prompt": "x"}'


# modules that may log warnings on a busy machine
ELSEWHERE = ("storage.", "tenants.", "service_identity.", "gateway.nodes.")


def exchange_raw(running: Running, *parts: bytes, timeout_s: float = PATIENCE_S) -> bytes:
    """Send data and return everything that the gateway sends until it closes the connection."""
    with closing(socket.create_connection(("127.0.0.1", running.gateway.port), timeout=timeout_s)) as connection:
        heard = b""
        try:
            for part in parts:
                connection.sendall(part)
            while data := connection.recv(65536):
                heard += data
        except ConnectionError:
            pass
        return heard


def post(
    running: Running, *lines: bytes, version: bytes = b"HTTP/1.1", body: bytes = BODY, host: bytes = b"x"
) -> bytes:
    """Return a request to run a model with a Host header, a credential and these header lines."""
    head = [
        b"POST /client/v4/accounts/%s/ai/run/%s %s" % (running.tenants.account_id.encode(), PARROT.encode(), version),
        b"Host: " + host,
        b"Authorization: " + running.headers()["Authorization"].encode(),
        *lines,
    ]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def statuses(heard: bytes) -> list[int]:
    """Return the statuses of all responses in `heard`."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", heard)]


LENGTH = b"Content-Length: %d" % len(BODY)
CHUNKED_BODY = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        ([LENGTH, b"Transfer-Encoding: chunked"], CHUNKED_BODY),
        ([b"Transfer-Encoding: chunked", LENGTH], CHUNKED_BODY),
        ([LENGTH, LENGTH], BODY),
        ([LENGTH, b"Content-Length: 0"], BODY),
        ([b"Content-Length: 15, 15"], BODY),
        ([b"Content-Length: 15,"], BODY),
        ([b"Content-Length: +15"], BODY),
        ([b"Content-Length: -1"], BODY),
        ([b"Content-Length: 0xf"], BODY),
        ([b"Content-Length: 1e1"], BODY),
        ([b"Content-Length: " + b"0" * 38 + b"15"], BODY),
        ([b"Content-Length: 1" + b"0" * 39], BODY),
        ([b"Content-Length:"], BODY),
        ([b"Content-Length: 1 5"], BODY),
        ([b"Transfer-Encoding: gzip, chunked"], CHUNKED_BODY),
        ([b"Transfer-Encoding: chunked, chunked"], CHUNKED_BODY),
        ([b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"], CHUNKED_BODY),
        ([b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"], CHUNKED_BODY),
        ([b"Transfer-Encoding: identity"], BODY),
        ([b"Transfer-Encoding: xchunked"], CHUNKED_BODY),
        ([b"Transfer-Encoding: chunkedx"], CHUNKED_BODY),
        ([b"Transfer-Encoding: \x0bchunked"], CHUNKED_BODY),
        ([b"Transfer-Encoding:"], BODY),
        ([b"Transfer-Encoding : chunked"], CHUNKED_BODY),
    ],
    ids=repr,
)
def test_ambiguous_body_length_is_rejected(running: Running, lines: list[bytes], body: bytes):
    before = running.site.num_executes
    heard = exchange_raw(running, post(running, *lines, body=body) + SMUGGLED)
    assert len(statuses(heard)) == 1, heard
    assert statuses(heard)[0] == 400
    assert running.site.num_executes == before


@pytest.mark.parametrize(
    "body",
    [
        b"xyz\r\n" + BODY + b"\r\n0\r\n\r\n",
        b"-f\r\n" + BODY + b"\r\n0\r\n\r\n",
        b"f" * 17 + b"\r\n" + BODY + b"\r\n0\r\n\r\n",
        b"f\r\n" + BODY + b"XX0\r\n\r\n",
        b"f\r\n" + BODY + b"\r\n0\n\n",
        b"f\n" + BODY + b"\n0\n\n",
        b"0xf\r\n" + BODY + b"\r\n0\r\n\r\n",
        b" f\r\n" + BODY + b"\r\n0\r\n\r\n",
    ],
    ids=repr,
)
def test_malformed_chunks_are_rejected(running: Running, body: bytes):
    before = running.site.num_executes
    heard = exchange_raw(running, post(running, b"Transfer-Encoding: chunked", body=body) + SMUGGLED)
    assert statuses(heard) in ([400], [])
    assert running.site.num_executes == before


def test_trailers_are_not_added_to_the_headers(running: Running):
    trailers = b"x-session-affinity: no grammar!\r\nAuthorization: Bearer x\r\n"
    body = CHUNKED_BODY[:-2] + trailers + b"\r\n"
    heard = exchange_raw(running, post(running, b"Transfer-Encoding: chunked", b"Connection: close", body=body))
    assert statuses(heard) == [200]


@pytest.mark.parametrize(
    "flood",
    [b"f;" + b"x" * 120_000, b"1;%s\r\n \r\n" % (b"x" * 20) * 9_000, CHUNKED_BODY[:-2] + b"X: " + b"y" * 120_000],
    ids=["extension", "small chunks with extensions", "trailer"],
)
def test_excessive_chunk_framing_closes_the_connection(running: Running, flood: bytes):
    before = running.site.num_executes
    request = post(running, b"Transfer-Encoding: chunked", body=flood)
    # On a slow machine the timeout (408) can come first, and data that still arrives can reset the connection before
    # the response is read. Hence several attempts.
    assert any(statuses(exchange_raw(running, request)) in ([431], []) for _ in range(5))
    assert running.site.num_executes == before


def test_body_of_small_chunks_is_accepted(running: Running):
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY + b" " * 5000) + b"0\r\n\r\n"
    heard = exchange_raw(running, post(running, b"Transfer-Encoding: chunked", b"Connection: close", body=chunks))
    assert statuses(heard) == [200]


@pytest.mark.parametrize(
    "lines",
    [
        [b"X-A : 1"],
        [b"X-A\t: 1"],
        [b"no colon"],
        [b": empty"],
        [b"X-\x00A: 1"],
        [b"X-A: a\x00b"],
        [b"X-A: a\nX-B: b"],
        [b"X-A: a\rb"],
        [b"X-A: 1", b" folded"],
        [b"X\xe9: 1"],
    ],
    ids=repr,
)
def test_malformed_header_lines_are_rejected(running: Running, lines: list[bytes]):
    before = running.site.num_executes
    heard = exchange_raw(running, post(running, *lines, LENGTH) + SMUGGLED)
    assert statuses(heard) in ([400], [])
    assert running.site.num_executes == before


@pytest.mark.parametrize(
    "host",
    [b"", b"a/b", b"a?b", b"a#b", b"u@b", b"a b", b"a\tb", b"a:port", b"[::1", b"a\\b", b"a,b", b"a:1:2"],
    ids=repr,
)
def test_malformed_host_is_rejected(running: Running, host: bytes):
    assert statuses(exchange_raw(running, post(running, LENGTH, host=host) + SMUGGLED)) == [400]


@pytest.mark.parametrize(
    "host", [b"x", b"a.example:8787", b"127.0.0.1:1", b"[::1]:8787", b"a_b.c", b"xn--bcher-kva.example."]
)
def test_host_may_be_any_name_or_address(running: Running, host: bytes):
    assert statuses(exchange_raw(running, post(running, LENGTH, b"Connection: close", host=host))) == [200]


def test_exactly_one_host_header_is_required(running: Running):
    two = post(running, b"Host: x", LENGTH)
    none = post(running, LENGTH).replace(b"Host: x\r\n", b"")
    for request in (two, none):
        assert statuses(exchange_raw(running, request + SMUGGLED)) == [400]


@pytest.mark.parametrize(
    "version", [b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.2", b"HTTP/3.0", b"HTTP/9.9", b"http/1.1", b"HTTP/1", b"XTTP/1.1"]
)
def test_unsupported_http_versions_are_rejected(running: Running, version: bytes):
    heard = exchange_raw(running, post(running, LENGTH, version=version) + SMUGGLED)
    assert statuses(heard) == [505 if re.fullmatch(rb"HTTP/\d\.\d", version) else 400]


def test_http_1_0_is_served_and_the_connection_closed(running: Running):
    heard = exchange_raw(running, post(running, LENGTH, version=b"HTTP/1.0") + SMUGGLED)
    assert statuses(heard) == [200]
    assert b"connection: close" in heard.lower()


@pytest.mark.parametrize("method", [b"TRACE", b"CONNECT", b"BREW", b"PROPFIND", b"M-SEARCH", b"get"])
def test_unsupported_methods_are_rejected(running: Running, method: bytes):
    request = post(running, b"Content-Length: 0", b"Connection: close", body=b"").replace(b"POST", method, 1)
    assert statuses(exchange_raw(running, request)) == [400 if method == b"get" else 405]


@pytest.fixture(scope="module")
def with_cors(running: Running) -> Iterator[Running]:
    """Yield a gateway that allows pages of one origin."""
    with running.beside(HEARTH_CORS_ORIGINS="https://app.example") as gateway:
        yield Running(running.site, gateway)


@pytest.mark.parametrize(
    "request_line",
    [
        b"CONNECT a.example:443",
        b"CONNECT /v1/models",
        b"TRACE /",
        b"TRACE /nowhere",
        b"TRACE /v1/models",
        b"PROPFIND /",
        b"BREW /pot",
        b"BREW /healthz",
    ],
)
def test_unsupported_method_gets_405_with_the_headers_of_every_response(with_cors: Running, request_line: bytes):
    lines = [request_line + b" HTTP/1.1", b"Host: a.example", b"Origin: https://app.example", b"Connection: close"]
    heard = exchange_raw(with_cors, b"\r\n".join(lines) + b"\r\n\r\n")
    assert statuses(heard) == [405]
    lines = heard.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
    headers = dict(line.split(b": ", 1) for line in lines)
    assert {b"date", b"x-request-id", b"x-hearth-request-id", b"cf-ray", b"content-type"} <= headers.keys()
    assert (
        headers[b"allow"].endswith(b"GET, HEAD") or headers[b"allow"] == b"DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
    )
    assert headers[b"access-control-allow-origin"] == b"https://app.example"
    assert headers[b"vary"] == b"origin"
    assert b"allow" in headers[b"access-control-expose-headers"]


@pytest.mark.parametrize("is_chunked", [False, True], ids=["announced", "chunked"])
@pytest.mark.parametrize(
    ("path", "name", "expected"),
    [
        ("ai/run/{model}", "good", 413),
        ("ai/tomarkdown", "good", 413),
        ("ai/run/{model}", "expired", 401),
        ("nowhere", "good", 400),
    ],
)
def test_response_to_a_large_body_is_readable(
    running: Running, path: str, name: str, expected: int, *, is_chunked: bool
):
    """A client that sends the whole body before it reads gets the response, not a reset."""
    size = 40_000_000
    url = f"/client/v4/accounts/{running.tenants.account_id}/{path.format(model=PARROT)}"
    head = f"POST {url} HTTP/1.1\r\nHost: x\r\nAuthorization: {running.headers(name)['Authorization']}\r\n"
    head += "Content-Type: multipart/form-data; boundary=b\r\n"
    head += "Transfer-Encoding: chunked\r\n" if is_chunked else f"Content-Length: {size}\r\n"
    part = b"--b\r\ncontent-disposition: form-data; name=files; filename=x.txt\r\n\r\n" + b" " * 999_000
    start = b"%x\r\n" % size if is_chunked else b""
    with closing(socket.create_connection(("127.0.0.1", running.gateway.port), timeout=PATIENCE_S)) as connection:
        connection.sendall(head.encode() + b"\r\n" + start + part)
        for _ in range(39):
            connection.sendall(b" " * 1_000_000)
        heard = b""
        while data := connection.recv(65536):
            heard += data
    assert statuses(heard) == [expected]
    assert b"\r\nconnection: close\r\n" in heard
    assert json.loads(heard.partition(b"\r\n\r\n")[2])["success"] is False


@pytest.mark.parametrize("upgrade", [b"websocket", b"h2c", b"TLS/1.0"])
def test_upgrade_is_ignored_and_data_after_the_request_is_not_parsed(running: Running, upgrade: bytes):
    lines = (
        b"Connection: Upgrade",
        b"Upgrade: " + upgrade,
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        b"Sec-WebSocket-Version: 13",
    )
    heard = exchange_raw(running, post(running, *lines, LENGTH), SMUGGLED)
    assert statuses(heard) in ([200], [426])
    heard = exchange_raw(running, b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"\r\n".join(lines) + b"\r\n\r\n", SMUGGLED)
    assert statuses(heard) in ([200], [426])


def test_unknown_expectation_is_rejected(running: Running):
    assert statuses(exchange_raw(running, post(running, b"Expect: 200-ok", LENGTH) + SMUGGLED)) == [417]
    continued = exchange_raw(running, post(running, b"Expect: 100-continue", b"Connection: close", LENGTH))
    assert statuses(continued) == [100, 200]


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        bytes(range(256)),
        b"\r\n\r\n\x00\x00",
        b"\xff" * 4096,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"*1\r\n$4\r\nPING\r\n",
    ],
    ids=lambda data: repr(data[:12]),
)
def test_data_that_is_not_http_is_rejected(running: Running, data: bytes):
    assert all(status in (400, 405, 505) for status in statuses(exchange_raw(running, data)))


def test_unparsable_request_gets_an_envelope_with_a_request_id(running: Running):
    head, _, body = exchange_raw(running, b"\xff\xff").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"\r\nx-request-id: " in head
    assert json.loads(body)["errors"][0]["code"] == 3003


def test_invalid_data_after_a_request_does_not_affect_its_response(running: Running):
    heard = exchange_raw(running, post(running, LENGTH) + b"\x00 garbage\r\n\r\n")
    assert statuses(heard) in ([200], [200, 400])


@pytest.mark.parametrize(
    ("request_line", "lines", "expected"),
    [
        (b"GET /healthz?" + b"x" * 9000, [], (414, 3006)),
        (b"GET /healthz", [b"X-%d: y" % i for i in range(120)], (431, 3006)),
        (b"GET /healthz", [b"X: " + b"y" * 33_000], (431, 3006)),
        (b"GET /healthz", [b"X: " + b"y" * 1_000_000], (431, 3006)),
        (b"GET /" + b"x" * 1_000_000, [], (414, 3006)),
        (b"GET /healthz?" + b"x" * 40_000, [], (414, 3006)),
        (b"GET /healthz?" + b"x" * 70_000, [], (414, 3006)),
        (b"GET /healthz?" + b"x" * 100_000, [], (414, 3006)),
    ],
    ids=["target", "many headers", "large headers", "endless header", "endless target", "40 KB", "70 KB", "100 KB"],
)
def test_oversized_head_closes_the_connection(running: Running, request_line: bytes, lines: list[bytes], expected):
    head = b"\r\n".join([request_line + b" HTTP/1.1", b"Host: x", *lines]) + b"\r\n\r\n"
    heard = exchange_raw(running, head + SMUGGLED)
    assert statuses(heard) == [expected[0]]
    assert b'"code":%d' % expected[1] in heard


def test_http_1_0_stream_is_not_chunked(running: Running):
    body = b'{"prompt": "x", "stream": true}'
    heard = exchange_raw(running, post(running, b"Content-Length: %d" % len(body), version=b"HTTP/1.0", body=body))
    head, _, stream = heard.partition(b"\r\n\r\n")
    assert statuses(head) == [200]
    assert b"transfer-encoding" not in head.lower()
    assert stream.startswith(b"data: {")
    assert stream.endswith(b"}\n\ndata: [DONE]\n\n")
    whole = exchange_raw(running, post(running, LENGTH, version=b"HTTP/1.0"))
    assert json.loads(whole.partition(b"\r\n\r\n")[2])["success"] is True


def test_incomplete_head_times_out_even_if_bytes_keep_arriving(running: Running):
    started_s = time.monotonic()
    with ExitStack() as stack:
        opened = [
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", running.gateway.port), PATIENCE_S)))
            for _ in range(30)
        ]
        for connection in opened[:20]:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        for connection in opened[20:29]:
            connection.sendall(b"\r\n")
        while not select.select([opened[0]], [], [], 0.1)[0]:
            with suppress(ConnectionError):  # the gateway may have closed the connection
                opened[0].sendall(b"y")
        heard = [connection.recv(65536) for connection in opened]
    assert 1.0 <= time.monotonic() - started_s < PATIENCE_S
    assert {tuple(statuses(response)) for response in heard[:20]} == {(408,)}
    assert heard[29] == b""


def test_second_head_on_a_connection_times_out_too(running: Running):
    heard = exchange_raw(running, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /he")
    assert statuses(heard) == [200, 408]


def test_body_that_arrives_after_its_error_response_is_discarded(running: Running):
    refused = post(running, LENGTH, body=b"").replace(b"Bearer ", b"Bearer x")
    with closing(socket.create_connection(("127.0.0.1", running.gateway.port), timeout=PATIENCE_S)) as connection:
        connection.sendall(refused)
        heard = connection.recv(65536)
        while b'"messages":[]' not in heard:
            heard += connection.recv(65536)
        assert statuses(heard) == [400]
        connection.sendall(BODY)
        time.sleep(1.8)  # longer than the head timeout
        connection.sendall(post(running, LENGTH, b"Connection: close"))
        later = b""
        while data := connection.recv(65536):
            later += data
    assert statuses(later) == [200]


def test_only_unauthenticated_connections_are_limited(running: Running):
    good = post(running, LENGTH)
    with ExitStack() as stack:

        def opened(request: bytes) -> socket.socket:
            connection = stack.enter_context(
                closing(socket.create_connection(("127.0.0.1", running.gateway.port), PATIENCE_S))
            )
            connection.sendall(request)
            assert statuses(connection.recv(65536)) == [200]
            return connection

        known = [opened(good) for _ in range(30)]
        unauthenticated = [opened(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n") for _ in range(60)]
        wait_until_blocking(lambda: sum(is_open(connection) for connection in unauthenticated) <= 40)
        assert sum(is_open(connection) for connection in unauthenticated) == 40
        assert all(is_open(connection) for connection in [*known, *unauthenticated[20:]])


def test_excess_connections_get_429_and_no_reset(running: Running):
    """More connections than allowed open and send nothing; after the rejection, one of them sends a request."""
    process = running.gateway.process
    assert process is not None
    with ExitStack() as stack:
        address = ("127.0.0.1", running.gateway.port)
        process.send_signal(signal.SIGSTOP)
        try:
            connections = [
                stack.enter_context(closing(socket.create_connection(address, PATIENCE_S))) for _ in range(80)
            ]
        finally:
            process.send_signal(signal.SIGCONT)
        heard = [read_to_end(connection, asks=connection is connections[0]) for connection in connections[:40]]
    for response in heard:
        head, body = response.split(b"\r\n\r\n", 1)
        assert statuses(head) == [429]
        assert b"retry-after: " in head
        assert b"connection: close" in head
        assert json.loads(body)["errors"][0]["code"] == 971


def test_burst_of_authenticated_connections_is_served(running: Running):
    """Twelve times as many connections as may stay unauthenticated, all opened before the first one is handled."""
    process = running.gateway.process
    assert process is not None
    path = f"/client/v4/accounts/{running.tenants.account_id}/ai/v1/models"
    lines = f"Host: x\r\nConnection: close\r\nAuthorization: {running.headers()['Authorization']}"
    request = f"GET {path} HTTP/1.1\r\n{lines}\r\n\r\n".encode()
    with ExitStack() as stack:
        process.send_signal(signal.SIGSTOP)
        try:
            address = ("127.0.0.1", running.gateway.port)
            connections = [
                stack.enter_context(closing(socket.create_connection(address, PATIENCE_S))) for _ in range(480)
            ]
            for connection in connections:
                connection.sendall(request)
        finally:
            process.send_signal(signal.SIGCONT)
        assert {tuple(statuses(read_to_end(connection))) for connection in connections} == {(200,)}


def read_to_end(connection: socket.socket, *, asks: bool = False) -> bytes:
    """Return all data until the peer closes. Raises if the connection is reset. Sends `asks` once the first data
    arrived."""
    heard = connection.recv(65536)
    if asks:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    while data := connection.recv(65536):
        heard += data
    return heard


def test_suspended_gateway_closes_no_connection_for_its_own_delay(running: Running):
    assert any(keeps_waiting_connections(running) for _ in range(5))


def keeps_waiting_connections(running: Running) -> bool:
    """Suspend the gateway and check that its waiting connections are served afterwards. Return False if this test was
    too slow to check."""
    process = running.gateway.process
    assert process is not None
    path = f"/client/v4/accounts/{running.tenants.account_id}/ai/v1/models"
    good = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {running.headers()['Authorization']}\r\n\r\n".encode()
    with ExitStack() as stack:
        began_s = time.monotonic()
        connections = [
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", running.gateway.port), PATIENCE_S)))
            for _ in range(60)
        ]
        time.sleep(0.2)  # time for the gateway to accept the connections
        process.send_signal(signal.SIGSTOP)
        could_be_late = time.monotonic() - began_s > 0.9
        try:
            for connection in connections:
                connection.sendall(good)
            time.sleep(1.3)  # longer than the grace period of unauthenticated connections and the head timeout
        finally:
            process.send_signal(signal.SIGCONT)
        assert could_be_late or {tuple(statuses(connection.recv(65536))) for connection in connections} == {(200,)}
    return not could_be_late


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(65536):
            pass
        return False
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def test_gateway_reports_no_internal_error_after_all_of_the_above(running: Running):
    """Must run last in this file."""
    assert statuses(exchange_raw(running, post(running, LENGTH, b"Connection: close"))) == [200]
    assert running.gateway.metric("hearth_internal_errors_total") == 0
    lines = running.gateway.log_lines()
    assert not [line for line in lines if line["level"] in ("error", "critical")]
    assert not [line for line in lines if line["level"] == "warning" and not line["logger"].startswith(ELSEWHERE)]
