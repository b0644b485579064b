"""`python -m engine serve MODEL_DIR`: run one standalone server.

Starts the zygote first, because importing torch takes longest, and imports the rest meanwhile. Exit codes: 0 after a
drain, 1 if the model cannot be loaded, 2 with one line if a flag, the folder or the address is invalid.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

import uvloop

from engine.config import FLOAT8_KV
from engine.kernels.kernel_cache import warn_if_stale
from engine.processes.zygote import Zygote, rank_modules
from engine.serving.cuda_check import check_cuda, check_float8
from engine.standalone.settings import ServeSettings, read_flags
from telemetry.logs import configure_logs
from telemetry.settings import SettingError


async def _run(settings: ServeSettings) -> int:
    environ = {**os.environ, "HEARTH_LOG_LEVEL": settings.log_level}
    entry, modules = "engine.serving.process_logs:configure", rank_modules(settings.device)
    zygote = Zygote(preload=modules, configure=entry, environ=environ)
    await zygote.start()
    try:
        from engine.serving.http_server import CannotListen
        from engine.standalone.model_folder import FolderUnusable
        from engine.standalone.server import StandaloneServer

        try:
            server = StandaloneServer(settings, zygote)
            loop = asyncio.get_running_loop()
            for sign in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(sign, server.stop)
            return await server.run()
        except (CannotListen, FolderUnusable) as error:
            sys.stderr.write(f"hearth engine: {error}\n")
            return 2
    finally:
        await zygote.close()


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    try:
        settings = read_flags(arguments)
        if settings.device == "cuda":
            check_cuda("--device cuda")
            if settings.kv_dtype == FLOAT8_KV:
                check_float8(f"--kv-dtype {FLOAT8_KV}")
    except SettingError as error:
        sys.stderr.write(f"hearth engine: {error}\n")
        return 2
    configure_logs("engine front", settings.log_level)
    if settings.device == "cuda":
        warn_if_stale()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(settings))
