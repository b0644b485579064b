"""tenants/credentials/api_token_text.py: which texts are Hearth tokens, other credentials, or neither."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tenants.credentials.api_token_text import ParsedSecret, keyed_hash, mint, parse_secret
from tenants.credentials.principal import Refused, TokenKind


@pytest.mark.parametrize(("kind", "prefix"), [("user", "cfut_"), ("account", "cfat_")])
def test_new_secret_has_the_contract_format_and_parses_to_its_lookup_id(kind: TokenKind, prefix: str) -> None:
    seen = set()
    for _ in range(200):
        text, lookup_id = mint(kind)
        assert re.fullmatch(prefix + r"[0-9A-Za-z]{40}[0-9A-Za-z]{6}", text)
        assert parse_secret(text) == ParsedSecret(kind, lookup_id)
        assert text[5:15] == lookup_id
        seen.add(text)
    assert len(seen) == 200


@given(at=st.integers(0, 50), character=st.sampled_from("0aZ_ -é"))
def test_checksum_detects_every_altered_character(at: int, character: str) -> None:
    text, _ = mint("user")
    altered = text[:at] + character + text[at + 1 :]
    assert isinstance(parse_secret(altered), Refused) or altered == text


@given(length=st.integers(6, 50))
def test_truncated_token_is_unknown(length: int) -> None:
    text, _ = mint("user")
    assert parse_secret(text[:length]) == Refused("unknown")


@pytest.mark.parametrize("text", ["cfk_" + "a" * 46, "cfoat_" + "a-b.c" * 9, "A" * 40, "a-_" * 13 + "z", "cfut_x"])
def test_other_credential_formats_are_unknown(text: str) -> None:
    assert parse_secret(text) == Refused("unknown")


_NO_CREDENTIALS = ("", " ", "x", "My API Token", "' OR 1=1 --", "cfut_", "cfut_é", "cfut_a b", "cfut_" + "a" * 300)
_NOR_THESE = ("A" * 39, "A" * 41, "a" * 40 + "\n", "𝟘" * 40, "sk-proj-abc", "\0")


@pytest.mark.parametrize("text", [*_NO_CREDENTIALS, *_NOR_THESE])
def test_other_text_is_malformed(text: str) -> None:
    assert parse_secret(text) == Refused("malformed")


@given(text=st.text())
@example(text="cfut_" + "0" * 46)
def test_invented_text_never_parses(text: str) -> None:
    assert isinstance(parse_secret(text), Refused)


def test_hash_depends_on_the_pepper_and_has_a_fixed_length() -> None:
    text, _ = mint("user")
    assert keyed_hash(b"one", text) != keyed_hash(b"two", text)
    assert len(keyed_hash(b"one", "")) == 32
