"""Routing: find the route of a raw path, with a tree of segments built once from the table in `app.py`. Pure.

Matches the bytes as received (`raw_path`), so that `%2F` inside a model id differs from a slash; only parameters are
decoded, once.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_to_bytes

from gateway.errors import Reason, Refusal
from gateway.http.head_validation import ALLOWED_METHODS, METHODS

MAX_CACHED = 2000  # paths, whose length the head validation limits

_ACCOUNT_ID = re.compile(rb"[0-9a-f]{32}")


class Access(enum.Enum):
    """The permission that a route requires; there is no default. A scope is required in the account of the path, or, if
    the path has none, for the user's own objects. A scope of the platform requires a platform role: the session of an
    operator, or of a user with such a role. API tokens have none."""

    PUBLIC = "public"
    CHECKED_BY_ENDPOINT = "the endpoint itself checks the credential"
    PROVEN = "any good credential; the endpoint shows what that opens"
    USER = "any good credential of a user"
    RUN_MODELS = "ai:run"
    WRITE_AI = "ai:write"
    READ_ACCOUNT = "account:read"
    WRITE_ACCOUNT = "account:write"
    READ_ACCOUNT_TOKENS = "account_api_token:read"
    WRITE_ACCOUNT_TOKENS = "account_api_token:write"
    READ_USER_TOKENS = "api_token:read"
    WRITE_USER_TOKENS = "api_token:write"
    READ_PLATFORM = "platform:read"
    WRITE_PLATFORM = "platform:write"


@dataclass(frozen=True)
class Route:
    """One route. `{name}` in `path` matches one segment, a final `{name...}` the rest of the path."""

    method: str
    path: str
    access: Access
    endpoint: Any
    may_end_in_slash: bool = False  # some clients add a slash


@dataclass
class _Branch:
    literal: dict[bytes, _Branch] = field(default_factory=dict)
    parameter: tuple[str, _Branch] | None = None
    remainder: tuple[str, _Branch] | None = None
    routes: dict[str, Route] = field(default_factory=dict)


class Router:
    """Matches requests. Literal segments take precedence over parameters."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._matched: dict[tuple[str, bytes], tuple[Route, dict[str, str]]] = {}
        self._root = _Branch()
        for route in routes:
            branch = self._root
            for segment in route.path.strip("/").split("/"):
                branch = _grow(branch, segment)
            assert route.method not in branch.routes, f"two routes for {route.method} {route.path}"
            branch.routes[route.method] = route

    def match(self, method: str, raw_path: bytes) -> tuple[Route, dict[str, str]]:
        """Return the route and its decoded parameters; results are cached and must not be modified. Raises Refusal:
        NO_ROUTE, ACCOUNT_ID_MALFORMED, METHOD_NOT_ALLOWED."""
        known = self._matched.get((method, raw_path))
        if known is None:
            if len(self._matched) >= MAX_CACHED:
                self._matched.clear()
            known = self._matched[method, raw_path] = self._match(method, raw_path)
        return known

    def _match(self, method: str, raw_path: bytes) -> tuple[Route, dict[str, str]]:
        found: dict[str, bytes] = {}
        segments = raw_path[1:].split(b"/")
        branch = _walk(self._root, segments, found)
        if branch is None and not segments[-1]:
            branch = _walk(self._root, segments[:-1], found)
            if branch is not None and not all(route.may_end_in_slash for route in branch.routes.values()):
                branch = None
        if branch is None and method not in METHODS:
            raise Refusal(Reason.METHOD_NOT_ALLOWED, method, allow=ALLOWED_METHODS)
        if branch is None:
            raise Refusal(Reason.NO_ROUTE)
        account_id = found.get("account_id")
        if account_id is not None and not _ACCOUNT_ID.fullmatch(account_id):
            raise Refusal(Reason.ACCOUNT_ID_MALFORMED, raw_path[:256].decode("ascii", "replace"))
        route = branch.routes.get("GET" if method == "HEAD" else method)
        if route is None:
            methods = {*branch.routes, "HEAD"} if "GET" in branch.routes else branch.routes
            raise Refusal(Reason.METHOD_NOT_ALLOWED, method, allow=", ".join(sorted(methods)))
        return route, {name: _decoded(value) for name, value in found.items()}


def _decoded(value: bytes) -> str:
    return (unquote_to_bytes(value) if b"%" in value else value).decode("utf-8", "replace")


def _grow(branch: _Branch, segment: str) -> _Branch:
    if segment.endswith("...}"):
        branch.remainder = branch.remainder or (segment[1:-4], _Branch())
        return branch.remainder[1]
    if segment.startswith("{"):
        branch.parameter = branch.parameter or (segment[1:-1], _Branch())
        assert branch.parameter[0] == segment[1:-1], f"{segment} and {branch.parameter[0]} at the same position"
        return branch.parameter[1]
    return branch.literal.setdefault(segment.encode(), _Branch())


def _walk(branch: _Branch, segments: list[bytes], found: dict[str, bytes]) -> _Branch | None:
    for i, segment in enumerate(segments):
        following = branch.literal.get(segment)
        if following is None and branch.remainder is not None and segment:
            name, end = branch.remainder
            found[name] = b"/".join(segments[i:])
            return end
        if following is None and branch.parameter is not None and segment:
            name, following = branch.parameter
            found[name] = segment
        if following is None:
            return None
        branch = following
    return branch if branch.routes else None
