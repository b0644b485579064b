"""`hearth up` as a real process, with real stores and a real model; the printed commands are executed unchanged."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from local_platform.plan import SPARK
from tests.ports import free_port
from tests.processes import is_running
from tests.waiting import wait_until_blocking

START_DEADLINE_S = 90.0


class Up:
    """One `hearth up` process with its own data directory."""

    def __init__(self, data: Path, *options: str, **environ: str) -> None:
        self.data = data
        self.port = free_port()
        self._out = data.with_suffix(".out")
        self._err = data.with_suffix(".err")
        command = [sys.executable, "-m", "cli.main", "up", "--data", str(data), "--port", str(self.port), *options]
        # Only the chat model is loaded at start: loading the embedding model occupies two cores for seconds.
        environ = {**os.environ, "HEARTH_NODE_MODELS": SPARK, **environ}
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(command, stdout=out, stderr=err, env=environ)

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def wait_ready(self) -> Up:
        def is_ready() -> bool:
            assert self.process.poll() is None, self.err
            return (self.data / "dev.json").exists() and "Ctrl-C" in self.out

        wait_until_blocking(is_ready, START_DEADLINE_S)
        return self

    @property
    def dev(self) -> dict[str, Any]:
        return json.loads((self.data / "dev.json").read_text())

    def pids(self) -> list[int]:
        pids = self.dev["pids"]
        return [pids["redis"], pids["gateway"], *pids["nodes"].values()]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=90)

    def ask(self, prompt: str) -> httpx.Response:
        dev = self.dev
        url = f"{dev['base_url']}/accounts/{dev['account_id']}/ai/run/{dev['chat_model']}"
        body = {"prompt": prompt, "max_tokens": 4}
        return httpx.post(url, headers={"Authorization": f"Bearer {dev['api_token']}"}, json=body, timeout=90)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for Unix sockets."""
    with tempfile.TemporaryDirectory(prefix="hearth-up-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Up]:
    """A platform shared by the tests of this module."""
    up = Up(folder / "shared", "--nodes", "2").wait_ready()
    yield up
    if up.process.poll() is None:
        up.stop()


def descendants(pid: int) -> set[int]:
    """Return the ids of all live descendants of a process."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            for child in task.read_text().split():
                found |= {int(child)} | descendants(int(child))
    return found


def run_in_shell(text: str, start: str) -> str:
    """Run the command in `text` that begins with `start`, and return its output."""
    command = text[text.index(start) :].split("\n\n")[0]
    return subprocess.run(["sh", "-c", command], capture_output=True, check=True).stdout.decode()


def test_dev_json_describes_the_platform_and_has_mode_0600(running: Up):
    dev = running.dev
    assert dev["base_url"] == f"http://127.0.0.1:{running.port}/client/v4"
    assert len(dev["account_id"]) == 32
    assert dev["api_token"].startswith("cfut_")
    assert (dev["chat_model"], dev["embed_model"]) == ("@cf/hearth/spark", "@cf/hearth/minilm")
    assert dev["pid"] == running.process.pid
    assert list(dev["pids"]["nodes"]) == ["local-1", "local-2"]
    assert all(is_running(pid) for pid in running.pids())
    assert (running.data / "dev.json").stat().st_mode & 0o777 == 0o600
    assert (running.data / "secrets.json").stat().st_mode & 0o777 == 0o600


def test_processes_receive_only_the_secrets_they_need(running: Up):
    def secrets_of(pid: int) -> set[str]:
        names = {entry.partition(b"=")[0].decode() for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")}
        return names & {"HEARTH_TOKEN_PEPPER", "HEARTH_CACHE_SECRET", "HEARTH_SERVICE_KEYS"}

    pids = running.dev["pids"]
    assert secrets_of(pids["gateway"]) == {"HEARTH_TOKEN_PEPPER", "HEARTH_CACHE_SECRET", "HEARTH_SERVICE_KEYS"}
    assert [secrets_of(pid) for pid in pids["nodes"].values()] == [{"HEARTH_SERVICE_KEYS"}] * 2


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_printed_commands_work_unchanged(running: Up):
    response = json.loads(run_in_shell(running.out, "curl http"))
    assert response["success"]
    assert response["result"]["usage"]["completion_tokens"] > 0
    events = [line for line in run_in_shell(running.out, "curl -N").splitlines() if line]
    assert events[-1] == "data: [DONE]"
    assert all("response" in json.loads(event.removeprefix("data: ")) for event in events[:-1])


@pytest.mark.parametrize("page", ["README.md", "docs/openai.md"])
def test_python_examples_run_unmodified(running: Up, page: str):
    """Only the port is replaced. Account and token come from the environment, as the page says."""
    text = (Path(__file__).parent.parent.parent / page).read_text()
    programs = [block.split("```")[0] for block in text.split("```python\n")[1:]]
    assert len(programs) == 2
    environ = {**os.environ, "ACCOUNT": running.dev["account_id"], "TOKEN": running.dev["api_token"]}
    for program in programs:
        assert "127.0.0.1:8787" in program
        own = program.replace("127.0.0.1:8787", f"127.0.0.1:{running.port}")
        done = subprocess.run([sys.executable, "-c", own], env=environ, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(
    "page",
    [
        "api",
        "openai",
        "structured_output",
        *(pytest.param(page, marks=pytest.mark.full) for page in ("batches", "usage")),
    ],
)
def test_commands_in_the_docs_work_unchanged(running: Up, page: str, tmp_path: Path):
    """Runs all commands of a page in one shell, in the root of a checkout with a virtual environment and a platform."""
    text = (Path(__file__).parent.parent.parent / "docs" / f"{page}.md").read_text()
    commands = "".join(block.split("```")[0] for block in text.split("```sh\n")[1:])
    assert "127.0.0.1:8787" in commands
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / ".hearth").symlink_to(running.data)
    done = subprocess.run(
        ["sh", "-euc", commands.replace("127.0.0.1:8787", f"127.0.0.1:{running.port}")],
        env={**os.environ, "ACCOUNT": running.dev["account_id"], "TOKEN": running.dev["api_token"]},
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    responses = re.findall(r'"success":(?:true|false)|"object":|"type":"(?:message|error)"|"error":\{', done.stdout)
    assert len(responses) >= commands.count("\ncurl") + commands.count("\nask")
    assert not {'"success":false', '"type":"error"', '"error":{'} & set(responses), done.stdout


def test_platform_serves_requests(running: Up):
    response = running.ask("Hello!")
    assert response.status_code == 200
    assert response.json()["success"]


def test_printed_token_reads_account_and_user_and_the_admin_token_changes_the_account(running: Up):
    """These are the requests of `wrangler whoami` and of clients' account pages."""
    dev = running.dev
    with httpx.Client(headers={"Authorization": f"Bearer {dev['api_token']}"}, timeout=30) as client:
        base, account = dev["base_url"], f"{dev['base_url']}/accounts/{dev['account_id']}"
        urls = [f"{base}/user", f"{base}/user/tokens/verify", f"{base}/user/tokens", f"{base}/memberships"]
        urls += [f"{base}/accounts", account, f"{account}/ai/usage"]
        assert {url: client.get(url).status_code for url in urls} == dict.fromkeys(urls, 200)
        assert client.put(account, json={"name": "renamed"}).status_code == 403
    assert f"hearth token create --admin --data {running.data}" in running.out
    command = [sys.executable, "-m", "cli.main", "token", "create", "--admin", "--json", "--data", str(running.data)]
    admin = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)["secret"]
    with httpx.Client(headers={"Authorization": f"Bearer {admin}"}, timeout=30) as client:
        assert client.put(account, json={"name": "renamed"}).status_code == 200
        assert client.get(f"{account}/tokens").status_code == 200


