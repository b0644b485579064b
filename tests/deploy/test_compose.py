"""docker-compose.yml: validated by Docker if installed, and by structure everywhere."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from local_platform.process_settings import ProcessName, settings_class
from telemetry.settings import describe, read_settings

ROOT = Path(__file__).parent.parent.parent
COMPOSE = ROOT / "docker-compose.yml"
KEY = {name: f"{index:064x}" for index, name in enumerate(("PEPPER", "CACHE"), 1)}
ENV = {
    "HEARTH_TOKEN_PEPPER": KEY["PEPPER"],
    "HEARTH_CACHE_SECRET": KEY["CACHE"],
    "POSTGRES_PASSWORD": "p",
    "S3_ACCESS_KEY": "a",
    "S3_SECRET_KEY": "s",
    "GRAFANA_PASSWORD": "g",
}
GATEWAYS = ("gateway-lis", "gateway-fra")
NODES = ("node-lis", "node-fra")


def filled(value: Any) -> str:
    """Return a value of the file with variables replaced from ENV, as Docker does."""

    def fill(match: re.Match[str]) -> str:
        name, separator, default = match[1].partition(":")
        if name in ENV:
            return ENV[name]
        assert separator, f"{name} has no default"
        assert default.startswith("-"), f"{name} must be given and deploy/make_env.sh does not make it"
        return default[1:]

    return re.sub(r"\$\{([^}]+)\}", fill, str(value))


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return yaml.safe_load(COMPOSE.read_text())["services"]


def environment(service: dict[str, Any]) -> dict[str, str]:
    return {name: filled(value) for name, value in service["environment"].items()}


def mounts_of(service: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return folder in the container -> its volume, and `ro` or `rw`."""
    parts = (str(volume).split(":") for volume in service.get("volumes", ()))
    return {target: (volume, mode[0] if mode else "rw") for volume, target, *mode in parts}


def test_docker_accepts_the_compose_file(tmp_path: Path):
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode != 0:
        pytest.skip("docker compose is not installed here; the structure is checked by the other tests")
    environ = {"PATH": "/usr/bin:/bin:/usr/local/bin", "HOME": str(tmp_path), **ENV}
    done = subprocess.run(
        [docker, "compose", "--file", str(COMPOSE), "config", "--quiet"], capture_output=True, text=True, env=environ
    )
    assert done.returncode == 0, done.stderr


def test_compose_file_has_every_service(services: dict[str, Any]):
    stores, displays = {"postgres", "redis", "objects"}, {"prometheus", "grafana"}
    assert set(services) == {*stores, "migrate", "keys", *GATEWAYS, *NODES, *displays}


def test_services_depend_only_on_existing_services_with_health_checks(services: dict[str, Any]):
    for service in services.values():
        for name, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[name]
            else:
                assert how["condition"] == "service_completed_successfully"
                assert services[name]["restart"] == "no"


@pytest.mark.parametrize("name", GATEWAYS)
def test_gateway_settings_of_the_compose_file_are_valid(services: dict[str, Any], name: str):
    settings = read_settings(settings_class(ProcessName.gateway), environment(services[name]))
    assert settings.pop == name.removeprefix("gateway-")
    assert settings.host == "0.0.0.0"
    assert settings.audit_heads is not None, "without noted heads nobody sees that the audit's end was cut off"


@pytest.mark.parametrize("name", NODES)
def test_node_settings_of_the_compose_file_are_valid(services: dict[str, Any], name: str):
    settings = read_settings(settings_class(ProcessName.node), environment(services[name]))
    assert settings.name.startswith(settings.pop)


@pytest.mark.parametrize("name", NODES)
def test_node_has_no_token_or_cache_secret_and_no_database_login(services: dict[str, Any], name: str):
    held = set(services[name]["environment"])
    assert not held & {"DATABASE_URL", "HEARTH_TOKEN_PEPPER", "HEARTH_CACHE_SECRET"}


