"""A trace goes through gateway and node of a running platform."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra `tracing` is not installed")

from tests.cli.test_up import Up
from tests.fakes.otlp_collector import collecting
from tests.waiting import wait_until_blocking

pytestmark = pytest.mark.full

NODE_SPANS = {"hearth.node", "hearth.queue", "hearth.prefill", "hearth.decode"}


def test_trace_has_the_phases_of_the_call_on_its_node(short_tmp_path: Path):
    with collecting() as collector:
        environ = {"HEARTH_TRACES_URL": collector.url, "HEARTH_TRACES_RATIO": "0", "OTEL_BSP_SCHEDULE_DELAY": "50"}
        up = Up(short_tmp_path / "p", "--no-starter", **environ).wait_ready()
        try:
            trace_id = os.urandom(16).hex()
            url = f"{up.dev['base_url']}/accounts/{up.dev['account_id']}/ai/run/@cf/hearth/spark"
            headers = {
                "authorization": f"Bearer {up.dev['api_token']}",
                "traceparent": f"00-{trace_id}-{os.urandom(8).hex()}-01",
            }
            body = {"prompt": "Where is Lisbon?", "max_tokens": 16}
            httpx.post(url, headers=headers, json=body, timeout=60).raise_for_status()
            wait_until_blocking(lambda: {"hearth.call", "hearth.node"} <= collector.of_trace(trace_id).keys())
        finally:
            up.stop()
        spans = collector.of_trace(trace_id)
        assert spans.keys() >= NODE_SPANS
        call, node = spans["hearth.call"], spans["hearth.node"]
        assert (node.service, node.parent_id) == ("hearth-node", call.span_id)
        assert node.attributes["hearth.completion_tokens"] == call.attributes["hearth.completion_tokens"]
        for name in NODE_SPANS - {"hearth.node"}:
            assert spans[name].parent_id == node.span_id
            assert spans[name].end_ns <= call.end_ns
        assert b"Lisbon" not in b"".join(collector.raw)
