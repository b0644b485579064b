"""The promises of the platform (`promises.toml`) and their last measured figures (`figures.jsonl`)."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

PROMISES = Path(__file__).parent / "promises.toml"
FIGURES = Path(__file__).parent / "figures.jsonl"


def read_promises() -> list[dict[str, Any]]:
    """Return all promises: `id`, `text`, `goal`, and the `tests` that prove each one."""
    promises: list[dict[str, Any]] = tomllib.loads(PROMISES.read_text())["promise"]
    return promises


def read_faults() -> list[dict[str, Any]]:
    """Return all injected faults: `name`, `injection`, `expected`, and the `tests` that inject each one."""
    faults: list[dict[str, Any]] = tomllib.loads(PROMISES.read_text())["fault"]
    return faults


def read_figures(path: Path) -> dict[str, dict[str, str]]:
    """Return promise id -> the last line of a figures file. Raises ValueError for an invalid line."""
    found: dict[str, dict[str, str]] = {}
    for number, text in enumerate(path.read_text().splitlines() if path.is_file() else (), 1):
        try:
            line = json.loads(text)
            found[line["promise"]] = {name: str(line[name]) for name in ("figure", "command", "at", "commit")}
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"line {number} of {path} is not a figure") from None
    return found


def read_test_run(path: Path) -> dict[str, str]:
    """Return test file -> number of passed, failed and skipped tests, from a JUnit XML report. Raises ValueError."""
    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import ParseError, parse

    try:
        cases = list(parse(path).getroot().iter("testcase"))
    except (OSError, ParseError, DefusedXmlException) as error:
        raise ValueError(f"{path} is not a JUnit XML report: {error}") from None
    counts: dict[str, list[int]] = {}
    for case in cases:
        file = case.get("file") or case.get("classname", "").replace(".", "/") + ".py"
        count = counts.setdefault(file, [0, 0, 0])
        kinds = {child.tag for child in case}
        count[1 if kinds & {"failure", "error"} else 2 if "skipped" in kinds else 0] += 1
    return {file: "{} passed, {} failed, {} skipped".format(*count) for file, count in counts.items()}