def sign_in(up: Up, link: str) -> httpx.Response:
    """Use a sign-in link as the dashboard's page does, and return the session."""
    origin, _, token = link.partition("/dashboard/link#")
    assert origin == f"http://127.0.0.1:{up.port}"
    with httpx.Client(base_url=origin, headers={"origin": origin}, timeout=60) as client:
        client.post("/admin/sign-in/link", json={"token": token})
        return client.get("/admin/session")


def link_in(text: str) -> str:
    (link,) = re.findall(r"http://\S+/dashboard/link#\S+", text)
    return link


def test_printed_link_signs_in_once_and_the_dashboard_command_prints_another(running: Up):
    link = link_in(running.out)
    session = sign_in(running, link).json()["result"]
    assert (session["email"], session["platform_role"]) == ("admin@localhost", "administrator")
    (membership,) = session["memberships"]
    assert (membership["account_id"], membership["role"]) == (running.dev["account_id"], "administrator")
    assert sign_in(running, link).status_code == 401
    assert f"hearth dashboard --data {running.data}" in running.out
    command = [sys.executable, "-m", "cli.main", "dashboard", "--data", str(running.data)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert sign_in(running, link_in(printed)).status_code == 200
    assert "dashboard/link" not in (running.data / "dev.json").read_text()


def test_second_start_in_the_same_directory_fails_with_pid_and_url(running: Up):
    second = subprocess.run(
        [sys.executable, "-m", "cli.main", "up", "--data", str(running.data)],
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert second.returncode == 1
    assert f"pid {running.process.pid}" in second.stderr
    assert f"http://127.0.0.1:{running.port}" in second.stderr
    assert len(second.stderr.splitlines()) == 1
    assert running.ask("Hello!").status_code == 200


def test_port_in_use_fails_with_one_line(running: Up, folder: Path):
    command = [sys.executable, "-m", "cli.main", "up", "--data", str(folder / "other"), "--port", str(running.port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 1
    assert str(running.port) in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_invalid_setting_fails_with_a_line_that_names_the_setting(folder: Path):
    up = Up(folder / "bad", HEARTH_NODE_THREADS="many")
    assert up.process.wait(timeout=90) == 2  # as for an invalid option
    assert "HEARTH_NODE_THREADS='many'" in up.err
    assert "Traceback" not in up.err
    assert not (up.data / "dev.json").exists()


def test_unknown_model_fails_with_a_line_that_names_the_model(folder: Path):
    up = Up(folder / "unknown", HEARTH_NODE_MODELS="@cf/acme/none")
    assert up.process.wait(timeout=90) == 1
    (line,) = [line for line in up.err.splitlines() if "cannot load" in line]
    assert "node local-1 cannot load @cf/acme/none: @cf/acme/none is neither built in here nor published" in line
    assert "Traceback" not in up.err


@pytest.mark.parametrize("index", [0, 1, 2], ids=["redis", "gateway", "node"])
def test_killed_child_process_is_restarted(running: Up, index: int):
    before = running.pids()[index]
    os.kill(before, signal.SIGKILL)
    wait_until_blocking(lambda: running.pids()[index] not in (None, before))
    wait_until_blocking(lambda: is_serving(running))


def is_serving(up: Up) -> bool:
    try:
        return up.ask("Hello!").status_code == 200
    except httpx.HTTPError:
        return False


def test_sigterm_stops_all_processes_and_the_next_start_has_the_same_account(folder: Path):
    first = Up(folder / "again").wait_ready()
    account, first_out = (first.dev["account_id"], first.dev["api_token"]), first.out
    children = descendants(first.process.pid)
    assert len(children) >= 4  # redis-server, gateway, node, and the node's own
    assert first.stop() == 0
    wait_until_blocking(lambda: not [pid for pid in children if is_running(pid)])
    assert not (first.data / "dev.json").exists()

    second = Up(first.data).wait_ready()
    assert (second.dev["account_id"], second.dev["api_token"]) == account
    assert second.ask("Hello!").status_code == 200
    assert link_in(second.out) != link_in(first_out), "every start prints a new link"
    assert sign_in(second, link_in(second.out)).status_code == 200
    assert second.stop(signal.SIGINT) == 0


@pytest.mark.full
def test_children_of_a_killed_platform_are_killed_and_it_can_be_started_again(folder: Path):
    first = Up(folder / "killed").wait_ready()
    children = descendants(first.process.pid)
    first.stop(signal.SIGKILL)
    wait_until_blocking(lambda: not [pid for pid in children if is_running(pid)])
    assert (first.data / "dev.json").exists()

    second = Up(first.data).wait_ready()
    assert second.ask("Hello!").status_code == 200
    assert second.stop() == 0


@pytest.mark.full
def test_data_directory_may_have_a_long_path_with_special_characters(folder: Path):
    up = Up(folder / ("a long folder with 100% strange? names # " + "x" * 90)).wait_ready()
    assert up.ask("Hello!").status_code == 200
    run_dir = Path(up.dev["redis_url"].removeprefix("unix://").split("?")[0]).parent
    assert run_dir.exists()
    assert up.stop() == 0
    assert not run_dir.exists()
