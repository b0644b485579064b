"""The check of the bearer token in the Authorization header."""

from __future__ import annotations

import pytest

from engine.serving.asgi import has_bearer_token


@pytest.mark.parametrize("offered", [b"Bearer sesame", b"bearer sesame", b"BEARER sesame"])
def test_scheme_is_case_insensitive(offered: bytes):
    assert has_bearer_token({"headers": [(b"authorization", offered)]}, "sesame")


@pytest.mark.parametrize(
    "offered",
    [
        [],
        [b""],
        [b"Bearer"],
        [b"Bearer "],
        [b"sesame"],
        [b"Basic sesame"],
        [b"Bearer Sesame"],
        [b"Bearer  sesame"],
        [b"Bearer sesame "],
        [b"Bearer sesame", b"Bearer sesame"],
        [b"Bearer other", b"Bearer sesame"],
        [b"Bearer \xff"],
    ],
)
def test_only_the_exact_secret_is_accepted(offered: list[bytes]):
    assert not has_bearer_token({"headers": [(b"authorization", value) for value in offered]}, "sesame")
