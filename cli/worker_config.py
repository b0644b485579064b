"""What a Worker is to be started with, as its wrangler configuration says it; defaults where there is none.

Reads that one file. Knows the names of its fields, not how a Worker runs.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE_NAMES = ("wrangler.jsonc", "wrangler.json", "wrangler.toml")
COMPATIBILITY_DATE = "2026-07-30"  # of the workerd in worker_tools/package.json

_LISTS = {"kv": "kv_namespaces", "d1": "d1_databases", "r2": "r2_buckets"}
_UNDERSTOOD = frozenset({
    "name", "main", "compatibility_date", "compatibility_flags", "vars", "ai", "$schema", "account_id", "workers_dev",
    "dev", "observability", "route", "routes", *_LISTS.values(),
})  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/|,(?=\s*[}\]])', re.DOTALL)


@dataclass(frozen=True)
class WorkerConfig:
    """One Worker: names of its bindings by kind, and what the runtime is told. `left_out` are the parts of the file
    that are not done here."""

    name: str
    compatibility_date: str = COMPATIBILITY_DATE
    compatibility_flags: tuple[str, ...] = ("nodejs_compat",)
    ai: str = "AI"
    kv: tuple[str, ...] = ("KV",)
    d1: tuple[str, ...] = ("DB",)
    r2: tuple[str, ...] = ("BUCKET",)
    variables: Mapping[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def find_config(script: Path) -> Path | None:
    """The configuration beside a script, or in the folder above it."""
    folders = (script.parent, script.parent.parent)
    return next((path for folder in folders for name in FILE_NAMES if (path := folder / name).is_file()), None)


def read_config(path: Path | None, script: Path) -> WorkerConfig:
    """What a file says. Raises ValueError naming the field, OSError."""
    own_name = re.sub(r"[^A-Za-z0-9_-]+", "-", script.stem).strip("-_") or "worker"
    if path is None:
        return WorkerConfig(own_name[:63])
    said = _parsed(path)
    bound = {kind: _bindings(said, key) for kind, key in _LISTS.items()}
    flags = said.get("compatibility_flags", [])
    variables = said.get("vars", {})
    if not isinstance(flags, list) or not all(isinstance(flag, str) for flag in flags):
        raise ValueError("compatibility_flags must be a list of texts")
    if not isinstance(variables, dict):
        raise ValueError("vars must be a table")
    return WorkerConfig(
        name=_name(said.get("name", own_name[:63]), "name"),
        compatibility_date=str(said.get("compatibility_date", COMPATIBILITY_DATE)),
        compatibility_flags=tuple(flags),
        ai=_binding(said["ai"], "ai") if "ai" in said else "AI",
        kv=bound["kv"],
        d1=bound["d1"],
        r2=bound["r2"],
        variables=variables,
        left_out=tuple(sorted(set(said) - _UNDERSTOOD)),
    )


def _parsed(path: Path) -> dict[str, Any]:
    text = path.read_text("utf-8")
    if path.suffix == ".toml":
        return tomllib.loads(text)
    said = json.loads(_COMMENT.sub(lambda match: match[1] or "", text))
    if not isinstance(said, dict):
        raise ValueError("the configuration must be an object")
    return said


def _bindings(said: Mapping[str, Any], key: str) -> tuple[str, ...]:
    rows = said.get(key, [])
    if not isinstance(rows, list):
        raise ValueError(f"{key} must be a list")
    return tuple(_binding(row, f"{key}[{i}]") for i, row in enumerate(rows))


def _binding(row: Any, where: str) -> str:
    if not isinstance(row, dict):
        raise ValueError(f"{where} must be a table")
    return _name(row.get("binding"), f"{where}.binding")


def _name(value: Any, where: str) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(f"{where} must be 1 to 63 of A-Z a-z 0-9 _ -")
    return value
