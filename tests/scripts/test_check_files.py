import pytest

from scripts.check_files import MAX_BYTES, check, problems_of, tracked_files

PRIVATE_KEY = b"-----BEGIN PRIVATE " + b"KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"line \n", "x:1: whitespace at the end of the line"),
        (b"a\nb\t\n", "x:2: whitespace at the end of the line"),
        (b"no end", "x: does not end with exactly one line end"),
        (b"two ends\n\n", "x: does not end with exactly one line end"),
        (b"first\n" + PRIVATE_KEY, "x:2: looks like a private key"),
        (b"token cfut_" + b"aB3xQ9" * 7 + b"wxyz\n", "x:1: looks like an API token"),
        (b"AKIA" + b"ABCDEFGHIJKLMNOP\n", "x:1: looks like a cloud access key"),
        (b"0" * (MAX_BYTES + 1) + b"\n", f"x: {MAX_BYTES + 2} bytes, more than {MAX_BYTES}"),
    ],
)
def test_forbidden_content_is_reported_with_file_and_line(content: bytes, problem: str):
    assert list(problems_of("x", content)) == [problem]


@pytest.mark.parametrize("content", [b"", b"text\n", b"\0binary \n", b"cfut_" + b"x" * 46 + b"\n"])
def test_ordinary_files_are_accepted(content: bytes):
    assert list(problems_of("x", content)) == []


def test_only_the_built_in_model_may_be_large():
    weights = b"\0" * (MAX_BYTES + 1)
    assert list(problems_of("catalog/builtin/spark/model.safetensors", weights)) == []
    assert list(problems_of("catalog/model.safetensors", weights)) != []


def test_repository_has_no_forbidden_content():
    assert check(tracked_files()) == []
