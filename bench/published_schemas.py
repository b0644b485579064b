"""Read published JSON schemas from the evaluation data: function parameters (BFCL) and the groups of the official test
suite.

Used by the benchmark and the long test of structured output. None of them is part of the project.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PYTHON_TYPES = {"dict": "object", "float": "number", "tuple": "array"}  # BFCL's type names


def function_schemas(data: Path) -> list[dict[str, Any]]:
    """Return the distinct parameter schemas of all functions in `data/tools`, with JSON Schema's type names."""
    found: dict[str, dict[str, Any]] = {}
    for file in sorted((data / "tools").glob("bfcl_*.jsonl.gz")):
        for function in _functions(file):
            schema = _renamed(function["parameters"])
            found.setdefault(json.dumps(schema), schema)
    return list(found.values())


def suite_schemas(data: Path) -> list[dict[str, Any]]:
    """Return the schemas of the groups in `data/structured` that are objects."""
    suite = json.loads(gzip.decompress((data / "structured" / "json_schema_test_suite_2020_12.json.gz").read_bytes()))
    return [group["schema"] for groups in suite.values() for group in groups if isinstance(group["schema"], dict)]


def _functions(file: Path) -> Iterator[dict[str, Any]]:
    for line in gzip.decompress(file.read_bytes()).splitlines():
        yield from json.loads(line).get("function", [])


def _renamed(value: Any) -> Any:
    if isinstance(value, list):
        return [_renamed(item) for item in value]
    if not isinstance(value, dict):
        return value
    changed = {key: _renamed(item) for key, item in value.items()}
    kind = changed.get("type")
    if kind == "any":
        del changed["type"]
    elif isinstance(kind, str):
        changed["type"] = _PYTHON_TYPES.get(kind, kind)
    return changed
