"""Writes docs/settings.md, docs/metrics.md and docs/promises.md from the code itself, so that they
cannot drift from it, and docs/decisions/README.md from the pages beside it.

`tests/test_docs.py` compares the files with what this would write.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cli.evidence import FIGURES, PROMISES, read_figures, read_promises
from cli.settings import ProcessName, settings_class
from telemetry import metrics
from telemetry.settings import SettingInfo, describe

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SOURCES = {ProcessName.gateway: "gateway/settings.py", ProcessName.node: "engine/node/settings.py"}
STARTS = {ProcessName.gateway: "python -m gateway", ProcessName.node: "python -m engine"}

SETTINGS_HEAD = """\
# Settings

Every process reads its settings once, from environment variables, and keeps them. A setting that is missing or cannot
work stops the process with one line that names it. `hearth settings` shows the values in force, with secrets masked.

`hearth up` sets all that its processes need; what is written below then still applies to every variable that it leaves
alone. It never uses `DATABASE_URL`, `REDIS_URL` or `OBJECTS_URL` of its own environment: it runs on its own stores.

This page is written by `make docs` from the code.
"""
METRICS_HEAD = """\
# Metrics

Gateways and nodes serve these at `/metrics` in the Prometheus text format; each process exports what it touches.
Counters are exposed with the suffix `_total`. Labels are few and bounded: never an account, a token or a request id.

This page is written by `make docs` from `telemetry/metrics.py`.
"""
PROMISES_HEAD = """\
# Promises

What the platform promises, the tests that prove it, and what they measured last (`make figures`; `hearth evidence` puts
it into an auditor's pack). Below: what is done to it on purpose, and what must hold meanwhile.

This page is written by `make docs` from `cli/promises.toml` and `cli/figures.jsonl`.
"""
DECISIONS_HEAD = """\
# Decisions

Choices that others may wonder about, one page each: what was known, what we do, what would make us change it. A new one
starts from the [template](0000-template.md) with the next number.

This page is written by `make docs` from the pages themselves.
"""


def settings_page() -> str:
    parts = [SETTINGS_HEAD]
    for process in ProcessName:
        parts.append(f"\n## {process.value} (`{STARTS[process]}`, {SOURCES[process]})\n")
        parts.append("| Variable | Type | Default | Meaning |\n|---|---|---|---|")
        parts += [_setting_row(info) for info in describe(settings_class(process))]
    return "\n".join(parts) + "\n"


def metrics_page() -> str:
    rows = ["| Metric | Labels | Meaning |", "|---|---|---|"]
    for name, (help_text, labels) in metrics.all_metrics().items():
        rows.append(f"| `{name}` | {', '.join(f'`{label}`' for label in labels) or '–'} | {_cell(help_text)} |")
    return METRICS_HEAD + "\n" + "\n".join(rows) + "\n"


def promises_page() -> str:
    measured = read_figures(FIGURES)
    rows = ["| | Promise | Goal | Last figure | Proof |", "|---|---|---|---|---|"]
    for promise in read_promises():
        line = measured.get(promise["id"])
        figure = f"{_cell(line['figure'])} ({line['at'][:10]})" if line else "–"
        rows.append(f"| {promise['id']} | {promise['text']} | {promise['goal']} | {figure} | {_files(promise)} |")
    rows += ["", "| Fault | How it is made | What must hold | Proof |", "|---|---|---|---|"]
    for fault in tomllib.loads(PROMISES.read_text())["fault"]:
        rows.append(f"| {fault['name']} | {fault['how']} | {fault['holds']} | {_files(fault)} |")
    return PROMISES_HEAD + "\n" + "\n".join(rows) + "\n"


def _files(row: Mapping[str, Any]) -> str:
    return "<br>".join(f"`{file}`" for file in row["tests"])


def decisions_page() -> str:
    """Newest last; a page's first line is its title, its second says when, and whether it still holds."""
    rows = ["| Decision | Date, status |", "|---|---|"]
    for file in sorted((DOCS / "decisions").glob("[0-9]*.md"))[1:]:
        title, status = [line for line in file.read_text().splitlines() if line][:2]
        rows.append(f"| [{_cell(title.removeprefix('# '))}]({file.name}) | {status.rstrip('.')} |")
    return DECISIONS_HEAD + "\n" + "\n".join(rows) + "\n"


def _setting_row(info: SettingInfo) -> str:
    kind = {"bytes": "hex", "Path": "path", "str": "text"}.get(info.kind.__name__, info.kind.__name__)
    if info.is_required:
        default = "**required**"
    elif info.default in (None, "", b""):
        default = "–"
    else:
        default = f"`{str(info.default).lower() if isinstance(info.default, bool) else info.default}`"
    secret = " (secret)" if info.is_secret else ""
    return f"| `{info.env}` | {kind}{secret} | {default} | {_cell(info.help)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


PAGES = {
    "settings.md": settings_page,
    "metrics.md": metrics_page,
    "promises.md": promises_page,
    "decisions/README.md": decisions_page,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page())
        print(f"wrote docs/{name}")
