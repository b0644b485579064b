"""What a Worker's AI binding puts on the wire -> the request that it means. Pure.

The binding calls an origin of its own (`https://workers-binding.ai/run?version=3`) with neither account nor credential,
and comes here in three ways: straight, from a workerd whose configuration adds the credential; through miniflare, which
writes the whole request into `MF-` headers of one URL; and through wrangler, which posts to `ai/run/proxy` with the URL
in `X-Forwarded`. `unwrap` makes the second and third look like the first. Knows paths and headers; no route's meaning.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from gateway.errors import Reason, Refusal
from gateway.http.exchange import Exchange, Headers, Scope

HOST = b"workers-binding.ai"
ACCOUNT_HEADER = b"x-hearth-account"
MODEL_HEADER = b"cf-consn-model-id"

_SDK_HEADER = b"cf-consn-sdk-version"
_PROXY = re.compile(rb"/client/v4/accounts/([^/]+)/ai/run/proxy")
_MINIFLARE = re.compile(rb"/mf/([^/]+)(?:/([^/]*))?/?")
_ROOTS = (b"/run", b"/ai-gateway/", b"/ai-api/", b"/to-everything/", b"/autorag/")
_ACCOUNT_ID = re.compile(rb"[0-9a-f]{32}")
_VERSIONS = (b"3", b"2")

_INNER = b"mf-header-"
# What stands in the request that came, not in the one that it carries: how long the body is, and who sent it.
_OUTER = frozenset({
    b"host", b"content-length", b"transfer-encoding", b"connection", b"upgrade", b"expect", b"x-forwarded-for",
})  # fmt: skip
_CREDENTIALS = frozenset({b"authorization", b"x-api-key", b"x-auth-email", b"x-auth-key", b"x-auth-user-service-key"})


def is_of_binding(scope: Scope) -> bool:
    """Whether a request, as it came or unwrapped, is a binding's: what it is told then has the binding's form."""
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
    """Turn a request that carries another into that one, in place; leave any other. `scope["hearth.account_id"]` is the
    account that was named beside it, if one was. Gives whether anything was unwrapped; raises Refusal."""
    path: bytes = scope["raw_path"]
    if path.startswith(b"/client/") and not path.endswith(b"/proxy"):
        return False
    proxied = _PROXY.fullmatch(path)
    mini = None if proxied else _MINIFLARE.fullmatch(path)
    if proxied is not None:
        _aim(scope, _value(scope["headers"], b"x-forwarded"), "X-Forwarded")
        account_id: bytes | None = proxied[1]
    elif mini is not None:
        account_id = mini[1]
        _open_miniflare(scope, mini[2] or _token_in(scope["query_string"]))
    else:
        is_own = path.startswith(b"/client/")  # these paths say whose, and no header does
        account_id = None if is_own else _value(scope["headers"], ACCOUNT_HEADER)
    if account_id is None:
        return False
    if not _ACCOUNT_ID.fullmatch(account_id):
        raise Refusal(Reason.ACCOUNT_ID_MALFORMED, "/mf" if mini else path[:256].decode("ascii", "replace"))
    scope["hearth.account_id"] = account_id.decode("ascii")
    return True


def without_undefined(query: bytes) -> bytes:
    """A query without what the client's JavaScript had no value for: it sends the word."""
    return b"&".join(pair for pair in query.split(b"&") if pair and not pair.endswith(b"=undefined"))


def model_of(exchange: Exchange) -> str:
    """The model that a run names: only a header does, after a prefix of the caller's. Raises Refusal, also for a
    generation of the binding that is not understood."""
    version = next((value for name, value in parse_qsl(exchange.query_string) if name == b"version"), b"3")
    if version not in _VERSIONS:
        raise Refusal(Reason.BINDING_UNKNOWN)
    name = exchange.header(MODEL_HEADER)
    if name is None:
        raise Refusal(Reason.HEADER_INVALID, "the header cf-consn-model-id is missing")
    text = name.decode("utf-8", "replace")
    return text[text.find("@") :] if "@" in text else text


def _open_miniflare(scope: Scope, secret: bytes | None) -> None:
    """The headers that were spread, over those that are about this connection; `secret`, from the URL, is the
    credential, and else one that came beside."""
    headers: Headers = scope["headers"]
    url = _value(headers, b"mf-url")
    if url is None:
        raise Refusal(
            Reason.HEADER_INVALID, "the header MF-URL is missing: this address is for miniflare's `ai` option"
        )
    inner = [(name[len(_INNER) :], value) for name, value in headers if name.startswith(_INNER)]
    inner = [(name, value) for name, value in inner if name and name not in _OUTER]
    outer = [(name, value) for name, value in headers if not name.startswith(b"mf-")]
    if secret is not None:
        inner = [(name, value) for name, value in inner if name not in _CREDENTIALS]
        outer = [(name, value) for name, value in outer if name not in _CREDENTIALS]
        outer.append((b"authorization", b"Bearer " + secret))
    said = {name for name, _ in inner}
    if said & _CREDENTIALS:
        said |= _CREDENTIALS
    scope["headers"] = [*(pair for pair in outer if pair[0] not in said), *inner]
    _aim(scope, url, "MF-URL")


def _aim(scope: Scope, url: bytes | None, header: str) -> None:
    """Let the scope be about that URL's path and query."""
    if url is None:
        raise Refusal(Reason.HEADER_INVALID, f"the header {header} is missing")
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit(b"")
    if not parts.scheme or not parts.netloc:
        raise Refusal(Reason.HEADER_INVALID, f"the header {header} is no URL")
    path: Any = parts.path or b"/"
    scope["raw_path"] = path
    scope["path"] = path.decode("utf-8", "replace")
    scope["query_string"] = parts.query


def _token_in(query: bytes) -> bytes | None:
    return next((value for name, value in parse_qsl(query) if name == b"token"), None)


def _value(headers: Headers, name: bytes) -> bytes | None:
    return next((value for key, value in headers if key == name), None)
