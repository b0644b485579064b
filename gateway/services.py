"""Opens and closes all that lives as long as the process, as one frozen bundle; only here are concrete stores named."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from catalog import finetunes as catalog_finetunes
from catalog.pricing import micro_neurons_for
from catalog.registry import Registry
from documents.converter import Converter
from documents.converter import Limits as DocumentLimits
from gateway.admission import Admission
from gateway.asked_again import UsefulReplies
from gateway.audit_heads import AuditHeads
from gateway.batches import Batches
from gateway.blocked_inputs import BlockedInputs
from gateway.client_address import ClientAddress
from gateway.documents import Documents
from gateway.finetunes import Finetunes
from gateway.idempotency import IdempotencyKeys
from gateway.nodes import Nodes
from gateway.outgoing import Outgoing
from gateway.residency import Places
from gateway.sealed import Sealer
from gateway.settings import GatewaySettings, networks_in
from gateway.test_tenant import TestTenant
from gateway.threads import Threads
from storage.database import Database
from storage.ephemeral import Ephemeral
from storage.errors import StoreUnavailable
from storage.spool import Spool
from telemetry import metrics
from telemetry.clock import SYSTEM_CLOCK, Clock
from telemetry.steady_clock import SteadyClock
from tenants.allowance import Allowance
from tenants.api_tokens import TokenVerifier
from tenants.cache_namespace import cache_namespace, fairness_id
from tenants.conditions import AddressCondition
from tenants.ledger import UsageLedger
from tenants.limits import Limits, parse_rules
from tenants.quota import LEASE_MARGIN_S, Quota
from tenants.usage_upkeep import Kept, UsageUpkeep

if TYPE_CHECKING:
    from gateway.operators import Operators

log = logging.getLogger(__name__)

FIRST_READ_TIMEOUT_S = 5.0
RESTART_PAUSE_S = 1.0
USAGE_KEPT_S = 600.0  # after the ledger has it: longer than a replica lags that may take over


@dataclass(frozen=True)
class Services:
    """What lives as long as the process. `cache_identity` gives an account's (namespace, fairness number)."""

    settings: GatewaySettings
    clock: Clock
    database: Database
    ephemeral: Ephemeral
    verifier: TokenVerifier
    registry: Registry
    ledger: UsageLedger
    nodes: Nodes
    admission: Admission
    blocked_inputs: BlockedInputs
    threads: Threads
    limits: Limits
    quota: Quota
    allowance: Allowance
    useful_replies: UsefulReplies
    finetunes: Finetunes
    documents: Documents
    batches: Batches
    idempotency_keys: IdempotencyKeys
    outgoing: Outgoing
    test_tenant: TestTenant
    cache_identity: Callable[[str], tuple[bytes, int]]
    places: Places
    trusted_proxies: AddressCondition | None = None
    operators: Operators | None = None  # where an OpenID provider is configured

    def client_address(self, peer: tuple[str, int] | None) -> ClientAddress:
        """Of a request whose connection's other end is `peer` (ASGI's `client`)."""
        return ClientAddress(peer[0] if peer else None, self.trusted_proxies)

    def missing_for_readiness(self) -> str | None:
        """Why this gateway should get no traffic now, or None."""
        if self.admission.is_draining:
            return "draining"
        if not self.nodes.num_reachable:
            return "no node can be reached"
        if not self.nodes.hot_models():
            return "no model is loaded"
        return None


