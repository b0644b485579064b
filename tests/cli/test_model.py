"""`hearth model`: output for people and programs, and error messages."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from catalog.available import AVAILABLE
from catalog.builtin import builtin_models
from catalog.card import parse_model_id
from catalog.package_models import package_models
from cli.main import run
from tests.catalog.cards import write_model_folder
from tests.fakes.gguf_file import write_gguf
from tests.fakes.hub_server import COMMIT, HubServer

MINILM = "@cf/hearth/minilm"
FREE = ["json_mode", "logit_bias", "lora", "multiple_choices"]  # what every text model can do
SPARK = Path(__file__).parents[2] / "catalog/builtin/spark"
CARD = """
name = "@cf/acme/carded"
task = "Text Generation"
description = "From a card"
schema = "text_generation_legacy"
context_window = 512
created_at = 2026-11-20T00:00:00Z
"""


@pytest.fixture(autouse=True)
def platform(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", sqlite_url)
    monkeypatch.setenv("OBJECTS_URL", f"file://{tmp_path}/objects")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Return the printed output of `hearth model ... --json`, which must succeed."""
    assert run(["model", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def failed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["model", *arguments]) in (1, 2)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_built_in_models_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["name"]: row for row in printed(capsys, "list")}
    assert rows.keys() == builtin_models().keys()
    assert rows[MINILM]["source"] == "builtin"
    assert run(["model", "list"]) == 0
    assert MINILM in capsys.readouterr().out


def test_published_model_is_found_by_search_and_task(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "model")
    row = printed(capsys, "publish", str(folder), "--name", "@cf/acme/chat")
    assert (row["name"], row["source"], row["context_window"]) == ("@cf/acme/chat", "published", 1024)
    assert [found["name"] for found in printed(capsys, "list", "--search", "acme")] == ["@cf/acme/chat"]
    assert [found["name"] for found in printed(capsys, "list", "--task", "Text Embeddings")] == [MINILM]


def test_capabilities_are_derived_from_the_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "model")
    assert printed(capsys, "publish", str(folder), "--name", "@cf/acme/chat")["capabilities"] == FREE
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SPARK / name, folder / name)
    row = printed(capsys, "publish", str(folder), "--name", "@cf/acme/caller")
    assert row["capabilities"] == ["function_calling", *FREE]


def test_card_is_used_and_the_name_option_takes_precedence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "model")
    card = tmp_path / "card.toml"
    card.write_text(CARD)
    row = printed(capsys, "publish", str(folder), "--card", str(card))
    assert (row["name"], row["context_window"]) == ("@cf/acme/carded", 512)
    row = printed(capsys, "publish", str(folder), "--card", str(card), "--name", "@cf/acme/renamed")
    assert row["name"] == "@cf/acme/renamed"


def test_alias_is_listed_with_its_model(capsys: pytest.CaptureFixture[str]) -> None:
    alias = {"name": "@cf/baai/bge-small-en-v1.5", "alias_of": MINILM}
    assert printed(capsys, "alias", alias["name"], MINILM) == alias
    assert alias.items() <= {row["name"]: row for row in printed(capsys, "list")}[alias["name"]].items()
    printed(capsys, "alias", alias["name"], "--remove")
    assert len(printed(capsys, "list")) == len(builtin_models())


