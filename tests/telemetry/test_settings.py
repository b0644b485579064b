from dataclasses import dataclass
from pathlib import Path

import pytest

from telemetry.settings import (
    SettingError,
    describe,
    masked,
    parsed_by,
    read_settings,
    setting,
    settings_group,
    starts_with,
)


@dataclass(frozen=True)
class Example:
    url: str = setting("EX_URL", "where the store is")
    key: bytes = setting("EX_KEY", "what signs", secret=True, default=b"")
    port: int = setting(
        "EX_PORT", "where to listen", default=80, check=lambda value: None if value < 65536 else "must be a port"
    )
    wait_s: float = setting("EX_WAIT_S", "how long", default=1.5)
    is_on: bool = setting("EX_ON", "whether", default=False)
    folder: Path | None = setting("EX_FOLDER", "where files go", default=None)


@dataclass(frozen=True)
class Strict:
    store: str = setting("EX_STORE", "where the store is", check=starts_with("postgresql://"))
    limit: str = setting("EX_LIMIT", "what is let in", default="", check=parsed_by(int, prefix="must be a number: "))


def test_values_are_parsed_by_type_and_others_use_defaults():
    found = read_settings(Example, {"EX_URL": "x://", "EX_KEY": "00ff", "EX_PORT": "8080", "EX_ON": "yes"})
    assert found == Example("x://", b"\x00\xff", 8080, 1.5, True, None)


def test_empty_variable_counts_as_unset():
    assert read_settings(Example, {"EX_URL": "x://", "EX_PORT": ""}).port == 80


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({}, "EX_URL is not set: where the store is"),
        ({"EX_URL": "x", "EX_PORT": "ten"}, "EX_PORT='ten': expected a whole number"),
        ({"EX_URL": "x", "EX_PORT": "70000"}, "EX_PORT='70000': must be a port"),
        ({"EX_URL": "x", "EX_WAIT_S": "long"}, "EX_WAIT_S='long': expected a number"),
        ({"EX_URL": "x", "EX_WAIT_S": "nan"}, "EX_WAIT_S='nan': expected a number of at most 1000000000"),
        ({"EX_URL": "x", "EX_WAIT_S": "inf"}, "EX_WAIT_S='inf': expected a number of at most 1000000000"),
        ({"EX_URL": "x", "EX_PORT": f"{1 << 60}"}, f"EX_PORT='{1 << 60}': expected a number of at most {1 << 53}"),
        ({"EX_URL": "x", "EX_ON": "perhaps"}, "EX_ON='perhaps': expected true or false"),
    ],
)
def test_invalid_value_is_reported_in_one_line_with_its_variable(environ: dict[str, str], line: str):
    with pytest.raises(SettingError) as caught:
        read_settings(Example, environ)
    assert str(caught.value) == line


def test_invalid_url_is_shown_without_its_password():
    with pytest.raises(SettingError) as caught:
        read_settings(Strict, {"EX_STORE": "postgres://ann:hunter2@db/hearth"})
    assert str(caught.value) == "EX_STORE='postgres://ann:********@db/hearth': must start with postgresql://"


def test_parser_error_is_reported_and_empty_variable_is_not_parsed():
    with pytest.raises(SettingError, match=r"^EX_LIMIT='ten': must be a number: invalid literal .*'ten'$"):
        read_settings(Strict, {"EX_STORE": "postgresql://db", "EX_LIMIT": "ten"})
    for limit in ("10", ""):
        assert read_settings(Strict, {"EX_STORE": "postgresql://db", "EX_LIMIT": limit}).limit == limit


def test_invalid_secret_is_named_but_not_shown():
    with pytest.raises(SettingError) as caught:
        read_settings(Example, {"EX_URL": "x", "EX_KEY": "hunter2"})
    assert str(caught.value) == "EX_KEY: expected hexadecimal bytes"


def test_secrets_and_url_passwords_are_masked():
    shown = masked(Example("postgresql://ann:hunter2@db/hearth", b"\x01"))
    assert shown["EX_KEY"] == "********"
    assert shown["EX_URL"] == "postgresql://ann:********@db/hearth"
    assert "hunter2" not in str(shown)


def test_settings_are_immutable():
    with pytest.raises(AttributeError):
        read_settings(Example, {"EX_URL": "x"}).port = 1  # type: ignore[misc]


def test_describe_returns_every_setting():
    infos = {info.env: info for info in describe(Example)}
    assert infos["EX_URL"].is_required
    assert not infos["EX_PORT"].is_required
    assert infos["EX_PORT"].kind is int
    assert infos["EX_FOLDER"].kind is Path
    assert infos["EX_KEY"].is_secret


@dataclass(frozen=True)
class Part:
    size: int = setting("EX_SIZE", "how large", default=3)
    key: bytes = setting("EX_PART_KEY", "what signs", secret=True, default=b"")

    def __post_init__(self) -> None:
        if self.size == 13:
            raise SettingError("EX_SIZE: not that one")


@dataclass(frozen=True)
class Whole:
    url: str = setting("EX_URL", "where the store is")
    part: Part = settings_group(Part)
    port: int = setting("EX_PORT", "where to listen", default=80)


def test_group_of_settings_is_read_described_and_masked():
    assert [info.env for info in describe(Whole)] == ["EX_URL", "EX_SIZE", "EX_PART_KEY", "EX_PORT"]
    found = read_settings(Whole, {"EX_URL": "x", "EX_SIZE": "7", "EX_PART_KEY": "00ff", "EX_PORT": "1"})
    assert found == Whole("x", Part(7, b"\x00\xff"), 1)
    assert masked(found) == {"EX_URL": "x", "EX_SIZE": "7", "EX_PART_KEY": "********", "EX_PORT": "1"}
    assert read_settings(Whole, {"EX_URL": "x"}) == Whole("x")
    for environ, line in (({"EX_SIZE": "x"}, "EX_SIZE='x'"), ({"EX_SIZE": "13", "EX_URL": "x"}, "EX_SIZE: not")):
        with pytest.raises(SettingError, match=line):
            read_settings(Whole, environ)