def test_services_authenticate_with_their_own_keys_and_share_no_secret(services: dict[str, Any]):
    """Services mount the key ring and their own private key read-only. Only the service that creates keys can write
    them.
    """
    for name in services:
        assert not any("CLUSTER" in variable for variable in services[name].get("environment", {}))
    mounts = {name: mounts_of(service) for name, service in services.items()}
    for name in (*GATEWAYS, *NODES):
        own = f"{name}-key"
        given = environment(services[name])
        assert mounts[name][given["HEARTH_SERVICE_KEYS"]] == (own, "ro")
        assert mounts[name][str(Path(given["HEARTH_SERVICE_RING"]).parent)] == ("ring", "ro")
        holders = {service for service, held in mounts.items() if own in {volume for volume, _ in held.values()}}
        assert holders == {name, "keys"}
        assert services[name]["depends_on"]["keys"] == {"condition": "service_completed_successfully"}


def test_every_volume_is_declared_and_its_folder_exists_in_the_image(services: dict[str, Any]):
    """A volume inherits its owner from the image's folder. Without such a folder, root would own it."""
    declared = set(yaml.safe_load(COMPOSE.read_text())["volumes"])
    used = {name: mounts_of(service) for name, service in services.items()}
    mounted = {volume for held in used.values() for volume, _ in held.values()}
    assert {volume for volume in mounted if not volume.startswith("./")} == declared
    assert all((ROOT / volume).exists() for volume in mounted if volume.startswith("./"))
    for name in ("keys", *GATEWAYS, *NODES):
        text = (ROOT / services[name]["build"]["dockerfile"]).read_text()
        for target in used[name]:
            assert re.search(rf"\b{target.removeprefix('/var/lib/')}\b", text), target


def test_every_hearth_variable_of_the_compose_file_is_a_setting(services: dict[str, Any]):
    known = {info.env for process in ProcessName for info in describe(settings_class(process))}
    for name in (*GATEWAYS, *NODES):
        given = {env for env in services[name]["environment"] if env.startswith("HEARTH_")}
        assert given <= known


def test_only_gateways_and_grafana_are_published_and_only_on_loopback(services: dict[str, Any]):
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert list(published) == [*GATEWAYS, "grafana"]
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    assert len({filled(port).split(":")[1] for ports in published.values() for port in ports}) == 3


def test_prometheus_scrapes_every_gateway_and_node(services: dict[str, Any]):
    config = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())
    targets = [
        (target, static["labels"]["pop"])
        for job in config["scrape_configs"]
        for static in job["static_configs"]
        for target in static["targets"]
    ]
    expected = []
    for name in (*GATEWAYS, *NODES):
        given = environment(services[name])
        port = (given.get("HEARTH_METRICS_LISTEN") or given["HEARTH_NODE_HTTP"]).rpartition(":")[2]
        expected.append((f"{name}:{port}", given["HEARTH_POP"]))
    assert targets == expected


def test_dockerfiles_of_built_images_copy_only_existing_files(services: dict[str, Any]):
    for name in ("migrate", "keys", *GATEWAYS, *NODES):
        text = (ROOT / services[name]["build"]["dockerfile"]).read_text()
        assert "USER hearth" in text
        assert "requirements.lock" in text
    assert "torch" not in re.sub(r"#.*", "", (ROOT / "deploy/gateway.Dockerfile").read_text())


def test_make_env_creates_private_secrets_once(tmp_path: Path):
    (tmp_path / "deploy").mkdir()
    script = shutil.copy(ROOT / "deploy/make_env.sh", tmp_path / "deploy/make_env.sh")
    assert subprocess.run(["sh", script], capture_output=True).returncode == 0
    made = dict(line.split("=", 1) for line in (tmp_path / ".env").read_text().splitlines())
    assert set(made) == set(ENV)
    assert len({made[key] for key in made if key.startswith("HEARTH_")}) == 2
    assert (tmp_path / ".env").stat().st_mode & 0o077 == 0
    assert subprocess.run(["sh", script], capture_output=True).returncode == 1
    assert dict(line.split("=", 1) for line in (tmp_path / ".env").read_text().splitlines()) == made
