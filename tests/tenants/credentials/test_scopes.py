"""tenants/credentials/scopes.py: the scopes of each permission group."""

from __future__ import annotations

import pytest

from tenants.credentials.scopes import GROUPS, WORKERS_AI_GROUPS, find_group, scopes_of

READ, WRITE = "a92d2450e05d4e7bb7d0a64968f83d11", "bacc64e0f6c34fc0883a1223f938a104"


@pytest.mark.parametrize(
    ("groups", "opened"),
    [
        ([READ], {"ai:run"}),
        ([WRITE], {"ai:run", "ai:write"}),
        ([READ, WRITE], {"ai:run", "ai:write"}),
        ([], set()),
        (["f" * 32], set()),
    ],
)
def test_read_group_runs_models_and_only_write_group_writes(groups: list[str], opened: set[str]) -> None:
    assert scopes_of(groups) == opened


def test_group_ids_and_names_are_unique_and_valid() -> None:
    assert len({group.group_id for group in GROUPS}) == len({group.name for group in GROUPS}) == len(GROUPS)
    assert all(len(group.group_id) == 32 and int(group.group_id, 16) for group in GROUPS)
    assert set(WORKERS_AI_GROUPS) == {READ, WRITE}


@pytest.mark.parametrize("text", ["Workers AI Write", "workers ai write", "Workers AI Edit", WRITE, f" {WRITE} "])
def test_group_is_found_by_id_name_or_alias(text: str) -> None:
    group = find_group(text)
    assert group is not None
    assert group.group_id == WRITE


@pytest.mark.parametrize("text", ["", "Workers", "ai:run", "Workers AI  Read"])
def test_unknown_group_is_not_found(text: str) -> None:
    assert find_group(text) is None
