"""The Grafana dashboard: every query uses metrics that exist, with labels that they have."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from prometheus_client import Counter, Histogram

from telemetry import metrics
from tests.deploy.test_compose import ROOT

FOLDER = ROOT / "deploy" / "grafana"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboards" / "hearth.json").read_text())
TARGET_LABELS = {"pop", "job", "instance", "le"}  # added by Prometheus


def exported() -> dict[str, set[str]]:
    """Return the labels of every time series that gateways and nodes export, by name."""
    found = {}
    for metric in vars(metrics).values():
        if not isinstance(metric, metrics.MetricWrapperBase):
            continue
        suffixes = ("_total",) if isinstance(metric, Counter) else ("",)
        if isinstance(metric, Histogram):
            suffixes = ("_bucket", "_sum", "_count")
        found |= {metric._name + suffix: set(metric._labelnames) for suffix in suffixes}
    return found


PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]


@pytest.mark.parametrize("query", QUERIES)
def test_query_uses_existing_metrics_and_labels(query: str):
    known = exported()
    names = re.findall(r"\bhearth_\w+", query)
    assert names
    for name in names:
        assert name in known, f"{name} is no metric of telemetry/metrics.py"
    labels = {label for name in names for label in known[name]} | TARGET_LABELS
    selected = [
        label for selector in re.findall(r"\{([^}]*)\}", query) for label in re.findall(r"(\w+)\s*[=!]", selector)
    ]
    grouped = [label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")]
    assert set(selected + grouped) <= labels
    assert query.count("(") == query.count(")")
    assert "rate(" in query or not re.search(r"_total|_bucket", query), "counters are shown as rates"


def test_legends_use_labels_that_the_query_keeps():
    for panel in PANELS:
        for target in panel["targets"]:
            grouped = " ".join(re.findall(r"by \(([^)]*)\)", target["expr"]))
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert re.search(rf"\b{label}\b", grouped), target


def test_dashboard_uses_the_data_source_that_is_provisioned():
    provisioned = yaml.safe_load((FOLDER / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
    used = {panel["datasource"]["uid"] for panel in PANELS}
    assert used == {source["uid"] for source in provisioned}
    providers = yaml.safe_load((FOLDER / "provisioning/dashboards/hearth.yml").read_text())["providers"]
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["grafana"]
    mounts = [volume.split(":")[1] for volume in compose["volumes"]]
    assert all(provider["options"]["path"] in mounts for provider in providers)


def test_panels_do_not_overlap_and_have_unique_ids():
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert all(x < 24 for x, _ in cells)
