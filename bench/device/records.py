"""Store the files of a run in `bench/device/results`, after checking them, and print lines for `bench/LOG.md`."""

from __future__ import annotations

import json
import re
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.device import figures

RESULTS = Path(__file__).parent / "results"
MAX_FILES = 8


def store(folder: Path, results: Path = RESULTS) -> int:
    """Return 2 if a file is truncated, altered or from another run than the others."""
    try:
        contents = _checked(folder)
    except figures.InvalidFigures as error:
        sys.stderr.write(f"bench.device: {error}\n")
        return 2
    first = next(iter(contents.values()))
    card, commit = figures.card_of(first), first["circumstances"]["commit"]
    date = datetime.now(UTC)
    target = results / f"{date:%Y-%m-%d}_{card}_{commit}"
    target.mkdir(parents=True, exist_ok=True)
    for path, content in contents.items():
        shutil.copyfile(path, target / path.name)
        command = f"`bench.device run --parts {content['part']}`"
        figure = (content["headline"] or content["state"]).replace("|", "/")
        state = "" if content["state"] == "complete" else f" ({content['state']})"
        sys.stdout.write(
            f"| {date:%m-%d}, {commit} | {content['part']} on {card}{state} | {command} | {figure} | "
            f"`{target.name}/{path.name}` |\n"
        )
        if content["part"] == "facts" and content["state"] == "complete":
            _write_facts(results.parent / f"facts_{card}.json", content)
    return 0


def _checked(folder: Path) -> dict[Path, dict[str, Any]]:
    """Return the content of each file. Raises InvalidFigures."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise figures.InvalidFigures(f"{folder} has no files of figures")
    if len(paths) > MAX_FILES:
        raise figures.InvalidFigures(f"{folder} has {len(paths)} files, more than {MAX_FILES}")
    contents = {}
    for path in paths:
        if path.stat().st_size > figures.MAX_BYTES:
            raise figures.InvalidFigures(f"{path.name} is larger than {figures.MAX_BYTES} bytes")
        contents[path] = figures.read(path)
    origins = {(figures.card_of(each), each["circumstances"]["commit"]) for each in contents.values()}
    if len(origins) > 1:
        raise figures.InvalidFigures(f"{folder} has files of several cards or commits: {sorted(origins)}")
    card, commit = origins.pop()
    if not re.fullmatch(r"[0-9a-z-]+", card) or not re.fullmatch(r"[0-9a-z]+", commit):
        raise figures.InvalidFigures(f"{paths[0].name} names the card {card!r} and the commit {commit!r}")
    return contents


def _write_facts(path: Path, content: dict[str, Any]) -> None:
    values = {name: each["value"] for name, each in content["figures"].items()}
    path.write_text(json.dumps({"circumstances": content["circumstances"], **values}, indent=1) + "\n")
