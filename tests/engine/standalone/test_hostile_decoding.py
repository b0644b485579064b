"""Hostile decoding parameters, over a real server on the built-in model. Each request is rejected with 400, naming the
field and the limit. The model's process survives, and the output of a concurrent request stays the same to the byte
(P23).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from catalog.builtin import find_folder
from tests.engine.standalone.serve_process import ServeProcess, serving

STRING = {"type": "string"}
MATE = {
    "model": "m",
    "messages": [{"role": "user", "content": "Tell me about the sea."}],
    "max_tokens": 60,
    "ignore_eos": True,
    "temperature": 0.9,
    "seed": 11,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    flags = ["--served-model-name", "m", "--max-model-len", "512", "--max-sequences", "4", "--kv-memory", "64MiB"]
    folder = find_folder("@cf/hearth/spark")
    assert folder is not None
    with serving(tmp_path_factory.mktemp("serve"), folder, *flags, "--dtype", "float32") as server:
        yield server


def held_to(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def tools(*functions: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": f"f{number}", "parameters": {"type": "object"}} | function}
        for number, function in enumerate(functions)
    ]


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = STRING
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


FORMAT = "response_format.json_schema.schema"
LOOP: dict[str, Any] = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}

# body, field, part of the message
HOSTILE: list[tuple[dict[str, Any], str, str]] = [
    *(({"n": n}, "n", "<= 128") for n in (0, -1, 129, 10**9)),
    ({"n": "two"}, "n", "integer"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "<= 20"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs", ">= 0"),
    ({"top_logprobs": 3}, "top_logprobs", "needs '/logprobs'"),
    ({"top_k": 10**12}, "top_k", "<= 1000"),
    ({"top_k": -5}, "top_k", ">= -1"),
    ({"logit_bias": {"4096": 1}}, "logit_bias", "from 0 to 4095"),
    ({"logit_bias": {str(10**30): 1}}, "logit_bias", "token ids"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "token ids"),
    ({"logit_bias": {"5": 101}}, "logit_bias", "<= 100"),
    ({"logit_bias": {str(number): 1 for number in range(1025)}}, "logit_bias", "<= 1024"),
    ({"stop": "x" * 10**6}, "stop", "1 to 256 bytes"),
    ({"stop": ["a"] * 10**5}, "stop", "at most 16"),
    ({"stop": [""]}, "stop", "1 to 256 bytes"),
    ({"stop_token_ids": [10**12]}, "stop_token_ids", "token ids"),
    ({"stop_token_ids": list(range(17))}, "stop_token_ids", "<= 16"),
    ({"max_tokens": 0}, "max_tokens", ">= 1"),
    ({"max_tokens": 10**18}, "max_tokens", "<= 512"),
    ({"seed": 10**30}, "seed", "18446744073709551615"),
    ({"temperature": 1e300}, "temperature", "<= 5"),
    ({"min_p": -1}, "min_p", ">= 0"),
    *((held_to(value), FORMAT, "object") for value in (False, True, "x", 5)),
    (held_to({"$ref": "#"}), FORMAT, "no text matches it"),
    (held_to({"$ref": "https://example.com/x.json"}), FORMAT, "retrieving it failed"),
    (held_to({"$ref": "#/$defs/none"}), FORMAT, "does not exist"),
    (held_to({"enum": [f"value {number}" for number in range(20_000)]}), FORMAT, "<= 65536 bytes"),
    (held_to({"enum": []}), FORMAT, "empty"),
    (held_to(nested(40)), FORMAT, "deeper than 32"),
    (held_to({"not": {}}), FORMAT, "'not', which is not supported"),
    (held_to({"type": "widget"}), FORMAT, "Invalid type"),
    (held_to({"type": "integer", "minimum": 5, "maximum": 1}), FORMAT, "minimum (5)"),
    (held_to({"type": "string", "pattern": "("}), FORMAT, "unclosed group"),
    ({"guided_regex": "a" * 1025}, "guided_regex", "<= 1024"),
    ({"guided_regex": "(?=a)b"}, "guided_regex", "look-around"),
    ({"guided_regex": "(?<=a)b"}, "guided_regex", "look-around"),
    ({"guided_grammar": "a" * 10**6}, "guided_grammar", "<= 65536"),
    ({"guided_grammar": "start: start"}, "guided_grammar", "cannot be used"),
    ({"guided_grammar": "start: <nothing>"}, "guided_grammar", "no control token"),
    ({"guided_choice": []}, "guided_choice", "at least one"),
    ({"guided_choice": ["a"] * 1001}, "guided_choice", "<= 1000"),
    ({"tools": tools(*[{}] * 129)}, "tools", "<= 128"),
    ({"tools": tools({"name": "a"}, {"name": "a"})}, "tools", "two tools of one name"),
    ({"tools": tools({"name": "a b"})}, "tools[0].function.name", "1 to 128"),
    ({"tools": tools({"parameters": nested(40)})}, "tools[0].function.parameters", "deeper than 32"),
    ({"tools": tools({"description": "d" * 300_000})}, "tools", "<= 262144 bytes"),
    ({"tools": tools({"strict": True, "parameters": {"not": {}}}), "tool_choice": "required"}, "tools", "'not'"),
    ({"tools": tools({}), "tool_choice": {"type": "function", "function": {"name": "f9"}}}, "tool_choice", "name one"),
    ({"tool_choice": "required"}, "tool_choice", "needs '/tools'"),
]  # fmt: skip

# Inputs that reach the time limit of the checker or the limits of a matcher: they may be rejected or served, but must
# not affect other calls.
_WIDE = {"type": "object", "properties": {f"k{number}": {"$ref": "#"} for number in range(800)}}
BOMBS: list[dict[str, Any]] = [
    {"guided_regex": "(x+x+)+y" * 100},
    {"guided_regex": r"[ab]*a[ab]{200}c" * 20},
    {"guided_regex": "(.*a){30}", "temperature": 2.0, "max_tokens": 60},
    {"guided_grammar": "start: " + " ".join(["s?"] * 4000) + '\ns: s s | "a" | ""'},
    {"guided_grammar": "start: " + " | ".join(f'"{number}" start start' for number in range(3000)) + ' | ""'},
    held_to(_WIDE) | {"max_tokens": 40, "temperature": 2.0},
    held_to({"allOf": [{"type": "string", "pattern": f".*{one}{{9}}.*[^{one}]{{9}}"} for one in "abcdefgh"]}),
]


async def ask(http: httpx.AsyncClient, body: dict[str, Any]) -> httpx.Response:
    request = {"model": "m", "messages": MATE["messages"], "max_tokens": 4} | body
    return await http.post("/v1/chat/completions", json=request)


async def text_of_mate(http: httpx.AsyncClient) -> str:
    response = await ask(http, MATE)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


async def test_hostile_request_is_rejected_by_field_and_concurrent_output_is_unchanged(server: ServeProcess) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        alone = await text_of_mate(http)
        for first in range(0, len(HOSTILE), 12):
            part = HOSTILE[first : first + 12]
            talking = asyncio.create_task(text_of_mate(http))
            responses = await asyncio.gather(*(ask(http, body) for body, _, _ in part))
            for (_, field, says), response in zip(part, responses, strict=True):
                error = response.json().get("error", {})
                assert (response.status_code, error.get("param")) == (400, field), (field, says, response.text[:300])
                assert says in error["message"], error
            assert await talking == alone
        assert await text_of_mate(http) == alone
    assert server.metric('hearth_rank_restarts_total{model="m"}') == 0


async def test_numbers_outside_json_are_rejected(server: ServeProcess) -> None:
    body = json.dumps({"model": "m", "messages": MATE["messages"], "temperature": 0})
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        for number in ("1e999", "NaN", "-Infinity", "1" + "0" * 5000):
            response = await http.post("/v1/chat/completions", content=body.replace(": 0}", f": {number}}}").encode())
            assert response.status_code == 400, number


@pytest.mark.full
async def test_expensive_constraints_do_not_affect_other_callers(server: ServeProcess) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        alone = await text_of_mate(http)
        for bomb in BOMBS:
            mate, response = await asyncio.gather(text_of_mate(http), ask(http, bomb))
            assert mate == alone, bomb
            assert response.status_code in (200, 400, 504), response.text[:300]
        assert await text_of_mate(http) == alone
    assert server.metric('hearth_rank_restarts_total{model="m"}') == 0
