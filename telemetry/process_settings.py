"""What gateways and nodes are told alike, declared once, as the words of `setting`: `pop: str = setting(**shared.POP)`.

Knows names, helps, defaults and checks, so that both say the same of a variable that both read, and what must be set
together; not what a process makes of a value, nor which others it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from telemetry.settings import SettingError, at_least, log_level, one_of, starts_with

Words = Mapping[str, Any]


def plain_name(value: str) -> str | None:
    """A check: what may stand in a path, a key and a log line as it is."""
    is_plain = (
        len(value) <= 64 and value.isascii() and value.replace("-", "").replace("_", "").replace(".", "").isalnum()
    )
    return None if is_plain else "must be 1 to 64 letters, digits, '.', '-' or '_'"


REDIS_URL: Words = {
    "env": "REDIS_URL",
    "help": "Redis: redis://host:port/0 or unix:///path",
    "check": starts_with("redis://", "rediss://", "unix://"),
}
POP: Words = {
    "env": "HEARTH_POP",
    "help": "the place this process is in; near nodes are preferred",
    "default": "local",
    "check": plain_name,
}
SERVICE_RING: Words = {
    "env": "HEARTH_SERVICE_RING",
    "help": "file of the public keys of gateways and nodes (`hearth service`); with it, and keys of its own, a process "
    "shows service tokens to others and asks for theirs",
    "default": None,
}
SERVICE_KEYS: Words = {
    "env": "HEARTH_SERVICE_KEYS",
    "help": "folder of this process's own private keys, mode 600",
    "default": None,
}
SERVICE_TOKENS: Words = {
    "env": "HEARTH_SERVICE_TOKENS",
    "help": "whether a peer must show a service token (required) or may prove the cluster secret instead (accepted)",
    "default": "required",
    "check": one_of("required", "accepted"),
}
DRAIN_TIMEOUT_S: Words = {
    "env": "HEARTH_DRAIN_TIMEOUT_S",
    "help": "time calls in flight get to finish after SIGTERM",
    "default": 120.0,
    "check": at_least(0),
}
LOG_LEVEL: Words = {
    "env": "HEARTH_LOG_LEVEL",
    "help": "debug, info, warning or error",
    "default": "info",
    "check": log_level,
}
DIE_WITH_PARENT: Words = {
    "env": "HEARTH_DIE_WITH_PARENT",
    "help": "stop when the process that started this one is gone",
    "default": False,
}
is_objects_url = starts_with("file://", "s3://")


def check_service_files(ring: Path | None, keys: Path | None) -> None:
    """Raises SettingError where one is set and the other is not."""
    if (ring is None) != (keys is None):
        raise SettingError("HEARTH_SERVICE_RING and HEARTH_SERVICE_KEYS are set together or not at all")


def check_tls_files(prefix: str, cert: Path | None, key: Path | None, authority: Path | None) -> None:
    """Raises SettingError where `prefix`_CERT, _KEY and _CA are not all there, or not all left out."""
    files = {f"{prefix}_CERT": cert, f"{prefix}_KEY": key, f"{prefix}_CA": authority}
    if any(files.values()) and not all(files.values()):
        *names, last = files
        raise SettingError(f"{', '.join(names)} and {last} are set together or not at all")
    for env, file in files.items():
        if file is not None and not file.is_file():
            raise SettingError(f"{env}={str(file)!r}: not a file")
