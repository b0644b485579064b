"""catalog/pull.py: downloads are pinned to a commit, verified and resumed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from catalog.errors import PullError
from catalog.model_folder import inspect_folder
from catalog.pull import Pulled, pull
from tests.catalog.cards import safetensors, write_model_folder
from tests.fakes.hub_server import COMMIT, Cut, HubServer

# The hub library returns pieces of 10 MiB. An interrupted connection loses less than one piece.
WEIGHT_BYTES = 24 * 1024 * 1024
REPO = "acme/tiny-llama"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    folder = write_model_folder(tmp_path / "repo", weight_bytes=4096)
    with HubServer.of_folder(REPO, folder) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url + "/")
        monkeypatch.setattr(logging.getLogger("huggingface_hub"), "level", logging.CRITICAL)
        yield server


@pytest.fixture
def large_hub(hub: HubServer) -> HubServer:
    noise = bytes(range(256)) * (WEIGHT_BYTES // 256)
    hub.files["model.safetensors"] = safetensors({"weight": ("U8", [WEIGHT_BYTES], noise)})
    return hub


def pull_now(tmp_path: Path, revision: str = "main") -> Pulled:
    return pull(REPO, revision, tmp_path / "staging", sleep=lambda _s: None)


def test_pulled_folder_is_complete_and_can_be_published(hub: HubServer, tmp_path: Path) -> None:
    pulled = pull_now(tmp_path)
    assert pulled.commit == COMMIT
    assert {file.path for file in pulled.files} == {"config.json", "model.safetensors", "tokenizer.json"}
    for file in pulled.files:
        assert (pulled.folder / file.path).read_bytes() == hub.files[file.path]
    assert inspect_folder(pulled.folder).architecture == "LlamaForCausalLM"
    assert all(COMMIT in seen.path for seen in hub.requests if "/resolve/" in seen.path)


@pytest.mark.parametrize("kind", ["close", "reset"])
def test_interrupted_download_is_resumed_with_a_range_request(
    large_hub: HubServer, tmp_path: Path, kind: Literal["close", "reset"]
) -> None:
    size_bytes = len(large_hub.files["model.safetensors"])
    large_hub.cuts["model.safetensors"] = [Cut(size_bytes * 3 // 5, kind)]
    pulled = pull_now(tmp_path)
    first, second = large_hub.downloads_of("model.safetensors")
    assert first.range is None
    assert second.range is not None
    assert second.range != "bytes=0-"
    assert first.sent_bytes + second.sent_bytes < 2 * size_bytes
    assert (pulled.folder / "model.safetensors").read_bytes() == large_hub.files["model.safetensors"]


def test_second_pull_resumes_a_failed_one(large_hub: HubServer, tmp_path: Path) -> None:
    size_bytes = len(large_hub.files["model.safetensors"])
    large_hub.cuts["model.safetensors"] = [Cut(size_bytes * 3 // 5, "reset")] + [Cut(0, "reset")] * 5
    with pytest.raises(PullError):
        pull_now(tmp_path)
    assert not list((tmp_path / "staging").rglob("model.safetensors"))
    pull_now(tmp_path)
    requests = large_hub.downloads_of("model.safetensors")
    assert requests[-1].range is not None
    assert sum(seen.sent_bytes for seen in requests) < 2 * size_bytes


def test_verified_files_are_not_downloaded_again(hub: HubServer, tmp_path: Path) -> None:
    pull_now(tmp_path)
    hub.requests.clear()
    pull_now(tmp_path, revision=COMMIT)
    assert not [seen for seen in hub.requests if "/resolve/" in seen.path]


def test_changed_file_is_downloaded_again(hub: HubServer, tmp_path: Path) -> None:
    weights = pull_now(tmp_path).folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    pull_now(tmp_path)
    assert weights.read_bytes() == hub.files["model.safetensors"]


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json"])
def test_file_with_a_wrong_digest_is_rejected(hub: HubServer, tmp_path: Path, file: str) -> None:
    altered = bytearray(hub.files[file])
    altered[-2] ^= 1
    hub.served_instead[file] = bytes(altered)
    with pytest.raises(PullError, match="digest"):
        pull_now(tmp_path)
    assert not list((tmp_path / "staging").rglob(file + "*"))


def test_only_model_files_are_downloaded(hub: HubServer, tmp_path: Path) -> None:
    hub.files |= {
        "pytorch_model.bin": b"pickle", "modeling.py": b"code", "onnx/model.json": b"{}", "../evil.json": b"{}",
        "consolidated.safetensors": hub.files["model.safetensors"], "1_Pooling/config.json": b"{}", ".x.json": b"{}",
    }  # fmt: skip
    pulled = pull_now(tmp_path)
    names = {file.path for file in pulled.files}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "1_Pooling/config.json"}
    assert {seen.path.rpartition("/")[2] for seen in hub.requests if "/resolve/" in seen.path} == {
        "config.json", "model.safetensors", "tokenizer.json",
    }  # fmt: skip


def test_repository_without_safetensors_is_rejected(hub: HubServer, tmp_path: Path) -> None:
    del hub.files["model.safetensors"]
    hub.files["pytorch_model.bin"] = b"pickle"
    with pytest.raises(PullError, match="no safetensors"):
        pull_now(tmp_path)


def test_unknown_repository_is_a_one_line_error(hub: HubServer, tmp_path: Path) -> None:
    for repo, revision in (("acme/none", "main"), (REPO, "v9"), ("not a repo", "main")):
        with pytest.raises(PullError) as refused:
            pull(repo, revision, tmp_path)
        assert "\n" not in str(refused.value)


def test_progress_reaches_the_size_of_every_file(large_hub: HubServer, tmp_path: Path) -> None:
    seen: dict[str, list[tuple[int, int]]] = {}
    pull(
        REPO,
        "main",
        tmp_path / "staging",
        on_progress=lambda file, done, total: seen.setdefault(file, []).append((done, total)),
    )
    for file, steps in seen.items():
        assert steps == sorted(steps)
        assert steps[-1] == (len(large_hub.files[file]), len(large_hub.files[file]))
    assert len(seen["model.safetensors"]) > 1
