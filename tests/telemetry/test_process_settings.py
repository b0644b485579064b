"""telemetry/process_settings.py: settings that gateways and nodes have in common."""

from pathlib import Path

import pytest

from engine.node.settings import NodeSettings
from gateway.settings import GatewaySettings
from telemetry.process_settings import ProcessSettings
from telemetry.settings import SettingError, describe, parse_environment, read_settings


def test_settings_of_gateways_and_nodes_have_the_same_type_and_default():
    gateway, node = ({info.env: info for info in describe(cls)} for cls in (GatewaySettings, NodeSettings))
    both = gateway.keys() & node.keys()
    assert len(both) > 8
    for env in both:
        assert (gateway[env].kind, gateway[env].default) == (node[env].kind, node[env].default), env
        assert gateway[env].help == node[env].help or env == "OBJECTS_URL"


def test_gateways_and_nodes_reject_the_same_pop_names():
    for cls in (GatewaySettings, NodeSettings):
        with pytest.raises(SettingError, match="HEARTH_POP='a b': must be 1 to 64"):
            parse_environment(cls, {"HEARTH_POP": "a b"})


def test_tls_files_must_be_set_together_and_exist(tmp_path: Path):
    cert, missing = str(tmp_path / "cert.pem"), str(tmp_path / "missing.pem")
    Path(cert).touch()
    required = {"REDIS_URL": "unix:///redis", "HEARTH_SERVICE_RING": "/ring", "HEARTH_SERVICE_KEYS": "/keys"}
    files = {"HEARTH_TLS_CERT": cert, "HEARTH_TLS_KEY": cert, "HEARTH_TLS_CA": cert}
    read_settings(ProcessSettings, required)
    read_settings(ProcessSettings, required | files)
    with pytest.raises(SettingError, match="HEARTH_TLS_CERT, HEARTH_TLS_KEY, HEARTH_TLS_CA must be set together"):
        read_settings(ProcessSettings, required | files | {"HEARTH_TLS_CA": ""})
    with pytest.raises(SettingError, match=f"HEARTH_TLS_CA must be a file .got '{missing}'"):
        read_settings(ProcessSettings, required | files | {"HEARTH_TLS_CA": missing})
