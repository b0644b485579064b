"""All gateway settings: environment variable, type, default and help. Read once at startup, frozen.

Modules with several settings of their own declare them in a part (`BatchSettings`, `SignInSettings`).
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from pathlib import Path

from gateway.cost_policy import parse_pop_prices
from gateway.failover_settings import FailoverSettings
from gateway.jobs.settings import BatchSettings
from gateway.management.operator_settings import SignInSettings
from gateway.scaling.settings import ScalingSettings
from service_identity.key_ring import UnsafeKeyFile
from service_identity.service_identity import ServiceIdentity
from telemetry.process_settings import ProcessSettings, is_objects_url
from telemetry.settings import (
    MIN_SECRET_BYTES,
    SettingError,
    at_least,
    parsed_by,
    setting,
    settings_group,
    starts_with,
    strong_secret,
)
from tenants.credentials.conditions import parse_networks
from tenants.quota.limits import parse_rules
from tenants.residency import parse_location, parse_locations

MAX_PORT = 65535
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s,]+")


def _engine_rank(value: int) -> str | None:
    return None if 1 <= value <= 64 else "must be between 1 and 64"


def _port(value: int) -> str | None:
    return None if 0 <= value <= MAX_PORT else f"must be between 0 and {MAX_PORT}"


def parse_listen(text: str) -> tuple[str, int]:
    """Return host and port of an address such as 127.0.0.1:9091 or [::1]:9091. Raises ValueError."""
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > MAX_PORT:
        raise ValueError("must be an address and a port, as in 127.0.0.1:9091")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _are_origins(value: str) -> str | None:
    origins = [origin.strip() for origin in value.split(",")]
    if all(not origin or origin == "*" or _ORIGIN.fullmatch(origin) for origin in origins):
        return None
    return "must be origins without a path, as in https://app.example,http://localhost:5173"


def _is_bearer_token(value: str) -> str | None:
    if re.fullmatch(f"[!-~]{{{MIN_SECRET_BYTES},}}", value):
        return None
    return f"must be at least {MIN_SECRET_BYTES} printable ASCII characters without spaces"


def networks_in(text: str) -> tuple[str, ...]:
    """Return the networks in a comma-separated list. Raises ValueError."""
    return parse_networks(part.strip() for part in text.split(",") if part.strip())


_ARE_NETWORKS = parsed_by(networks_in, prefix="must be networks in CIDR notation: ")


@dataclass(frozen=True, kw_only=True)
class GatewaySettings(ProcessSettings):
    """Settings of one gateway process."""

    database_url: str = setting(
        "DATABASE_URL",
        "URL of the SQL database: sqlite:///path or postgresql://…",
        check=starts_with("sqlite://", "postgresql://", "postgres://"),
    )
    token_pepper: bytes = setting(
        "HEARTH_TOKEN_PEPPER", "Key of the hash with which API tokens are stored.", secret=True, check=strong_secret
    )
    cache_secret: bytes = setting(
        "HEARTH_CACHE_SECRET",
        "Key for cache namespaces of accounts and for the encryption of stored content.",
        secret=True,
        check=strong_secret,
    )
    spool_dir: Path = setting("HEARTH_SPOOL_DIR", "Folder of the usage spool. Each gateway process needs its own.")
    spool_max_bytes: int = setting(
        "HEARTH_SPOOL_MAX_BYTES",
        "Largest size of the usage spool, which fills while the database is unavailable. When full, new calls "
        "are refused.",
        default=1 << 30,
        check=at_least(1 << 20),
    )
    objects_url: str = setting(
        "OBJECTS_URL",
        "URL of the object store for uploaded finetunes: file:///folder or s3://bucket/prefix. Empty disables uploads.",
        default="",
        check=is_objects_url,
    )
    publication_dir: str = setting(
        "HEARTH_PUBLICATION_DIR",
        "Folder for the files of models that are being published through the API. Empty: hearth/pull in the user's "
        "cache folder, which `hearth model pull` uses too.",
        default="",
    )
    finetune_max_bytes: int = setting(
        "HEARTH_FINETUNE_MAX_BYTES", "Largest file of a finetune, in bytes.", default=300 << 20, check=at_least(1024)
    )
    finetune_max_rank: int = setting(
        "HEARTH_FINETUNE_MAX_RANK", "Largest LoRA rank of a finetune.", default=32, check=_engine_rank
    )
    finetunes_per_account: int = setting(
        "HEARTH_FINETUNES_PER_ACCOUNT", "Largest number of finetunes per account.", default=100, check=at_least(0)
    )
    finetunes_need_approval: bool = setting(
        "HEARTH_FINETUNE_APPROVAL",
        "Require an operator's approval (`hearth finetune approve`) before other accounts can use a public finetune.",
        default=False,
    )
    document_max_bytes: int = setting(
        "HEARTH_DOCUMENT_MAX_BYTES",
        "Largest request body of files to convert to Markdown, in bytes.",
        default=32 << 20,
        check=at_least(1024),
    )
    document_timeout_s: int = setting(
        "HEARTH_DOCUMENT_TIMEOUT_S",
        "CPU seconds for the conversion of one file to Markdown.",
        default=20,
        check=at_least(1),
    )
    document_memory_bytes: int = setting(
        "HEARTH_DOCUMENT_MEMORY_BYTES",
        "Memory in bytes for the conversion of one file to Markdown.",
        default=512 << 20,
        check=at_least(64 << 20),
    )
    document_processes: int = setting(
        "HEARTH_DOCUMENT_PROCESSES",
        "Number of files converted to Markdown at the same time, each in its own process.",
        default=2,
        check=at_least(1),
    )
    audit_heads: Path | None = setting(
        "HEARTH_AUDIT_HEADS",
        "File to which the head of the audit log is appended once a minute, for `hearth audit verify`. Copy it "
        "elsewhere.",
        default=None,
    )
    host: str = setting("HEARTH_HOST", "Address to listen on.", default="127.0.0.1")
    port: int = setting("HEARTH_PORT", "Port to listen on. 0 selects a free port.", default=8787, check=_port)
    locations: str = setting(
        "HEARTH_LOCATIONS",
        "Country and compliance programs of each PoP, as in fra=DE,iad=US:fedramp+hipaa. Calls bound to a region "
        "run only in PoPs that are listed here. Coordinates and a city for the map can follow, as in "
        "lab=DE@52.5/13.4/Berlin; PoPs named by an airport code (fra, iad) need none.",
        default="",
        check=parsed_by(parse_locations),
    )
    stores_location: str = setting(
        "HEARTH_STORES_LOCATION",
        "Location of Redis, the database and the object store, as in DE or US:fedramp. Empty: the location of "
        "this gateway.",
        default="",
        check=parsed_by(parse_location),
    )
    max_calls: int = setting(
        "HEARTH_MAX_CALLS",
        "Largest number of concurrent inference calls. One account may hold at most twice as many as are free.",
        default=1536,
        check=at_least(1),
    )
    max_body_bytes: int = setting(
        "HEARTH_MAX_BODY_BYTES", "Largest request body, in bytes.", default=10 * 1024 * 1024, check=at_least(1024)
    )
    head_timeout_s: float = setting(
        "HEARTH_HEAD_TIMEOUT_S", "Seconds for a request's head to arrive.", default=10.0, check=at_least(0.1)
    )
    max_unauthenticated_connections: int = setting(
        "HEARTH_MAX_UNAUTHENTICATED_CONNECTIONS",
        "Largest number of unauthenticated connections per client address. The oldest ones above it are rejected with "
        "429 and closed.",
        default=100,
        check=at_least(1),
    )
    max_authenticated_connections: int = setting(
        "HEARTH_MAX_AUTHENTICATED_CONNECTIONS",
        "Largest number of connections with a valid credential. One account may hold at most twice as many as are "
        "free.",
        default=8192,
        check=at_least(1),
    )
    allowed_hosts: str = setting(
        "HEARTH_ALLOWED_HOSTS", "Comma-separated values allowed in the Host header. Empty allows any.", default=""
    )
    pop_prices: str = setting(
        "HEARTH_POP_PRICES",
        "What nodes cost the operator in each PoP, in dollars per million input and output tokens, as in "
        "lis=0.10/0.40,fra=0.05/0.20. PoPs that are not listed cost 0. Calls go to the cheapest node that is fast "
        "enough.",
        default="",
        check=parsed_by(parse_pop_prices),
    )
    first_token_target_s: float = setting(
        "HEARTH_FIRST_TOKEN_TARGET_S",
        "Predicted seconds to the first token up to which the cheapest node is preferred. Above, the fastest one is. "
        "Used only if nodes have prices.",
        default=2.0,
        check=at_least(0),
    )
    cors_origins: str = setting(
        "HEARTH_CORS_ORIGINS",
        "Comma-separated origins whose pages may call the API from a browser, as in https://app.example. * allows any, "
        "empty none. `hearth up` allows its own origin.",
        default="",
        check=_are_origins,
    )
    metrics_token: str = setting(
        "HEARTH_METRICS_TOKEN",
        "Bearer token that /metrics requires. Empty: /metrics is public.",
        default="",
        secret=True,
        check=_is_bearer_token,
    )
    metrics_max_age_s: float = setting(
        "HEARTH_METRICS_MAX_AGE_S",
        "Seconds for which rendered metrics are served again. 0 renders them for each request.",
        default=1.0,
        check=at_least(0),
    )
    metrics_listen: str = setting(
        "HEARTH_METRICS_LISTEN",
        "Address and port on which /metrics is served instead of HEARTH_HOST and HEARTH_PORT, as in 127.0.0.1:9091. "
        "Empty: no separate listener.",
        default="",
        check=parsed_by(parse_listen),
    )
    rate_limits: str = setting(
        "HEARTH_RATE_LIMITS",
        "Comma-separated rate limits: subject=count/seconds limits requests, subject.tokens=count/seconds tokens, "
        "subject.calls=count concurrent calls, subject.waiting=count concurrent calls without output yet. The "
        "subject is account, token (each API token), a task or a model; a plan and a colon in front limit one plan "
        "(text-generation=300/60, account.tokens=100000/60, free:account.calls=4). `contract` stands for the limits of "
        "Workers AI, empty for no limits.",
        default="",
        check=parsed_by(parse_rules),
    )
    default_model: str = setting(
        "HEARTH_DEFAULT_MODEL",
        "Model of OpenAI and Anthropic requests that name none. Empty: such requests are rejected.",
        default="",
    )
    free_neurons_per_day: int = setting(
        "HEARTH_FREE_NEURONS_PER_DAY",
        "Neurons per day (from 00:00 UTC) for accounts on the free plan.",
        default=10_000,
        check=at_least(0),
    )
    usage_entries_days: int = setting(
        "HEARTH_USAGE_ENTRIES_DAYS",
        "Days for which the usage entry of each call is stored. Sums are stored longer.",
        default=35,
        check=at_least(2),
    )
    usage_minutes_days: int = setting(
        "HEARTH_USAGE_MINUTES_DAYS",
        "Days after which usage per minute is merged into usage per hour.",
        default=1,
        check=at_least(1),
    )
    usage_hours_days: int = setting(
        "HEARTH_USAGE_HOURS_DAYS",
        "Days after which usage per hour is merged into usage per day.",
        default=92,
        check=at_least(2),
    )
    quota_timeout_s: float = setting(
        "HEARTH_QUOTA_TIMEOUT_S",
        "Seconds to wait for Redis when checking quotas. If exceeded, each gateway enforces its own share of the "
        "limit.",
        default=0.05,
        check=at_least(0.001),
    )
    body_timeout_s: float = setting(
        "HEARTH_BODY_TIMEOUT_S", "Seconds for a request body to arrive.", default=60.0, check=at_least(0.1)
    )
    body_min_bytes_per_s: int = setting(
        "HEARTH_BODY_MIN_BYTES_PER_S",
        "Lowest average rate of a form with files, in bytes per second. A form may take HEARTH_BODY_TIMEOUT_S longer "
        "than at this rate.",
        default=64 << 10,
        check=at_least(1),
    )
    call_timeout_s: float = setting(
        "HEARTH_CALL_TIMEOUT_S", "Seconds for a whole inference call.", default=120.0, check=at_least(0.1)
    )
    first_event_timeout_s: float = setting(
        "HEARTH_FIRST_EVENT_TIMEOUT_S",
        "Seconds to wait for a node's first event before another node is tried.",
        default=20.0,
        check=at_least(0.1),
    )
    stall_timeout_s: float = setting(
        "HEARTH_STALL_TIMEOUT_S",
        "Seconds without an event after which a call fails.",
        default=20.0,
        check=at_least(0.1),
    )
    failover: FailoverSettings = settings_group(FailoverSettings)
    client_stall_timeout_s: float = setting(
        "HEARTH_CLIENT_STALL_TIMEOUT_S",
        "Seconds within which a client must read 16 KiB of its response, or all that is waiting. A slower client is "
        "disconnected.",
        default=30.0,
        check=at_least(0.1),
    )
    web_socket_idle_s: float = setting(
        "HEARTH_WEB_SOCKET_IDLE_S",
        "Seconds without a message from the client after which a WebSocket is closed.",
        default=60.0,
        check=at_least(0.1),
    )
    web_socket_max_s: float = setting(
        "HEARTH_WEB_SOCKET_MAX_S",
        "Longest duration of a WebSocket, in seconds.",
        default=3600.0,
        check=at_least(0.1),
    )
    document_image_models: str = setting(
        "HEARTH_DOCUMENT_IMAGE_MODELS",
        "Comma-separated models that convert images for `ai/tomarkdown`: image-to-text models, also for scanned pages, "
        "and object detection models. Those that are published are used; each image is a call of each.",
        default="@cf/rapidai/pp-ocr,@cf/tensorflow/coco-ssd",
    )
    image_url_max_bytes: int = setting(
        "HEARTH_IMAGE_URL_MAX_BYTES",
        "Largest file in bytes that is fetched for an `image_url` of a chat message. 0 fetches no URLs.",
        default=0,
        check=at_least(0),
    )
    image_url_networks: str = setting(
        "HEARTH_IMAGE_URL_NETWORKS",
        "Comma-separated networks from which images may be fetched, in addition to public addresses.",
        default="",
        check=_ARE_NETWORKS,
    )
    voice_activity_model: str = setting(
        "HEARTH_VOICE_ACTIVITY_MODEL",
        "Model that finds speech in live audio.",
        default="@cf/snakers4/silero-vad",
    )
    response_ttl_s: float = setting(
        "HEARTH_RESPONSE_TTL_S",
        "Seconds for which responses are stored (encrypted) for retrieval and `previous_response_id`. 0 disables "
        "storage.",
        default=86400.0,
        check=at_least(0),
    )
    idempotency_ttl_s: float = setting(
        "HEARTH_IDEMPOTENCY_TTL_S",
        "Seconds for which the response to a request with an idempotency key is stored (encrypted) for retries.",
        default=86400.0,
        check=at_least(1),
    )
    batches: BatchSettings = settings_group(BatchSettings)
    webhook_networks: str = setting(
        "HEARTH_WEBHOOK_NETWORKS",
        "Comma-separated networks that webhooks may be sent to, in addition to public addresses.",
        default="",
        check=_ARE_NETWORKS,
    )
    trusted_proxies: str = setting(
        "HEARTH_TRUSTED_PROXIES",
        "Comma-separated networks of trusted reverse proxies. `X-Forwarded-For` is honored only from these.",
        default="",
        check=_ARE_NETWORKS,
    )
    sign_in: SignInSettings = settings_group(SignInSettings)
    scaling: ScalingSettings = settings_group(ScalingSettings)
    has_access_log: bool = setting("HEARTH_ACCESS_LOG", "Write one log line for each request.", default=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.token_pepper == self.cache_secret:
            raise SettingError("HEARTH_TOKEN_PEPPER and HEARTH_CACHE_SECRET must be different keys")

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS context for connections to nodes over TCP; None without certificates. Raises SettingError if
        the files cannot be used."""
        if self.tls_cert is None or self.tls_ca is None:
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.load_cert_chain(self.tls_cert, self.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise SettingError(f"HEARTH_TLS_CERT, HEARTH_TLS_KEY or HEARTH_TLS_CA cannot be used: {error}") from error
        return context

    def service_identity(self) -> ServiceIdentity:
        """Return this gateway's service identity. Raises SettingError if the key files cannot be used."""
        try:
            return ServiceIdentity(self.service_ring, self.service_keys, "gateway")
        except UnsafeKeyFile as error:
            raise SettingError(f"HEARTH_SERVICE_RING, HEARTH_SERVICE_KEYS: {error}") from None
