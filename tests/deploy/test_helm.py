"""The Helm chart: linted and rendered by Helm's own library, and checked against the schemas of Kubernetes.

These tests need the packages `helm-python-sdk` and `kubernetes-validate`. The others render the chart themselves.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import yaml

from local_platform.process_settings import ProcessName, settings_class
from telemetry.settings import describe, read_settings
from tests.deploy.go_templates import render_chart
from tests.deploy.test_compose import KEY, ROOT
from tests.deploy.test_grafana import exported

CHART = ROOT / "deploy" / "helm" / "hearth"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SECRETS = {  # data of the Secrets that exist before the chart
    "hearth-stores": {"REDIS_URL": "redis://redis:6379/0", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s"},
    "hearth-front": {
        "DATABASE_URL": "postgresql://hearth@postgres/hearth",
        "HEARTH_TOKEN_PEPPER": KEY["PEPPER"],
        "HEARTH_CACHE_SECRET": KEY["CACHE"],
    },
}


def with_everything() -> dict[str, Any]:
    """Return values that use every option of the chart."""
    values = copy.deepcopy(VALUES)
    values["gateway"]["autoscaling"]["enabled"] = values["node"]["autoscaling"]["enabled"] = True
    values["gateway"]["storageClass"] = values["node"]["storageClass"] = "fast"
    values["objects"]["endpoint"] = "http://s3:9000"
    values["networkPolicy"]["clients"] = [{"namespaceSelector": {}}]
    site = values["pops"]["lis"]
    site["nodeSelector"] = {"topology.kubernetes.io/zone": "lis-1"}
    site["devices"]["h100"] = {
        **copy.deepcopy(site["devices"]["cpu"]),
        "device": "cuda",
        "settings": {"HEARTH_NODE_MODELS": "@cf/hearth/spark"},
        "resources": {"limits": {"nvidia.com/gpu": 1}},
        "nodeSelector": {"gpu": "h100"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    }
    return values


@pytest.fixture(scope="module")
def objects() -> list[dict[str, Any]]:
    return render_chart(CHART, with_everything())


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}


def labels_of(stateful_set: dict[str, Any]) -> dict[str, str]:
    return stateful_set["spec"]["template"]["metadata"]["labels"]


def container_of(stateful_set: dict[str, Any]) -> dict[str, Any]:
    return stateful_set["spec"]["template"]["spec"]["containers"][0]


def environment(container: dict[str, Any], pod: str) -> dict[str, str]:
    """Return a container's environment as Kubernetes would set it."""
    found: dict[str, str] = {}
    for source in container["envFrom"]:
        found |= SECRETS[source["secretRef"]["name"]]
    for entry in container["env"]:
        value = pod if "valueFrom" in entry else entry["value"]
        found[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda match: found[match[1]], value)
    return found


def test_helm_accepts_the_chart():
    lint = pytest.importorskip("helm_python", reason="helm-python-sdk is not installed").lint
    found = lint(CHART, with_everything(), strict=True)
    assert not found["errors"]
    assert [each["error"] for each in found["messages"] if each["severity"] > 1] == []  # 1: a recommendation


@pytest.mark.parametrize("values", [VALUES, with_everything()], ids=["defaults", "everything"])
def test_helm_renders_the_objects_that_the_other_tests_check(values: dict[str, Any]):
    helm = pytest.importorskip("helm_python", reason="helm-python-sdk is not installed")
    with helm.Chart.load(CHART) as chart:
        texts = chart.render(values, name="hearth").values()
    rendered = [each for text in texts for each in yaml.safe_load_all(text) if each]
    ours = render_chart(CHART, values)
    assert len(rendered) == len(ours)
    assert all(each in ours for each in rendered)


@pytest.mark.parametrize("version", ["1.27", "1.33"])
@pytest.mark.parametrize("values", [VALUES, with_everything()], ids=["defaults", "everything"])
def test_every_object_matches_the_schema_of_kubernetes(values: dict[str, Any], version: str):
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed").validate
    rendered = render_chart(CHART, values)
    assert len({(each["kind"], each["metadata"]["name"]) for each in rendered}) == len(rendered)
    for each in rendered:
        validate(each, version, strict=True)


