"""Validation of parsed request heads: limits, the Host header, and unambiguous framing. Pure.

Prevents request smuggling: a head that two HTTP parsers could read differently is rejected, and the connection is
closed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gateway.errors import Reason, Refusal
from gateway.http.exchange import Scope

MAX_TARGET_BYTES = 8 * 1024
MAX_HEADERS = 100
MAX_HEADER_BYTES = 32 * 1024
METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")  # methods of all routes
ALLOWED_METHODS = ", ".join(METHODS)

_SINGLE = frozenset({b"host", b"content-length", b"transfer-encoding", b"expect", b"upgrade"})
_HOST = re.compile(rb"([A-Za-z0-9_][A-Za-z0-9_.-]{0,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_LENGTH = re.compile(rb"[0-9]{1,18}")


class HeadValidator:
    """Validates request heads."""

    def __init__(self, allowed_hosts: Iterable[str] = ()) -> None:
        """Allow only these host names, given without ports; an empty iterable allows all."""
        self._allowed_hosts = frozenset(host.lower().encode() for host in allowed_hosts)

    def check(self, scope: Scope) -> None:
        """Raise Refusal if the head of a request is invalid."""
        version = scope["http_version"]
        if version not in ("1.1", "1.0"):
            raise Refusal(Reason.VERSION_UNSUPPORTED)
        if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_TARGET_BYTES:
            raise Refusal(Reason.TARGET_TOO_LONG)
        headers = scope["headers"]
        if len(headers) > MAX_HEADERS:
            raise Refusal(Reason.HEADERS_TOO_LARGE)
        size = 0
        found: dict[bytes, bytes] = {}
        for name, value in headers:
            size += len(name) + len(value)
            if name in _SINGLE:
                if name in found:
                    raise Refusal(Reason.HEAD_INVALID, f"More than one {name.decode()} header")
                found[name] = value
        if size > MAX_HEADER_BYTES:
            raise Refusal(Reason.HEADERS_TOO_LARGE)
        self._check_host(found.get(b"host"))
        _check_length(found, version)
        if found.get(b"expect", b"100-continue").lower() != b"100-continue":
            raise Refusal(Reason.EXPECTATION_UNKNOWN)

    def _check_host(self, host: bytes | None) -> None:
        match = None if host is None else _HOST.fullmatch(host)
        if match is None:
            raise Refusal(Reason.HEAD_INVALID, "The Host header is missing or malformed")
        if self._allowed_hosts and match[1].lower() not in self._allowed_hosts:
            raise Refusal(Reason.HEAD_INVALID, "The Host header names no host of this gateway")


def _check_length(found: dict[bytes, bytes], version: str) -> None:
    length = found.get(b"content-length")
    if length is not None and not _LENGTH.fullmatch(length):
        raise Refusal(Reason.HEAD_INVALID, "The Content-Length header is malformed")
    coding = found.get(b"transfer-encoding")
    if coding is None:
        return
    if coding.lower() != b"chunked" or length is not None or version == "1.0":
        raise Refusal(Reason.HEAD_INVALID, "The Transfer-Encoding header is malformed or beside a Content-Length")
    # httptools stops parsing at an upgrade, so it would not decode a chunked body.
    if b"upgrade" in found:
        raise Refusal(Reason.HEAD_INVALID, "A request with an Upgrade header must have a Content-Length header")
