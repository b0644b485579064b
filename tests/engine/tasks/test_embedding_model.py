"""Pooling and normalization come from the model's files; rows of similar length share a forward pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.tasks.one_pass.row_groups import MAX_PADDED_TOKENS, group_by_length
from engine.tasks.one_pass.text_embeddings import (
    Recipe,
    UnsupportedModel,
    read_recipe,
)

TRANSFORMER = {"type": "sentence_transformers.models.Transformer", "path": ""}
POOLING = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}
NORMALIZE = {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"}


def write(folder: Path, modules: list[dict[str, str]], **pooling: bool) -> Path:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": 8, **pooling}))
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def test_mean_pooling_with_unit_length(tmp_path: Path) -> None:
    folder = write(tmp_path, [TRANSFORMER, POOLING, NORMALIZE], pooling_mode_mean_tokens=True)
    assert read_recipe(folder) == Recipe("mean", is_normalized=True)


def test_first_token_pooling_without_unit_length(tmp_path: Path) -> None:
    folder = write(tmp_path, [TRANSFORMER, POOLING], pooling_mode_cls_token=True, pooling_mode_mean_tokens=False)
    assert read_recipe(folder) == Recipe("cls", is_normalized=False)


def test_mean_pooling_is_the_default(tmp_path: Path) -> None:
    assert read_recipe(tmp_path) == Recipe("mean", is_normalized=True)


def test_unknown_modules_and_poolings_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, [TRANSFORMER, POOLING], pooling_mode_max_tokens=True)
    with pytest.raises(UnsupportedModel, match="max_tokens"):
        read_recipe(folder)
    (folder / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Dense", "path": "x"}]))
    with pytest.raises(UnsupportedModel, match="Dense"):
        read_recipe(folder)


@given(lengths=st.lists(st.integers(1, 512), max_size=200))
def test_every_row_is_in_one_group_and_no_group_is_mostly_padding(lengths: list[int]) -> None:
    groups = list(group_by_length(lengths))
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        longest = max(lengths[index] for index in group)
        assert longest * len(group) <= MAX_PADDED_TOKENS
        assert sum(lengths[index] for index in group) * 2 >= longest * len(group) or longest <= 20