@contextlib.asynccontextmanager
async def open_services(settings: GatewaySettings) -> AsyncIterator[Services]:
    """Everything open and its background jobs running; closed again in the reverse order, the usage flushed.

    Raises SettingError, ValueError or OSError when a setting cannot work.
    """
    tls = settings.tls_context()
    identity = settings.service_identity()
    proxies = networks_in(settings.trusted_proxies)
    database = Database.connect(settings.database_url)
    ephemeral = Ephemeral.connect(settings.redis_url)
    ledger = UsageLedger(Spool(settings.spool_dir, settings.spool_max_bytes, keep_s=USAGE_KEPT_S), database)
    clock = SteadyClock(SYSTEM_CLOCK)  # leases, stamps and days of calls do not jump with the machine's clock
    verifier = TokenVerifier(database, settings.token_pepper, SYSTEM_CLOCK, ephemeral)
    registry = Registry(database)
    limits_of_finetunes = catalog_finetunes.Limits(
        settings.finetune_max_rank, settings.finetune_max_bytes, settings.finetunes_per_account
    )
    finetunes = Finetunes(database, registry, settings.objects_url, limits_of_finetunes, clock)
    document_limits = DocumentLimits(settings.document_timeout_s, settings.document_memory_bytes)
    documents = Documents(Converter(document_limits, settings.document_processes), settings.document_max_bytes)
    sealer = Sealer(settings.cache_secret, "batches")
    batches = Batches(database, ephemeral, sealer, clock, settings.batch_max_waiting, settings.client_stall_timeout_s)
    outgoing = Outgoing(networks_in(settings.webhook_networks))
    idempotency_keys = IdempotencyKeys(
        database,
        settings.cache_secret,
        clock,
        lease_s=settings.batch_lease_s,
        ttl_s=settings.idempotency_ttl_s,
    )
    sender = f"gateway@{socket.gethostname()}"
    nodes = Nodes(ephemeral, cluster_secret=settings.cluster_secret, sender=sender, tls=tls, identity=identity)
    allowance = Allowance(
        database,
        SYSTEM_CLOCK,
        free_micro_neurons=settings.free_neurons_per_day * 1_000_000,
        micro_neurons_for=micro_neurons_for,
        flush=ledger.flush,
    )
    quota = Quota(
        settings.redis_url,
        ephemeral,
        timeout_s=settings.quota_timeout_s,
        lease_s=settings.call_timeout_s + LEASE_MARGIN_S,
        budgets=allowance,
    )
    for what, read in (("catalog", registry.refresh), ("presence", nodes.refresh), ("quota", quota.open)):
        try:
            async with asyncio.timeout(FIRST_READ_TIMEOUT_S):
                await read()
        except (StoreUnavailable, TimeoutError):
            log.warning("starting without a store; it is tried again in the background", extra={"what": what})

    operators = _operators(settings, database, ephemeral)

    @lru_cache(maxsize=65536)
    def cache_identity(account_id: str) -> tuple[bytes, int]:
        return cache_namespace(settings.cache_secret, account_id), fairness_id(settings.cache_secret, account_id)

    kept = Kept(settings.usage_entries_days, settings.usage_minutes_days, settings.usage_hours_days)
    upkeep = UsageUpkeep(database, SYSTEM_CLOCK, kept)

    async def watch_allowance() -> None:
        await allowance.watch(quota)

    places = Places.read(settings.places, settings.pop, settings.stores_place)
    heads = AuditHeads(database, settings.audit_heads, settings.token_pepper, clock)
    threads = Threads(database, settings.cache_secret, settings.response_ttl_s, clock)
    loops = (
        threads.run,
        nodes.run,
        registry.watch,
        verifier.watch,
        ledger.run,
        quota.run,
        watch_allowance,
        upkeep.run,
        idempotency_keys.run,
        heads.run,
    )
    jobs = [asyncio.create_task(keep_running(loop), name=loop.__qualname__) for loop in loops]
    try:
        yield Services(
            settings=settings,
            clock=clock,
            database=database,
            ephemeral=ephemeral,
            verifier=verifier,
            registry=registry,
            ledger=ledger,
            nodes=nodes,
            admission=Admission(settings.max_calls),
            blocked_inputs=BlockedInputs(SYSTEM_CLOCK),
            limits=Limits(parse_rules(settings.rate_limits)),
            quota=quota,
            allowance=allowance,
            useful_replies=UsefulReplies(
                SYSTEM_CLOCK, quota, lambda call: call.principal.residency.may_keep(places.stores)
            ),
            threads=threads,
            finetunes=finetunes,
            documents=documents,
            batches=batches,
            idempotency_keys=idempotency_keys,
            outgoing=outgoing,
            test_tenant=TestTenant(settings.test_tenant),
            cache_identity=cache_identity,
            places=places,
            trusted_proxies=AddressCondition(within=proxies) if proxies else None,
            operators=operators,
        )
    finally:
        await nodes.close()
        await ledger.close()
        await quota.close()
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        outgoing.close()
        await finetunes.close()
        await documents.close()
        if operators is not None:
            await operators.close()
        await ephemeral.close()
        await database.close()


async def keep_running(loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a loop that should not end by itself; should it fail in a way nobody foresaw, say so and run it again."""
    while True:
        try:
            await loop()
            return
        except Exception:
            log.exception("a background job failed and is started again", extra={"job": loop.__qualname__})
            metrics.INTERNAL_ERRORS.inc()
            await asyncio.sleep(RESTART_PAUSE_S)


def _operators(settings: GatewaySettings, database: Database, ephemeral: Ephemeral) -> Operators | None:
    """Only who is asked to let people sign in pays for what that needs."""
    if not settings.oidc_issuer:
        return None
    from gateway.operators import Operators

    return Operators(settings, database, ephemeral, SteadyClock(SYSTEM_CLOCK))
