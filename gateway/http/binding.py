"""Unwrap the requests of a Worker's AI binding. Pure.

The binding calls an origin of its own (`https://workers-binding.ai/run?version=3`) without account or credential. Its
requests arrive in three ways:

- directly, from workerd with a configuration that adds the credential;
- through miniflare, which puts the whole request into `MF-` headers of a request to one URL;
- through wrangler, which posts to `ai/run/proxy` with the URL in `X-Forwarded`.

`unwrap` turns the second and third form into the first. It accepts only the binding's own paths: a reverse proxy that
restricts other paths must be able to rely on the path that it sees.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

from gateway.errors import Reason, Refusal
from gateway.http.exchange import Exchange, Headers, Scope
from gateway.http.head_validation import MAX_TARGET_BYTES

HOST = b"workers-binding.ai"
ACCOUNT_HEADER = b"x-hearth-account"
MODEL_HEADER = b"cf-consn-model-id"

_SDK_HEADER = b"cf-consn-sdk-version"
_PROXY = re.compile(rb"/client/v4/accounts/([^/]+)/ai/run/proxy")
_MINIFLARE = re.compile(rb"/mf/([^/]+)(?:/([^/]*))?/?")
_ROOTS = (b"/run", b"/ai-gateway/", b"/ai-api/", b"/to-everything/", b"/autorag/")
_WRAPPED_PATH = re.compile(rb"/run|/(?:ai-gateway|ai-api|to-everything|autorag)(?:/[A-Za-z0-9._-]+)+")
_ACCOUNT_ID = re.compile(rb"[0-9a-f]{32}")
_VERSIONS = (b"3", b"2")

_WRAPPED_PREFIX = b"mf-header-"
# Headers about the outer connection: a wrapped request cannot set its body length or client address.
_CONNECTION_HEADERS = frozenset({
    b"host", b"content-length", b"transfer-encoding", b"connection", b"upgrade", b"expect", b"x-forwarded-for",
})  # fmt: skip
_CREDENTIALS = frozenset({b"authorization", b"x-api-key", b"x-auth-email", b"x-auth-key", b"x-auth-user-service-key"})


def is_of_binding(scope: Scope) -> bool:
    """Return True if a request, wrapped or not, is from a binding and gets responses in the binding's format."""
    path: bytes = scope["raw_path"]
    if path.startswith(b"/client/"):
        return False
    if path.startswith((*_ROOTS, b"/mf/")):
        return True
    return any(
        name == _SDK_HEADER or (name == b"host" and value.split(b":")[0].lower() == HOST)
        for name, value in scope["headers"]
    )


def unwrap(scope: Scope) -> bool:
    """Replace a wrapped request by the request it contains, in place, and return True if `scope` was changed.

    Sets `scope["hearth.account_id"]` if the wrapper or a header names the account. Raises Refusal.
    """
    path: bytes = scope["raw_path"]
    if path.startswith(b"/client/") and not path.endswith(b"/proxy"):
        return False
    proxied = _PROXY.fullmatch(path)
    mini = None if proxied else _MINIFLARE.fullmatch(path)
    if proxied is not None:
        _set_target(scope, _value(scope["headers"], b"x-forwarded"), "X-Forwarded")
        account_id: bytes | None = proxied[1]
    elif mini is not None:
        account_id = mini[1]
        _unwrap_miniflare(scope, mini[2] or _token_in(scope["query_string"]))
    else:
        has_account = path.startswith(b"/client/")  # these paths contain the account
        account_id = None if has_account else _value(scope["headers"], ACCOUNT_HEADER)
    if account_id is None:
        return False
    if not _ACCOUNT_ID.fullmatch(account_id):
        raise Refusal(Reason.ACCOUNT_ID_MALFORMED, "/mf" if mini else path[:256].decode("ascii", "replace"))
    scope["hearth.account_id"] = account_id.decode("ascii")
    return True


def without_undefined(query: bytes) -> bytes:
    """Return the query without parameters that are `undefined`, which is how JavaScript clients send missing values."""
    return b"&".join(pair for pair in query.split(b"&") if pair and not pair.endswith(b"=undefined"))


def model_of(exchange: Exchange) -> str:
    """Return the model of a run, which only a header names; a prefix before its `@` is removed.

    Raises Refusal if the header is missing or the version of the binding is not supported.
    """
    version = next((value for name, value in parse_qsl(exchange.query_string) if name == b"version"), b"3")
    if version not in _VERSIONS:
        raise Refusal(Reason.BINDING_UNKNOWN)
    name = exchange.header(MODEL_HEADER)
    if name is None:
        raise Refusal(Reason.HEADER_INVALID, "the header cf-consn-model-id is missing")
    text = name.decode("utf-8", "replace")
    return text[text.find("@") :] if "@" in text else text


def _unwrap_miniflare(scope: Scope, secret: bytes | None) -> None:
    """Replace the request by the one in miniflare's `MF-` headers.

    The wrapped headers override those of the outer request, except headers about the connection. A `secret` from the
    URL overrides every other credential.
    """
    headers: Headers = scope["headers"]
    url = _value(headers, b"mf-url")
    if url is None:
        raise Refusal(Reason.HEADER_INVALID, "the header MF-URL is missing: this URL is for miniflare's `ai` option")
    inner = [(name[len(_WRAPPED_PREFIX) :], value) for name, value in headers if name.startswith(_WRAPPED_PREFIX)]
    inner = [(name, value) for name, value in inner if name and name not in _CONNECTION_HEADERS]
    outer = [(name, value) for name, value in headers if not name.startswith(b"mf-")]
    if secret is not None:
        inner = [(name, value) for name, value in inner if name not in _CREDENTIALS]
        outer = [(name, value) for name, value in outer if name not in _CREDENTIALS]
        outer.append((b"authorization", b"Bearer " + secret))
    replaced = {name for name, _ in inner}
    if replaced & _CREDENTIALS:
        replaced |= _CREDENTIALS
    scope["headers"] = [*(pair for pair in outer if pair[0] not in replaced), *inner]
    _set_target(scope, url, "MF-URL")


def _set_target(scope: Scope, url: bytes | None, header: str) -> None:
    """Set the path and query of the scope to those of `url`, if the path is one of the binding's."""
    if url is None:
        raise Refusal(Reason.HEADER_INVALID, f"the header {header} is missing")
    if len(url) > MAX_TARGET_BYTES:
        raise Refusal(Reason.TARGET_TOO_LONG)
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit(b"")
    if not parts.scheme or not parts.netloc:
        raise Refusal(Reason.HEADER_INVALID, f"the header {header} must be a URL")
    path = parts.path
    if not _WRAPPED_PATH.fullmatch(path):
        raise Refusal(Reason.NO_ROUTE)
    scope["raw_path"] = path
    scope["path"] = path.decode("ascii")
    scope["query_string"] = parts.query


def _token_in(query: bytes) -> bytes | None:
    return next((value for name, value in parse_qsl(query) if name == b"token"), None)


def _value(headers: Headers, name: bytes) -> bytes | None:
    return next((value for key, value in headers if key == name), None)
