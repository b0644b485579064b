"""Every metric of the platform; docs/metrics.md is generated from this module.

A process exports the metrics that it uses. Label values are few and bounded (a model id, a task, a status class): never
an account, an API token or a request id.
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
REQUESTS = _counter("hearth_requests", "HTTP responses sent, by route and status class.", ("route", "status"))
CALLS = _counter("hearth_calls", "Finished inference calls, by model and outcome.", ("model", "outcome"))
CALLS_IN_FLIGHT = _gauge("hearth_calls_in_flight", "Inference calls that this gateway is running.")
WEB_SOCKETS = _gauge("hearth_web_sockets", "Open WebSockets of this gateway.")
CALL_SECONDS = _histogram("hearth_call_seconds", "Total duration of inference calls, by model.", ("model",))
TTFT_SECONDS = _histogram("hearth_ttft_seconds", "Time to first token, by model.", ("model",))
PROMPT_TOKENS = _counter("hearth_prompt_tokens", "Prompt tokens of finished calls, by model.", ("model",))
CACHED_TOKENS = _counter("hearth_cached_tokens", "Prompt tokens served from the prefix cache, by model.", ("model",))
COMPLETION_TOKENS = _counter("hearth_completion_tokens", "Completion tokens of finished calls, by model.", ("model",))
DISPATCH_RETRIES = _counter("hearth_dispatch_retries", "Calls retried on another node before their first event.")
RETRIES_DENIED = _counter("hearth_retries_denied", "Failed calls not retried because the retry budget was used up.")
HEDGES = _counter("hearth_hedges", "Calls also sent to a second node, by the node that was first.", ("first",))
EJECTIONS = _counter("hearth_node_ejections", "Times that this gateway stopped sending calls to a failing node.")
NODES_EJECTED = _gauge("hearth_nodes_ejected", "Nodes that get no calls from this gateway because calls failed.")
READY_REPLICAS = _gauge("hearth_ready_replicas", "Ready replicas on reachable nodes, by model.", ("model",))
WANTED_REPLICAS = _gauge("hearth_wanted_replicas", "Replicas that the scaling plan wants, by model.", ("model",))
SCALING_CHANGES = _counter(
    "hearth_scaling_changes", "Changes of replicas asked of nodes by autoscaling, by action and outcome.",
    ("action", "outcome"),
)  # fmt: skip
NODES_ALIVE = _gauge("hearth_nodes_alive", "Nodes that this gateway is connected to.")
CLOCK_AHEAD = _gauge("hearth_clock_ahead_seconds", "Seconds by which this gateway's clock is ahead of the Redis clock.")
BATCH_CALLS = _gauge("hearth_batch_calls", "Calls of queued batches that this gateway is running.")
BATCH_RESPONSES = _counter(
    "hearth_batch_responses", "Finished requests of queued batches, by model and outcome.", ("model", "outcome")
)
WEBHOOKS = _counter("hearth_webhooks", "Webhook delivery attempts, by outcome.", ("outcome",))
REPLAYS = _counter("hearth_idempotent_replays", "Stored responses returned for a repeated idempotency key.")
USAGE_SPOOLED = _counter("hearth_usage_spooled", "Usage entries written to the local spool.")
USAGE_WRITTEN = _counter("hearth_usage_written", "Usage entries written to the database.")
USAGE_BACKLOG = _gauge("hearth_usage_backlog", "Usage entries in the spool that are not in the database yet.")
BUDGET_ALERTS = _counter("hearth_budget_alerts", "Budget alerts raised.")
INTERNAL_ERRORS = _counter("hearth_internal_errors", "Responses with status 500. Each one is a bug.")
LOCAL_QUOTA_CALLS = _counter(
    "hearth_local_quota_calls", "Calls admitted by this gateway's own share of the limits while Redis was unavailable."
)
GATEWAYS = _gauge("hearth_gateways", "Running gateways, including this one; they share limits if Redis is unavailable.")

# node
NODE_CALLS = _gauge("hearth_node_calls", "Calls that this node is running.")
REPLICA_RUNNING = _gauge("hearth_replica_running", "Running sequences, by model.", ("model",))
REPLICA_WAITING = _gauge("hearth_replica_waiting", "Waiting sequences, by model.", ("model",))
REPLICA_BLOCKS = _gauge("hearth_replica_blocks", "KV blocks, by model and state.", ("model", "state"))
REPLICA_COMPUTED_TOKENS = _gauge(
    "hearth_replica_computed_tokens", "Tokens processed by the forward pass, by model.", ("model",)
)
REPLICA_STEPS = _gauge("hearth_replica_steps", "Engine steps run, by model.", ("model",))
REPLICA_BUSY = _gauge("hearth_replica_busy_seconds", "Seconds of device time used, by model.", ("model",))
REPLICA_RANKS = _gauge("hearth_replica_ranks", "Rank processes of the replica, by model.", ("model",))
REPLICA_PREEMPTIONS = _gauge("hearth_replica_preemptions", "Preempted sequences, by model.", ("model",))
RANK_RESTARTS = _counter("hearth_rank_restarts", "Rank processes restarted after a crash, by model.", ("model",))
CALLS_BLOCKED = _counter("hearth_calls_blocked", "Calls rejected because of a quarantined input, by model.", ("model",))
WEIGHTS_FETCHED = _counter(
    "hearth_weights_fetched_bytes", "Bytes of weights downloaded, by source: peer or store.", ("source",)
)
REPLICA_EVICTIONS = _counter("hearth_replica_evictions", "Models evicted from memory for others, by model.", ("model",))
MODEL_SLEEPS = _counter("hearth_model_sleeps", "Models put to sleep for others, by model.", ("model",))
MODEL_WAKE_SECONDS = _histogram("hearth_model_wake_seconds", "Time to wake a sleeping model, by model.", ("model",))
MODEL_FAILURES = _counter("hearth_model_failures", "Failed model loads, by reason.", ("reason",))
MODEL_LOAD_SECONDS = _histogram("hearth_model_load_seconds", "Time to load a model, by model.", ("model",))


class BufferedCounter:
    """A counter for hot paths, used by one thread: adds to a plain integer, which is exported when metrics are
    rendered. A prometheus_client counter takes a lock on every increment."""

    __slots__ = ("_counter", "_pending")

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._pending = 0
        _BUFFERED_COUNTERS.append(self)

    def add(self, amount: int = 1) -> None:
        self._pending += amount

    def flush(self) -> None:
        pending, self._pending = self._pending, 0
        if pending:
            self._counter.inc(pending)


_BUFFERED_COUNTERS: list[BufferedCounter] = []


def render() -> bytes:
    """Return this process's metrics in the Prometheus text format."""
    flush()
    return render_flushed()


def flush() -> None:
    """Export the buffered counters. Must be called by the thread that uses them."""
    for counter in _BUFFERED_COUNTERS:
        counter.flush()


def render_flushed() -> bytes:
    """Return the metrics without flushing the buffered counters first. May be called by any thread."""
    return generate_latest(REGISTRY)


def all_metrics() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the help text and label names of every metric in this module, by metric name."""
    table = {}
    for value in list(globals().values()):
        if isinstance(value, MetricWrapperBase):
            table[value._name] = (value._documentation, tuple(value._labelnames))
    return table
