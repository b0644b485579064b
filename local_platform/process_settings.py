"""The settings classes of the platform's processes, by process name."""

from __future__ import annotations

from enum import StrEnum


class ProcessName(StrEnum):
    """A kind of process that reads settings from environment variables."""

    gateway = "gateway"
    node = "node"


def settings_class(process: ProcessName) -> type:
    """Return the dataclass that declares the settings of a process."""
    if process is ProcessName.gateway:
        from gateway.settings import GatewaySettings

        return GatewaySettings
    from engine.node.settings import NodeSettings

    return NodeSettings
