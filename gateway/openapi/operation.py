"""Declarations of an endpoint for the OpenAPI document: its body, its query, and unusual responses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from msgspec import Struct

_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])

_ATTRIBUTE = "__openapi__"


@dataclass(frozen=True)
class Operation:
    """The declared parts of one operation.

    `result` is the type of `result` in the envelope of the 200 response; a list `is_paged` if the envelope has a
    `result_info`. `content` replaces the default content of the 200 response.
    """

    body: type[Struct] | None = None
    body_media_type: str = "application/json"
    query: type[Struct] | None = None
    content: dict[str, Any] | None = None
    result: Any = None
    is_paged: bool = False


def describe(**parts: Any) -> Callable[[_Endpoint], _Endpoint]:
    """Return a decorator that declares parts of `Operation` for an endpoint."""

    def decorate(endpoint: _Endpoint) -> _Endpoint:
        setattr(endpoint, _ATTRIBUTE, replace(operation_of(endpoint), **parts))
        return endpoint

    return decorate


def operation_of(endpoint: object) -> Operation:
    """Return what an endpoint declares; an endpoint without a declaration has neither body nor query."""
    declared = getattr(endpoint, _ATTRIBUTE, None)
    return declared if isinstance(declared, Operation) else Operation()
