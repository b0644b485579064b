"""Every described operation with bodies as its document has them, and with such bodies spoiled: no answer is of the
5xx kind, every error has the envelope, and none takes long."""

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
    if path not in ("/metrics", "/readyz")  # for operators: a body that is no envelope, and 503 on purpose
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
    """Values that a schema of ours describes: as many of its keywords as matter."""
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
def spoiled(draw: st.DrawFn, bodies: st.SearchStrategy[Any]) -> Any:
    """A body with one of its values, at any depth, dropped, doubled or put in place of by something else."""
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
    """Without a credential of its own."""
    with httpx.Client(timeout=60) as client:
        yield client


@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=lambda part: part)
@pytest.mark.parametrize("num_examples", [12, pytest.param(250, marks=pytest.mark.full)])
def test_no_body_makes_a_defect(http: httpx.Client, running: Running, method: str, path: str, num_examples: int):
    operation = DOCUMENT["paths"][path][method]
    account_id, credential = running.tenants.account_id, running.headers("write")
    if operation["tags"][0] in ("Accounts", "API tokens"):  # of an account that may be spoiled
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
        st.one_of(bodies, spoiled(bodies)),
        MODELS,
        st.fixed_dictionaries(
            {}, optional={name: st.one_of(valid(s).map(str), st.text(max_size=9)) for name, s in queries.items()}
        ),
    )
    def ask(body: Any, model: str, query: dict) -> None:
        if isinstance(body, dict) and "model" in body:
            body["model"] = model
        url = running.gateway.url + path.replace("{account_id}", account_id).replace("{model}", model)
        headers = credential | {"cf-consn-model-id": model}  # where a binding names it
        for _ in range(3):  # a machine may stand still for that long
            started_s = time.monotonic()
            answer = http.request(method, url, params=query, json=body if content else None, headers=headers)
            took_s = time.monotonic() - started_s
            assert answer.status_code < 500, (body, answer.text)
            if took_s < 5:
                break
        assert took_s < 5, body
        if answer.status_code >= 400:
            told = answer.json()
            assert told["success"] is False
            assert told["errors"][0]["code"] >= 971
            assert ("error" in told) == ("/ai/v1/" in path)
            assert "Traceback" not in answer.text

    ask()
    assert running.gateway.metric("hearth_internal_errors_total") == 0
