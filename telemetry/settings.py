"""Read a process's settings from environment variables into one frozen dataclass.

A process declares a frozen dataclass whose fields are made with `setting(...)`. `read_settings` fills the dataclass and
raises `SettingError` with a one-line message that names the variable and the problem. Secrets are masked in output.
This module does not know which settings exist.
"""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

MIN_SECRET_BYTES = 16
MAX_NUMBER = {int: 1 << 53, float: 10**9}  # limits that timers and system calls accept

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


class SettingError(Exception):
    """A setting is missing or invalid. The message is one line for the operator."""


@dataclass(frozen=True)
class SettingInfo:
    """Describe one setting for the documentation and `hearth settings`."""

    env: str
    help: str
    kind: type
    default: Any
    is_secret: bool
    is_required: bool


def setting(
    env: str,
    help: str,
    *,
    default: Any = dataclasses.MISSING,
    secret: bool = False,
    check: Callable[[Any], str | None] | None = None,
) -> Any:
    """Declare one setting. A setting without a default is required.

    `check` receives the parsed value and returns a description of the problem, or None. `check` is not called if the
    variable is unset or empty.
    """
    metadata = {"env": env, "help": help, "secret": secret, "check": check}
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def settings_group(settings_class: type[T]) -> T:
    """Declare a group of settings: a frozen dataclass in which every field has a default. The group's settings are
    read, described and masked as if they were declared directly."""
    part: T = dataclasses.field(default_factory=settings_class, metadata={"part": settings_class})
    return part


def at_least(minimum: float) -> Callable[[Any], str | None]:
    """Return a check that the number is at least `minimum`."""
    return lambda value: None if value >= minimum else f"must be at least {minimum:g}"


def one_of(*choices: str) -> Callable[[str], str | None]:
    """Return a check that the text equals one of `choices`. Case matters."""
    return lambda value: None if value in choices else f"must be one of {', '.join(choices)}"


def log_level(value: str) -> str | None:
    """Check that the text is a log level. Case does not matter."""
    return one_of("debug", "info", "warning", "error")(value.lower())


def starts_with(*schemes: str) -> Callable[[str], str | None]:
    """Return a check that the URL starts with one of `schemes`."""
    return lambda value: None if value.startswith(schemes) else f"must start with {' or '.join(schemes)}"


def strong_secret(value: bytes) -> str | None:
    """Check that the key is long enough not to be guessed."""
    size = MIN_SECRET_BYTES
    return None if len(value) >= size else f"must be at least {size} bytes ({size * 2} hexadecimal digits)"


def parsed_by(
    parse: Callable[[Any], object], refusal: type[Exception] = ValueError, prefix: str = ""
) -> Callable[[Any], str | None]:
    """Return a check that `parse` accepts the value. The text of the exception, of type `refusal`, describes the
    problem."""

    def check(value: Any) -> str | None:
        try:
            parse(value)
        except refusal as error:
            return f"{prefix}{error}"
        return None

    return check


def describe(settings_class: type) -> list[SettingInfo]:
    """Return all settings of a settings dataclass, in the order of declaration."""
    return [
        SettingInfo(
            env=field.metadata["env"],
            help=field.metadata["help"],
            kind=_kind(field.type),
            default=None if field.default is dataclasses.MISSING else field.default,
            is_secret=field.metadata["secret"],
            is_required=field.default is dataclasses.MISSING,
        )
        for field in _declared(settings_class)
    ]


def read_settings(settings_class: type[T], environ: Mapping[str, str] | None = None) -> T:
    """Return `settings_class` filled from the environment. Raises SettingError if any setting is missing or invalid."""
    given = parse_environment(settings_class, os.environ if environ is None else environ)
    for field in _declared(settings_class):
        if field.metadata["env"] not in given and field.default is dataclasses.MISSING:
            raise SettingError(f"{field.metadata['env']} is not set: {field.metadata['help']}")
    return _filled(settings_class, given)


def parse_environment(settings_class: type, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the parsed values of the settings that `environ` sets, by variable. Raises SettingError for an invalid
    value."""
    values: dict[str, Any] = {}
    for field in _declared(settings_class):
        env, check = field.metadata["env"], field.metadata["check"]
        text = environ.get(env)
        if not text:
            continue
        shown = env if field.metadata["secret"] else f"{env}={mask_url(text)!r}"
        values[env] = _parse(shown, text, _kind(field.type))
        problem = check(values[env]) if check else None
        if problem:
            raise SettingError(f"{shown}: {problem}")
    return values


def masked(settings: Any) -> dict[str, str]:
    """Return the effective values by environment variable. Secrets and passwords inside URLs are masked."""
    shown: dict[str, str] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if "part" in field.metadata:
            shown |= masked(value)
            continue
        text = "" if value is None else str(value)
        shown[field.metadata["env"]] = ("********" if text else "") if field.metadata["secret"] else mask_url(text)
    return shown


def mask_url(text: str) -> str:
    """Return `text` with the password masked if `text` is a URL that contains a password."""
    scheme, separator, location = text.partition("://")
    if not separator or "@" not in location:
        return text
    credentials, _, address = location.rpartition("@")
    user = credentials.partition(":")[0]
    return f"{scheme}://{user}:********@{address}"


def _declared(settings_class: type) -> Iterator[dataclasses.Field[Any]]:
    """Yield all settings fields, including the fields of groups."""
    for field in dataclasses.fields(settings_class):
        if "part" in field.metadata:
            yield from _declared(field.metadata["part"])
        else:
            yield field


def _filled(settings_class: type[T], given: Mapping[str, Any]) -> T:
    """Return `settings_class` built from `given` (values by variable). Settings missing from `given` use their
    defaults."""
    values = {}
    for field in dataclasses.fields(settings_class):  # type: ignore[arg-type]
        if "part" in field.metadata:
            values[field.name] = _filled(field.metadata["part"], given)
        elif field.metadata["env"] in given:
            values[field.name] = given[field.metadata["env"]]
    return settings_class(**values)


_KINDS: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool, "Path": Path, "bytes": bytes}


def _kind(annotation: Any) -> type:
    if isinstance(annotation, str):
        return _KINDS[annotation.replace(" | None", "").strip()]
    kinds = [kind for kind in typing.get_args(annotation) or (annotation,) if kind is not type(None)]
    return _KINDS[kinds[0].__name__]


def _parse(shown: str, text: str, kind: type) -> Any:
    """Return `text` parsed as `kind`. `shown` is the start of the error message."""
    if kind is bool:
        if text.lower() in _TRUE:
            return True
        if text.lower() in _FALSE:
            return False
        raise SettingError(f"{shown}: expected true or false")
    if kind is bytes:
        try:
            return bytes.fromhex(text)
        except ValueError:
            raise SettingError(f"{shown}: expected hexadecimal bytes") from None
    try:
        value = kind(text)
    except ValueError:
        expected = {int: "a whole number", float: "a number"}.get(kind, kind.__name__)
        raise SettingError(f"{shown}: expected {expected}") from None
    if kind in MAX_NUMBER and not abs(value) <= MAX_NUMBER[kind]:
        raise SettingError(f"{shown}: expected a number of at most {MAX_NUMBER[kind]}")
    return value
