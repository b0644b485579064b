"""Write an evidence pack for an auditor: `python -m scripts.evidence FOLDER`.

The pack has the audit log with the result of its verification, the inventory of accounts, API tokens, users, roles and
service keys, the settings, and the promises with their last measured figures. No file has a secret or content of calls.
"""

from __future__ import annotations

import asyncio
import csv
import hashlib
import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from cli.audit import HeadsOption, verify_chain
from cli.output import CommandFailed, JsonOption, print_failure, print_record
from cli.service import COLUMNS, inventory
from cli.target import DataOption, Target
from local_platform.process_settings import ProcessName, settings_class
from scripts.promises import FIGURES, read_figures, read_promises, read_test_run
from telemetry.settings import SettingError, masked, read_settings
from tenants import accounts, users
from tenants.accounts import Account
from tenants.audit import audit_log
from tenants.credentials import api_tokens
from tenants.credentials.api_tokens import ApiToken
from tenants.credentials.scopes import GROUPS, find_group
from tenants.residency import shown_rule

CHECKSUMS = "SHA256SUMS"
DESCRIPTIONS = {
    "audit.json": "result of the verification of the audit log's hash chain",
    "audit.jsonl": "all audit entries in chain order; tenants/audit/audit_log.py defines the digests",
    "accounts.csv": "accounts with their regions and retention",
    "tokens.csv": "API tokens, including revoked ones, with their permissions; secrets are stored nowhere",
    "users.csv": "users and their accounts",
    "service_keys.csv": "public keys of gateways and nodes",
    "roles.json": "permission groups with their scopes",
    "settings.json": "settings of each process, including PoPs and stores, with secrets masked",
    "promises.json": "promises, the tests that prove them, and the last measured figures",
    "promises.md": "the same promises as a table",
}


