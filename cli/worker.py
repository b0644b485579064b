"""`hearth worker`: run a Cloudflare Worker on this machine, with its AI binding connected to Hearth."""

from __future__ import annotations

import json as jsonlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from cli.output import CommandFailed, JsonOption, print_json
from cli.target import DataOption
from local_platform.data_dir import DEFAULT_DATA, DataDir
from local_platform.plan import listen_error

if TYPE_CHECKING:
    from worker_runtime.config import WorkerConfig
    from worker_runtime.dev_server import GatewayTarget

app = typer.Typer(help="Run Workers on this machine, with AI provided by Hearth.", no_args_is_help=True)


@app.callback()
def _worker() -> None:
    """Workers."""


@app.command()
def dev(
    script: Annotated[Path, typer.Argument(help="The Worker's main module, JavaScript or TypeScript.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 chooses a free port.", min=0, max=65535)] = 8788,
    config: Annotated[
        Path | None,
        typer.Option(help="wrangler.toml, .json or .jsonc. Default: in the script's folder or the one above."),
    ] = None,
    url: Annotated[str, typer.Option(help="Base URL of another Hearth, ending in /client/v4.")] = "",
    account: Annotated[str, typer.Option(help="Account id, with --url.", envvar="CLOUDFLARE_ACCOUNT_ID")] = "",
    token: Annotated[str, typer.Option(help="API token, with --url.", envvar="CLOUDFLARE_API_TOKEN")] = "",
    tools: Annotated[
        Path | None, typer.Option(help="Folder for Node.js and npm packages. Default: `worker` in the data directory.")
    ] = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Run a Worker in workerd: `env.AI` calls Hearth; KV, D1 and R2 are local stores. Ctrl-C stops it."""
    from worker_runtime.config import find_config, read_config
    from worker_runtime.dev_server import GatewayTarget, dev_options, install_tools, running_dev_server
    from worker_runtime.node_js import ToolsMissing

    if not script.is_file():
        raise CommandFailed(f"{script} is not a file", exit_code=2)
    path = config or find_config(script)
    try:
        worker = read_config(path, script)
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{path}: {error}", exit_code=2) from None
    gateway = GatewayTarget(url, account, token) if url else local_gateway(data)
    check_gateway(gateway)
    problem = listen_error(host, port)
    if problem is not None:
        raise CommandFailed(f"cannot listen on {host} port {port}: {problem}; choose another with --port")
    folder = (data or DEFAULT_DATA).absolute() / "worker"
    try:
        node, starter = install_tools((tools or folder).absolute(), _log)
    except ToolsMissing as error:
        raise CommandFailed(str(error)) from None
    except OSError as error:
        raise CommandFailed(f"{error.filename or folder}: {error.strerror or error}") from None
    options = dev_options(worker, gateway, script.absolute(), host, port, folder / "state" / worker.name)
    if worker.ignored:
        _log(f"these fields of {path} are not supported and are ignored: {', '.join(worker.ignored)}")
    with running_dev_server(node, starter, options) as process:
        _print_events(process, worker, gateway, is_json=json)


def local_gateway(data: Path | None) -> GatewayTarget:
    """Return the gateway of the platform that runs in a data directory. Raises CommandFailed."""
    from worker_runtime.dev_server import GatewayTarget

    data_dir = DataDir(data or DEFAULT_DATA)
    running = data_dir.read_dev()
    if running is None:
        raise CommandFailed(f"no platform runs in {data_dir.path}: start one with `hearth up`, or pass --url")
    return GatewayTarget(str(running["base_url"]), str(running["account_id"]), str(running["api_token"]))


def check_gateway(gateway: GatewayTarget) -> None:
    """Raises CommandFailed if the URL or the token of a gateway is missing or invalid."""
    parts = urlsplit(gateway.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CommandFailed(f"--url must be an http:// or https:// URL with a host (got {gateway.url!r})", exit_code=2)
    if not gateway.api_token:
        raise CommandFailed("--url needs --token or CLOUDFLARE_API_TOKEN", exit_code=2)


def _print_events(
    process: subprocess.Popen[str], worker: WorkerConfig, gateway: GatewayTarget, *, is_json: bool
) -> None:
    """Print the Worker's events until its process ends. Raises CommandFailed if the process fails."""
    from worker_runtime.dev_server import STOPPED_STATUSES

    assert process.stdout is not None
    was_ready = False
    for line in process.stdout:
        event = jsonlib.loads(line)
        is_broken = event["event"] == "broken"
        if is_json:
            print_json(event)
            sys.stdout.flush()
            continue
        if is_broken or was_ready:
            _log(event["message"] if is_broken else "the Worker has changed and runs again")
            continue
        sys.stdout.write(_ready_text(event["url"], worker, gateway))
        sys.stdout.flush()
        was_ready = True
    status = process.wait()
    if status not in STOPPED_STATUSES:
        raise CommandFailed(f"the Worker's process exited with status {status}")


def _ready_text(url: str, worker: WorkerConfig, gateway: GatewayTarget) -> str:
    kinds = (("KV", worker.kv), ("D1", worker.d1), ("R2", worker.r2))
    stores = ", ".join(f"env.{name} ({kind})" for kind, names in kinds for name in names)
    local = f"  local stores: {stores}\n" if stores else ""
    return f"""
Worker {worker.name} is ready at {url}

  env.{worker.ai} calls {gateway.url}
{local}
The Worker restarts when its files change. Press Ctrl-C to stop.
"""


def _log(text: str) -> None:
    sys.stderr.write(f"hearth: {text}\n")
    sys.stderr.flush()
