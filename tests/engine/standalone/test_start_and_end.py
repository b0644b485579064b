"""Start, startup errors and shutdown of the command, with real processes. Model folders are tested in
`test_folders.py`.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import httpx

from tests.engine.standalone.serve_process import ServeProcess, serving
from tests.waiting import wait_until_blocking


def run(tmp_path: Path, *arguments: str) -> tuple[int, str]:
    """Return the exit code and the standard error of a server that cannot start."""
    server = ServeProcess(tmp_path, *arguments).start()
    try:
        return server.exit_code(), server.stderr
    finally:
        server.stop()


def test_missing_folder_is_reported_at_once(tmp_path: Path):
    code, result = run(tmp_path, "/nowhere/at-all")
    assert (code, result) == (2, "hearth engine: MODEL_DIR: /nowhere/at-all does not exist\n")


def test_occupied_port_is_reported_before_loading(tmp_path: Path, stories: Path):
    with socket.create_server(("127.0.0.1", 0)) as blocker:
        code, result = run(tmp_path, str(stories), "--port", str(blocker.getsockname()[1]))
    assert code == 2
    assert "cannot listen on" in result
    assert "loading" not in result


def test_printed_curl_command_works_and_a_second_signal_ends_running_requests(tmp_path: Path, stories: Path):
    with serving(tmp_path, stories, "--drain-timeout", "600") as server:
        command = server.printed.partition(": curl")[2]
        reply = subprocess.run(f"curl -s {command}", shell=True, capture_output=True, check=True, text=True).stdout
        assert json.loads(reply)["choices"][0]["text"]
        body = {"prompt": ["Once"] * 64, "max_tokens": 500, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            server.terminate()
            result = wait_until_blocking(lambda: re.search(r"stopping: (\d+) calls", server.stderr))
            assert result is not None
            assert 1 < int(result[1]) <= 64  # sequences of one request; on a slow machine some have already finished
            server.terminate()
            remaining = [line for line in lines if line]
        assert json.loads(remaining[-1].removeprefix("data: "))["error"]["code"] == "shutting_down"
        assert server.exit_code() == 0


def test_the_front_imports_no_torch():
    code = (
        "import sys, engine.standalone.process, engine.standalone.server; print({'torch', 'triton'} & set(sys.modules))"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)
    assert found.stdout == "set()\n"


def test_a_node_takes_no_arguments():
    found = subprocess.run([sys.executable, "-m", "engine", "sevre"], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (2, "")
    assert "serve MODEL_DIR" in found.stderr
