"""docker-compose.yml describes a deployment that can work: asked of docker where it is, of its structure everywhere."""

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
}


def filled(value: Any) -> str:
    """A value of the file as docker would fill it from ENV."""

    def fill(match: re.Match[str]) -> str:
        name, separator, rest = match[1].partition(":")
        if name in ENV:
            return ENV[name]
        assert separator, f"{name} has no default"
        assert rest.startswith("-"), f"{name} must be given and deploy/make_env.sh does not make it"
        return rest[1:]

    return re.sub(r"\$\{([^}]+)\}", fill, str(value))


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return yaml.safe_load(COMPOSE.read_text())["services"]


def environment(service: dict[str, Any]) -> dict[str, str]:
    return {name: filled(value) for name, value in service["environment"].items()}


def mounts_of(service: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Folder in the container -> its volume, and `ro` or `rw`."""
    parts = (str(volume).split(":") for volume in service.get("volumes", ()))
    return {target: (volume, mode[0] if mode else "rw") for volume, target, *mode in parts}


def test_docker_itself_accepts_the_file(tmp_path: Path):
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode != 0:
        pytest.skip("docker compose is not installed here; the structure is checked by the other tests")
    environ = {"PATH": "/usr/bin:/bin:/usr/local/bin", "HOME": str(tmp_path), **ENV}
    done = subprocess.run(
        [docker, "compose", "--file", str(COMPOSE), "config", "--quiet"], capture_output=True, text=True, env=environ
    )
    assert done.returncode == 0, done.stderr


def test_every_part_of_a_deployment_is_there(services: dict[str, Any]):
    assert set(services) == {"postgres", "redis", "objects", "migrate", "keys", "gateway", "node"}


def test_services_wait_only_for_services_that_exist_and_can_say_that_they_are_ready(services: dict[str, Any]):
    for service in services.values():
        for name, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[name]
            else:
                assert how["condition"] == "service_completed_successfully"
                assert services[name]["restart"] == "no"


def test_the_gateway_starts_with_what_the_file_gives_it(services: dict[str, Any]):
    settings = read_settings(settings_class(ProcessName.gateway), environment(services["gateway"]))
    assert settings.host == "0.0.0.0"
    assert settings.audit_heads is not None, "without noted heads nobody sees that the audit's end was cut off"


def test_the_node_starts_with_what_the_file_gives_it(services: dict[str, Any]):
    read_settings(settings_class(ProcessName.node), environment(services["node"]))


def test_a_node_holds_no_key_of_tokens_or_caches_and_no_login_to_the_ledger(services: dict[str, Any]):
    held = set(services["node"]["environment"])
    assert not held & {"DATABASE_URL", "HEARTH_TOKEN_PEPPER", "HEARTH_CACHE_SECRET"}


def test_services_show_each_other_tokens_and_share_no_secret(services: dict[str, Any]):
    """Every process reads the ring and its own private key, and can change neither; the ring's maker alone writes."""
    for name in services:
        assert not any("CLUSTER" in variable for variable in services[name].get("environment", {}))
    mounts = {name: mounts_of(service) for name, service in services.items()}
    for name, own in (("gateway", "gateway-key"), ("node", "node-key")):
        given = environment(services[name])
        assert mounts[name][given["HEARTH_SERVICE_KEYS"]] == (own, "ro")
        assert mounts[name][str(Path(given["HEARTH_SERVICE_RING"]).parent)] == ("ring", "ro")
        holders = {service for service, held in mounts.items() if own in {volume for volume, _ in held.values()}}
        assert holders == {name, "keys"}
        assert services[name]["depends_on"]["keys"] == {"condition": "service_completed_successfully"}


def test_every_volume_is_declared_and_its_folder_is_in_the_image(services: dict[str, Any]):
    """A volume takes its owner from the folder it covers: without one it would be root's, and nothing could write."""
    declared = set(yaml.safe_load(COMPOSE.read_text())["volumes"])
    used = {name: mounts_of(service) for name, service in services.items()}
    assert {volume for held in used.values() for volume, _ in held.values()} == declared
    for name in ("keys", "gateway", "node"):
        text = (ROOT / services[name]["build"]["dockerfile"]).read_text()
        for target in used[name]:
            assert re.search(rf"\b{target.removeprefix('/var/lib/')}\b", text), target


def test_every_hearth_variable_of_the_file_is_a_setting(services: dict[str, Any]):
    known = {info.env for process in ProcessName for info in describe(settings_class(process))}
    for name in ("gateway", "node"):
        given = {env for env in services[name]["environment"] if env.startswith("HEARTH_")}
        assert given <= known


def test_only_the_gateway_is_published_and_only_on_loopback(services: dict[str, Any]):
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert list(published) == ["gateway"]
    assert all(port.startswith("127.0.0.1:") for port in published["gateway"])


def test_built_images_have_their_dockerfile_and_it_copies_files_that_exist(services: dict[str, Any]):
    for name in ("migrate", "keys", "gateway", "node"):
        text = (ROOT / services[name]["build"]["dockerfile"]).read_text()
        assert "USER hearth" in text
        assert "requirements.lock" in text
    assert "torch" not in re.sub(r"#.*", "", (ROOT / "deploy/gateway.Dockerfile").read_text())


def test_make_env_makes_every_secret_once_and_keeps_it_private(tmp_path: Path):
    (tmp_path / "deploy").mkdir()
    script = shutil.copy(ROOT / "deploy/make_env.sh", tmp_path / "deploy/make_env.sh")
    assert subprocess.run(["sh", script], capture_output=True).returncode == 0
    made = dict(line.split("=", 1) for line in (tmp_path / ".env").read_text().splitlines())
    assert set(made) == set(ENV)
    assert len({made[key] for key in made if key.startswith("HEARTH_")}) == 2
    assert (tmp_path / ".env").stat().st_mode & 0o077 == 0
    assert subprocess.run(["sh", script], capture_output=True).returncode == 1
    assert dict(line.split("=", 1) for line in (tmp_path / ".env").read_text().splitlines()) == made
