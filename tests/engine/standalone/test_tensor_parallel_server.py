"""The standalone server with tensor parallelism: two ranks give the output of one. A rank that is killed under load
ends its group, running calls get an error, and a new group serves the next call.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.standalone.serve_process import ServeProcess, serving
from tests.engine.structured.spark_engine import SPARK
from tests.processes import children_of, is_running
from tests.waiting import wait_until_blocking

BODIES: list[dict[str, Any]] = [
    {"prompt": "The capital of France is", "max_tokens": 24, "temperature": 0, "logprobs": 2},
    {"prompt": ["Once upon a time", "Count to ten:"], "max_tokens": 24, "temperature": 0.8, "seed": 11},
    {"prompt": "A person:", "max_tokens": 60, "temperature": 0, "guided_regex": "[A-Z][a-z]{3,9} is [0-9]{2}"},
]
# Long enough that no stream ends before all have begun.
LONG = {"prompt": "Once upon a time", "stream": True, "max_tokens": 2000, "ignore_eos": True, "temperature": 0}


def ranks_of(server: ServeProcess) -> list[int]:
    """Return the process ids of the leader and of the follower that the leader forked."""
    forked = [child for parent in children_of(server.process.pid) for child in children_of(parent)]
    (group,) = [[leader, *children_of(leader)] for leader in forked if children_of(leader)]
    return group


def answers_of(server: ServeProcess) -> list[list[Any]]:
    found = []
    for body in BODIES:
        response = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
        assert response.status_code == 200, response.text
        choices = response.json()["choices"]
        tokens = [each["logprobs"]["tokens"] if each["logprobs"] else None for each in choices]
        found.append([[each["text"] for each in choices], tokens, [each["finish_reason"] for each in choices]])
    return found


@pytest.mark.full
def test_killed_rank_ends_its_group_and_the_next_call_gets_the_same_output(tmp_path: Path) -> None:
    settings = (str(SPARK), "--dtype", "float32", "--max-model-len", "2048")
    with serving(tmp_path, *settings) as server:
        expected = answers_of(server)
    with serving(tmp_path, *settings, "--tensor-parallel", "2") as server:
        assert answers_of(server) == expected
        for victim in (1, 0):  # first a follower, then the leader of the next group
            ranks = ranks_of(server)
            assert len(ranks) == 2
            begun = threading.Barrier(5)
            with ThreadPoolExecutor(4) as callers:
                calls = [callers.submit(end_of_stream, server.url, begun, f"round {victim}") for _ in range(4)]
                begun.wait(60)
                os.kill(ranks[victim], signal.SIGKILL)
                assert {call.result() for call in calls} == {"server_error"}
            for rank in ranks:
                wait_until_blocking(partial(is_gone, rank))
            assert answers_of(server) == expected


def is_gone(pid: int) -> bool:
    return not is_running(pid)


def end_of_stream(url: str, begun: threading.Barrier, prompt: str) -> str:
    """Return the type of the error with which a stream ends, after all streams have begun.

    Each round needs its own prompt: an input of two crashed processes is quarantined.
    """
    with httpx.stream("POST", f"{url}/v1/completions", json=LONG | {"prompt": prompt}, timeout=60) as response:
        lines = response.iter_lines()
        assert "text" in next(lines)
        begun.wait(60)
        remaining = [line for line in lines if line]
    return str(json.loads(remaining[-1].removeprefix("data: "))["error"]["type"])


@pytest.mark.full
def test_missing_driver_or_gpu_is_reported_at_startup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    server = ServeProcess(tmp_path, str(SPARK), "--device", "cuda", "--tensor-parallel", "2").start()
    try:
        assert server.exit_code() == 2
        refusals = "needs an NVIDIA driver", "needs a GPU (CUDA_VISIBLE_DEVICES='')"
        assert any(refusal in server.stderr for refusal in refusals)
    finally:
        server.stop()
