"""Services: everything that lives as long as the gateway process, as one frozen bundle.

Opens and closes stores and background jobs. Only this file names concrete stores.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

from catalog import finetunes as catalog_finetunes
from catalog.pricing import micro_neurons_for
from catalog.registry import Registry
from documents.converter import Converter
from documents.converter import Limits as DocumentLimits
from gateway.admission import Admission
from gateway.cost_policy import parse_pop_prices
from gateway.cost_ranking import CostRanking
from gateway.dispatch import Timeouts
from gateway.enrolled_keys import EnrolledKeys
from gateway.failover import Failover
from gateway.foreign.engines import ForeignEngines
from gateway.inference.finetunes import Finetunes
from gateway.inference.markdown_conversion import Documents
from gateway.jobs.batch_queue import Batches
from gateway.jobs.idempotency import IdempotencyKeys
from gateway.jobs.response_store import StoredResponses
from gateway.jobs.sealed_content import Sealer
from gateway.jobs.webhook_http import WebhookClient
from gateway.live.audit_verifier import AuditVerifier
from gateway.live.call_feed import CallFeed
from gateway.live.event_hub import EventHub
from gateway.live.metric_summaries import MetricSummaries
from gateway.management.audit_head_recorder import AuditHeadRecorder
from gateway.management.browser_sessions import BrowserSessions
from gateway.management.operator_settings import origin_of
from gateway.management.user_sign_in import UserSignIn
from gateway.node_selection import NodeSelector
from gateway.nodes.blocked_inputs import BlockedInputs
from gateway.nodes.fleet import Fleet
from gateway.nodes.geography import Geography
from gateway.nodes.health import HealthPolicy
from gateway.nodes.residency import Locations
from gateway.nodes.round_trips import RoundTrips
from gateway.nodes.snapshot import DeviceLimits, Nodes
from gateway.parsing_turns import ParsingTurns
from gateway.retry_tracker import RetryTracker
from gateway.scaling.autoscaler import Autoscaler
from gateway.scaling.demand import DemandMeter
from gateway.settings import GatewaySettings, networks_in
from storage.columns import uuid7
from storage.database import Database
from storage.ephemeral import Ephemeral
from storage.errors import StoreUnavailable
from storage.spool import Spool
from telemetry import metrics
from telemetry.clock import SYSTEM_CLOCK, Clock
from telemetry.fair_share import FairQueue
from telemetry.steady_clock import SteadyClock
from telemetry.tracing import Tracing, open_tracing
from tenants.cache_namespace import cache_namespace, fairness_id
from tenants.credentials.conditions import AddressCondition
from tenants.credentials.token_verifier import TokenVerifier
from tenants.credentials.web_sessions import WebSessions
from tenants.quota.allowance import Allowance
from tenants.quota.limits import Limits, parse_rules
from tenants.quota.quota import LEASE_MARGIN_S, Quota
from tenants.usage.ledger import UsageLedger
from tenants.usage.usage_upkeep import UsageMaintenance, UsageRetention

if TYPE_CHECKING:
    from gateway.management.operators import Operators

log = logging.getLogger(__name__)

FIRST_READ_TIMEOUT_S = 5.0
RESTART_PAUSE_S = 1.0
MANAGEMENT_TURNS = 6  # requests to management routes that are processed at the same time
PARSING_TURNS = 3  # large bodies that are parsed at the same time, each in a thread
USAGE_KEPT_S = 600.0  # in the spool after the ledger has the entry: longer than the lag of a database replica


@dataclass(frozen=True)
class Services:
    """`cache_identity` returns (cache namespace, fairness number) of an account."""

    settings: GatewaySettings
    clock: Clock
    database: Database
    ephemeral: Ephemeral

    # Callers and their limits.
    verifier: TokenVerifier
    limits: Limits
    quota: Quota
    allowance: Allowance
    ledger: UsageLedger
    cache_identity: Callable[[str], tuple[bytes, int]]
    locations: Locations

    # Models and nodes.
    registry: Registry
    finetunes: Finetunes
    nodes: Nodes
    foreign_engines: ForeignEngines
    admission: Admission
    blocked_inputs: BlockedInputs
    enrolled_keys: EnrolledKeys
    node_selector: NodeSelector
    cost_ranking: CostRanking
    timeouts: Timeouts
    failover: Failover
    documents: Documents
    demand: DemandMeter
    autoscaler: Autoscaler

    # Displays.
    round_trips: RoundTrips
    fleet: Fleet
    metric_summaries: MetricSummaries
    call_feed: CallFeed
    event_hub: EventHub
    audit_verifier: AuditVerifier

    # Stored responses and jobs.
    stored_responses: StoredResponses
    idempotency_keys: IdempotencyKeys
    retry_tracker: RetryTracker
    batches: Batches
    webhook_client: WebhookClient

    # Turns of accounts in work that occupies the event loop.
    management_turns: FairQueue
    parsing_turns: ParsingTurns

    # People who sign in with a browser.
    browser_sessions: BrowserSessions
    user_sign_in: UserSignIn

    tracing: Tracing | None = None  # None unless traces are exported
    trusted_proxies: AddressCondition | None = None
    operators: Operators | None = None  # None without an OpenID provider

    def missing_for_readiness(self) -> str | None:
        """Return why this gateway should receive no traffic, or None."""
        if self.admission.is_draining:
            return "draining"
        if not self.nodes.num_reachable:
            return "no node can be reached"
        if not self.nodes.hot_models():
            return "no model is loaded"
        return None


@contextlib.asynccontextmanager
async def open_services(settings: GatewaySettings) -> AsyncIterator[Services]:
    """Open all services and start their background jobs; at the end flush usage and close in reverse order.

    Raises SettingError, ValueError or OSError for an invalid setting.
    """
    services = _build(settings)
    await _load_initial(services)
    jobs = [asyncio.create_task(keep_running(loop), name=loop.__qualname__) for loop in _loops(services)]
    try:
        yield services
    finally:
        await services.event_hub.close()
        await services.foreign_engines.close()
        await services.nodes.close()
        await services.ledger.close()
        await services.quota.close()
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        services.webhook_client.close()
        await services.finetunes.close()
        await services.documents.close()
        if services.operators is not None:
            await services.operators.close()
        if services.tracing is not None:
            await asyncio.to_thread(services.tracing.close)
        await services.ephemeral.close()
        await services.database.close()


def _build(settings: GatewaySettings) -> Services:
    """Create all services; no store is contacted yet."""
    locations = Locations.parse(settings.locations, settings.pop, settings.stores_location)
    proxies = networks_in(settings.trusted_proxies)
    clock = SteadyClock(SYSTEM_CLOCK)  # does not jump with the machine's clock
    database = Database.connect(settings.database_url)
    ephemeral = Ephemeral.connect(settings.redis_url)
    gateway_name = f"{socket.gethostname()}-{uuid7()}"
    geography = Geography(settings.pop, locations.by_pop)
    nodes = _nodes(settings, ephemeral, geography)
    round_trips = RoundTrips(ephemeral, nodes, geography, gateway_name, settings.pop)
    registry = Registry(database)
    blocked_inputs = BlockedInputs(SYSTEM_CLOCK)
    cost_ranking = CostRanking(nodes, parse_pop_prices(settings.pop_prices), settings.first_token_target_s)
    ledger = UsageLedger(Spool(settings.spool_dir, settings.spool_max_bytes, keep_s=USAGE_KEPT_S), database)
    allowance = _allowance(settings, database, ledger)
    quota = _quota(settings, ephemeral, allowance)
    verifier = TokenVerifier(database, settings.token_pepper, SYSTEM_CLOCK, ephemeral)
    browser_sessions = _browser_sessions(settings, ephemeral, verifier, clock)
    fleet = Fleet(nodes, locations, geography, round_trips, settings.pop)
    demand = DemandMeter(ephemeral, gateway_name, settings.pop, SYSTEM_CLOCK)
    return Services(
        settings=settings,
        clock=clock,
        database=database,
        ephemeral=ephemeral,
        verifier=verifier,
        limits=Limits(parse_rules(settings.rate_limits)),
        quota=quota,
        allowance=allowance,
        ledger=ledger,
        cache_identity=_cache_identity(settings.cache_secret),
        locations=locations,
        registry=registry,
        finetunes=_finetunes(settings, database, registry, clock),
        nodes=nodes,
        foreign_engines=ForeignEngines(database, registry, nodes, settings.cache_secret),
        admission=Admission(settings.max_calls),
        blocked_inputs=blocked_inputs,
        enrolled_keys=EnrolledKeys(database, settings.service_ring, settings.service_identity()),
        node_selector=NodeSelector(nodes, locations, blocked_inputs, cost_ranking),
        cost_ranking=cost_ranking,
        timeouts=Timeouts(settings.first_event_timeout_s, settings.stall_timeout_s),
        failover=Failover(settings.failover),
        documents=_documents(settings),
        demand=demand,
        autoscaler=Autoscaler(
            settings.scaling, gateway_name, clock, database, ephemeral, registry, nodes, fleet, demand
        ),
        round_trips=round_trips,
        fleet=fleet,
        metric_summaries=MetricSummaries(database, nodes),
        call_feed=CallFeed(ephemeral),
        event_hub=EventHub(),
        audit_verifier=AuditVerifier(database, settings.audit_heads, settings.token_pepper, clock),
        stored_responses=StoredResponses(database, settings.cache_secret, settings.response_ttl_s, clock),
        idempotency_keys=_idempotency_keys(settings, database, clock),
        retry_tracker=RetryTracker(
            SYSTEM_CLOCK, quota, lambda call: call.principal.residency.may_keep(locations.stores)
        ),
        batches=_batches(settings, database, ephemeral, clock),
        webhook_client=WebhookClient(networks_in(settings.webhook_networks)),
        browser_sessions=browser_sessions,
        user_sign_in=UserSignIn(browser_sessions, database, ephemeral, clock, settings.token_pepper),
        management_turns=FairQueue(MANAGEMENT_TURNS),
        parsing_turns=ParsingTurns(PARSING_TURNS),
        tracing=open_tracing(settings.traces_url, settings.traces_ratio, "gateway", settings.pop),
        trusted_proxies=AddressCondition(within=proxies) if proxies else None,
        operators=_operators(settings, browser_sessions, database, clock),
    )


async def _load_initial(services: Services) -> None:
    """Load what calls need before the first one arrives. An unavailable store only delays this."""
    reads = {
        "catalog": services.registry.refresh,
        "presence": services.nodes.refresh,
        "quota": services.quota.open,
    }
    for name, read in reads.items():
        try:
            async with asyncio.timeout(FIRST_READ_TIMEOUT_S):
                await read()
        except (StoreUnavailable, TimeoutError):
            log.warning("starting without a store; retrying in the background", extra={"what": name})


def _loops(services: Services) -> tuple[Callable[[], Coroutine[Any, Any, None]], ...]:
    """Return the background jobs."""
    settings, database = services.settings, services.database
    retention = UsageRetention(settings.usage_entries_days, settings.usage_minutes_days, settings.usage_hours_days)

    async def watch_allowance() -> None:
        await services.allowance.watch(services.quota)

    return (
        services.stored_responses.run,
        services.nodes.run,
        services.round_trips.run,
        services.enrolled_keys.run,
        services.foreign_engines.run,
        services.registry.watch,
        services.verifier.watch,
        services.ledger.run,
        services.quota.run,
        services.call_feed.run,
        services.demand.run,
        services.autoscaler.run,
        watch_allowance,
        UsageMaintenance(database, SYSTEM_CLOCK, retention).run,
        services.idempotency_keys.run,
        AuditHeadRecorder(database, settings.audit_heads, settings.token_pepper, services.clock).run,
    )


async def keep_running(loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a background job; restart it after an unexpected failure, or if something that it awaited was cancelled."""
    task = asyncio.current_task()
    assert task is not None
    while True:
        try:
            await loop()
            return
        except (Exception, asyncio.CancelledError):
            if task.cancelling():
                raise
            log.exception("background job failed and is restarted", extra={"job": loop.__qualname__})
            metrics.INTERNAL_ERRORS.inc()
            await asyncio.sleep(RESTART_PAUSE_S)


