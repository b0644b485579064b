"""Query parameters and headers of the inference routes, for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

Json = dict[str, Any]


class RunQuery(Struct, frozen=True, kw_only=True):
    """Query parameters of `ai/run`."""

    queueRequest: Literal["true", "false"] | UnsetType = UNSET  # noqa: N815 - the name in the API
    rejectIfBusy: Literal["true", "false"] | UnsetType = UNSET  # noqa: N815 - the name in the API
    tags: str | UnsetType = UNSET


RUN_HEADERS: list[Json] = [
    {
        "name": "x-session-affinity",
        "in": "header",
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$"},
        "description": "Calls with the same value go to the same replica while it is available.",
    },
    {
        "name": "idempotency-key",
        "in": "header",
        "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
        "description": "A request that is repeated with the same key is executed only once.",
    },
]

# The Workers AI binding names the model in a header.
BINDING_MODEL: Json = {"name": "cf-consn-model-id", "in": "header", "required": True, "schema": {"type": "string"}}
