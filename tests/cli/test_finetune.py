"""`hearth finetune`: adapters that the operator publishes for all accounts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.main import run
from tests.catalog.adapters import config_bytes, spark_modules, weights_bytes

SPARK = "@cf/hearth/spark"


@pytest.fixture(autouse=True)
def platform(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", sqlite_url)
    monkeypatch.setenv("OBJECTS_URL", f"file://{tmp_path}/objects")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "adapter_config.json").write_bytes(config_bytes())
    (tmp_path / "adapter_model.safetensors").write_bytes(weights_bytes(modules=spark_modules()))
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run(["finetune", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def failed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["finetune", *arguments]) in (1, 2)
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    return captured.err


def test_fine_tune_is_published_listed_and_removed(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    arguments = ("publish", str(folder), "--name", "cf-public-magicoder", "--model", SPARK)
    made = printed(capsys, *arguments)
    assert (made["account"], made["public"], made["is_complete"], made["model"]) == ("", True, True, SPARK)
    assert "already used by another fine-tune" in failed(capsys, *arguments)
    assert [row["id"] for row in printed(capsys, "list")] == [made["id"]]
    assert printed(capsys, "list", "--account", "0" * 32) == []
    assert printed(capsys, "approve", made["id"])["is_approved"] is True
    assert printed(capsys, "approve", made["id"], "--withdraw")["is_approved"] is False
    assert "there is no fine-tune" in failed(capsys, "approve", "none")
    assert printed(capsys, "remove", made["id"])["name"] == "cf-public-magicoder"
    assert "there is no fine-tune" in failed(capsys, "remove", made["id"])
    assert run(["finetune", "list"]) == 0
    assert capsys.readouterr().out == "no fine-tunes\n"


def test_unservable_finetune_is_rejected_by_name_and_stores_nothing(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    arguments = ("publish", str(folder), "--name", "style", "--model")
    assert "there is no model @cf/acme/none" in failed(capsys, *arguments, "@cf/acme/none")
    assert "does not support fine-tunes" in failed(capsys, *arguments, "@cf/hearth/minilm")
    assert "'/name' must be" in failed(capsys, "publish", str(folder), "--name", "../x", "--model", SPARK)
    (folder / "adapter_config.json").write_bytes(config_bytes(use_dora=True))
    assert "use_dora" in failed(capsys, *arguments, SPARK)
    (folder / "adapter_config.json").write_bytes(config_bytes(r=8))
    assert "has rank 4, but adapter_config.json has rank 8" in failed(capsys, *arguments, SPARK)
    (folder / "adapter_config.json").write_bytes(config_bytes(model_type="mistral"))
    assert "'model_type' is 'mistral', but the model is of another family" in failed(capsys, *arguments, SPARK)
    (folder / "adapter_config.json").write_bytes(config_bytes())
    (folder / "adapter_model.safetensors").write_bytes(weights_bytes())
    assert "'layers.0.self_attn.q_proj' maps 16 to 16, the model's maps 256 to 256" in failed(capsys, *arguments, SPARK)
    (folder / "adapter_model.safetensors").unlink()
    assert "adapter_model.safetensors: No such file" in failed(capsys, *arguments, SPARK)
    assert printed(capsys, "list") == []
