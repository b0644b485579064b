"""Settings of autoscaling: mode, period, and the constants of the plan."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.scaling.inputs import Policy
from telemetry.settings import at_least, one_of, setting


def _is_utilization(value: float) -> str | None:
    return None if 0.1 <= value <= 1.0 else "must be between 0.1 and 1"


@dataclass(frozen=True)
class ScalingSettings:
    """Autoscaling of replicas."""

    mode: str = setting(
        "HEARTH_SCALING",
        "Autoscaling: on, or off. With on, one gateway at a time loads and unloads replicas by demand. With off, nodes "
        "keep what they have, and `hearth scale plan` prints what would change.",
        default="off",
        check=one_of("on", "off"),
    )
    interval_s: float = setting(
        "HEARTH_SCALING_INTERVAL_S", "Seconds between two scaling plans.", default=10.0, check=at_least(1)
    )
    target_utilization: float = setting(
        "HEARTH_SCALING_TARGET",
        "Part of a replica's speed, in tokens per second, for which a replica is planned.",
        default=0.7,
        check=_is_utilization,
    )
    down_delay_s: float = setting(
        "HEARTH_SCALING_DOWN_DELAY_S",
        "Seconds for which demand must stay lower before replicas are unloaded.",
        default=300.0,
        check=at_least(0),
    )
    idle_s: float = setting(
        "HEARTH_SCALING_IDLE_S",
        "Seconds without a call after which all replicas of a model are unloaded, unless an override keeps some.",
        default=900.0,
        check=at_least(1),
    )
    replica_tokens_per_s: float = setting(
        "HEARTH_SCALING_REPLICA_SPEED",
        "Tokens per second of a replica, assumed until the speed of a replica of the model has been measured.",
        default=500.0,
        check=at_least(1),
    )

    @property
    def policy(self) -> Policy:
        return Policy(target_utilization=self.target_utilization, down_delay_s=self.down_delay_s, idle_s=self.idle_s)
