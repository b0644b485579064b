"""Traces: off by default, one trace per call with its stages, continued from the client's `traceparent`, without
content."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import httpx
import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra `tracing` is not installed")

from tests.fakes.otlp_collector import Collected, Collector, collecting
from tests.gateway.process import PARROT, GatewayProcess
from tests.gateway.site import Site
from tests.waiting import wait_until_blocking

STAGES = {"hearth.admission", "hearth.placement", "hearth.first_token", "hearth.completion", "hearth.dispatch"}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def site(new_site: Callable[..., Site]) -> Site:
    site = new_site()
    site.add_node("n1")
    return site


@pytest.fixture(scope="module")
def gateway(site: Site, collector: Collector) -> GatewayProcess:
    return site.gateway(HEARTH_TRACES_URL=collector.url, HEARTH_TRACES_RATIO="0", OTEL_BSP_SCHEDULE_DELAY="50").start()


def run(site: Site, gateway: GatewayProcess, headers: dict[str, str], **body: object) -> httpx.Response:
    return httpx.post(
        f"{gateway.base_url}/accounts/{site.tenants.account_id}/ai/run/{PARROT}",
        headers={"authorization": f"Bearer {site.tenants.secrets['good']}", **headers},
        json={"prompt": "a very secret prompt", **body},
        timeout=60,
    )


def wait_spans(collector: Collector, trace_id: str) -> dict[str, Collected]:
    wait_until_blocking(lambda: "hearth.call" in collector.of_trace(trace_id))
    return collector.of_trace(trace_id)


@pytest.mark.parametrize("is_stream", [False, True])
def test_sampled_call_has_one_span_for_each_stage(
    site: Site, gateway: GatewayProcess, collector: Collector, is_stream: bool
):
    trace_id, client_span = os.urandom(16).hex(), os.urandom(8).hex()
    response = run(site, gateway, {"traceparent": f"00-{trace_id}-{client_span}-01"}, stream=is_stream)
    assert response.status_code == 200
    spans = wait_spans(collector, trace_id)
    assert set(spans) == {"hearth.call", *STAGES}
    call = spans["hearth.call"]
    assert (call.service, call.parent_id) == ("hearth-gateway", client_span)
    assert call.attributes["hearth.model"] == PARROT
    assert call.attributes["hearth.request_id"] == response.headers["cf-ai-req-id"]
    assert call.attributes["hearth.node_id"] == "n1"
    assert call.attributes["hearth.status"] == "stop"
    for name in STAGES:
        assert spans[name].parent_id == call.span_id
        assert call.start_ns <= spans[name].start_ns <= spans[name].end_ns <= call.end_ns
    assert spans["hearth.admission"].end_ns <= spans["hearth.placement"].start_ns <= spans["hearth.dispatch"].start_ns
    execute = site.execute_of(response)
    assert execute.traceparent == f"00-{trace_id}-{call.span_id}-01"


def test_spans_have_no_content_and_no_credentials(site: Site, gateway: GatewayProcess, collector: Collector):
    trace_id = os.urandom(16).hex()
    run(site, gateway, {"traceparent": f"00-{trace_id}-{os.urandom(8).hex()}-01"})
    wait_spans(collector, trace_id)
    exported = b"".join(collector.raw)
    for secret in ("a very secret prompt", "fake node", site.tenants.secrets["good"], site.tenants.account_id):
        assert secret.encode() not in exported


@pytest.mark.parametrize("traceparent", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "\xff"])
def test_call_without_a_sampled_parent_is_traced_by_the_ratio(
    site: Site, gateway: GatewayProcess, collector: Collector, traceparent: str
):
    headers = {"traceparent": traceparent.encode("latin-1")} if traceparent else {}
    response = run(site, gateway, headers)  # type: ignore[arg-type]  # httpx accepts bytes
    assert response.status_code == 200
    assert site.execute_of(response).traceparent == ""


def test_failed_call_ends_its_trace_with_the_reason(site: Site, gateway: GatewayProcess, collector: Collector):
    trace_id = os.urandom(16).hex()
    headers = {"traceparent": f"00-{trace_id}-{os.urandom(8).hex()}-01"}
    assert run(site, gateway, headers, prompt='!{"tokens": [], "end": "internal"}').status_code == 408
    assert wait_spans(collector, trace_id)["hearth.call"].attributes["hearth.status"] == "internal"


def test_nothing_is_traced_by_default(site: Site):
    gateway = site.gateway().start()
    response = run(site, gateway, {"traceparent": f"00-{os.urandom(16).hex()}-{os.urandom(8).hex()}-01"})
    assert site.execute_of(response).traceparent == ""
    gateway.stop()


def test_libraries_are_loaded_only_if_a_collector_is_set():
    imported = (
        "[name for name in sys.modules if name.startswith(('opentelemetry.sdk.trace', 'opentelemetry.exporter'))]"
    )
    code = f"import sys, gateway.__main__, engine.node.node; print({imported})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_unavailable_collector_delays_no_call(site: Site):
    gateway = site.gateway(HEARTH_TRACES_URL="http://127.0.0.1:9/v1/traces").start()
    assert [run(site, gateway, {}).status_code for _ in range(5)] == [200] * 5
    gateway.stop()
