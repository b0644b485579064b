"""Every gateway setting: environment variable, type, default, help. Read once at start, frozen, never edited.

A room whose settings make a table of their own declares them beside itself, and is given those alone.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from gateway.jobs.settings import BatchSettings
from gateway.management.operator_settings import SignInSettings
from service_identity.key_ring import Unsafe
from service_identity.service_identity import ServiceIdentity
from telemetry.process_settings import ProcessSettings, is_objects_url
from telemetry.settings import (
    SettingError,
    at_least,
    parsed_by,
    setting,
    settings_of_a_part,
    starts_with,
    strong_secret,
)
from tenants.credentials.conditions import parse_networks
from tenants.quota.limits import parse_rules
from tenants.residency import parse_place, parse_places


def _engine_rank(value: int) -> str | None:
    return None if 1 <= value <= 64 else "must be a rank that engines take, 1 to 64"


def _port(value: int) -> str | None:
    return None if 0 <= value <= 65535 else "must be a port, 0 to 65535"


def networks_in(text: str) -> tuple[str, ...]:
    """The networks of a comma separated list. Raises ValueError."""
    return parse_networks(part.strip() for part in text.split(",") if part.strip())


_ARE_NETWORKS = parsed_by(networks_in, prefix="must be networks in CIDR notation: ")


@dataclass(frozen=True, kw_only=True)
class GatewaySettings(ProcessSettings):
    """Settings of one gateway process."""

    database_url: str = setting(
        "DATABASE_URL",
        "SQL database: sqlite:///path or postgresql://…",
        check=starts_with("sqlite://", "postgresql://", "postgres://"),
    )
    token_pepper: bytes = setting(
        "HEARTH_TOKEN_PEPPER", "key of the hash under which API tokens are stored", secret=True, check=strong_secret
    )
    cache_secret: bytes = setting(
        "HEARTH_CACHE_SECRET", "key from which accounts' cache namespaces are derived", secret=True, check=strong_secret
    )
    spool_dir: Path = setting("HEARTH_SPOOL_DIR", "folder of this process's usage spool; never shared")
    spool_max_bytes: int = setting(
        "HEARTH_SPOOL_MAX_BYTES",
        "usage spooled while the database is away; when full, new calls are refused",
        default=1 << 30,
        check=at_least(1 << 20),
    )
    objects_url: str = setting(
        "OBJECTS_URL",
        "object store that finetunes are uploaded to: file:///folder or s3://bucket/prefix; without one none is taken",
        default="",
        check=is_objects_url,
    )
    finetune_max_bytes: int = setting(
        "HEARTH_FINETUNE_MAX_BYTES", "largest file of a finetune", default=300 << 20, check=at_least(1024)
    )
    finetune_max_rank: int = setting(
        "HEARTH_FINETUNE_MAX_RANK", "largest rank of a finetune's matrices", default=32, check=_engine_rank
    )
    finetunes_per_account: int = setting(
        "HEARTH_FINETUNES_PER_ACCOUNT", "finetunes that one account may have", default=100, check=at_least(0)
    )
    document_max_bytes: int = setting(
        "HEARTH_DOCUMENT_MAX_BYTES",
        "largest body of files to turn into Markdown",
        default=32 << 20,
        check=at_least(1024),
    )
    document_timeout_s: int = setting(
        "HEARTH_DOCUMENT_TIMEOUT_S", "processor time for reading one such file", default=20, check=at_least(1)
    )
    document_memory_bytes: int = setting(
        "HEARTH_DOCUMENT_MEMORY_BYTES", "memory for reading one such file", default=512 << 20, check=at_least(64 << 20)
    )
    document_processes: int = setting(
        "HEARTH_DOCUMENT_PROCESSES",
        "such files read at once, each in a process of its own",
        default=2,
        check=at_least(1),
    )
    audit_heads: Path | None = setting(
        "HEARTH_AUDIT_HEADS",
        "file at whose end the head of the audit is noted once a minute, for `hearth audit verify`; copy it elsewhere",
        default=None,
    )
    host: str = setting("HEARTH_HOST", "address to listen on", default="127.0.0.1")
    port: int = setting("HEARTH_PORT", "port to listen on; 0 takes a free one", default=8787, check=_port)
    places: str = setting(
        "HEARTH_PLACES",
        "country of each PoP, and what it is under beside that, as fra=DE,iad=US:fedramp+hipaa; calls held to a region "
        "run in PoPs that are listed here alone",
        default="",
        check=parsed_by(parse_places),
    )
    stores_place: str = setting(
        "HEARTH_STORES_PLACE",
        "where Redis, the database and the object store are, as DE or US:fedramp; empty for where this gateway is",
        default="",
        check=parsed_by(parse_place),
    )
    max_calls: int = setting(
        "HEARTH_MAX_CALLS",
        "inference calls in flight at once; one account's are at most twice as many as could still enter",
        default=1536,
        check=at_least(1),
    )
    max_body_bytes: int = setting(
        "HEARTH_MAX_BODY_BYTES", "largest request body", default=10 * 1024 * 1024, check=at_least(1024)
    )
    head_timeout_s: float = setting(
        "HEARTH_HEAD_TIMEOUT_S", "time for a request's head to arrive", default=10.0, check=at_least(0.1)
    )
    max_unauthenticated_connections: int = setting(
        "HEARTH_MAX_UNAUTHENTICATED_CONNECTIONS",
        "connections of one address that have shown no credential; the oldest beyond it are turned away",
        default=100,
        check=at_least(1),
    )
    allowed_hosts: str = setting(
        "HEARTH_ALLOWED_HOSTS",
        "names that a request's Host may have, with commas between; empty allows any",
        default="",
    )
    cors_origins: str = setting(
        "HEARTH_CORS_ORIGINS",
        "origins whose pages may call from a browser, with commas between; * for any, empty for none",
        default="*",
    )
    rate_limits: str = setting(
        "HEARTH_RATE_LIMITS",
        "limits with commas between: requests or tokens of a window as what=count/seconds, calls at once as "
        "what=count; what is account, token (each API token), a task or a model, with .tokens, .calls or .waiting "
        "(calls at once that have no output yet) behind it, and a plan and a colon before those for one plan "
        "(text-generation=300/60, account.tokens=100000/60, free:account.calls=4); contract for those of Workers AI, "
        "empty for none",
        default="",
        check=parsed_by(parse_rules),
    )
    free_neurons_per_day: int = setting(
        "HEARTH_FREE_NEURONS_PER_DAY",
        "neurons that an account on the plan free may use each day, from 00:00 UTC",
        default=10_000,
        check=at_least(0),
    )
    usage_entries_days: int = setting(
        "HEARTH_USAGE_ENTRIES_DAYS",
        "days for which each call's usage entry is kept; sums over calls stay",
        default=35,
        check=at_least(2),
    )
    usage_minutes_days: int = setting(
        "HEARTH_USAGE_MINUTES_DAYS",
        "days after which sums of minutes become sums of hours",
        default=1,
        check=at_least(1),
    )
    usage_hours_days: int = setting(
        "HEARTH_USAGE_HOURS_DAYS", "days after which sums of hours become sums of days", default=92, check=at_least(2)
    )
    quota_timeout_s: float = setting(
        "HEARTH_QUOTA_TIMEOUT_S",
        "time for Redis to say whether a call is within its limits; then each gateway goes by its own share of them",
        default=0.05,
        check=at_least(0.001),
    )
    body_timeout_s: float = setting(
        "HEARTH_BODY_TIMEOUT_S", "time for a request body to arrive", default=60.0, check=at_least(0.1)
    )
    call_timeout_s: float = setting(
        "HEARTH_CALL_TIMEOUT_S", "time for a whole inference call", default=120.0, check=at_least(0.1)
    )
    first_event_timeout_s: float = setting(
        "HEARTH_FIRST_EVENT_TIMEOUT_S",
        "time for a node's first output before another node is tried",
        default=20.0,
        check=at_least(0.1),
    )
    stall_timeout_s: float = setting(
        "HEARTH_STALL_TIMEOUT_S", "time without a token after which a call ends", default=20.0, check=at_least(0.1)
    )
    client_stall_timeout_s: float = setting(
        "HEARTH_CLIENT_STALL_TIMEOUT_S",
        "time a streaming client may read nothing before it is cut off",
        default=30.0,
        check=at_least(0.1),
    )
    response_ttl_s: float = setting(
        "HEARTH_RESPONSE_TTL_S",
        "how long a response and its turns are kept, encrypted, to be told again and gone on from; 0 keeps none",
        default=86400.0,
        check=at_least(0),
    )
    idempotency_ttl_s: float = setting(
        "HEARTH_IDEMPOTENCY_TTL_S",
        "how long the answer to a request with an idempotency-key is kept, encrypted, to be given again",
        default=86400.0,
        check=at_least(1),
    )
    batches: BatchSettings = settings_of_a_part(BatchSettings)
    webhook_networks: str = setting(
        "HEARTH_WEBHOOK_NETWORKS",
        "networks to which webhooks of runs in the background may be sent beside public addresses, comma separated",
        default="",
        check=_ARE_NETWORKS,
    )
    trusted_proxies: str = setting(
        "HEARTH_TRUSTED_PROXIES",
        "networks of proxies whose x-forwarded-for tells the client's address, comma separated; empty trusts none",
        default="",
        check=_ARE_NETWORKS,
    )
    sign_in: SignInSettings = settings_of_a_part(SignInSettings)
    has_access_log: bool = setting("HEARTH_ACCESS_LOG", "one log line for each request", default=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.token_pepper == self.cache_secret:
            raise SettingError("HEARTH_TOKEN_PEPPER and HEARTH_CACHE_SECRET must be different keys")

    def tls_context(self) -> ssl.SSLContext | None:
        """How to connect to nodes over TCP; None without certificates. Raises SettingError for unusable files."""
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
        except Unsafe as error:
            raise SettingError(f"HEARTH_SERVICE_RING, HEARTH_SERVICE_KEYS: {error}") from None
