"""The environment of model processes."""

from engine.__main__ import environ_of_children
from engine.node.settings import NodeSettings
from gateway.settings import GatewaySettings
from telemetry.settings import describe


def test_model_processes_get_no_secrets_from_the_environment():
    declared = [info for settings in (GatewaySettings, NodeSettings) for info in describe(settings)]
    secrets = {info.env for info in declared if info.is_secret}
    stores = {"DATABASE_URL", "REDIS_URL", "OBJECTS_URL"}
    assert len(secrets) > 2
    given = dict.fromkeys({*secrets, *stores, "PATH", "HEARTH_NODE_THREADS"}, "x")
    assert environ_of_children(given) == {"PATH": "x", "HEARTH_NODE_THREADS": "x"}
