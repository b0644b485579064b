"""telemetry/process_settings.py: gateways and nodes say the same of what both are told."""

from pathlib import Path

import pytest

from engine.node.settings import NodeSettings
from gateway.settings import GatewaySettings
from telemetry.process_settings import check_service_files, check_tls_files
from telemetry.settings import SettingError, describe, read_given


def test_a_variable_that_both_read_is_of_one_kind_with_one_default():
    gateway, node = ({info.env: info for info in describe(cls)} for cls in (GatewaySettings, NodeSettings))
    both = gateway.keys() & node.keys()
    assert len(both) > 8
    for env in both - {"HEARTH_CLUSTER_SECRET"}:  # a node may have its PoP's key in its stead
        assert (gateway[env].kind, gateway[env].default) == (node[env].kind, node[env].default), env
        assert gateway[env].help == node[env].help or env == "OBJECTS_URL"


def test_a_place_that_no_node_could_have_is_refused_by_gateways_too():
    for cls in (GatewaySettings, NodeSettings):
        with pytest.raises(SettingError, match="HEARTH_POP='a b': must be 1 to 64"):
            read_given(cls, {"HEARTH_POP": "a b"})


def test_files_that_belong_together_are_there_together(tmp_path: Path):
    cert, missing = tmp_path / "cert.pem", tmp_path / "missing.pem"
    cert.touch()
    check_tls_files("X", None, None, None)
    check_tls_files("X", cert, cert, cert)
    with pytest.raises(SettingError, match="X_CERT, X_KEY and X_CA are set together"):
        check_tls_files("X", cert, cert, None)
    with pytest.raises(SettingError, match=f"X_CA='{missing}': not a file"):
        check_tls_files("X", cert, cert, missing)
    with pytest.raises(SettingError, match="together"):
        check_service_files(cert, None)