def test_one_stateful_set_for_each_pop_and_device_kind(objects: list[dict[str, Any]]):
    assert set(of_kind(objects, "StatefulSet")) == {
        "hearth-gateway-lis", "hearth-gateway-fra",
        "hearth-node-lis-cpu", "hearth-node-lis-h100", "hearth-node-fra-cpu",
    }  # fmt: skip
    placed = of_kind(objects, "StatefulSet")["hearth-node-lis-h100"]["spec"]["template"]["spec"]
    assert placed["nodeSelector"] == {"gpu": "h100"}
    assert placed["tolerations"]


def test_selectors_select_exactly_one_stateful_set(objects: list[dict[str, Any]]):
    sets = of_kind(objects, "StatefulSet")
    for kind in ("Service", "PodDisruptionBudget"):
        for name, each in of_kind(objects, kind).items():
            selector = each["spec"]["selector"]
            selector = selector.get("matchLabels", selector)
            assert [other for other, found in sets.items() if selector.items() <= labels_of(found).items()] == [name]
    for name, each in sets.items():
        assert each["spec"]["selector"]["matchLabels"].items() <= labels_of(each).items()
        assert each["spec"]["serviceName"] in of_kind(objects, "Service"), name


def test_settings_of_gateways_and_nodes_are_valid(objects: list[dict[str, Any]]):
    known = {info.env for process in ProcessName for info in describe(settings_class(process))}
    for name, each in of_kind(objects, "StatefulSet").items():
        container = container_of(each)
        process = ProcessName.gateway if "gateway" in name else ProcessName.node
        given = environment(container, f"{name}-0")
        assert {env for env in given if env.startswith("HEARTH_")} <= known
        settings = read_settings(settings_class(process), given)
        assert settings.pop == labels_of(each)["hearth/pop"]
        grace_s = each["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert grace_s > settings.drain_timeout_s, "running calls finish before the pod is killed"
        if process is ProcessName.node:
            assert settings.advertise.startswith(f"tcp://{name}-0.{name}.default.svc:"), "gateways reach the pod"


def test_nodes_receive_no_secrets_of_gateways(objects: list[dict[str, Any]]):
    for name, each in of_kind(objects, "StatefulSet").items():
        held = {source["secretRef"]["name"] for source in container_of(each)["envFrom"]}
        assert ("hearth-front" in held) == ("gateway" in name)


def test_values_have_no_secrets_and_the_chart_creates_none(objects: list[dict[str, Any]]):
    assert not of_kind(objects, "Secret")
    text = (CHART / "values.yaml").read_text()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    assert not re.search(r"(?i)password|pepper|secret_|access_key|token", "\n".join(lines))


def test_probes_use_routes_and_ports_that_exist(objects: list[dict[str, Any]]):
    for each in of_kind(objects, "StatefulSet").values():
        container = container_of(each)
        ports = {port["name"] for port in container["ports"]}
        for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
            assert container[probe]["httpGet"]["path"] == path
            assert container[probe]["httpGet"]["port"] in ports


def test_autoscalers_use_metrics_that_exist_and_sets_that_exist(objects: list[dict[str, Any]]):
    found = of_kind(objects, "HorizontalPodAutoscaler")
    assert set(found) == set(of_kind(objects, "StatefulSet"))
    for name, each in found.items():
        assert each["spec"]["scaleTargetRef"]["name"] == name
        (metric,) = [metric["pods"]["metric"]["name"] for metric in each["spec"]["metrics"]]
        assert metric in exported()
        assert "replicas" not in of_kind(objects, "StatefulSet")[name]["spec"], "an upgrade would undo the scaling"


def test_only_gateways_reach_nodes(objects: list[dict[str, Any]]):
    policies = of_kind(objects, "NetworkPolicy")
    calls, http = policies["hearth-hearth-node"]["spec"]["ingress"]
    assert calls["ports"] == [{"port": "calls"}]
    assert calls["from"][0]["podSelector"]["matchLabels"]["hearth/role"] == "gateway"
    assert http["from"] == VALUES["networkPolicy"]["monitoring"]
    for policy in policies.values():
        selector = policy["spec"]["podSelector"]["matchLabels"]
        assert any(selector.items() <= labels_of(each).items() for each in of_kind(objects, "StatefulSet").values())


def test_pods_run_without_privileges(objects: list[dict[str, Any]]):
    for each in [*of_kind(objects, "StatefulSet").values(), *of_kind(objects, "Job").values()]:
        pod = each["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        for container in [*pod["containers"], *pod.get("initContainers", ())]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
