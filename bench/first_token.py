"""Measure the seconds from `make up` (dependencies installed) to the first token over HTTP. Goal: 5 s or less.

    python -m bench.first_token [--rounds 3]

Each round uses an empty data folder, so migrations and the first account are included, and sends a request as soon as
dev.json exists. A second line times a restart on the same folder.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import httpx

from bench.platform_under_test import free_port, machine


def seconds_to_first_token(home: Path) -> float:
    """Return the seconds from starting `make up` on data folder `home` to the first streamed token."""
    port = free_port()
    started = time.perf_counter()
    command = ["make", "--no-print-directory", "up", f"ARGS=--data {home} --port {port}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        while True:
            if process.poll() is not None:
                raise SystemExit("make up ended early")
            try:
                dev = json.loads((home / "dev.json").read_text())
                if _first_token(dev, port):
                    return time.perf_counter() - started
            except (FileNotFoundError, httpx.HTTPError):
                pass
            if time.perf_counter() - started > 120:
                raise SystemExit("no token within 120 s")
            time.sleep(0.02)
    finally:
        pid = json.loads((home / "dev.json").read_text())["pid"]
        subprocess.run(["kill", f"-{signal.SIGTERM.value}", str(pid)], check=False)
        process.wait(timeout=60)


def _first_token(dev: dict[str, str], port: int) -> bool:
    if f":{port}/" not in dev["base_url"]:
        return False
    url = f"{dev['base_url']}/accounts/{dev['account_id']}/ai/run/{dev['chat_model']}"
    headers = {"Authorization": f"Bearer {dev['api_token']}"}
    with httpx.stream("POST", url, json={"prompt": "Hello", "stream": True}, headers=headers, timeout=30) as response:
        return response.status_code == 200 and any(line.startswith("data:") for line in response.iter_lines())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    fresh, again = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder) / "data"
            fresh.append(round(seconds_to_first_token(home), 2))
            again.append(round(seconds_to_first_token(home), 2))
    print(json.dumps({"bench": "first_token", "fresh_s": fresh, "restart_s": again, "goal_s": 5, **machine()}))


if __name__ == "__main__":
    main()