def test_pull_publishes_the_model_and_prints_progress_as_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = tmp_path / "staging"
    monkeypatch.setattr(logging.getLogger("huggingface_hub"), "level", logging.CRITICAL)
    with HubServer.of_folder("acme/tiny", write_model_folder(tmp_path / "repo")) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        assert run(["model", "pull", "acme/tiny", "--staging", str(staging), "--json"]) == 0
    captured = capsys.readouterr()
    row = json.loads(captured.out)
    assert (row["name"], row["commit"], row["source"]) == ("@hf/acme/tiny", COMMIT, "published")
    lines = [json.loads(line) for line in captured.err.splitlines()]
    assert lines.pop()["note"].startswith("calls of @hf/acme/tiny are free")
    assert {line["file"] for line in lines} == {"config.json", "model.safetensors", "tokenizer.json"}
    assert not list(staging.rglob("*.safetensors"))
    assert [found["name"] for found in printed(capsys, "list", "--search", "acme")] == ["@hf/acme/tiny"]
    assert run(["audit", "list", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert (entry["action"], entry["subject_id"]) == ("model.publish", row["revision"])


def test_listed_model_is_pulled_by_its_id(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "@cf/meta/llama-3.2-1b-instruct"
    monkeypatch.setattr(logging.getLogger("huggingface_hub"), "level", logging.CRITICAL)
    with HubServer.of_folder("meta-llama/Llama-3.2-1B-Instruct", write_model_folder(tmp_path / "repo")) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        assert run(["model", "pull", name, "--staging", str(tmp_path / "staging"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == name
    assert [found["name"] for found in printed(capsys, "list", "--search", "short tasks at very little cost")] == [name]
    assert "is not a listed model" in failed(capsys, "pull", "@cf/no/thing")
    assert "no repository is known" in failed(capsys, "pull", "@cf/zai-org/glm-5.3")


def test_failure_is_one_line_with_the_reason(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model_folder(tmp_path / "model")
    assert "give a --name" in failed(capsys, "publish", str(folder))
    assert "built in" in failed(capsys, "publish", str(folder), "--name", MINILM)
    assert "a model id has the form" in failed(capsys, "publish", str(folder), "--name", "chat")
    assert "card.toml" in failed(capsys, "publish", str(folder), "--card", str(tmp_path / "card.toml"))
    assert "not a folder" in failed(capsys, "publish", str(tmp_path / "none"), "--name", "@cf/acme/chat")
    assert "TARGET" in failed(capsys, "alias", "@cf/acme/chat")
    assert "no model" in failed(capsys, "alias", "@cf/acme/chat", "@cf/acme/none")
    (folder / "weights.bin").write_bytes(b"")
    assert "weights.bin" in failed(capsys, "publish", str(folder), "--name", "@cf/acme/chat")
    monkeypatch.setenv("OBJECTS_URL", "ftp://x")
    assert "OBJECTS_URL" in failed(capsys, "publish", str(folder), "--name", "@cf/acme/chat")


def test_gguf_file_is_published_with_the_facts_of_its_header(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = write_gguf(tmp_path / "files" / "tiny-Q8.gguf")
    write_gguf(tmp_path / "files" / "other.gguf")
    row = printed(capsys, "publish", str(file), "--name", "@cf/acme/tiny")
    assert (row["name"], row["context_window"], row["capabilities"]) == ("@cf/acme/tiny", 2048, FREE)
    assert row["size_bytes"] == file.stat().st_size
    assert "2 GGUF models (other.gguf, tiny-Q8.gguf)" in failed(
        capsys, "publish", str(file.parent), "--name", "@cf/a/b"
    )
    (file.parent / "other.gguf").unlink()
    (file.parent / "tokenizer_config.json").write_text("{}")
    whole = printed(capsys, "publish", str(file.parent), "--name", "@cf/acme/folder")
    assert whole["size_bytes"] == file.stat().st_size + 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"architecture": "mamba"}, "general.architecture='mamba' is not supported in GGUF"),
        ({"pre": "unheard-of"}, "tokenizer.ggml.pre='unheard-of' is not supported"),
    ],
)
def test_unsupported_gguf_file_is_refused_by_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", **change)
    assert reason in failed(capsys, "publish", str(file), "--name", "@cf/acme/tiny")


def test_damaged_or_incomplete_gguf_file_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    file.write_bytes(file.read_bytes()[:-100])
    assert "tiny.gguf: 'token_embd.weight': 192 bytes" in failed(capsys, "publish", str(file), "--name", "@cf/a/b")
    file.write_bytes(b"GGML")
    assert "not a GGUF file" in failed(capsys, "publish", str(file), "--name", "@cf/a/b")
    first = write_gguf(tmp_path / "big-00001-of-00002.gguf")
    assert "big-00002-of-00002.gguf is missing" in failed(capsys, "publish", str(first), "--name", "@cf/a/b")
    later = first.rename(tmp_path / "big-00002-of-00002.gguf")
    assert "give the first one, big-00001-of-00002.gguf" in failed(capsys, "publish", str(later), "--name", "@cf/a/b")
    spaced = write_gguf(tmp_path / "my model.gguf")
    assert "a file name may contain only" in failed(capsys, "publish", str(spaced), "--name", "@cf/a/b")


def test_pull_of_one_gguf_file_downloads_only_this_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("huggingface_hub"), "level", logging.CRITICAL)
    for name in ("tiny-Q4.gguf", "tiny-Q8.gguf"):
        write_gguf(tmp_path / "repo" / name)
    (tmp_path / "repo" / "config.json").write_text("{}")
    staging = ("--staging", str(tmp_path / "staging"))
    with HubServer.of_folder("acme/tiny-GGUF", tmp_path / "repo") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        message = failed(capsys, "pull", "acme/tiny-GGUF", *staging)
        assert "choose one of its GGUF files with --file: tiny-Q4.gguf, tiny-Q8.gguf" in message
        assert "has no file tiny.gguf" in failed(capsys, "pull", "acme/tiny-GGUF", "--file", "tiny.gguf", *staging)
        assert "not the name of a GGUF" in failed(capsys, "pull", "acme/tiny-GGUF", "--file", "../x.gguf", *staging)
        row = printed(capsys, "pull", "acme/tiny-GGUF", "--file", "tiny-Q4.gguf", *staging)
        assert row["name"] == "@hf/acme/tiny-GGUF"
        downloaded = {request.path.rpartition("/")[2] for request in hub.requests if "/resolve/" in request.path}
    assert downloaded == {"tiny-Q4.gguf"}
    assert not list((tmp_path / "staging").rglob("*.gguf"))


def test_model_without_prices_is_free_and_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    publish = ["model", "publish", str(file), "--name"]
    assert run([*publish, "@cf/acme/tiny"]) == 0
    assert "calls of @cf/acme/tiny are free" in capsys.readouterr().err
    assert run([*publish, "@cf/acme/tiny", "--prices", "300, 2300.5"]) == 0
    assert "free" not in capsys.readouterr().err
    assert run([*publish, "@cf/meta/llama-3.2-1b-instruct"]) == 0  # the listed model has prices
    assert "free" not in capsys.readouterr().err
    for prices in ("300", "300,x", "-1,2", "1,NaN", "1,2,3"):
        assert "--prices must be two numbers" in failed(capsys, *publish[1:], "@cf/acme/tiny", "--prices", prices)


def test_show_prints_card_files_prices_and_aliases(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    printed(capsys, "publish", str(file), "--name", "@cf/acme/tiny", "--prices", "300,2300.5")
    printed(capsys, "alias", "@cf/acme/alias", "@cf/acme/tiny")
    shown = printed(capsys, "show", "@cf/acme/alias")
    assert (shown["name"], shown["description"], shown["license"]) == ("@cf/acme/tiny", "Acme Tiny", "apache-2.0")
    assert shown["prices"] == {"input": "300", "output": "2300.5"}
    assert [entry["path"] for entry in shown["files"]] == ["tiny.gguf"]
    assert (shown["aliases"], shown["replicas"]) == (["@cf/acme/alias"], [])
    assert run(["model", "show", "@cf/acme/tiny"]) == 0
    out = capsys.readouterr().out
    assert "input: 300, output: 2300.5" in out
    assert "tiny.gguf" in out
    assert "there is no model @cf/acme/none; see `hearth model list`" in failed(capsys, "show", "@cf/acme/none")
    assert "a model id has the form" in failed(capsys, "show", "tiny")


def test_available_models_are_listed_with_sizes_and_estimates(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["name"]: row for row in printed(capsys, "list", "--available")}
    assert len(rows) == len(AVAILABLE)
    row = rows["@hf/qwen/qwen3-0.6b"]
    assert row["source"] == "Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf"
    assert row["command"] == "hearth model pull @hf/qwen/qwen3-0.6b"
    assert row["memory_bytes"] > row["size_bytes"]
    speeds = [row["estimated_tokens_per_s"] for row in rows.values() if row["estimated_tokens_per_s"] is not None]
    assert len(speeds) == len(rows.keys() - package_models())  # models in packages generate no chat
    assert rows["@cf/usefulsensors/moonshine-tiny"]["command"] == "hearth model add @cf/usefulsensors/moonshine-tiny"
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[-1] > 0
    assert run(["model", "list", "--available", "--search", "gemma"]) == 0
    out = capsys.readouterr().out
    assert "@hf/google/gemma-3-1b-it" in out
    assert "qwen3" not in out
    assert "Memory and speed are estimates" in out
    for name, model in AVAILABLE.items():
        assert parse_model_id(name) == name
        assert (model.file.endswith(".gguf"), bool(model.repository)) in {(True, True), (False, False)}


def test_available_model_is_pulled_by_its_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("huggingface_hub"), "level", logging.CRITICAL)
    write_gguf(tmp_path / "repo" / "Qwen3-0.6B-Q8_0.gguf", architecture="qwen3")
    write_gguf(tmp_path / "repo" / "other.gguf")
    with HubServer.of_folder("Qwen/Qwen3-0.6B-GGUF", tmp_path / "repo") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        row = printed(capsys, "pull", "@hf/qwen/qwen3-0.6b", "--staging", str(tmp_path / "staging"))
    assert (row["name"], row["repo_id"]) == ("@hf/qwen/qwen3-0.6b", "Qwen/Qwen3-0.6B-GGUF")


@pytest.mark.parametrize(
    ("name", "program", "packages"),
    [("@cf/hearth/flite", "flite", "flite"), ("@cf/apertium/en-es", "apertium", "apertium apertium-eng-spa")],
)
def test_adding_a_model_names_the_program_that_is_missing_and_its_packages(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    program: str,
    packages: str,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(["model", "add", name, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["name"] == name
    warning = json.loads(captured.err.splitlines()[0])["warning"]
    assert f"{name} needs the program {program}, which is not installed" in warning
    assert warning.endswith(f"apt-get install {packages}")
    (tmp_path / program).write_text("#!/bin/sh\n")
    (tmp_path / program).chmod(0o755)
    assert run(["model", "add", name]) == 0
    assert "warning" not in capsys.readouterr().err


def test_removed_model_is_gone_and_audited(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    revision = printed(capsys, "publish", str(file), "--name", "@cf/acme/tiny")["revision"]
    printed(capsys, "alias", "@cf/acme/alias", "@cf/acme/tiny")
    assert "is the target of @cf/acme/alias" in failed(capsys, "rm", "@cf/acme/tiny")
    printed(capsys, "alias", "@cf/acme/alias", "--remove")
    removed = {"removed": "@cf/acme/tiny", "revision": revision, "kept_bytes": 0}
    assert printed(capsys, "rm", "@cf/acme/tiny") == removed | {"deleted_bytes": file.stat().st_size}
    assert "no published model" in failed(capsys, "rm", "@cf/acme/tiny")
    assert "is built in and cannot be removed" in failed(capsys, "rm", MINILM)
    assert not list((tmp_path / "objects").rglob("*.json"))
    assert run(["audit", "list", "--limit", "1", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert (entry["action"], entry["subject_id"], entry["detail"]) == ("model.remove", revision, "@cf/acme/tiny")
