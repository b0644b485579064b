"""catalog/aliases.py: an alias leads to a model and never forms a cycle."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.aliases import follow, list_aliases, remove_alias, set_alias
from catalog.errors import AliasError, InvalidModelId
from storage.database import Database

SPARK = {"@cf/hearth/spark"}
LLAMA = "@cf/meta/llama-3.1-8b-instruct"


async def test_alias_is_created_changed_and_removed(database: Database) -> None:
    both = SPARK | {"@cf/hearth/other"}
    await set_alias(database, LLAMA, "@cf/hearth/spark", builtin_names=both)
    await set_alias(database, LLAMA, "workers-ai/@cf/hearth/other", builtin_names=both)
    assert await list_aliases(database) == {LLAMA: "@cf/hearth/other"}
    await remove_alias(database, LLAMA)
    assert await list_aliases(database) == {}


@pytest.mark.parametrize(
    ("name", "target", "message"),
    [
        ("@cf/a/one", "@cf/a/one", "leads back"),
        ("@cf/a/one", "@cf/a/nothing", "there is no model @cf/a/nothing"),
        ("@cf/hearth/spark", LLAMA, "is a model and cannot"),
    ],
)
async def test_alias_without_a_model_is_rejected(
    sqlite_database: Database, name: str, target: str, message: str
) -> None:
    with pytest.raises(AliasError, match=message):
        await set_alias(sqlite_database, name, target, builtin_names=SPARK)
    assert await list_aliases(sqlite_database) == {}


async def test_cycle_of_several_aliases_is_rejected(sqlite_database: Database) -> None:
    await set_alias(sqlite_database, "@cf/a/one", "@cf/hearth/spark", builtin_names=SPARK)
    await set_alias(sqlite_database, "@cf/a/two", "@cf/a/one", builtin_names=SPARK)
    with pytest.raises(AliasError, match="leads back"):
        await set_alias(sqlite_database, "@cf/a/one", "@cf/a/two", builtin_names=SPARK)


async def test_concurrent_aliases_cannot_form_a_cycle(database: Database) -> None:
    for name in ("@cf/a/one", "@cf/a/two"):
        await set_alias(database, name, "@cf/hearth/spark", builtin_names=SPARK)
    ends = await asyncio.gather(
        set_alias(database, "@cf/a/one", "@cf/a/two", builtin_names=SPARK),
        set_alias(database, "@cf/a/two", "@cf/a/one", builtin_names=SPARK),
        return_exceptions=True,
    )
    assert sorted(type(end) for end in ends if end is not None) == [AliasError]


async def test_unknown_alias_and_invalid_id_are_rejected(sqlite_database: Database) -> None:
    with pytest.raises(AliasError):
        await remove_alias(sqlite_database, LLAMA)
    with pytest.raises(InvalidModelId):
        await set_alias(sqlite_database, "llama", "@cf/hearth/spark", builtin_names=SPARK)


@given(st.dictionaries(st.sampled_from("abcdef"), st.sampled_from("abcdef"), max_size=6), st.sampled_from("abcdef"))
def test_following_aliases_always_terminates(aliases: dict[str, str], name: str) -> None:
    end = follow(aliases, name)
    assert end is None or end not in aliases
