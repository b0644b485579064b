"""Settings that gateways and nodes have in common, declared once: `class NodeSettings(ProcessSettings)`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from telemetry.settings import SettingError, at_least, log_level, setting, starts_with


def plain_name(value: str) -> str | None:
    """Check that a value can be used unescaped in a path, a Redis key and a log line."""
    is_plain = (
        len(value) <= 64 and value.isascii() and value.replace("-", "").replace("_", "").replace(".", "").isalnum()
    )
    return None if is_plain else "must be 1 to 64 letters, digits, '.', '-' or '_'"


def _is_http_url(value: str) -> str | None:
    return None if not value or value.startswith(("http://", "https://")) else "must begin with http:// or https://"


def _is_ratio(value: float) -> str | None:
    return None if 0 <= value <= 1 else "must be between 0 and 1"


is_objects_url = starts_with("file://", "s3://")


@dataclass(frozen=True, kw_only=True)
class ProcessSettings:
    """Base of `GatewaySettings` and `NodeSettings`."""

    redis_url: str = setting(
        "REDIS_URL",
        "Redis: redis://host:port/0, rediss://host:port/0 or unix:///path.",
        check=starts_with("redis://", "rediss://", "unix://"),
    )
    pop: str = setting(
        "HEARTH_POP",
        "PoP (location) of this process. Gateways prefer nodes in their own PoP.",
        default="local",
        check=plain_name,
    )
    service_ring: Path = setting(
        "HEARTH_SERVICE_RING", "Key ring: JSON file with the public keys of all gateways and nodes (`hearth service`)."
    )
    service_keys: Path = setting(
        "HEARTH_SERVICE_KEYS", "Folder with this process's own private service keys, each file with mode 600."
    )
    tls_cert: Path | None = setting(
        "HEARTH_TLS_CERT",
        "Certificate (PEM) for tcp:// connections between gateways and nodes. With HEARTH_TLS_KEY and HEARTH_TLS_CA, "
        "both ends authenticate by TLS and traffic is encrypted.",
        default=None,
    )
    tls_key: Path | None = setting("HEARTH_TLS_KEY", "Private key (PEM) of HEARTH_TLS_CERT.", default=None)
    tls_ca: Path | None = setting(
        "HEARTH_TLS_CA", "Certificate authority (PEM) that signed the peers' certificates.", default=None
    )
    drain_timeout_s: float = setting(
        "HEARTH_DRAIN_TIMEOUT_S",
        "Seconds that running calls may take to finish after SIGTERM.",
        default=120.0,
        check=at_least(0),
    )
    log_level: str = setting(
        "HEARTH_LOG_LEVEL", "Lowest level to log: debug, info, warning or error.", default="info", check=log_level
    )
    traces_url: str = setting(
        "HEARTH_TRACES_URL",
        "OTLP/HTTP URL of a collector for OpenTelemetry traces, such as http://127.0.0.1:4318/v1/traces. Empty exports "
        "none. Needs the extra `tracing`; headers come from OTEL_EXPORTER_OTLP_HEADERS.",
        default="",
        check=_is_http_url,
    )
    traces_ratio: float = setting(
        "HEARTH_TRACES_RATIO",
        "Part of the calls that are traced, from 0 to 1. A sampled `traceparent` header always traces the call.",
        default=1.0,
        check=_is_ratio,
    )
    dies_with_parent: bool = setting("HEARTH_DIE_WITH_PARENT", "Exit when the parent process exits.", default=False)

    def __post_init__(self) -> None:
        """Raises SettingError unless the TLS files are set together and exist."""
        files = {"HEARTH_TLS_CERT": self.tls_cert, "HEARTH_TLS_KEY": self.tls_key, "HEARTH_TLS_CA": self.tls_ca}
        if any(files.values()) and not all(files.values()):
            raise SettingError(f"{', '.join(files)} must be set together")
        for env, file in files.items():
            if file is not None and not file.is_file():
                raise SettingError(f"{env} must be a file (got {str(file)!r})")
