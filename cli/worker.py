"""`hearth worker`: a Worker of one's own on this machine, in workerd, with AI answered by a Hearth.

Finds the platform, brings Node and the packages that run workerd, hands them a plan, and tells what they say. What is
started is `worker_tools/dev.mjs`; the credential goes to it through a pipe, never through its command line.
"""

from __future__ import annotations

import contextlib
import json as jsonlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from cli.data_dir import DEFAULT_DATA, DataDir, DataOption
from cli.output import CommandFailed, JsonOption, print_json

if TYPE_CHECKING:
    from cli.node_tools import Node
    from cli.worker_config import WorkerConfig

app = typer.Typer(help="Workers: run one on this machine, with AI answered by Hearth.", no_args_is_help=True)

TOOLS = Path(__file__).parent / "worker_tools"
_STOP_TIMEOUT_S = 10.0
# How it ends when it is told to: by itself, of the signal, or as miniflare's own handler of the signal lets it end.
_STOPPED = (0, -signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGINT)


@dataclass(frozen=True)
class Gateway:
    """Where the AI binding goes, and as whom."""

    url: str
    account_id: str
    api_token: str


@app.callback()
def _worker() -> None:
    """Workers."""


@app.command()
def dev(
    script: Annotated[Path, typer.Argument(help="The Worker's main module, JavaScript or TypeScript.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8788,
    config: Annotated[
        Path | None, typer.Option(help="wrangler.toml, .json or .jsonc; the one beside the script, or above it.")
    ] = None,
    url: Annotated[str, typer.Option(help="Base URL of a Hearth elsewhere, ending in /client/v4.")] = "",
    account: Annotated[str, typer.Option(help="Account id; with --url.", envvar="CLOUDFLARE_ACCOUNT_ID")] = "",
    token: Annotated[str, typer.Option(help="API token; with --url.", envvar="CLOUDFLARE_API_TOKEN")] = "",
    tools: Annotated[
        Path | None, typer.Option(help="Folder that Node and packages are brought into; DIR/worker unless given.")
    ] = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Run a Worker in workerd: `env.AI` is this Hearth; KV, D1 and R2 are local stores. Ctrl-C stops it."""
    from cli.up import why_not_listen
    from cli.worker_config import find_config, read_config

    if not script.is_file():
        raise CommandFailed(f"{script} is no file", exit_code=2)
    path = config or find_config(script)
    try:
        worker = read_config(path, script)
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{path}: {error}", exit_code=2) from None
    gateway = Gateway(url, account, token) if url else _running(data)
    _check(gateway)
    problem = why_not_listen(host, port)
    if problem is not None:
        raise CommandFailed(f"cannot listen on {host} port {port}: {problem}; choose another with --port")
    folder = (data or DEFAULT_DATA).absolute() / "worker"
    node, starter = _bring_tools((tools or folder).absolute())
    plan = plan_of(worker, gateway, script.absolute(), host, port, folder / "state" / worker.name)
    if worker.left_out:
        _say(f"not done here, and left out of {path}: {', '.join(worker.left_out)}")
    with _started([str(node.command), str(starter)], plan, node.environ()) as process:
        _follow(process, worker, gateway, is_json=json)


def _bring_tools(folder: Path) -> tuple[Node, Path]:
    """Node, and the script that starts a Worker beside the packages that it needs; fetched into `folder` where they are
    not there. Raises CommandFailed."""
    from cli.node_tools import ToolsMissing, ensure_node, ensure_packages

    packages = folder / "packages"
    starter = packages / "dev.mjs"
    try:
        node = ensure_node(folder / "node", _say)
        ensure_packages(node, TOOLS, packages, _say)
        shutil.copyfile(TOOLS / starter.name, starter)
    except ToolsMissing as error:
        raise CommandFailed(str(error)) from None
    except OSError as error:
        raise CommandFailed(f"{error.filename or folder}: {error.strerror or error}") from None
    return node, starter


def plan_of(worker: WorkerConfig, gateway: Gateway, script: Path, host: str, port: int, state: Path) -> dict[str, Any]:
    """What dev.mjs is told."""
    headers = {"authorization": f"Bearer {gateway.api_token}"}
    if gateway.account_id:
        headers["x-hearth-account"] = gateway.account_id
    parts = urlsplit(gateway.url)
    return {
        "script": str(script),
        "name": worker.name,
        "host": host,
        "port": port,
        "state": str(state),
        "compatibility_date": worker.compatibility_date,
        "compatibility_flags": list(worker.compatibility_flags),
        "vars": dict(worker.variables),
        "ai": [worker.ai],
        "kv": list(worker.kv),
        "d1": list(worker.d1),
        "r2": list(worker.r2),
        "gateway": {"url": f"{parts.scheme}://{parts.netloc}", "headers": headers},
    }


def _running(data: Path | None) -> Gateway:
    """The platform that `hearth up` runs in the folder."""
    data_dir = DataDir(data or DEFAULT_DATA)
    running = data_dir.read_dev()
    if running is None:
        raise CommandFailed(f"no platform is up in {data_dir.path}: start one with `hearth up`, or give --url")
    return Gateway(str(running["base_url"]), str(running["account_id"]), str(running["api_token"]))


def _check(gateway: Gateway) -> None:
    parts = urlsplit(gateway.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CommandFailed("--url must be http:// or https:// and a host", exit_code=2)
    if not gateway.api_token:
        raise CommandFailed("--url needs a --token, or CLOUDFLARE_API_TOKEN in the environment", exit_code=2)


@contextlib.contextmanager
def _started(
    command: list[str], plan: Mapping[str, Any], environ: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """The process that runs workerd, with its plan; it ends with this one, and at SIGTERM."""
    from telemetry.child_process import die_with_parent

    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(environ),
        text=True,
        preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGTERM),
    )

    def end(_number: int, _frame: FrameType | None) -> None:
        process.terminate()

    signal.signal(signal.SIGTERM, end)
    try:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(jsonlib.dumps(plan))
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _follow(process: subprocess.Popen[str], worker: WorkerConfig, gateway: Gateway, *, is_json: bool) -> None:
    """Tell what it says, until it ends."""
    assert process.stdout is not None
    is_told = False
    for line in process.stdout:
        event = jsonlib.loads(line)
        if is_json:
            print_json(event)
            sys.stdout.flush()
        elif event["event"] == "broken":
            _say(event["message"])
        elif is_told:
            _say("changed, and running again")
        else:
            sys.stdout.write(_ready_text(event["url"], worker, gateway))
            sys.stdout.flush()
            is_told = True
    status = process.wait()
    if status not in _STOPPED:
        raise CommandFailed(f"the Worker's process ended with status {status}")


def _ready_text(url: str, worker: WorkerConfig, gateway: Gateway) -> str:
    stores = ", ".join(f"env.{name} ({kind})" for kind, names in _stores(worker) for name in names)
    local = f"  {stores} in local stores\n" if stores else ""
    return f"""
Worker {worker.name} is ready at {url}

  env.{worker.ai} is answered by {gateway.url}
{local}
Ctrl-C stops it; a change of its files starts it anew.
"""


def _stores(worker: WorkerConfig) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return (("KV", worker.kv), ("D1", worker.d1), ("R2", worker.r2))


def _say(text: str) -> None:
    sys.stderr.write(f"hearth: {text}\n")
    sys.stderr.flush()