def main(
    out: Annotated[Path, typer.Argument(help="A new or empty folder.", show_default=False)],
    tests: Annotated[
        Path | None, typer.Option(help="JUnit XML report of a test run to include.", show_default=False)
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(help="Figures of your own (`make figures`), used before the checked-in ones.", show_default=False),
    ] = None,
    heads: HeadsOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Write an evidence pack. Exits with 1, after writing the pack, if the audit log is not intact."""
    try:
        write_pack(out, tests, figures, heads, data, is_json=json)
    except (CommandFailed, ValueError) as error:
        print_failure(str(error), 1, is_json=json)
        raise typer.Exit(1) from None


def write_pack(
    out: Path, tests: Path | None, figures: Path | None, heads: Path | None, data: Path | None, *, is_json: bool
) -> None:
    """Raises CommandFailed, and ValueError for an unreadable figures file or test report."""
    target = Target.find(data)
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise CommandFailed(f"{out} is not empty")
        audit, files = asyncio.run(_collect(target, heads))
        files["promises.json"], files["promises.md"] = _promises(tests, figures)
        files["settings.json"] = _settings(target)
        files["README.md"] = _readme(target, files)
        sums = (f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n" for name, text in sorted(files.items()))
        for name, text in {**files, CHECKSUMS: "".join(sums)}.items():
            (out / name).write_text(text)
    except OSError as error:
        raise CommandFailed(f"{out}: {error.strerror}") from None
    print_record({"folder": str(out), "files": len(files) + 1, "audit_is_intact": audit["is_intact"]}, is_json=is_json)
    if not audit["is_intact"]:
        raise CommandFailed("the audit log is not intact: see audit.json")


async def _collect(target: Target, heads: Path | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the audit log's verification, and file name -> content of everything that is in the database."""
    verification = await verify_chain(target, heads)
    async with target.database() as database:
        entries = [entry async for entry in audit_log.read_chain(database)]
        all_accounts = await accounts.list_all(database)
        tokens = [
            token for account in all_accounts for token in await api_tokens.list_all(database, account.account_id)
        ]
        all_users = await users.list_all(database)
        members = {user.user_id: await users.account_ids_of(database, user.user_id) for user in all_users}
    lines = [asdict(entry) | {"digest": entry.digest.hex() if entry.digest else None} for entry in entries]
    return verification, {
        "audit.json": _json(verification),
        "audit.jsonl": "".join(json.dumps(line, default=_plain, ensure_ascii=False) + "\n" for line in lines),
        "accounts.csv": _csv(
            ("account_id", "name", "status", "plan", "created_at", "region", "retention"), map(_account, all_accounts)
        ),
        "tokens.csv": _csv(
            ("api_token_id", "account_id", "name", "kind", "status", "user_id", "permissions", "resources", "condition",
             "region", "created_at", "not_before", "expires_at", "revoked_at"),
            map(_token, tokens),
        ),
        "users.csv": _csv(
            ("user_id", "email", "name", "accounts"),
            ({**asdict(user), "accounts": " ".join(sorted(members[user.user_id]))} for user in all_users),
        ),
        "roles.json": _json([{"id": g.group_id, "name": g.name, "scopes": sorted(g.scopes)} for g in GROUPS]),
        **service_keys(target),
    }  # fmt: skip


def service_keys(target: Target) -> dict[str, str]:
    """Return the inventory of service keys as a file, or no file if there is no key ring. Raises CommandFailed."""
    ring = Path(target.environ.get("HEARTH_SERVICE_RING") or "-")
    return {"service_keys.csv": _csv(COLUMNS, inventory(ring))} if ring.exists() else {}


def _account(account: Account) -> dict[str, Any]:
    return asdict(account) | {"region": shown_rule(account.region)}


def _token(token: ApiToken) -> dict[str, Any]:
    names = {group.name if (group := find_group(group_id)) is not None else group_id for group_id in token.groups}
    return asdict(token) | {
        "permissions": "; ".join(sorted(names)),
        "resources": " ".join(sorted({name for policy in token.policies for name in policy.resources})),
        "condition": msgspec.to_builtins(token.condition),
        "region": shown_rule(token.region),
    }


def _settings(target: Target) -> str:
    found: dict[str, Any] = {}
    for kind in ProcessName:
        for name, environ in target.processes(kind.value).items():
            try:
                found[name] = masked(read_settings(settings_class(kind), environ))
            except SettingError as error:
                found[name] = f"invalid: {error}"
    return _json(found)


def _promises(tests: Path | None, own_figures: Path | None) -> tuple[str, str]:
    """Return the promises with their figures and test results, as JSON and as Markdown. Raises ValueError."""
    runs = read_test_run(tests) if tests is not None else {}
    if own_figures is not None and not own_figures.is_file():
        raise ValueError(f"{own_figures} is not a file")
    figures = read_figures(FIGURES) | (read_figures(own_figures) if own_figures is not None else {})
    rows = []
    table = ["| | Promise | Goal | Last figure | Tests |", "|---|---|---|---|---|"]
    for promise in read_promises():
        measured = figures.get(promise["id"])
        figure = "none yet"
        if measured is not None:
            figure = (
                f"{measured['figure']} ({measured['at'][:10]}, commit {measured['commit']}, `{measured['command']}`)"
            )
        results = [{"file": file, "run": runs.get(file, "not in the report")} for file in promise["tests"]]
        row = {"id": promise["id"], "promise": promise["text"], "goal": promise["goal"]}
        rows.append({**row, "last_figure": figure, "measured": measured, "tests": results})
        files = "<br>".join(f"{result['file']}: {result['run']}" if tests else result["file"] for result in results)
        table.append(f"| {' | '.join(row.values())} | {figure.replace('|', chr(92) + '|')} | {files} |")
    return _json(rows), "# Promises\n\n" + "\n".join(table) + "\n"


def _readme(target: Target, files: Mapping[str, str]) -> str:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    lines = "\n".join(f"- `{name}`: {text}" for name, text in DESCRIPTIONS.items() if name in files)
    return (
        f"# Evidence\n\nWritten {now} by hearth {metadata.version('hearth')} for the platform in {target.origin}.\n\n"
        f"{lines}\n- `{CHECKSUMS}`: checksums of these files (`sha256sum -c {CHECKSUMS}`)\n"
    )


def _csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row.get(column)) for column in columns])
    return text.getvalue()


def _cell(value: Any) -> str:
    """Return a CSV cell. A cell that a spreadsheet would execute as a formula gets a leading apostrophe."""
    if value is None:
        return ""
    text = json.dumps(value) if isinstance(value, dict | list) else str(_plain(value))
    return f"'{text}" if text[:1] in "=+-@\t\r" and text else text


def _json(value: Any) -> str:
    return json.dumps(value, default=_plain, ensure_ascii=False, indent=2) + "\n"


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else str(value)


if __name__ == "__main__":
    sys.exit(typer.run(main))
