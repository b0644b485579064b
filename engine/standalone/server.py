"""The standalone server: its components and the order in which they start and stop.

The server listens before the model is loaded, so that an occupied port is reported immediately; requests wait
meanwhile. Shutdown: reject new calls, finish running ones, close the listener, end the model's processes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from engine.processes.zygote import Zygote
from engine.serving.addresses import Address
from engine.serving.http_server import HttpServer
from engine.serving.loaders import Loaders
from engine.serving.replicas import ReplicaMemory, Replicas
from engine.standalone.app import create_app
from engine.standalone.model_folder import FolderStore, dtype_of, sampling_defaults, weight_bytes
from engine.standalone.served_model import ServedModel
from engine.standalone.settings import ServeSettings
from engine.tasks.work import ModelDescription, Refused, TaskModel
from telemetry.version import installed_version

logger = logging.getLogger(__name__)

PROGRESS_S = 5.0

_ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - an address to connect to


class StandaloneServer:
    """Created inside the event loop; call `run`."""

    def __init__(self, settings: ServeSettings, zygote: Zygote) -> None:
        """Raises FolderUnusable."""
        self._settings = settings
        self._started_s = time.monotonic()
        self._is_stopping = asyncio.Event()
        self._is_force_stopped = asyncio.Event()
        self._store = FolderStore(settings)
        defaults = sampling_defaults(settings.model_dir)
        if settings.dtype == "config":
            settings = replace(settings, dtype=dtype_of(settings.model_dir))
        memory = ReplicaMemory(kv_share_bytes=settings.kv_memory_bytes)
        self._replicas = Replicas(self._store, Loaders(zygote, settings, self._store), max_replicas=1, memory=memory)
        self._model = ServedModel(self._store, self._replicas, settings.model_names, settings.model_dir, defaults)
        app = create_app(self._model, api_key=settings.api_key, version=installed_version())
        self._http = HttpServer(app, max_connections=None)

    def stop(self) -> None:
        """Drain and stop; a second call stops without waiting for running calls."""
        (self._is_force_stopped if self._is_stopping.is_set() else self._is_stopping).set()

    async def run(self) -> int:
        """Run until stopped and drained; return the exit code: 1 if the model cannot be loaded. Raises CannotListen."""
        await self._http.open(Address(host=self._settings.host, port=self._settings.port))
        try:
            if not await self._load():
                return 0 if self._is_stopping.is_set() else 1
            await self._is_stopping.wait()
            await self._drain()
        finally:
            await self._http.close()
            await self._replicas.close()
        return 0

    async def _load(self) -> bool:
        """Load the model and print its progress; return False if it cannot be loaded or the server is stopping."""
        size = _format_size(weight_bytes(self._settings.model_dir))
        _print(f"loading {self._model.name}: {self._store.architecture}, {size} of weights")
        loading = asyncio.create_task(self._model.load())
        stopping = asyncio.create_task(self._is_stopping.wait())
        try:
            while not loading.done() and not stopping.done():
                await asyncio.wait((loading, stopping), timeout=PROGRESS_S, return_when=asyncio.FIRST_COMPLETED)
                if not loading.done() and not stopping.done():
                    _print(f"still loading after {time.monotonic() - self._started_s:.0f} s")
            if not loading.done():
                return False
            model = loading.result()
            if (shortfall := self._shortfall(model)) is not None:
                _print(shortfall)
                return False
        except Refused as refusal:
            _print(f"{self._settings.model_dir} cannot be served: {refusal.failure.message}")
            return False
        finally:
            for task in (loading, stopping):
                task.cancel()
            await asyncio.gather(loading, stopping, return_exceptions=True)
        self._print_ready(model)
        return True

    def _shortfall(self, model: TaskModel) -> str | None:
        """Return an error message if the requested context does not fit in the configured memory."""
        wanted = self._settings.max_model_len
        fitting = model.describe().max_model_len
        if not model.status().num_blocks or fitting >= wanted:
            return None
        return f"--max-model-len={wanted}: --kv-memory holds {fitting} tokens only"

    async def _drain(self) -> None:
        calls = self._model.calls
        if len(calls):
            _print(f"stopping: {len(calls)} calls get {self._settings.drain_timeout_s:g} s to finish")
        draining = asyncio.create_task(calls.drain(self._settings.drain_timeout_s))
        force_stop = asyncio.create_task(self._is_force_stopped.wait())
        await asyncio.wait({draining, force_stop}, return_when=asyncio.FIRST_COMPLETED)
        calls.cancel_all()
        await draining
        force_stop.cancel()
        _print(f"stopped after {time.monotonic() - self._started_s:.0f} s")

    def _print_ready(self, model: TaskModel) -> None:
        """Print one line to standard output that contains a ready-to-run curl command."""
        description = model.describe()
        details = f" ({description.details})" if description.details else ""
        seconds = time.monotonic() - self._started_s
        curl = shlex.join(self._curl(description))
        if self._settings.api_key:
            curl += ' -H "Authorization: Bearer $API_KEY"'
        sys.stdout.write(f"hearth engine: {self._model.name} is ready after {seconds:.1f} s{details}: {curl}\n")
        sys.stdout.flush()

    def _curl(self, description: ModelDescription) -> Sequence[str]:
        address = self._http.address.removeprefix("http://")
        host, _, port = address.rpartition(":")
        host = _ANY_HOST.get(host.strip("[]"), host)
        url = f"http://{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{port}/v1"
        body = json.dumps(description.example_body)
        return ["curl", f"{url}/{description.example_path}", "-H", "content-type: application/json", "-d", body]


def _print(line: str) -> None:
    """Print a line for the user, separately from logs."""
    sys.stderr.write(f"hearth engine: {line}\n")
    sys.stderr.flush()


def _format_size(size_bytes: int) -> str:
    amount = float(size_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
