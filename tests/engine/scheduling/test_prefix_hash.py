"""Block hashes are equal for equal tokens in one namespace and differ for anything else that KV depends on."""

from __future__ import annotations

import numpy as np
import pytest

from engine.scheduling.prefix_hash import DIGEST_BYTES, PrefixHasher

TOKENS = np.arange(100, dtype=np.int32)


def hashes(
    tokens: np.ndarray = TOKENS, *, namespace: bytes = b"a" * 32, revision: str = "r", layout: str = "f32"
) -> list[bytes]:
    found: list[bytes] = []
    PrefixHasher(namespace, revision, layout, 16).extend(found, tokens)
    return found


def test_only_full_blocks_have_hashes():
    assert len(hashes()) == 6
    assert hashes(TOKENS[:15]) == []
    assert {len(each) for each in hashes()} == {DIGEST_BYTES}


def test_hash_depends_on_the_block_and_all_tokens_before_it():
    changed = TOKENS.copy()
    changed[20] = 7
    assert hashes(changed)[0] == hashes()[0]
    assert not set(hashes(changed)[1:]) & set(hashes())


def test_hash_chain_can_be_extended():
    found = hashes(TOKENS[:40])
    PrefixHasher(b"a" * 32, "r", "f32", 16).extend(found, TOKENS[32:])
    assert found == hashes()


@pytest.mark.parametrize("change", [{"namespace": b"b" * 32}, {"revision": "s"}, {"layout": "bf16"}])
def test_hashes_differ_between_namespaces_revisions_and_layouts(change: dict[str, str]):
    assert not set(hashes(**change)) & set(hashes())


def test_parts_of_the_root_hash_are_delimited():
    assert hashes(revision="ab", layout="c")[0] != hashes(revision="a", layout="bc")[0]
