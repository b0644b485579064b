"""Build the OpenAPI 3.1 document from the route table, the Structs of the endpoints and the schemas of tasks. Pure.

The summary of an operation is the first sentence of its endpoint's docstring, or the `summary` of an inference route.
The schemas of inference routes are those of the task; a model may narrow them (`ai/models/schema`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from importlib import metadata
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from catalog.schemas import general_document
from engine.protocol.tasks.registry import NATIVE_SCHEMAS
from gateway.call import Endpoint, WebSocketEndpoint
from gateway.openapi.operation import operation_of
from gateway.routing import Access, Route

Json = dict[str, Any]
TypeSchemas = list[tuple[Any, Json]]  # the schema of each declared type; a list, because some types have no hash

_PARAMETER = re.compile(r"\{([a-z_]+)(\.\.\.)?\}")
_REFERENCE = "#/components/schemas/{name}"
# The first entry whose text is part of the path gives the tag.
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
    ("/accounts", "Accounts"),
    ("/user", "Accounts"),
    ("/memberships", "Accounts"),
    ("/client/v4/", "Platform"),
    ("/ai-", "AI binding"),
    ("/run", "AI binding"),
    ("/to-everything/", "AI binding"),
    ("/", "Service"),
)
_OBJECT: Json = {"type": "object"}
_MESSAGE: Json = {
    "type": "object",
    "required": ["code", "message"],
    "properties": {
        "code": {"type": "integer"},
        "message": {"type": "string"},
        "source": {"type": "object", "properties": {"pointer": {"type": "string", "format": "json-pointer"}}},
    },
}


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


def document(routes: Iterable[Route]) -> Json:
    """Return the document of these routes."""
    routes = tuple(routes)
    declared = [operation_of(route.endpoint) for route in routes]
    types = [type_ for each in declared for type_ in (each.body, each.result) if type_ is not None]
    found, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    type_schemas = list(zip(types, found, strict=True))
    schemas: Json = {"Envelope": _envelope({}), "Error": _error(), "OpenAIError": _error("openai")}
    schemas["AnthropicError"] = _error("anthropic")
    schemas["PageInfo"] = _page_info()
    schemas |= components
    paths: dict[str, Json] = {}
    for route in routes:
        path = _PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, path, schemas, type_schemas)
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


def _operation(route: Route, path: str, schemas: Json, type_schemas: TypeSchemas) -> Json:
    tag = next(name for part, name in _TAGS if part in path)
    summary, _, description = _documentation(route.endpoint).partition("\n")
    operation: Json = {
        "operationId": _operation_id(route),
        "tags": [tag],
        "summary": summary,
        "parameters": _path_parameters(route.path),
        "security": [] if route.access is Access.PUBLIC else [{"apiToken": []}],
    }
    if description:
        operation["description"] = description
    if isinstance(route.endpoint, WebSocketEndpoint):
        operation["parameters"] += _query_parameters(route.endpoint.query)
        operation["responses"] = {"101": {"description": "The connection becomes a WebSocket."}, **_failures(tag)}
        return operation
    if isinstance(route.endpoint, Endpoint):
        content = _describe_run(operation, route.endpoint, tag, schemas)
    else:
        content = _describe_endpoint(operation, route, path, tag, type_schemas)
    operation["responses"] = {"200": {"description": "Success.", "content": content}, **_failures(tag)}
    return operation


def _describe_run(operation: Json, endpoint: Endpoint, tag: str, schemas: Json) -> Json:
    """Add the parameters and body of an inference route to `operation`, and return the content of its response."""
    names = endpoint.schemas or NATIVE_SCHEMAS
    body = _any_of([_add_task_schema(schemas, name, "input") for name in names])
    if tag == "Workers AI":
        operation["parameters"] += _query_parameters(RunQuery)
    if tag == "AI binding":
        body = {"type": "object", "required": ["inputs"], "properties": {"inputs": body, "options": _OBJECT}}
        operation["parameters"].append(BINDING_MODEL)
    operation["parameters"] += RUN_HEADERS
    operation["requestBody"] = {"required": True, "content": {endpoint.body_media_type: {"schema": body}}}
    outputs = [_add_task_schema(schemas, name, "output") for name in names]
    return _run_content(outputs, schemas, has_envelope=tag == "Workers AI")


def _describe_endpoint(operation: Json, route: Route, path: str, tag: str, type_schemas: TypeSchemas) -> Json:
    """Add the declared query and body of an endpoint to `operation`, and return the content of its response."""
    declared = operation_of(route.endpoint)
    if declared.query is not None:
        operation["parameters"] += _query_parameters(declared.query)
    if declared.body is not None:
        content = {declared.body_media_type: {"schema": _schema_of(declared.body, type_schemas)}}
        operation["requestBody"] = {"content": content}
    if declared.content is not None:
        return declared.content
    if declared.result is not None:
        return _json(_envelope(_schema_of(declared.result, type_schemas), is_paged=declared.is_paged))
    if path.startswith("/client/v4/") or tag == "AI binding":
        return _json(_OBJECT if tag == "OpenAI" else _reference("Envelope"))
    return {"*/*": {}}


def _documentation(endpoint: Any) -> str:
    """Return the first sentence of the documentation on one line, followed by the rest of the first paragraph."""
    text = endpoint.summary if isinstance(endpoint, Endpoint | WebSocketEndpoint) else inspect.getdoc(endpoint) or ""
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


def _query_parameters(query: type[Struct]) -> list[Json]:
    _, components = msgspec.json.schema_components([query], ref_template=_REFERENCE)
    schema = components[query.__name__]
    return [
        {"name": name, "in": "query", "required": name in schema["required"], "schema": declared}
        for name, declared in schema["properties"].items()
    ]


def _add_task_schema(schemas: Json, name: str, half: str) -> Json:
    """Add a task's input or output schema to the components and return a reference to it."""
    key = f"{name}_{half}"
    schemas.setdefault(key, general_document(name)[half])
    return _reference(key)


