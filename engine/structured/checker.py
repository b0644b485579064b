"""Checks of constraints in the node process, before a rank sees them.

A constraint passes if it compiles and a random text can be generated from it. Compilation runs in the process of
`check_worker.py`, which is started with the first check. Results are cached per namespace, so response times do not
reveal the schemas of other tenants. Each namespace has at most one check running, so one tenant cannot occupy the
worker. Imports neither torch nor llguidance.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec

from engine.protocol.output_format import Constraint
from engine.structured.check_worker import CheckRequest, CheckResult, encode_frame
from engine.structured.compile import cache_key, check_size, constraint_name
from engine.structured.refusal import ConstraintRefused
from telemetry.bounded_cache import BoundedCache

logger = logging.getLogger(__name__)

_MAX_CACHED = 1024
_result_decoder = msgspec.msgpack.Decoder(CheckResult)


class ConstraintChecker:
    """The checker of one model. Belongs to one event loop; starts a process with the first check that needs one.

    checker = ConstraintChecker(config.model_dir, replica.info.vocab_size, replica.info.eos_token_ids)
    await checker.check(Constraint("json_schema", '{"type": "integer"}'), namespace)  # passes
    await checker.check(Constraint("json_schema", '{"not": {}}'), namespace)
    # ConstraintRefused: the JSON schema uses 'not', which is not supported
    await checker.close()
    """

    def __init__(
        self,
        model_dir: Path,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        *,
        command: tuple[str, ...] = ("-m", "engine.structured.check_worker"),
    ) -> None:
        self._command = command
        self._arguments = [str(model_dir), str(vocab_size), *map(str, eos_token_ids)]
        self._process: Process | None = None
        self._starting = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        self._pending: dict[int, asyncio.Future[CheckResult]] = {}
        self._cache: BoundedCache[bytes, str] = BoundedCache(
            _MAX_CACHED
        )  # refusals by constraint and namespace; "" if it passed
        self._locks: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        self.num_sent = 0  # checks sent to the worker process

    @property
    def worker_pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def check(self, constraint: Constraint, namespace: bytes) -> None:
        """Check that `constraint` can be enforced. Raises ConstraintRefused."""
        key = cache_key(constraint, namespace)
        refusal = self._cache.get(key)  # None if not checked yet, "" if the check passed
        if refusal is None:
            check_size(constraint)
            lock = self._locks.setdefault(namespace, asyncio.Lock())
            async with lock:
                refusal = self._cache.get(key)
                if refusal is None:
                    result = await self._send(constraint)
                    if result.is_timeout:  # not cached: the machine may just have been busy
                        raise ConstraintRefused(result.refusal, is_timeout=True)
                    refusal = result.refusal
                    self._cache.put(key, refusal)
        if refusal:
            raise ConstraintRefused(refusal)

    async def close(self) -> None:
        """Kill the worker process. Running checks end with ConstraintRefused."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if self._reading is not None:
            await self._reading

    async def _send(self, constraint: Constraint) -> CheckResult:
        """Check in the worker process. A worker that dies meanwhile is restarted once."""
        for _ in range(2):
            process = await self._running_process()
            self.num_sent += 1
            check_id = self.num_sent
            future: asyncio.Future[CheckResult] = asyncio.get_running_loop().create_future()
            self._pending[check_id] = future
            try:
                assert process.stdin is not None
                process.stdin.write(encode_frame(CheckRequest(check_id, constraint)))
                await process.stdin.drain()
                return await future
            except ConnectionError:
                continue
            finally:
                self._pending.pop(check_id, None)
        return CheckResult(0, f"{constraint_name(constraint)} could not be checked", is_timeout=True)

    async def _running_process(self) -> Process:
        async with self._starting:
            if self._process is None:
                arguments = [str(os.getpid()), *self._arguments]
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable, *self._command, *arguments, stdin=PIPE, stdout=PIPE
                )
                self._reading = asyncio.create_task(self._read_results(self._process))
            return self._process

    async def _read_results(self, process: Process) -> None:
        """Deliver results until the worker exits, then fail all pending checks."""
        assert process.stdout is not None
        try:
            while True:
                size = int.from_bytes(await process.stdout.readexactly(4), "little")
                result = _result_decoder.decode(await process.stdout.readexactly(size))
                future = self._pending.get(result.check_id)
                if future is not None and not future.done():
                    future.set_result(result)
        except asyncio.IncompleteReadError:
            code = await process.wait()
        if self._process is process:
            self._process = None
            logger.error("constraint check process exited with code %d", code)
        for future in self._pending.values():
            if not future.done():
                future.set_exception(ConnectionResetError())
