"""engine/__main__.py: what the processes of models are given of a node's environment."""

from engine.__main__ import environ_of_children
from engine.node.settings import NodeSettings
from gateway.settings import GatewaySettings
from telemetry.settings import describe


def test_no_secret_that_one_file_of_variables_may_hold_reaches_the_processes_of_models():
    declared = [info for settings in (GatewaySettings, NodeSettings) for info in describe(settings)]
    secrets = {info.env for info in declared if info.is_secret}
    stores = {"DATABASE_URL", "REDIS_URL", "OBJECTS_URL"}
    assert len(secrets) > 2
    given = dict.fromkeys({*secrets, *stores, "PATH", "HEARTH_NODE_THREADS"}, "x")
    assert environ_of_children(given) == {"PATH": "x", "HEARTH_NODE_THREADS": "x"}
