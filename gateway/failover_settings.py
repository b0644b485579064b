"""Settings of failover: retries, hedged calls, ejection and slow start of nodes, and limits of devices."""

from __future__ import annotations

from dataclasses import dataclass

from telemetry.settings import at_least, setting


def _is_share(value: float) -> str | None:
    return None if 0 <= value <= 1 else "must be between 0 and 1"


@dataclass(frozen=True)
class FailoverSettings:
    """When a call is sent to a second node, and when a node gets no calls."""

    retry_budget: float = setting(
        "HEARTH_RETRY_BUDGET",
        "Retries and hedges on other nodes, as a share of all calls. Above it, and above HEARTH_RETRY_BURST, a failed "
        "call is not retried.",
        default=0.1,
        check=_is_share,
    )
    retry_burst: int = setting(
        "HEARTH_RETRY_BURST",
        "Retries that are allowed at once in addition to the budget, as when a node with many calls is lost.",
        default=200,
        check=at_least(1),
    )
    hedge_after_s: float = setting(
        "HEARTH_HEDGE_AFTER_S",
        "Least seconds without an event after which a short call is also sent to a second node. The call waits longer "
        "if twice the usual time to the first event (95th percentile of the model) is more. 0 disables hedging.",
        default=1.0,
        check=at_least(0),
    )
    hedge_budget: float = setting(
        "HEARTH_HEDGE_BUDGET", "Hedged calls, as a share of all calls.", default=0.02, check=_is_share
    )
    hedge_max_bytes: int = setting(
        "HEARTH_HEDGE_MAX_BYTES",
        "Largest request body of a call that may be hedged, in bytes.",
        default=8192,
        check=at_least(0),
    )
    eject_after_failures: int = setting(
        "HEARTH_EJECT_AFTER_FAILURES",
        "Consecutive failed calls after which a gateway sends no calls to a node for a while.",
        default=3,
        check=at_least(1),
    )
    eject_failure_ratio: float = setting(
        "HEARTH_EJECT_FAILURE_RATIO",
        "Share of failed calls within ten seconds, of at least 20, above which a gateway sends no calls to a node for "
        "a while.",
        default=0.5,
        check=_is_share,
    )
    ejection_s: float = setting(
        "HEARTH_EJECTION_S",
        "Seconds for which a failing node gets no calls. Doubles each time, up to one minute.",
        default=5.0,
        check=at_least(0.1),
    )
    slow_start_s: float = setting(
        "HEARTH_SLOW_START_S",
        "Seconds in which the share of calls of a new, restarted or returning node grows to its full size. 0 disables "
        "slow start.",
        default=10.0,
        check=at_least(0),
    )
    max_temperature_c: float = setting(
        "HEARTH_NODE_MAX_TEMPERATURE_C",
        "Device temperature in degrees Celsius above which calls go to other nodes, if there are any. 0: no limit.",
        default=92.0,
        check=at_least(0),
    )
    max_power_w: float = setting(
        "HEARTH_NODE_MAX_POWER_W",
        "Power in watts of all devices of a node above which calls go to other nodes, if there are any. 0: no limit.",
        default=0.0,
        check=at_least(0),
    )
