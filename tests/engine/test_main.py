"""engine/__main__.py: what the processes of models are given of a node's environment."""

from dataclasses import fields

from engine.__main__ import environ_of_children
from engine.node.settings import NodeSettings
from gateway.settings import GatewaySettings


def test_no_secret_that_one_file_of_variables_may_hold_reaches_the_processes_of_models():
    declared = [field.metadata for settings in (GatewaySettings, NodeSettings) for field in fields(settings)]
    secrets = {each["env"] for each in declared if each["secret"]}
    stores = {"DATABASE_URL", "REDIS_URL", "OBJECTS_URL"}
    assert len(secrets) > 3
    given = dict.fromkeys({*secrets, *stores, "PATH", "HEARTH_NODE_THREADS"}, "x")
    assert environ_of_children(given) == {"PATH": "x", "HEARTH_NODE_THREADS": "x"}
