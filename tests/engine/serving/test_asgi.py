"""The check of the bearer token in the Authorization header."""

from __future__ import annotations

import pytest

from engine.serving.asgi import has_bearer_token


@pytest.mark.parametrize("offered", [b"Bearer sesame", b"bearer sesame", b"BEARER sesame"])
def test_the_scheme_may_be_written_either_way(offered: bytes):
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
def test_nothing_but_the_one_secret_will_do(offered: list[bytes]):
    assert not has_bearer_token({"headers": [(b"authorization", value) for value in offered]}, "sesame")
