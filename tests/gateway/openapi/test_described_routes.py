"""Every described operation with valid bodies made from its schema and with altered bodies: no response is a 5xx error,
every error has the envelope, and none takes long.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.app import ROUTES
from gateway.openapi import document as openapi
from tests.gateway.process import CHATTY, HANDY, PARROT, VECTORS
from tests.gateway.site import Running

DOCUMENT = openapi.document(ROUTES)
OPERATIONS = [
    (method, path)
    for path, methods in DOCUMENT["paths"].items()
    for method in methods
    if path not in ("/metrics", "/readyz")  # operators' routes: no envelope, and 503 is intended
    and not path.startswith("/v1/")  # the same endpoints as below `/ai/v1/`
]
MODELS = st.sampled_from([PARROT, CHATTY, HANDY, VECTORS, "@cf/no/thing", "x"])
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from(["\x00", "\u202e", "{{7*7}}", "../../etc/passwd", "http://127.0.0.1/", "A" * 5000]),
    st.lists(st.none(), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
)


def resolved(schema: dict) -> dict:
    return DOCUMENT["components"]["schemas"][schema["$ref"].split("/")[-1]] if "$ref" in schema else schema


def valid(schema: dict, depth: int = 0) -> st.SearchStrategy[Any]:
    """Generate values that match a schema, for the keywords that the document uses."""
    schema = resolved(schema)
    if "const" in schema:
        return st.just(schema["const"])
    if schema.get("enum"):
        return st.sampled_from(schema["enum"])
    variants = schema.get("oneOf") or schema.get("anyOf")
    if variants and "properties" not in schema and schema.get("type") in (None, "object"):
        return st.one_of([valid(variant, depth) for variant in variants])
    kinds = schema.get("type", "string")
    return st.one_of([_of_kind(kind, schema, depth) for kind in ([kinds] if isinstance(kinds, str) else kinds)])


def _of_kind(kind: str, schema: dict, depth: int) -> st.SearchStrategy[Any]:
    if kind == "object":
        fields = schema.get("properties", {}) if depth < 5 else {}
        required = set(schema.get("required", ()))
        return st.fixed_dictionaries(
            {name: valid(field, depth + 1) for name, field in fields.items() if name in required},
            optional={name: valid(field, depth + 1) for name, field in fields.items() if name not in required},
        )
    if kind == "array":
        item = valid(schema.get("items", {"type": "string"}), depth + 1)
        return st.lists(item, min_size=schema.get("minItems", 0), max_size=max(2, schema.get("minItems", 0)))
    if kind == "string":
        if "pattern" in schema:
            return st.from_regex(schema["pattern"], fullmatch=True)
        return st.text(min_size=schema.get("minLength", 0), max_size=min(30, schema.get("maxLength", 30)))
    if kind == "integer":
        return st.integers(schema.get("minimum", -9), schema.get("maximum", max(300, schema.get("minimum", 0))))
    if kind == "number":
        return st.floats(schema.get("minimum", -9), schema.get("maximum", 9))
    return st.booleans() if kind == "boolean" else st.none()


@st.composite
def altered(draw: st.DrawFn, bodies: st.SearchStrategy[Any]) -> Any:
    """Return a body in which one value, at any depth, is removed, doubled or replaced."""
    body = draw(bodies)
    places = list(_places(body))
    if not places:
        return draw(ODD)
    holder, key = draw(st.sampled_from(places))
    how = draw(st.sampled_from(["drop", "odd", "nest", "many"]))
    if how == "drop":
        del holder[key]
    elif how == "odd":
        holder[key] = draw(ODD)
    elif how == "nest":
        holder[key] = [[[[holder[key]]]]]
    else:
        holder[key] = [holder[key]] * 1100
    return body


def _places(value: Any) -> Any:
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    """A client without a credential."""
    with httpx.Client(timeout=60) as client:
        yield client


@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=lambda part: part)
@pytest.mark.parametrize("num_examples", [12, pytest.param(250, marks=pytest.mark.full)])
def test_altered_bodies_never_cause_an_internal_error(
    http: httpx.Client, running: Running, method: str, path: str, num_examples: int
):
    operation = DOCUMENT["paths"][path][method]
    account_id, credential = running.tenants.account_id, running.headers("write")
    if operation["tags"][0] in ("Accounts", "API tokens"):  # an account that the request may change
        credential = running.headers("global key")
        made = http.post(f"{running.gateway.base_url}/accounts", json={"name": "to spoil"}, headers=credential)
        account_id = made.json()["result"]["id"]
    content = operation.get("requestBody", {}).get("content", {})
    described = content.get("application/json")
    bodies = valid(described["schema"]) if described else st.none()
    queries = {
        parameter["name"]: parameter["schema"] for parameter in operation["parameters"] if parameter["in"] == "query"
    }

    @settings(max_examples=num_examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(
        st.one_of(bodies, altered(bodies)),
        MODELS,
        st.fixed_dictionaries(
            {}, optional={name: st.one_of(valid(s).map(str), st.text(max_size=9)) for name, s in queries.items()}
        ),
    )
    def ask(body: Any, model: str, query: dict) -> None:
        if isinstance(body, dict) and "model" in body:
            body["model"] = model
        url = running.gateway.url + path.replace("{account_id}", account_id).replace("{model}", model)
        headers = credential | {"cf-consn-model-id": model}  # a binding names the model in this header
        for _ in range(3):  # repeated, because the machine may pause
            started_s = time.monotonic()
            response = http.request(method, url, params=query, json=body if content else None, headers=headers)
            took_s = time.monotonic() - started_s
            assert response.status_code < 500, (body, response.text)
            if took_s < 5:
                break
        assert took_s < 5, body
        if response.status_code >= 400:
            error = response.json()
            assert error["success"] is False
            assert error["errors"][0]["code"] >= 971
            assert ("error" in error) == ("/ai/v1/" in path)
            assert "Traceback" not in response.text

    ask()
    assert running.gateway.metric("hearth_internal_errors_total") == 0