def _allowance(settings: GatewaySettings, database: Database, ledger: UsageLedger) -> Allowance:
    return Allowance(
        database,
        SYSTEM_CLOCK,
        free_micro_neurons=settings.free_neurons_per_day * 1_000_000,
        micro_neurons_for=micro_neurons_for,
        flush=ledger.flush,
    )


def _quota(settings: GatewaySettings, ephemeral: Ephemeral, allowance: Allowance) -> Quota:
    return Quota(
        settings.redis_url,
        ephemeral,
        timeout_s=settings.quota_timeout_s,
        lease_s=settings.call_timeout_s + LEASE_MARGIN_S,
        budgets=allowance,
        pop=settings.pop,
        version=metadata.version("hearth"),
    )


def _nodes(settings: GatewaySettings, ephemeral: Ephemeral, geography: Geography) -> Nodes:
    return Nodes(
        ephemeral,
        identity=settings.service_identity(),
        sender=f"gateway@{socket.gethostname()}",
        tls=settings.tls_context(),
        geography=geography,
        limits=DeviceLimits(settings.failover.max_temperature_c, settings.failover.max_power_w),
        health=HealthPolicy(
            max_failures=settings.failover.eject_after_failures,
            max_failure_ratio=settings.failover.eject_failure_ratio,
            ejection_s=settings.failover.ejection_s,
            slow_start_s=settings.failover.slow_start_s,
        ),
    )


