"""`python -m engine` runs one node; `python -m engine serve MODEL_DIR` serves one model without a gateway.

The zygote is started first, because importing torch takes longest; other imports happen meanwhile. Exits with 0 after a
drain, and with 2 and one line on standard error if a setting is invalid.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence

import uvloop

from engine.config import FLOAT8_KV
from engine.kernels.kernel_cache import warn_if_stale
from engine.node.settings import NodeSettings
from engine.processes.zygote import Zygote, rank_modules
from engine.serving.cuda_check import check_cuda, check_float8
from engine.serving.process_logs import configure
from telemetry.child_process import die_with_parent
from telemetry.settings import SettingError, read_settings

# Secrets and store addresses that model processes do not need. A node may inherit some from a shared environment file.
_HIDDEN_FROM_CHILDREN = (
    "DATABASE_URL",
    "HEARTH_TOKEN_PEPPER",
    "HEARTH_CACHE_SECRET",
    "HEARTH_METRICS_TOKEN",
    "HEARTH_OIDC_CLIENT_SECRET",
    "HF_TOKEN",
    "HEARTH_SERVICE_KEYS",
    "HEARTH_NODE_JOIN_TOKEN",
    "REDIS_URL",
    "OBJECTS_URL",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
)


def environ_of_children(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of model processes: without secrets and addresses of stores."""
    return {name: value for name, value in environ.items() if name not in _HIDDEN_FROM_CHILDREN}


async def _run(settings: NodeSettings) -> int:
    entry, modules = "engine.serving.process_logs:configure", rank_modules(settings.device)
    zygote = Zygote(preload=modules, configure=entry, environ=environ_of_children(os.environ))
    await zygote.start()

    from engine.node.enrollment import EnrollmentFailed, enroll
    from engine.node.node import Node
    from engine.node.presence import DuplicateNodeId
    from engine.serving.disk_cache import CacheInUse
    from engine.serving.http_server import CannotListen

    try:
        await enroll(settings)
        node = Node(settings, zygote)
        await node.open()
    except (CannotListen, CacheInUse, EnrollmentFailed, SettingError, OSError, ValueError) as error:
        await zygote.close()
        sys.stderr.write(f"hearth node: {error}\n")
        return 2
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.stop)
    try:
        await node.run()
    except DuplicateNodeId as error:
        sys.stderr.write(f"hearth node: {error}\n")
        return 2
    finally:
        await zygote.close()
    return 0


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["serve"]:
        from engine.standalone.process import main as serve

        return serve(arguments[1:])
    if arguments:
        sys.stderr.write(f"hearth node: {arguments[0]}: a node takes no arguments; did you mean `serve MODEL_DIR`?\n")
        return 2
    try:
        settings = read_settings(NodeSettings)
        if settings.device == "cuda":
            check_cuda("HEARTH_NODE_DEVICE=cuda")
            if settings.kv_dtype == FLOAT8_KV:
                check_float8(f"HEARTH_NODE_KV_DTYPE={FLOAT8_KV}")
    except SettingError as error:
        sys.stderr.write(f"hearth node: {error}\n")
        return 2
    configure("front")
    if settings.device == "cuda":
        warn_if_stale()
    if settings.dies_with_parent:
        die_with_parent(number=signal.SIGTERM)  # SIGTERM drains
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(settings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
