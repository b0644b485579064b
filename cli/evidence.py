"""`hearth evidence`: what an auditor of a platform asks for, as files.

The audit and whether it is whole, who may do what, where calls may be and what is kept, what is promised and what was
last measured. Holds no secret and no content.
"""

from __future__ import annotations

import asyncio
import csv
import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.audit import HeadsOption, verified
from cli.data_dir import DataOption
from cli.output import CommandFailed, JsonOption, print_record
from cli.target import Target

if TYPE_CHECKING:
    from tenants.accounts import Account
    from tenants.credentials.api_tokens import ApiToken

SUMS = "SHA256SUMS"
PROMISES = Path(__file__).parent / "promises.toml"
FIGURES = Path(__file__).parent / "figures.jsonl"


def evidence(
    out: Annotated[Path, typer.Argument(help="A folder that is new or empty.", show_default=False)],
    tests: Annotated[
        Path | None, typer.Option(help="Record of a test run (JUnit's XML), beside the promises.", show_default=False)
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(help="What you measured yourself (`make figures`), before what is shipped.", show_default=False),
    ] = None,
    heads: HeadsOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Write an operator's pack of evidence. Fails, with the pack written, when the audit is not whole."""
    target = Target.find(data)
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise CommandFailed(f"{out} is not empty")
        files = asyncio.run(_collect(target, heads))
        files["promises.json"], files["promises.md"] = _promises(tests, figures)
        files["settings.json"] = _settings(target)
        files["README.md"] = _readme(target, files)
        sums = "".join(f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n" for name, text in sorted(files.items()))
        for name, text in {**files, SUMS: sums}.items():
            (out / name).write_text(text)
    except OSError as error:
        raise CommandFailed(f"{out}: {error.strerror}") from None
    found = _read(files["audit.json"])
    print_record({"folder": str(out), "files": len(files) + 1, "audit_is_whole": found["is_whole"]}, is_json=json)
    if not found["is_whole"]:
        raise CommandFailed("the audit is not whole: see audit.json")


async def _collect(target: Target, heads: Path | None) -> dict[str, str]:
    """What the database says, by file."""
    from tenants import accounts, users
    from tenants.audit import audit_log as audit
    from tenants.credentials import api_tokens

    found = await verified(target, heads)
    async with target.database() as database:
        entries = [entry async for entry in audit.read_chain(database)]
        held = await accounts.list_all(database)
        tokens = [token for account in held for token in await api_tokens.list_all(database, account.account_id)]
        people = await users.list_all(database)
        members = {user.user_id: await users.account_ids_of(database, user.user_id) for user in people}
    lines = [asdict(entry) | {"digest": entry.digest.hex() if entry.digest else None} for entry in entries]
    return {
        "audit.json": _written(found),
        "audit.jsonl": "".join(json.dumps(line, default=_plain, ensure_ascii=False) + "\n" for line in lines),
        "accounts.csv": _table(
            ("account_id", "name", "status", "plan", "created_at", "region", "retention"), map(_account, held)
        ),
        "tokens.csv": _table(
            ("api_token_id", "account_id", "name", "kind", "status", "user_id", "permissions", "resources", "condition",
             "region", "created_at", "not_before", "expires_at", "revoked_at"),
            map(_token, tokens),
        ),
        "users.csv": _table(
            ("user_id", "email", "name", "accounts"),
            ({**asdict(user), "accounts": " ".join(sorted(members[user.user_id]))} for user in people),
        ),
        "roles.json": _written(_roles()),
        **service_keys(target),
    }  # fmt: skip


def service_keys(target: Target) -> dict[str, str]:
    """The inventory of gateways' and nodes' keys, where they have some. Raises CommandFailed."""
    from cli.service import COLUMNS, inventory

    ring = Path(target.environ.get("HEARTH_SERVICE_RING") or "-")
    return {"service_keys.csv": _table(COLUMNS, inventory(ring))} if ring.exists() else {}


def _account(account: Account) -> dict[str, Any]:
    from tenants.residency import shown_rule

    return asdict(account) | {"region": shown_rule(account.region)}


def _token(token: ApiToken) -> dict[str, Any]:
    """An API token's place in the inventory: groups by name, and no secret, since there is none to show."""
    import msgspec

    from tenants.residency import shown_rule

    return asdict(token) | {
        "permissions": "; ".join(sorted({_name_of(group) for group in token.groups})),
        "resources": " ".join(sorted({name for policy in token.policies for name in policy.resources})),
        "condition": msgspec.to_builtins(token.condition),
        "region": shown_rule(token.region),
    }


def _name_of(group_id: str) -> str:
    from tenants.credentials.scopes import find_group

    group = find_group(group_id)
    return group.name if group is not None else group_id


def _roles() -> list[dict[str, Any]]:
    from tenants.credentials.scopes import GROUPS

    return [{"id": group.group_id, "name": group.name, "opens": sorted(group.scopes)} for group in GROUPS]


def _settings(target: Target) -> str:
    """What each process would run with, secrets masked; or why that cannot be told."""
    from cli.settings import ProcessName, settings_class
    from telemetry.settings import SettingError, masked, read_settings

    found: dict[str, Any] = {}
    for kind in ProcessName:
        for name, environ in target.processes(kind.value).items():
            try:
                found[name] = masked(read_settings(settings_class(kind), environ))
            except SettingError as error:
                found[name] = f"cannot be told: {error}"
    return _written(found)


def _promises(tests: Path | None, own_figures: Path | None) -> tuple[str, str]:
    """The promises with what was last measured and, from a run's record, how their tests went: as data, and to read."""
    promises = read_promises()
    runs = read_run(tests) if tests is not None else {}
    if own_figures is not None and not own_figures.is_file():
        raise CommandFailed(f"{own_figures} is no file")
    figures = read_figures(FIGURES) | (read_figures(own_figures) if own_figures is not None else {})
    rows = []
    for promise in promises:
        measured = figures.get(promise["id"])
        rows.append(
            {
                "id": promise["id"],
                "promise": promise["text"],
                "goal": promise["goal"],
                "last_figure": _shown(measured) or "none yet",
                "measured": measured,
                "tests": [{"file": file, "run": runs.get(file, "not in the record")} for file in promise["tests"]],
            }
        )
    read = ["| | Promise | Goal | Last figure | Tests |", "|---|---|---|---|---|"]
    for row in rows:
        files = "<br>".join(f"{test['file']}: {test['run']}" if tests else test["file"] for test in row["tests"])
        figure = row["last_figure"].replace("|", "\\|")
        read.append(f"| {row['id']} | {row['promise']} | {row['goal']} | {figure} | {files} |")
    return _written(rows), "# Promises\n\n" + "\n".join(read) + "\n"


def read_promises() -> list[dict[str, Any]]:
    """Every promise: its `id`, `text`, `goal`, and the files of `tests` that prove it."""
    import tomllib

    promises: list[dict[str, Any]] = tomllib.loads(PROMISES.read_text())["promise"]
    return promises


def read_figures(path: Path) -> dict[str, dict[str, str]]:
    """By promise, the line that was written last (`make figures`). Raises CommandFailed naming one that is none."""
    found: dict[str, dict[str, str]] = {}
    for number, text in enumerate(path.read_text().splitlines() if path.is_file() else (), 1):
        try:
            line = json.loads(text)
            found[line["promise"]] = {name: str(line[name]) for name in ("figure", "command", "at", "commit")}
        except (ValueError, KeyError, TypeError):
            raise CommandFailed(f"line {number} of {path} is no figure") from None
    return found


def _shown(measured: Mapping[str, str] | None) -> str:
    """A figure with when, of what and by what it was measured."""
    if measured is None:
        return ""
    return f"{measured['figure']} ({measured['at'][:10]}, commit {measured['commit']}, `{measured['command']}`)"


def read_run(path: Path) -> dict[str, str]:
    """How the tests of each file went, by a record of JUnit's kind. Raises CommandFailed."""
    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import ParseError, parse

    try:
        cases = list(parse(path).getroot().iter("testcase"))
    except (OSError, ParseError, DefusedXmlException) as error:
        raise CommandFailed(f"{path} is no record of a test run: {error}") from None
    counts: dict[str, list[int]] = {}
    for case in cases:
        file = case.get("file") or case.get("classname", "").replace(".", "/") + ".py"
        done = counts.setdefault(file, [0, 0, 0])
        kinds = {child.tag for child in case}
        done[1 if kinds & {"failure", "error"} else 2 if "skipped" in kinds else 0] += 1
    return {file: f"{good} passed, {bad} failed, {left} skipped" for file, (good, bad, left) in counts.items()}


def _readme(target: Target, files: Mapping[str, str]) -> str:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    held = {
        "audit.json": "whether the audit's chain is whole, and what it was held against",
        "audit.jsonl": "every entry in the chain's order; tenants/audit/audit_log.py says what each digest is made of",
        "accounts.csv": "accounts, with their regions and retention",
        "tokens.csv": "API tokens, revoked ones included, with what each opens; secrets are stored nowhere",
        "users.csv": "people with accounts, and which",
        "service_keys.csv": "public keys of gateways and nodes, with what each may speak for",
        "roles.json": "permission groups and the scopes that each opens",
        "settings.json": "settings of each process, secrets masked; places and stores among them",
        "promises.json": "what is promised, what proves it, what was last measured; promises.md is the same to read",
    }
    lines = "\n".join(f"- `{name}`: {what}" for name, what in held.items() if name in files)
    return (
        f"# Evidence\n\nWritten {now} by hearth {metadata.version('hearth')} of the platform in {target.origin}.\n\n"
        f"{lines}\n- `{SUMS}`: digests of these files (`sha256sum -c {SUMS}`)\n"
    )


def _table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """CSV; nested values in JSON. A cell that a spreadsheet would run is set in quotes of its own."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row.get(column)) for column in columns])
    return text.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = json.dumps(value) if isinstance(value, dict | list) else str(_plain(value))
    return f"'{text}" if text[:1] in "=+-@\t\r" and text else text


def _written(value: Any) -> str:
    return json.dumps(value, default=_plain, ensure_ascii=False, indent=2) + "\n"


def _read(text: str) -> Any:
    return json.loads(text)


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else str(value)
