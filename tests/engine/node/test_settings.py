"""Node settings: invalid values are rejected with one line that names the setting; addresses are parsed exactly."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.node.settings import NodeSettings, parse_models
from engine.serving.addresses import Address, parse_address, parse_http_address
from telemetry.settings import SettingError, read_settings

REQUIRED = {
    "REDIS_URL": "unix:///run/redis.sock",
    "HEARTH_SERVICE_RING": "/run/ring.json",
    "HEARTH_SERVICE_KEYS": "/run/keys",
    "HEARTH_NODE_LISTEN": "unix:///run/node.sock",
}


def test_defaults_are_a_node_with_the_built_in_models() -> None:
    settings = read_settings(NodeSettings, REQUIRED)
    assert parse_models(settings.models) == ("@cf/hearth/spark", "@cf/hearth/minilm")
    assert parse_http_address(settings.http).is_local
    assert settings.name
    assert parse_models("none") == ()


@pytest.mark.parametrize("missing", REQUIRED)
def test_missing_required_setting_is_named(missing: str) -> None:
    with pytest.raises(SettingError, match=missing):
        read_settings(NodeSettings, {key: value for key, value in REQUIRED.items() if key != missing})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("REDIS_URL", "http://x"),
        ("HEARTH_NODE_LISTEN", "/run/node.sock"),
        ("HEARTH_NODE_LISTEN", "unix://relative"),
        ("HEARTH_NODE_LISTEN", "unix:///" + "x" * 200),
        ("HEARTH_NODE_LISTEN", "tcp://host"),
        ("HEARTH_NODE_LISTEN", "tcp://host:99999"),
        ("HEARTH_NODE_ADVERTISE", "host:1"),
        ("HEARTH_NODE_HTTP", "8788"),
        ("HEARTH_NODE_ID", "two words"),
        ("HEARTH_POP", "a/b"),
        ("HEARTH_NODE_MODELS", "spark"),
        ("HEARTH_NODE_MODELS", "@cf/hearth/spark,,"),
        ("HEARTH_NODE_MAX_REPLICAS", "0"),
        ("HEARTH_NODE_MAX_REPLICAS", "many"),
        ("HEARTH_NODE_CACHE_BYTES", "-1"),
        ("HEARTH_NODE_DTYPE", "float16"),
        ("HEARTH_NODE_DEVICE", "abacus"),
        ("HEARTH_NODE_KV_BYTES", "0"),
        ("HEARTH_NODE_KV_BYTES", "1GiB"),
        ("HEARTH_NODE_KV_BYTES", "9" * 30),
        ("HEARTH_NODE_MAX_SEQUENCES", "-1"),
        ("HEARTH_NODE_COALESCE_MS", "-1"),
        ("HEARTH_NODE_COALESCE_MS", "1001"),
        ("HEARTH_NODE_ATTENTION", "fastest"),
        ("HEARTH_NODE_ATTENTION", "flashinfer"),
        ("HEARTH_LOG_LEVEL", "loud"),
        ("OBJECTS_URL", "ftp://x"),
    ],
)
def test_invalid_value_is_named(key: str, value: str) -> None:
    with pytest.raises(SettingError, match=key) as caught:
        read_settings(NodeSettings, {**REQUIRED, key: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("device", "kv_bytes", "sequences"), [("cpu", 256 << 20, 64), ("cuda", 0, 256)])
def test_defaults_of_memory_and_sequences_depend_on_the_device(device: str, kv_bytes: int, sequences: int) -> None:
    settings = read_settings(NodeSettings, {**REQUIRED, "HEARTH_NODE_DEVICE": device})
    assert (settings.kv_memory_bytes, settings.max_sequences) == (kv_bytes, sequences)
    given = {"HEARTH_NODE_KV_BYTES": str(1 << 30), "HEARTH_NODE_MAX_SEQUENCES": "7"}
    settings = read_settings(NodeSettings, {**REQUIRED, "HEARTH_NODE_DEVICE": device, **given})
    assert (settings.kv_memory_bytes, settings.max_sequences) == (1 << 30, 7)


def test_missing_attention_package_is_named() -> None:
    with pytest.raises(SettingError, match="HEARTH_NODE_ATTENTION='flashinfer': needs the package flashinfer-python"):
        read_settings(NodeSettings, {**REQUIRED, "HEARTH_NODE_ATTENTION": "flashinfer"})


def test_tls_settings_must_be_complete(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="together"):
        read_settings(NodeSettings, {**REQUIRED, "HEARTH_TLS_CERT": str(tmp_path / "x")})
    keys = ("HEARTH_TLS_CERT", "HEARTH_TLS_KEY", "HEARTH_TLS_CA")
    with pytest.raises(SettingError, match="must be a file"):
        read_settings(NodeSettings, {**REQUIRED, **dict.fromkeys(keys, str(tmp_path / "missing.pem"))})


@pytest.mark.parametrize(
    ("text", "address", "is_local"),
    [
        ("unix:///run/n.sock", Address(path=Path("/run/n.sock")), True),
        ("tcp://127.0.0.1:80", Address(host="127.0.0.1", port=80), True),
        ("tcp://localhost:80", Address(host="localhost", port=80), True),
        ("tcp://[::1]:80", Address(host="::1", port=80), True),
        ("tcp://0.0.0.0:80", Address(host="0.0.0.0", port=80), False),
        ("tcp://node-1.example:80", Address(host="node-1.example", port=80), False),
    ],
)
def test_addresses_are_read_and_written_alike(text: str, address: Address, is_local: bool) -> None:
    assert parse_address(text) == address
    assert str(address) == text
    assert address.is_local is is_local


def test_http_address_may_omit_its_scheme() -> None:
    expected = Address(host="127.0.0.1", port=8788)
    assert parse_http_address("127.0.0.1:8788") == parse_http_address("http://127.0.0.1:8788") == expected
