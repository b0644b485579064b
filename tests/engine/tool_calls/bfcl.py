"""Tools and accepted calls from the Berkeley Function-Calling Leaderboard."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.protocol.tools import Tool, ToolCall

KINDS = ("simple_python", "multiple", "parallel", "parallel_multiple")
_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}


def tools_and_calls(test_data: Path, kind: str, max_rows: int) -> Iterator[tuple[list[Tool], list[ToolCall]]]:
    """Yield the tools and one accepted list of calls of the first `max_rows` questions of a kind."""
    rows, responses = (_rows(test_data / f"tools/bfcl_{kind}{part}.jsonl.gz", max_rows) for part in ("", "_answers"))
    for row, response in zip(rows, responses, strict=True):
        assert row["id"] == response["id"]
        tools = [
            Tool(name=tool["name"], description=tool["description"], parameters=_schema(tool["parameters"]))
            for tool in row["function"]
        ]
        calls = [
            ToolCall(id=f"probe{index:04d}", name=name, arguments=json.dumps(_accepted(values), ensure_ascii=False))
            for index, called in enumerate(response["ground_truth"])
            for name, values in called.items()
        ]
        yield tools, calls


def _rows(path: Path, max_rows: int) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for _, line in zip(range(max_rows), lines, strict=False)]


def _accepted(values: dict[str, list[Any]]) -> dict[str, Any]:
    """Return the first accepted value of each argument, without optional arguments (an empty string is accepted)."""
    return {name: _plain(accepted[0]) for name, accepted in values.items() if accepted and "" not in accepted}


def _plain(value: Any) -> Any:
    """Return a value in which each value of an object, a list of accepted values, is replaced by the first of these."""
    if isinstance(value, dict):
        return {name: _plain(inner[0] if isinstance(inner, list) and inner else inner) for name, inner in value.items()}
    return value


def _schema(schema: Any) -> Any:
    """Return a schema with the data's type names replaced by those of JSON Schema."""
    if isinstance(schema, list):
        return [_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _schema(value) for name, value in schema.items()}
    if isinstance(found.get("type"), str):
        kind = _TYPES.get(found["type"], found["type"])
        if kind is None:
            del found["type"]
        else:
            found["type"] = kind
    return found
