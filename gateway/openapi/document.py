"""The OpenAPI 3.1 document of all routes, made of the route table and of the schemas that admit bodies. Pure.

What an operation does is the first sentence of its endpoint's docstring, or of the module of an inference route: what
is not described there is not described here. Models narrow these schemas further (`ai/models/schema`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from importlib import metadata
from typing import Any, get_args, get_type_hints

from catalog.card import CardFacts
from catalog.schemas import general_document
from gateway.call import Door
from gateway.openapi.parts import BODIES, BODILESS, QUERIES, RUN_HEADERS
from gateway.routing import Access, Route
from tenants.usage import usage_export

Json = dict[str, Any]

_PARAMETER = re.compile(r"\{([a-z_]+)(\.\.\.)?\}")
_TAGS = (
    ("/ai/v1/messages", "Anthropic"),
    ("/ai/v1/", "OpenAI"),
    ("/ai/run", "Workers AI"),
    ("/ai/finetunes", "Finetunes"),
    ("/ai/usage", "Usage"),
    ("/ai/price", "Usage"),
    ("/ai/webhooks", "Webhooks"),
    ("/ai/", "Models"),
    ("/tokens", "API tokens"),
    ("/client/v4/", "Accounts"),
    ("/ai-", "AI binding"),
    ("/run", "AI binding"),
    ("/to-everything/", "AI binding"),
    ("/", "Service"),
)
_OBJECT: Json = {"type": "object"}
_BINDING_MODEL: Json = {
    "name": "cf-consn-model-id",
    "in": "header",
    "required": True,
    "schema": {"type": "string"},
}
_REQUIRED_QUERIES: dict[str, set[str]] = {"/ai/models/schema": {"model"}}
_MESSAGE: Json = {
    "type": "object",
    "required": ["code", "message"],
    "properties": {
        "code": {"type": "integer"},
        "message": {"type": "string"},
        "source": {"type": "object", "properties": {"pointer": {"type": "string", "format": "json-pointer"}}},
    },
}


def document(routes: Iterable[Route]) -> Json:
    """The whole document."""
    schemas: Json = {"Envelope": _envelope({}), "Error": _error(), "OpenAIError": _error("openai")}
    schemas["AnthropicError"] = _error("anthropic")
    paths: dict[str, Json] = {}
    for route in routes:
        path = _PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, path, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Hearth",
            "version": metadata.version("hearth"),
            "description": "Inference on your own machines, for clients of Workers AI, OpenAI and Anthropic.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name} for name in dict.fromkeys(name for _, name in _TAGS)],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"apiToken": {"type": "http", "scheme": "bearer", "description": "An API token."}},
        },
    }


def _operation(route: Route, path: str, schemas: Json) -> Json:
    tag = next(name for part, name in _TAGS if part in path)
    summary, _, description = _documentation(route.endpoint).partition("\n")
    operation: Json = {
        "operationId": _operation_id(route),
        "tags": [tag],
        "summary": summary,
        "parameters": [*_path_parameters(route.path), *_query_parameters(route, path)],
        "security": [] if route.access is Access.PUBLIC else [{"apiToken": []}],
    }
    if description:
        operation["description"] = description
    if isinstance(route.endpoint, Door):
        names = route.endpoint.schemas or get_args(get_type_hints(CardFacts)["schema"])
        is_bare = tag != "Workers AI"
        body = _one_of([_put(schemas, n, "input") for n in names])
        if tag == "AI binding":
            body = {"type": "object", "required": ["inputs"], "properties": {"inputs": body, "options": _OBJECT}}
            operation["parameters"].append(_BINDING_MODEL)
        operation["parameters"] += RUN_HEADERS
        operation["requestBody"] = {"required": True, "content": _json(body)}
        content = _answers([_put(schemas, name, "output") for name in names], schemas, is_bare)
    elif path.startswith("/client/v4/") or tag == "AI binding":
        if route.method in ("POST", "PUT", "PATCH") and not path.endswith(BODILESS):
            bodies = (body for suffix, body in BODIES.items() if path.endswith(suffix))
            media_type, schema = next(bodies, ("application/json", {"type": "object"}))
            operation["requestBody"] = {"content": {media_type: {"schema": schema}}}
        content = _content_of(path, tag)
    else:
        content = {"*/*": {}}
    operation["responses"] = {"200": {"description": "It went well.", "content": content}, **_failures(tag)}
    return operation


def _content_of(path: str, tag: str) -> Json:
    """What a route that runs no model answers with."""
    if path.endswith("/ai/usage/export"):
        return {media_type: {} for media_type in usage_export.MEDIA_TYPES.values()}
    if path.endswith("/responses/{response_id}"):  # with `stream`
        return _json({"type": "object"}) | {"text/event-stream": {"schema": {"type": "string"}}}
    if path.endswith("/models/search"):  # with `format=openrouter`
        listed: Json = {"type": "object", "required": ["data"], "properties": {"data": {"type": "array"}}}
        return _json(_one_of([_reference("Envelope"), listed]))
    return _json({"type": "object"} if tag == "OpenAI" else _reference("Envelope"))


def _documentation(endpoint: Any) -> str:
    """Its first sentence on one line, then what else there is to say."""
    if isinstance(endpoint, Door):
        text = (inspect.getdoc(inspect.getmodule(endpoint.read)) or "").partition("`: ")[2]
    else:
        text = inspect.getdoc(endpoint) or ""
    first, _, rest = " ".join(text.split("\n\n")[0].split()).partition(". ")
    return f"{first[:1].upper()}{first[1:].rstrip('.')}.\n{rest}"


def _operation_id(route: Route) -> str:
    words = re.findall(r"[a-z]+", route.path.removeprefix("/client/v4").replace("{account_id}/", "").lower())
    return "_".join([route.method.lower(), *(words or ["root"])])


def _path_parameters(path: str) -> list[Json]:
    parameters = []
    for name, _ in _PARAMETER.findall(path):
        schema: Json = {"type": "string", "minLength": 1}
        if name == "account_id":
            schema = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
        elif name == "model":
            schema = {
                "type": "string",
                "pattern": "^(workers-ai/)?@(cf|hf)/[^/]+/[^/]+$",
                "examples": ["@cf/hearth/spark"],
            }
        parameters.append({"name": name, "in": "path", "required": True, "schema": schema})
    return parameters


def _query_parameters(route: Route, path: str) -> list[Json]:
    if route.method != "GET" and not isinstance(route.endpoint, Door):
        return []
    query = next((query for suffix, query in QUERIES.items() if path.endswith(suffix)), {})
    required: set[str] = next((names for suffix, names in _REQUIRED_QUERIES.items() if path.endswith(suffix)), set())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": schema} for name, schema in query.items()
    ]


def _put(schemas: Json, name: str, half: str) -> Json:
    """A reference to one half of a schema file, which is put among the components."""
    key = f"{name}_{half}"
    schemas.setdefault(key, general_document(name)[half])
    return _reference(key)


def _answers(outputs: list[Json], schemas: Json, is_bare: bool) -> Json:
    """What the outputs may be, by media type."""
    whole: list[Json] = []
    streamed: list[Json] = []
    for reference in outputs:
        output = schemas[reference["$ref"].rpartition("/")[2]]
        variants = output.get("oneOf", [output])
        streamed += [variant for variant in variants if variant.get("contentType") == "text/event-stream"]
        whole += [
            variant for variant in variants if variant.get("contentType", "application/json") == "application/json"
        ]
    content = _json(_one_of(whole) if is_bare else _envelope(_one_of(whole)))
    if streamed:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return content


def _failures(tag: str) -> Json:
    if tag == "Service":
        return {}
    error = {"OpenAI": "OpenAIError", "Anthropic": "AnthropicError"}.get(tag, "Error")
    refused = {"description": "It was refused; docs/errors.md lists every code.", "content": _json(_reference(error))}
    return {"4XX": refused, "5XX": refused}


def _envelope(result: Json) -> Json:
    messages = {"type": "array", "items": _MESSAGE}
    return {
        "type": "object",
        "required": ["result", "success", "errors", "messages"],
        "properties": {"result": result, "success": {"const": True}, "errors": messages, "messages": messages},
    }


def _error(dialect: str = "native") -> Json:
    errors: Json = {"type": "array", "minItems": 1, "items": _MESSAGE}
    properties: Json = {
        "result": {"type": ["object", "null"]},
        "success": {"const": False},
        "errors": errors,
        "messages": {"type": "array", "items": _MESSAGE},
    }
    if dialect != "native":
        told: Json = {"message": {"type": "string"}, "type": {"type": "string"}, "code": {"type": "integer"}}
        properties["error"] = {"type": "object", "required": list(told), "properties": told}
    if dialect == "anthropic":
        properties["type"] = {"const": "error"}
    return {"type": "object", "required": list(properties), "properties": properties}


def _one_of(schemas: list[Json]) -> Json:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _reference(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}