def _batches(settings: GatewaySettings, database: Database, ephemeral: Ephemeral, clock: Clock) -> Batches:
    sealer = Sealer(settings.cache_secret, "batches")
    return Batches(database, ephemeral, sealer, clock, settings.batches.max_waiting)


def _idempotency_keys(settings: GatewaySettings, database: Database, clock: Clock) -> IdempotencyKeys:
    return IdempotencyKeys(
        database, settings.cache_secret, clock, lease_s=settings.batches.lease_s, ttl_s=settings.idempotency_ttl_s
    )


def _finetunes(settings: GatewaySettings, database: Database, registry: Registry, clock: Clock) -> Finetunes:
    limits = catalog_finetunes.Limits(
        settings.finetune_max_rank,
        settings.finetune_max_bytes,
        settings.finetunes_per_account,
        settings.finetunes_need_approval,
    )
    return Finetunes(database, registry, settings.objects_url, limits, clock)


def _documents(settings: GatewaySettings) -> Documents:
    limits = DocumentLimits(settings.document_timeout_s, settings.document_memory_bytes)
    return Documents(Converter(limits), settings.document_max_bytes, settings.document_processes)


def _cache_identity(cache_secret: bytes) -> Callable[[str], tuple[bytes, int]]:
    """Return a cached function from account id to (cache namespace, fairness number)."""

    @lru_cache(maxsize=65536)
    def identity(account_id: str) -> tuple[bytes, int]:
        return cache_namespace(cache_secret, account_id), fairness_id(cache_secret, account_id)

    return identity


def _browser_sessions(
    settings: GatewaySettings, ephemeral: Ephemeral, verifier: TokenVerifier, clock: Clock
) -> BrowserSessions:
    redirect_url = settings.sign_in.redirect_url
    sessions = WebSessions(ephemeral, settings.cache_secret, clock)
    return BrowserSessions(sessions, verifier, origin_of(redirect_url) if redirect_url else "")


def _operators(
    settings: GatewaySettings, sessions: BrowserSessions, database: Database, clock: Clock
) -> Operators | None:
    """Return the operators' sign-in, imported only if an OpenID provider is configured."""
    if not settings.sign_in.issuer:
        return None
    from gateway.management.operators import Operators

    return Operators(settings.sign_in, settings.cache_secret, sessions, database, clock)
