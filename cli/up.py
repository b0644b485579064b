"""`hearth up`: run a complete platform on this machine in the foreground, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.output import CommandFailed, JsonOption, print_json
from local_platform.data_dir import DEFAULT_DATA, KEYS, DataDir, DataDirInUse
from local_platform.environment import check_environment
from local_platform.errors import PlatformError
from local_platform.plan import Plan, free_port, listen_error, plan_models, plan_nodes

if TYPE_CHECKING:
    from local_platform.platform import EmbeddedPlatform


def up(
    host: Annotated[str, typer.Option(help="Address to listen on.", envvar="HEARTH_HOST")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 chooses a free port.", min=0, max=65535, envvar="HEARTH_PORT")
    ] = 8787,
    data: Annotated[Path, typer.Option(help="Directory for all data of the platform.")] = DEFAULT_DATA,
    nodes: Annotated[int | None, typer.Option(help="Number of nodes in each PoP. Default: 1.", min=1)] = None,
    pops: Annotated[str, typer.Option(help="Comma-separated PoPs. The gateway runs in the first one.")] = "local",
    starter: Annotated[
        bool, typer.Option("--starter/--no-starter", help="Serve the starter model if it is installed, or else spark.")
    ] = True,
    json: JsonOption = False,
) -> None:
    """Start the whole platform on this machine: redis-server, gateway and nodes. Ctrl-C drains and stops it."""
    try:
        node_pops = plan_nodes(pops, nodes)
        warnings = check_environment(os.environ, frozenset(KEYS))
    except (ValueError, PlatformError) as error:
        raise CommandFailed(str(error), exit_code=2) from None
    problem = listen_error(host, port)
    data_dir = DataDir(data)
    try:
        data_dir.create()
        models = plan_models(os.environ, has_starter=starter)
        plan = Plan(host, port or free_port(host), node_pops, models)
        with data_dir.locked(plan.origin):
            if problem is not None:
                raise CommandFailed(f"cannot listen on {host} port {plan.port}: {problem}; choose another with --port")
            asyncio.run(_run(plan, data_dir, warnings, is_json=json))
    except DataDirInUse as error:
        raise CommandFailed(
            f"a platform already runs in {data_dir.path}" + (f": pid {error.pid}, {error.url}" if error.pid else "")
        ) from None
    except PlatformError as error:
        raise CommandFailed(str(error)) from None
    except OSError as error:
        raise CommandFailed(f"{error.strerror or error}: {error.filename or data_dir.path}") from None
    except ValueError as error:
        raise CommandFailed(str(error)) from None


async def _run(plan: Plan, data_dir: DataDir, warnings: Sequence[str], *, is_json: bool) -> None:
    """Start the platform, print how to reach it, wait for a stop request, drain. Raises CommandFailed."""
    from cli.progress import Progress
    from local_platform.platform import EmbeddedPlatform
    from local_platform.stop_signals import StopSignals
    from local_platform.supervisor import ChildFailed
    from storage.errors import StoreUnavailable

    with Progress() as progress:
        for warning in warnings:
            progress.note(warning)
        platform = EmbeddedPlatform(plan, data_dir, progress)
        stop = StopSignals(platform.force_stop)
        try:
            if await stop.finishes_before_stop(platform.start()):
                progress.pause()
                _print_ready(platform, data_dir, await platform.create_sign_in_link(), is_json=is_json)
                await stop.finishes_before_stop(platform.wait_for_failure())
                progress.note("draining: running calls are finished; press Ctrl-C again to stop faster")
        except (ChildFailed, StoreUnavailable) as error:
            raise CommandFailed(str(error)) from None
        finally:
            progress.restart_clock()
            await platform.drain()
        progress.done("drained and stopped")


def _print_ready(platform: EmbeddedPlatform, data_dir: DataDir, sign_in_link: str, *, is_json: bool) -> None:
    from cli.ready_text import ready_text

    dev: dict[str, Any] = platform.dev()
    if is_json:
        print_json({"event": "ready", "sign_in_link": sign_in_link or None, **dev})
    else:
        sys.stdout.write(ready_text(dev, data_dir.path, sign_in_link))
    sys.stdout.flush()
