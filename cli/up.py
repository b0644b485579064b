"""`hearth up`: one machine's whole platform in the foreground, until Ctrl-C or SIGTERM.

Reads the options, refuses what cannot work before anything is started, and decides when to stop. What is started, and
in which order, is `cli/embedded.py`.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.data_dir import DEFAULT_DATA, KEYS, DataDir, DataDirInUse
from cli.environment import check_environment
from cli.output import CommandFailed, JsonOption, print_json

if TYPE_CHECKING:
    from cli.embedded import Plan

_POP = re.compile(r"[a-z0-9]([a-z0-9-]{0,14}[a-z0-9])?")
_MAX_NODES = 64
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_HURRY_S = 10.0


def up(
    host: Annotated[str, typer.Option(help="Address to listen on.", envvar="HEARTH_HOST")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535, envvar="HEARTH_PORT")
    ] = 8787,
    data: Annotated[Path, typer.Option(help="Folder that holds everything this platform keeps.")] = DEFAULT_DATA,
    nodes: Annotated[
        int | None, typer.Option(help="Nodes, dealt out to the PoPs in turn; one for each PoP unless given.", min=1)
    ] = None,
    pops: Annotated[str, typer.Option(help="PoPs, separated by commas; the gateway is in the first.")] = "local",
    json: JsonOption = False,
) -> None:
    """Start the whole platform on this machine: redis-server, gateway and nodes. Ctrl-C drains and stops it."""
    node_pops = plan_nodes(pops, nodes)
    unread = check_environment(os.environ, frozenset(KEYS))
    problem = why_not_listen(host, port)
    data_dir = DataDir(data)
    try:
        data_dir.create()
        port = port or free_port(host)
        from cli.embedded import Plan

        plan = Plan(host, port, node_pops)
        with data_dir.held(plan.origin):
            if problem is not None:
                raise CommandFailed(f"cannot listen on {host} port {port}: {problem}; choose another with --port")
            asyncio.run(_run(plan, data_dir, unread, is_json=json))
    except DataDirInUse as error:
        raise CommandFailed(
            f"a platform is already up in {data_dir.path}" + (f": pid {error.pid}, {error.url}" if error.pid else "")
        ) from None
    except OSError as error:
        raise CommandFailed(f"{error.strerror or error}: {error.filename or data_dir.path}") from None
    except ValueError as error:
        raise CommandFailed(str(error)) from None


def plan_nodes(pops: str, nodes: int | None) -> dict[str, str]:
    """Node id -> PoP, in order: `lis-1`, `fra-1`, `lis-2`. Raises CommandFailed."""
    names = [name.strip() for name in pops.split(",")]
    for name in names:
        if not _POP.fullmatch(name):
            raise CommandFailed(f"--pops: {name!r} is not a name of 1 to 16 of a-z, 0-9 and -", exit_code=2)
    if len(set(names)) != len(names):
        raise CommandFailed("--pops: a PoP is named twice", exit_code=2)
    count = len(names) if nodes is None else nodes
    if not len(names) <= count <= _MAX_NODES:
        raise CommandFailed(f"--nodes: {len(names)} to {_MAX_NODES}, so that each PoP has one", exit_code=2)
    return {f"{names[i % len(names)]}-{i // len(names) + 1}": names[i % len(names)] for i in range(count)}


def why_not_listen(host: str, port: int) -> str | None:
    """None when a gateway could listen there now, else the system's words for why not."""
    try:
        with _bound(host, port):
            return None
    except OSError as error:
        return error.strerror or str(error)


def free_port(host: str) -> int:
    with _bound(host, 0) as probe:
        return int(probe.getsockname()[1])


def _bound(host: str, port: int) -> socket.socket:
    family, kind, _, _, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)[0]
    probe = socket.socket(family, kind)
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
    except BaseException:
        probe.close()
        raise
    return probe


async def _run(plan: Plan, data_dir: DataDir, notes: Sequence[str], *, is_json: bool) -> None:
    """Say `notes`, start, tell, wait, drain. Raises CommandFailed when the platform cannot start or cannot go on."""
    from cli.embedded import EmbeddedPlatform
    from cli.progress import Progress
    from cli.supervisor import ChildFailed
    from storage.errors import StoreUnavailable

    with Progress() as progress:
        for note in notes:
            progress.note(note)
        platform = EmbeddedPlatform(plan, data_dir, progress)
        stop = StopSignals(platform.hurry)
        try:
            if await stop.before(platform.start()):
                progress.rest()
                _tell(platform.dev(), data_dir, is_json=is_json)
                await stop.before(platform.crashed())
                progress.note("draining: calls in flight are finished; ask again to hurry")
        except (ChildFailed, StoreUnavailable) as error:
            raise CommandFailed(str(error)) from None
        finally:
            progress.begin_anew()
            await platform.drain()
        progress.done("drained and stopped")


def _tell(dev: dict[str, Any], data_dir: DataDir, *, is_json: bool) -> None:
    from cli.ready_text import ready_text

    if is_json:
        print_json({"event": "ready", **dev})
    else:
        sys.stdout.write(ready_text(dev, str(data_dir.path)))
    sys.stdout.flush()


class StopSignals:
    """The first signal asks to stop; the second hurries what is stopping, and kills it after a while; the third kills
    it now."""

    def __init__(self, hurry: Callable[[int], None]) -> None:
        self._hurry = hurry
        self._count = 0
        self._requested = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            self._loop.add_signal_handler(number, self._arrived)

    async def before(self, work: Coroutine[Any, Any, None]) -> bool:
        """Whether `work` finished before anybody asked to stop; if not, it is cancelled."""
        job = asyncio.create_task(work)
        asked = asyncio.create_task(self._requested.wait())
        try:
            await asyncio.wait({job, asked}, return_when=asyncio.FIRST_COMPLETED)
            if job.done():
                job.result()
            return job.done()
        finally:
            job.cancel()
            asked.cancel()
            await asyncio.gather(job, asked, return_exceptions=True)

    def _arrived(self) -> None:
        self._count += 1
        self._requested.set()
        if self._count == 2:
            self._hurry(signal.SIGTERM)
            self._loop.call_later(_HURRY_S, self._hurry, signal.SIGKILL)
        elif self._count > 2:
            self._hurry(signal.SIGKILL)