def _run_content(outputs: list[Json], schemas: Json, *, has_envelope: bool) -> Json:
    """Return the possible responses of an inference route, by media type."""
    whole: list[Json] = []
    has_stream = False
    binary: Json = {}
    for reference in outputs:
        output = schemas[reference["$ref"].rpartition("/")[2]]
        for variant in output.get("oneOf", [output]):
            media_type = variant.get("contentType", "application/json")
            has_stream = has_stream or media_type == "text/event-stream"
            if media_type == "application/json":
                whole.append(variant)
            elif media_type != "text/event-stream":
                binary[media_type] = {"schema": {"type": "string", "format": "binary"}}
    content = _json(_envelope(_any_of(whole)) if has_envelope else _any_of(whole)) if whole else {}
    content |= binary
    if has_stream:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return content


def _failures(tag: str) -> Json:
    if tag == "Service":
        return {}
    error = {"OpenAI": "OpenAIError", "Anthropic": "AnthropicError"}.get(tag, "Error")
    failed = {"description": "An error; docs/errors.md lists all codes.", "content": _json(_reference(error))}
    return {"4XX": failed, "5XX": failed}


def _schema_of(type_: Any, type_schemas: TypeSchemas) -> Json:
    return next(schema for each, schema in type_schemas if each == type_)


def _envelope(result: Json, *, is_paged: bool = False) -> Json:
    messages = {"type": "array", "items": _MESSAGE}
    properties: Json = {"result": result, "success": {"const": True}, "errors": messages, "messages": messages}
    if is_paged:
        properties["result_info"] = _reference("PageInfo")
    return {"type": "object", "required": list(properties), "properties": properties}


def _page_info() -> Json:
    names = ("page", "per_page", "count", "total_count", "total_pages")
    return {"type": "object", "required": list(names), "properties": {name: {"type": "integer"} for name in names}}


def _error(api_format: str = "native") -> Json:
    errors: Json = {"type": "array", "minItems": 1, "items": _MESSAGE}
    properties: Json = {
        "result": {"type": ["object", "null"]},
        "success": {"const": False},
        "errors": errors,
        "messages": {"type": "array", "items": _MESSAGE},
    }
    if api_format != "native":
        fields: Json = {"message": {"type": "string"}, "type": {"type": "string"}, "code": {"type": "integer"}}
        properties["error"] = {"type": "object", "required": list(fields), "properties": fields}
    if api_format == "anthropic":
        properties["type"] = {"const": "error"}
    return {"type": "object", "required": list(properties), "properties": properties}


def _any_of(schemas: list[Json]) -> Json:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _reference(name: str) -> Json:
    return {"$ref": _REFERENCE.format(name=name)}
