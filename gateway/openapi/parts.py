"""What the OpenAPI document says of queries, headers and bodies that no schema file admits, by how their paths end.

Data alone: `document.py` puts it into the document. Tests hold it against what the routes read.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

_TEXT: Json = {"type": "string"}
_OBJECT: Json = {"type": "object"}
_COUNT: Json = {"type": "integer", "minimum": 1}
_PAGE: dict[str, Json] = {"page": _COUNT, "per_page": _COUNT, "direction": {"type": "string", "enum": ["asc", "desc"]}}
_GROUPS = ("model", "day", "hour", "minute", "token", "pop", "status", "task")
_SPAN: dict[str, Json] = {name: {"type": "string", "format": "date-time"} for name in ("since", "until")}
_FILTER: dict[str, Json] = dict.fromkeys(("api_token_id", "model", "task", "pop", "status"), _TEXT)
_RUN: dict[str, Json] = {
    "queueRequest": {"type": "string", "enum": ["true", "false"]},
    "rejectIfBusy": {"type": "string", "enum": ["true", "false"]},
    "tags": _TEXT,
}
QUERIES: dict[str, dict[str, Json]] = {
    "/responses/{response_id}": {
        "stream": {"type": "boolean"},
        "starting_after": {"type": "integer", "minimum": 0},
    },
    "/input_items": {
        "limit": {"type": "integer", "minimum": 1, "maximum": 100},
        "order": {"type": "string", "enum": ["asc", "desc"]},
        "after": _TEXT,
    },
    "/ai/run": _RUN,
    "/ai/run/{model}": _RUN,
    "/models/search": {
        "search": _TEXT,
        "task": _TEXT,
        "author": _TEXT,
        "source": {"type": "integer"},
        "hide_experimental": {"type": "boolean"},
        "include_deprecated": {"type": "boolean"},
        "page": _COUNT,
        "per_page": _COUNT,
        "format": {"type": "string", "enum": ["openrouter"]},
    },
    "/ai/usage": {"by": {"type": "string", "enum": list(_GROUPS)}, **_SPAN, **_FILTER},
    "/ai/usage/calls": {"limit": _COUNT, "before": _TEXT, **_FILTER},
    "/ai/usage/latency": {**_SPAN, **_FILTER},
    "/ai/usage/export": {"format": {"type": "string", "enum": ["csv", "parquet"]}, **_SPAN, **_FILTER},
    "/ai/models/schema": {"model": {"type": "string"}},
    "/ai/authors/search": {"search": _TEXT, **_PAGE},
    "/ai/tasks/search": {"search": _TEXT, **_PAGE},
    "/tokens": {**_PAGE, "include_expired": {"type": "boolean"}},
    "/permission_groups": {"name": _TEXT, "scope": _TEXT},
    "/audit_logs": {**_PAGE, "action.type": _TEXT},
    "/client/v4/accounts": {"name": _TEXT, **_PAGE},
    "/memberships": {"name": _TEXT, **_PAGE},
    "/ai/finetunes/public": {"limit": _COUNT, "offset": {"type": "integer", "minimum": 0}, "orderBy": _TEXT},
}
_NETWORKS: Json = {"type": "array", "maxItems": 100, "items": {"type": "string", "examples": ["10.0.0.0/8"]}}
_POLICY: Json = {
    "type": "object",
    "required": ["effect", "permission_groups", "resources"],
    "properties": {
        "effect": {"type": "string", "enum": ["allow", "deny"]},
        "permission_groups": {
            "type": "array",
            "minItems": 1,
            "maxItems": 100,
            "items": {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}},
        },
        "resources": {
            "type": "object",
            "minProperties": 1,
            "maxProperties": 100,
            "additionalProperties": {"const": "*"},
            "examples": [{"com.cloudflare.api.account.*": "*"}],
        },
    },
}
_TOKEN: Json = {
    "type": "object",
    "required": ["name", "policies"],
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 256},
        "policies": {"type": "array", "minItems": 1, "maxItems": 100, "items": _POLICY},
        "status": {"type": "string", "enum": ["active", "disabled"]},
        "condition": {
            "type": ["object", "null"],
            "additionalProperties": False,
            "properties": {
                "request_ip": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"in": _NETWORKS, "not_in": _NETWORKS},
                }
            },
        },
        "not_before": {"type": ["string", "null"], "format": "date-time"},
        "expires_on": {"type": ["string", "null"], "format": "date-time"},
        "models": {"type": ["array", "null"], "maxItems": 100, "items": {"type": "string"}},
        "limits": {"type": ["string", "null"], "examples": ["token=100/60"]},
        "region": {},
    },
}
_ACCOUNT: Json = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 256},
        "type": {"type": "string"},
        "settings": {
            "type": ["object", "null"],
            "properties": {
                "enforce_twofactor": {"type": "boolean"},
                "abuse_contact_email": {"type": ["string", "null"], "maxLength": 254},
                "region": {},
                "retention": {"type": "string", "enum": ["standard", "zero"]},
            },
        },
    },
}
# Bodies that no schema file admits, by how their path ends: media type and schema.
BODIES: dict[str, tuple[str, Json]] = {
    "/tokens": ("application/json", _TOKEN),
    "/tokens/{api_token_id}": ("application/json", _TOKEN),
    "/client/v4/accounts": ("application/json", _ACCOUNT),
    "/accounts/{account_id}": ("application/json", _ACCOUNT),
    "/memberships/{membership_id}": (
        "application/json",
        {
            "type": "object",
            "required": ["status"],
            "properties": {"status": {"type": "string", "enum": ["accepted", "rejected"]}},
        },
    ),
    "/client/v4/user": (
        "application/json",
        {
            "type": "object",
            "properties": {
                name: {"type": ["string", "null"], "maxLength": limit}
                for name, limit in (
                    ("first_name", 60),
                    ("last_name", 60),
                    ("country", 30),
                    ("telephone", 20),
                    ("zipcode", 20),
                )
            },
        },
    ),
    "/ai/usage/budgets": (
        "application/json",
        {
            "type": "object",
            "required": ["amount"],
            "properties": {
                "amount": {"type": "number", "exclusiveMinimum": 0},
                "unit": {"type": "string", "enum": ["neurons", "usd"]},
                "api_token_id": {"type": ["string", "null"], "pattern": "^[0-9a-f]{32}$"},
                "refuses": {"type": "boolean"},
                "alert_percents": {"type": "array", "items": {"type": "integer", "minimum": 1}, "maxItems": 10},
            },
        },
    ),
    "/ai/webhooks/key": (
        "application/json",
        {
            "type": "object",
            "properties": {"overlap_s": {"type": "number", "minimum": 0, "maximum": 604800}},
        },
    ),
    "/ai/finetunes": (
        "application/json",
        {
            "type": "object",
            "required": ["model", "name"],
            "properties": {"model": _TEXT, "name": _TEXT, "description": _TEXT, "public": {"type": "boolean"}},
        },
    ),
    "/ai/tomarkdown": (
        "multipart/form-data",
        {
            "type": "object",
            "required": ["files"],
            "properties": {
                "files": {
                    "type": "array",
                    "items": {"type": "string", "contentMediaType": "application/octet-stream"},
                },
                "conversionOptions": {"type": "string", "contentMediaType": "application/json"},
            },
        },
    ),
    "/finetune-assets": (
        "multipart/form-data",
        {
            "type": "object",
            "required": ["file_name", "file"],
            "properties": {
                "file_name": {"type": "string", "enum": ["adapter_config.json", "adapter_model.safetensors"]},
                "file": {"type": "string", "contentMediaType": "application/octet-stream"},
            },
        },
    ),
}

# How the paths of routes end that take no body, though their method could.
BODILESS = ("/cancel",)

# Of the routes that run models.
RUN_HEADERS: list[Json] = [
    {
        "name": "x-session-affinity",
        "in": "header",
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$"},
        "description": "Calls with the same value go to the same replica while it lives.",
    },
    {
        "name": "idempotency-key",
        "in": "header",
        "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
        "description": "The same request under the same key is carried out once.",
    },
]
