"""Every command that changes a platform appends an audit entry. New commands are added to one of the tables below."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from cli import main
from storage.migrate import head_revision
from tests.catalog.adapters import config_bytes, spark_modules, weights_bytes
from tests.catalog.cards import write_model_folder

Hearth = Callable[..., Any]

# Command -> its arguments, with results of earlier commands in braces, and the actions of its audit entries.
CHANGING: dict[str, tuple[str, list[str]]] = {
    "account create": ("acme", ["account.create"]),
    "account terms": ("{account} --plan free --limits account.calls=4", ["account.terms"]),
    "account region": ("{account} DE,eu", ["account.region"]),
    "account retention": ("{account} zero", ["account.retention"]),
    "account block": ("{account}", ["account.block"]),
    "account unblock": ("{account}", ["account.unblock"]),
    "token create": ("--account {account} --name laptop", ["api_token.create"]),
    "budget set": ("12.5 --account {account}", ["budget.set"]),
    "budget remove": ("--account {account}", ["budget.remove"]),
    "token revoke": ("{token} --account {account}", ["api_token.revoke"]),
    "user create": ("ada@example.com --account {account}", ["user.create", "membership.create"]),
    "user role": ("ada@example.com {account} viewer", ["membership.role"]),
    "user leave": ("ada@example.com {account}", ["membership.delete"]),
    "user join": ("ada@example.com {account}", ["membership.create"]),
    "user roll": ("ada@example.com", ["user.roll_global_key"]),
    "operator add": (
        "bob@example.com --role viewer --account {account} --generate",
        ["operator.add", "membership.create"],
    ),
    "operator reset": ("bob@example.com --generate", ["operator.reset_password"]),
    "dashboard": ("--email bob@example.com --url https://hearth.example", ["operator.create_link"]),
    "operator remove": ("bob@example.com", ["operator.remove"]),
    "model publish": ("{folder} --name @cf/acme/chat", ["model.publish"]),
    "model alias": ("@cf/acme/other @cf/acme/chat", ["model.alias"]),
    "finetune publish": ("{adapter} --name cf-public-x --model @cf/hearth/spark", ["finetune.publish"]),
    "finetune approve": ("{finetune}", ["finetune.approve"]),
    "finetune remove": ("{finetune}", ["finetune.remove"]),
    "service make": ("node/n1 --pop fra", ["service_key.make"]),
    "service ensure": ("gateway/g9 node/n9@fra", ["service_key.make", "service_key.make"]),
    "service add": (
        f"node/n2 {'d75a980182b10ab7d54bfed3c964073a' + '0ee172f3daa62325af021a68f707511a'}",
        ["service_key.add"],
    ),
    "service rotate": ("node/n1", ["service_key.rotate"]),
    "service revoke": ("--subject node/n1", ["service_subject.revoke"]),
    "service reinstate": ("node/n1", ["service_subject.reinstate"]),
}
# Commands that only read, or that change only this machine.
READING = {
    "account list", "audit head", "audit list", "audit verify", "budget alerts", "budget list", "chat", "doctor",
    "engine list", "finetune list", "model list", "model ps", "model show", "node explain", "node list",
    "operator list",
    "pilot", "pop list", "scale compare", "scale overrides", "scale plan", "scale reserved", "service issue",
    "service list", "settings", "token list", "usage", "user list", "worker dev",
}  # fmt: skip
# Tested in test_node.py, test_model.py, test_model_replicas.py, test_quantize.py, test_up.py and below, or requests to
# routes that `tests/gateway/test_audited_routes.py` lists.
TESTED_ELSEWHERE = {
    "engine register",
    "engine remove",
    "node load",
    "node pin",
    "node token",
    "node unload",
    "node unpin",
    "pop evacuate",
    "pop restore",
    "scale release",
    "scale reserve",
    "scale set",
    "scale unset",
    "model add",
    "model load",
    "model pull",
    "model quantize",
    "model rm",
    "model unload",
    "migrate",
    "node drain",
    "node undrain",
    "up",
}


def entries(database: Path) -> list[tuple[str, str, str, str]]:
    """Return actor, action, subject and detail of every entry, in chain order."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        query = "SELECT actor, action, subject_id, detail FROM audit_entries ORDER BY sequence"
        return list(connection.execute(query))


def commands(group: Any, before: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{name} ")
        else:
            yield before + name


def test_every_command_is_listed_as_changing_or_reading():
    known = [*CHANGING, *READING, *TESTED_ELSEWHERE]
    assert sorted(commands(typer.main.get_command(main.app))) == sorted(known)


@pytest.mark.full
def test_every_changing_command_appends_its_audit_entries(
    hearth: Hearth, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OBJECTS_URL", f"file://{tmp_path}/objects")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_bytes(config_bytes())
    (adapter / "adapter_model.safetensors").write_bytes(weights_bytes(modules=spark_modules()))
    results = {"folder": str(write_model_folder(tmp_path / "model")), "adapter": str(adapter)}
    before = entries(data / "hearth.db")
    for command, (arguments, actions) in CHANGING.items():
        result = hearth(*command.split(), *arguments.format(**results).split())
        after = entries(data / "hearth.db")
        new = after[len(before) :]
        assert [action for _, action, _, _ in new] == actions, command
        assert {actor for actor, _, _, _ in new} == {"cli"}, command
        before = after
        if command.endswith(" create"):
            results[command.split()[0]] = result.get("api_token_id") or result.get("account_id") or ""
        if command == "finetune publish":
            results["finetune"] = result["id"]
    assert hearth("audit", "verify")["entries"] == len(before)
    platform = {row["action"]: row for row in hearth("audit", "list")}
    assert platform["model.alias"]["detail"] == "@cf/acme/other -> @cf/acme/chat"
    assert (platform["model.publish"]["detail"], len(platform["model.publish"]["subject_id"])) == ("@cf/acme/chat", 64)
    hearth("model", "alias", "@cf/acme/other", "--remove")
    assert hearth("audit", "list", "--limit", "1")[0]["action"] == "model.alias_removed"


def test_failed_command_appends_no_entry(hearth: Hearth, data: Path):
    before = entries(data / "hearth.db")
    for arguments in (
        ("account", "block", "f" * 32),
        ("token", "revoke", "f" * 32, "--account", "f" * 32),
        ("model", "alias", "@cf/acme/none", "--remove"),
        ("model", "alias", "@cf/acme/none", "@cf/acme/nothing"),
        ("user", "roll", "nobody@example.com"),
    ):
        hearth(*arguments, status=1)
    assert entries(data / "hearth.db") == before


@pytest.mark.full
def test_migration_appends_an_entry_only_if_the_schema_changes(
    hearth: Hearth, data: Path, monkeypatch: pytest.MonkeyPatch
):
    (data / "hearth.db").unlink()
    for _ in range(2):
        assert hearth("migrate")["revision"] == head_revision()
    assert entries(data / "hearth.db") == [
        ("cli", "schema.migrate", head_revision(), f"nothing -> {head_revision()}"),
    ]
