"""A Worker's configuration, read from its wrangler file. Without a file, defaults apply."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE_NAMES = ("wrangler.jsonc", "wrangler.json", "wrangler.toml")
COMPATIBILITY_DATE = "2026-07-30"  # the date of the workerd version in workerd/package.json

_BINDING_LISTS = {"kv": "kv_namespaces", "d1": "d1_databases", "r2": "r2_buckets"}
_SUPPORTED = frozenset({
    "name", "main", "compatibility_date", "compatibility_flags", "vars", "ai", "$schema", "account_id", "workers_dev",
    "dev", "observability", "route", "routes", *_BINDING_LISTS.values(),
})  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/|,(?=\s*[}\]])', re.DOTALL)


@dataclass(frozen=True)
class WorkerConfig:
    """One Worker: its name, runtime options, and the names of its bindings by kind.

    `ignored` lists the fields of the file that are not supported here.
    """

    name: str
    compatibility_date: str = COMPATIBILITY_DATE
    compatibility_flags: tuple[str, ...] = ("nodejs_compat",)
    ai: str = "AI"
    kv: tuple[str, ...] = ("KV",)
    d1: tuple[str, ...] = ("DB",)
    r2: tuple[str, ...] = ("BUCKET",)
    variables: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


def find_config(script: Path) -> Path | None:
    """Return the configuration file in the script's folder or the folder above, or None."""
    folders = (script.parent, script.parent.parent)
    return next((path for folder in folders for name in FILE_NAMES if (path := folder / name).is_file()), None)


def read_config(path: Path | None, script: Path) -> WorkerConfig:
    """Return the configuration in a file, or the defaults if `path` is None.

    Raises ValueError naming the field, OSError.
    """
    default_name = re.sub(r"[^A-Za-z0-9_-]+", "-", script.stem).strip("-_") or "worker"
    if path is None:
        return WorkerConfig(default_name[:63])
    content = _parsed(path)
    bindings = {kind: _bindings(content, key) for kind, key in _BINDING_LISTS.items()}
    flags = content.get("compatibility_flags", [])
    variables = content.get("vars", {})
    if not isinstance(flags, list) or not all(isinstance(flag, str) for flag in flags):
        raise ValueError("compatibility_flags must be a list of strings")
    if not isinstance(variables, dict):
        raise ValueError("vars must be a table")
    return WorkerConfig(
        name=_name(content.get("name", default_name[:63]), "name"),
        compatibility_date=str(content.get("compatibility_date", COMPATIBILITY_DATE)),
        compatibility_flags=tuple(flags),
        ai=_binding(content["ai"], "ai") if "ai" in content else "AI",
        kv=bindings["kv"],
        d1=bindings["d1"],
        r2=bindings["r2"],
        variables=variables,
        ignored=tuple(sorted(set(content) - _SUPPORTED)),
    )


def _parsed(path: Path) -> dict[str, Any]:
    text = path.read_text("utf-8")
    if path.suffix == ".toml":
        return tomllib.loads(text)
    content = json.loads(_COMMENT.sub(lambda match: match[1] or "", text))
    if not isinstance(content, dict):
        raise ValueError("the configuration must be an object")
    return content


def _bindings(content: Mapping[str, Any], key: str) -> tuple[str, ...]:
    rows = content.get(key, [])
    if not isinstance(rows, list):
        raise ValueError(f"{key} must be a list")
    return tuple(_binding(row, f"{key}[{i}]") for i, row in enumerate(rows))


def _binding(row: Any, field_name: str) -> str:
    if not isinstance(row, dict):
        raise ValueError(f"{field_name} must be a table")
    return _name(row.get("binding"), f"{field_name}.binding")


def _name(value: Any, field_name: str) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(f"{field_name} must be 1 to 63 characters of A-Z a-z 0-9 _ - (got {value!r})")
    return value
