"""Every metric of the platform, in one table; documented in docs/metrics.md (a test compares the two).

A process exports what it touches. Labels stay few and bounded: a model id, a task, a status class; never an account,
a token or a request id.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics import MetricWrapperBase

REGISTRY = CollectorRegistry(auto_describe=True)

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


def _counter(name: str, help: str, labels: tuple[str, ...] = ()) -> Counter:
    return Counter(name, help, labels, registry=REGISTRY)


def _gauge(name: str, help: str, labels: tuple[str, ...] = ()) -> Gauge:
    return Gauge(name, help, labels, registry=REGISTRY)


def _histogram(name: str, help: str, labels: tuple[str, ...] = ()) -> Histogram:
    return Histogram(name, help, labels, registry=REGISTRY, buckets=_SECONDS)


# gateway
REQUESTS = _counter("hearth_requests", "HTTP requests answered", ("route", "status"))
CALLS = _counter("hearth_calls", "Inference calls ended", ("model", "outcome"))
CALLS_IN_FLIGHT = _gauge("hearth_calls_in_flight", "Inference calls being served by this gateway")
CALL_SECONDS = _histogram("hearth_call_seconds", "Whole duration of an inference call", ("model",))
TTFT_SECONDS = _histogram("hearth_ttft_seconds", "Time from request to first output of a call", ("model",))
PROMPT_TOKENS = _counter("hearth_prompt_tokens", "Prompt tokens of ended calls", ("model",))
CACHED_TOKENS = _counter("hearth_cached_tokens", "Prompt tokens served from the prefix cache", ("model",))
COMPLETION_TOKENS = _counter("hearth_completion_tokens", "Completion tokens of ended calls", ("model",))
DISPATCH_RETRIES = _counter("hearth_dispatch_retries", "Calls given to another node before their first event")
HOT_REPLICAS = _gauge("hearth_hot_replicas", "Hot replicas on nodes that this gateway can reach", ("model",))
NODES_ALIVE = _gauge("hearth_nodes_alive", "Nodes that this gateway can reach")
CLOCK_AHEAD = _gauge("hearth_clock_ahead_seconds", "How far this gateway's wall clock is ahead of Redis's")
BATCH_CALLS = _gauge("hearth_batch_calls", "Calls of queued batches that this gateway is running")
BATCH_ANSWERS = _counter("hearth_batch_answers", "Requests of queued batches answered for good", ("model", "outcome"))
WEBHOOKS = _counter("hearth_webhooks", "Times that a background run's answers were sent, or could not be", ("outcome",))
REPLAYS = _counter("hearth_idempotent_replays", "Requests answered again from what was kept under their key")
USAGE_SPOOLED = _counter("hearth_usage_spooled", "Usage entries made durable in the spool")
USAGE_LEDGERED = _counter("hearth_usage_ledgered", "Usage entries written to the ledger")
USAGE_BACKLOG = _gauge("hearth_usage_backlog", "Usage entries in the spool and not yet in the ledger")
BUDGET_ALERTS = _counter("hearth_budget_alerts", "Times that a share of a monthly budget was passed")
INTERNAL_ERRORS = _counter("hearth_internal_errors", "Requests answered 500: each one is a defect")
QUOTA_LOCAL = _counter("hearth_quota_local", "Calls let in by this gateway's own share of limits, Redis being away")
GATEWAYS = _gauge("hearth_gateways", "Gateways alive, this one included: limits are shared among so many without Redis")

# node
NODE_CALLS = _gauge("hearth_node_calls", "Calls being executed by this node")
REPLICA_RUNNING = _gauge("hearth_replica_running", "Running sequences", ("model",))
REPLICA_WAITING = _gauge("hearth_replica_waiting", "Waiting sequences", ("model",))
REPLICA_BLOCKS = _gauge("hearth_replica_blocks", "KV blocks by state (free, cached, held)", ("model", "state"))
REPLICA_COMPUTED_TOKENS = _gauge("hearth_replica_computed_tokens", "Tokens given to the forward pass", ("model",))
REPLICA_STEPS = _gauge("hearth_replica_steps", "Engine steps run", ("model",))
REPLICA_BUSY = _gauge("hearth_replica_busy_seconds", "Time that the model's devices worked", ("model",))
REPLICA_RANKS = _gauge("hearth_replica_ranks", "Rank processes that share the model", ("model",))
REPLICA_PREEMPTIONS = _gauge("hearth_replica_preemptions", "Sequences preempted", ("model",))
RANK_RESTARTS = _counter("hearth_rank_restarts", "Rank processes restarted after a crash", ("model",))
CALLS_BLOCKED = _counter("hearth_calls_blocked", "Calls refused because their input ended processes", ("model",))
MODEL_FAILURES = _counter("hearth_model_failures", "Times a model could not be made hot", ("reason",))
MODEL_LOAD_SECONDS = _histogram("hearth_model_load_seconds", "Time to make a replica hot", ("model",))


class Tally:
    """A counter that counts with every call: a plain number, of one thread, until the metrics are asked for. Telling a
    counter takes a lock and several checks each time."""

    __slots__ = ("_counter", "_untold")

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._untold = 0
        _TALLIES.append(self)

    def add(self, amount: int = 1) -> None:
        self._untold += amount

    def tell(self) -> None:
        untold, self._untold = self._untold, 0
        if untold:
            self._counter.inc(untold)


_TALLIES: list[Tally] = []


def render() -> bytes:
    """This process's metrics in the Prometheus text format."""
    for tally in _TALLIES:
        tally.tell()
    return generate_latest(REGISTRY)


def all_metrics() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Name -> (help, labels) of every metric in this module."""
    table = {}
    for value in list(globals().values()):
        if isinstance(value, MetricWrapperBase):
            table[value._name] = (value._documentation, tuple(value._labelnames))
    return table
