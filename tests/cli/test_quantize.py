"""`hearth model quantize`: a variant is published like any model, reproducibly; a failed run publishes nothing."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from catalog.builtin import STARTER
from catalog.manifest import decode_manifest, manifest_key
from cli.main import run
from variants import comparison
from variants.staging import staging_folder

TEXT = "What is the capital of France? Tell me a short story about a small dog who finds a red ball. " * 3
MODEL = "@cf/hearth/spark"
EXISTING = "@cf/acme/existing"


@pytest.fixture(autouse=True)
def platform(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", sqlite_url)
    monkeypatch.setenv("OBJECTS_URL", f"file://{tmp_path}/objects")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("HEARTH_TEST_DATA", raising=False)
    monkeypatch.setattr(comparison, "_SPEED_ROUNDS", 1)
    monkeypatch.setattr(comparison, "_SPEED_OUT", 4)
    (tmp_path / "text.txt").write_text(TEXT)


def quantized(capsys: pytest.CaptureFixture[str], tmp_path: Path, *arguments: str) -> dict[str, Any]:
    text = ["--text", str(tmp_path / "text.txt")]
    assert run(["model", "quantize", MODEL, *arguments, *text, "--json"]) == 0
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return record


def listed(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    assert run(["model", "list", "--json"]) == 0
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)}


def test_variant_is_published_with_recipe_and_report_and_is_reproducible(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first = quantized(capsys, tmp_path, "--format", "int8", "--output", str(tmp_path / "output"))
    assert first["name"] == f"{MODEL}-int8"
    assert (first["format"], first["kept_matrices"], first["rounded_matrices"]) == ("int8", 0, 43)
    assert 0.6 < first["size_ratio"] < 0.75
    assert first["top1_agreement"] > 0.9
    assert 0 <= first["kl_divergence"] < 0.02
    row = listed(capsys)[f"{MODEL}-int8"]
    assert (row["revision"], row["source"]) == (first["revision"], "published")
    manifest = decode_manifest((tmp_path / "objects" / manifest_key(first["revision"])).read_bytes(), first["revision"])
    assert manifest.recipe is not None
    assert (manifest.recipe.format, manifest.recipe.method) == ("int8", 1)
    assert manifest.recipe.base == listed(capsys)[MODEL]["revision"]
    assert {file.path for file in manifest.files} == {path.name for path in (tmp_path / "output").iterdir()}
    assert quantized(capsys, tmp_path, "--format", "int8")["revision"] == first["revision"]
    options = ["--format", "int4", "--name", first["name"], "--text", str(tmp_path / "text.txt")]
    assert run(["model", "quantize", MODEL, *options]) == 2
    assert f"--name: {first['name']} is already another model" in capsys.readouterr().err
    assert run(["audit", "list", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert [(entry["action"], entry["detail"]) for entry in entries] == [("model.publish", first["name"])] * 2
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("hearth-")] == []


def test_report_of_an_fp8_variant_is_part_of_its_manifest_and_reproducible(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first = quantized(capsys, tmp_path, "--format", "fp8")
    assert "speed_ratio_1" not in first
    manifest = decode_manifest((tmp_path / "objects" / manifest_key(first["revision"])).read_bytes(), first["revision"])
    assert manifest.recipe is not None
    accuracy = msgspec.structs.asdict(manifest.recipe.accuracy)
    assert accuracy.pop("text_sha256") == hashlib.sha256(TEXT.encode()).hexdigest()
    assert accuracy == {name: first[name] for name in accuracy}
    assert accuracy["compared_tokens"] > 64
    assert quantized(capsys, tmp_path, "--format", "fp8")["revision"] == first["revision"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["@cf/none/such", "--format", "int8"], "@cf/none/such is not in the catalog"),
        (["@cf/hearth/minilm", "--format", "int8"], "only Text Generation models have variants"),
        ([MODEL, "--format", "int5"], "--format: 'int5' is not known (known: fp8, int8, int4)"),
        ([MODEL, "--format", "int8", "--group-size", "32"], "--group-size is for int4"),
        ([MODEL, "--format", "int4", "--group-size", "64"], "--group-size: 64 does not divide the 688 inputs of"),
        ([MODEL, "--format", "int8", "--text", "/none"], "--text: /none: No such file"),
        ([MODEL, "--format", "int8", "--text", os.devnull], "--text: the text has 0 tokens; at least 64 are needed"),
        ([MODEL, "--format", "int8", "--name", "plain"], "--name: "),
        ([MODEL, "--format", "int8", "--name", "@cf/hearth/minilm"], "--name: @cf/hearth/minilm is built in"),
        ([MODEL, "--format", "int8", "--name", EXISTING], f"--name: {EXISTING} is already an alias of {MODEL}"),
        ([MODEL, "--format", "int8", "--threads", "0"], "--threads: 0 is less than 1"),
        ([MODEL, "--format", "int8", "--threads", "100000"], "--threads: 100000 is more than the "),
        ([MODEL, "--format", "int8", "--output", "/"], "--output: / exists"),
    ],
)
def test_every_rejection_is_one_line_naming_the_field_and_stores_nothing(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = [] if "--text" in arguments else ["--text", str(tmp_path / "text.txt")]
    if EXISTING in arguments:
        assert run(["model", "alias", EXISTING, MODEL]) == 0
        capsys.readouterr()
    assert run(["model", "quantize", *arguments, *text]) in (1, 2)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err.splitlines()[-1]
    assert listed(capsys).keys() - {EXISTING} == {MODEL, "@cf/hearth/spark-draft", "@cf/hearth/minilm", STARTER}
    assert not list((tmp_path / "objects").rglob("*.json"))
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("hearth-")] == []


def test_files_of_a_killed_run_are_removed_and_those_of_a_running_one_are_kept(tmp_path: Path) -> None:
    with staging_folder(tmp_path) as mine:
        abandoned = tmp_path / "hearth-quantize-dead"
        abandoned.mkdir()
        (abandoned / "lock").touch()
        (abandoned / "model.safetensors").write_bytes(b"half")
        with staging_folder(tmp_path) as other:
            assert sorted(path for path in tmp_path.iterdir() if path.is_dir()) == sorted([mine, other])
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def test_sigterm_ends_the_command_like_ctrl_c(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended, staging_folder(tmp_path):
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def test_models_are_compared_on_the_built_in_text_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["model", "quantize", MODEL, "--format", "int8", "--json"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["compared_tokens"] > 1000
    assert report["top1_agreement"] > 0.9
    states = [json.loads(line) for line in captured.err.splitlines() if line.startswith('{"step"')]
    assert {state["step"]: state["unit"] for state in states} == {
        "quantizing": "bytes", "comparing": "tokens", "measuring speed": "runs",
    }  # fmt: skip
    for last in {state["step"]: state for state in states}.values():
        assert last["done"] == last["total"]
        assert last["per_s"] > 0
        assert last["remaining_s"] == 0


def test_comparison_that_takes_too_long_ends_after_one_window_and_one_round(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "_PART_TIMEOUT_S", 0.0)
    monkeypatch.setattr(comparison, "_SPEED_ROUNDS", 1000)
    assert run(["model", "quantize", MODEL, "--format", "int8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["compared_tokens"] == 127


@pytest.mark.full
def test_interrupted_quantization_stores_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cli.main", "model", "quantize", MODEL, "--format", "int4"]
    with subprocess.Popen(
        [*command, "--text", str(tmp_path / "text.txt")], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        while "quantizing" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode not in (0, None)
    assert listed(capsys).keys() == {MODEL, "@cf/hearth/spark-draft", "@cf/hearth/minilm", STARTER}
    assert not list((tmp_path / "objects").rglob("*.json"))
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("hearth-")] == []
