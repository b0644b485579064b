"""Cookies of browser sessions, and the origins of this platform's own pages. Pure.

Cookies are `__Host-` cookies with `Secure`. Browsers do not store such cookies for `http://127.0.0.1` and
`http://localhost`, where `hearth up` serves, so there the cookie has a plain name with the port in it: ports of one
host share their cookies.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

Headers = Sequence[tuple[bytes, bytes]]

SESSION, SIGN_IN = "session", "sign-in"

_LOOPBACK = re.compile(rb"(localhost|127\.0\.0\.1|\[::1\])(?::([0-9]{1,5}))?")


def own_origins(headers: Headers) -> frozenset[bytes]:
    """Return the origins that pages of the requested host have: with https, and on loopback hosts also with http."""
    host = _host(headers)
    schemes = (b"https", b"http") if _LOOPBACK.fullmatch(host) else (b"https",)
    return frozenset(scheme + b"://" + host for scheme in schemes)


def is_insecure(headers: Headers) -> bool:
    """Return True if a page without TLS on another host than this machine sent the request. Its browser would not
    store the session's cookie."""
    host = _host(headers)
    return not _LOOPBACK.fullmatch(host) and (b"origin", b"http://" + host) in headers


def read_cookie(headers: Headers, kind: str) -> str:
    """Return the value of a cookie; "" if it is missing or repeated."""
    name = _name(headers, kind).encode()
    pairs = [pair.strip() for key, value in headers if key == b"cookie" for pair in value.split(b";")]
    found = [pair.partition(b"=")[2] for pair in pairs if pair.partition(b"=")[0] == name]
    return found[0].decode("latin-1") if len(found) == 1 else ""


def set_cookie(headers: Headers, kind: str, value: str, same_site: str, max_age_s: int | None = None) -> str:
    """Return the `set-cookie` header of the response to a request with `headers`."""
    secure = "" if _LOOPBACK.fullmatch(_host(headers)) else " Secure;"
    max_age = "" if max_age_s is None else f"; Max-Age={max_age_s}"
    return f"{_name(headers, kind)}={value}; Path=/;{secure} HttpOnly; SameSite={same_site}{max_age}"


def _host(headers: Headers) -> bytes:
    return next((value.lower() for name, value in headers if name == b"host"), b"")


def _name(headers: Headers, kind: str) -> str:
    match = _LOOPBACK.fullmatch(_host(headers))
    return f"__Host-hearth-{kind}" if match is None else f"hearth-{kind}-{(match[2] or b'80').decode()}"
