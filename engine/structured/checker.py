"""The front's word on a constraint before any rank sees it: passed, or refused with a sentence for the caller.

What compiles, and has at least one text that matches it, is passed. The compiling happens in `worker.py`'s process,
started with the first check. Verdicts are remembered per namespace, so that not even the time an answer takes tells
one tenant what another has asked; and a namespace has one check at work at a time, so that nobody's hostile schemas
fill the worker. Imports neither torch nor llguidance.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec

from engine.protocol.tasks import Constraint
from engine.structured.compile import ConstraintRefused, name_of, refuse_oversized
from engine.structured.worker import Check, Verdict, encode_frame
from telemetry.bounded_cache import BoundedCache

logger = logging.getLogger(__name__)

_MAX_VERDICTS = 1024
_verdict_decoder = msgspec.msgpack.Decoder(Verdict)


class ConstraintChecker:
    """For one model. Belongs to one event loop; starts a process with the first check that needs one.

    checker = ConstraintChecker(config.model_dir, replica.info.vocab_size, replica.info.eos_token_ids)
    await checker.check(Constraint("json_schema", '{"type": "integer"}'), namespace)  # passed
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
        command: tuple[str, ...] = ("-m", "engine.structured.worker"),
    ) -> None:
        self._command = command
        self._arguments = [str(model_dir), str(vocab_size), *map(str, eos_token_ids)]
        self._process: Process | None = None
        self._starting = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        self._next_id = 0
        self._pending: dict[int, asyncio.Future[Verdict]] = {}
        self._verdicts: BoundedCache[bytes, str] = BoundedCache(_MAX_VERDICTS)  # "": passed
        self._turns: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()

    async def check(self, constraint: Constraint, namespace: bytes) -> None:
        """Returns if sequences can be held to `constraint`. Raises ConstraintRefused."""
        key = _key(constraint, namespace)
        refusal = self._verdicts.get(key)
        if refusal is None:
            refuse_oversized(constraint)
            turn = self._turns.setdefault(namespace, asyncio.Lock())
            async with turn:
                refusal = self._verdicts.get(key)
                if refusal is None:
                    verdict = await self._ask(constraint)
                    if verdict.is_timeout:  # perhaps this machine was busy: not remembered
                        raise ConstraintRefused(verdict.refusal, is_timeout=True)
                    refusal = verdict.refusal
                    self._verdicts.put(key, refusal)
        if refusal:
            raise ConstraintRefused(refusal)

    async def close(self) -> None:
        """End the process. Checks still open are refused."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if self._reading is not None:
            await self._reading

    async def _ask(self, constraint: Constraint) -> Verdict:
        """One verdict; a worker that died meanwhile is started once more."""
        for _ in range(2):
            process = await self._running()
            self._next_id += 1
            check_id = self._next_id
            future: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
            self._pending[check_id] = future
            try:
                assert process.stdin is not None
                process.stdin.write(encode_frame(Check(check_id, constraint)))
                await process.stdin.drain()
                return await future
            except ConnectionError:
                continue
            finally:
                self._pending.pop(check_id, None)
        return Verdict(0, f"{name_of(constraint)} could not be checked", is_timeout=True)

    async def _running(self) -> Process:
        async with self._starting:
            if self._process is None:
                arguments = [str(os.getpid()), *self._arguments]
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable, *self._command, *arguments, stdin=PIPE, stdout=PIPE
                )
                self._reading = asyncio.create_task(self._read(self._process))
            return self._process

    async def _read(self, process: Process) -> None:
        """Hand out verdicts until the worker ends; then nobody may wait for it any more."""
        assert process.stdout is not None
        try:
            while True:
                size = int.from_bytes(await process.stdout.readexactly(4), "little")
                verdict = _verdict_decoder.decode(await process.stdout.readexactly(size))
                future = self._pending.get(verdict.check_id)
                if future is not None and not future.done():
                    future.set_result(verdict)
        except asyncio.IncompleteReadError:
            code = await process.wait()
        if self._process is process:
            self._process = None
            logger.error("the process that checks constraints ended with exit code %d", code)
        for future in self._pending.values():
            if not future.done():
                future.set_exception(ConnectionResetError())


def _key(constraint: Constraint, namespace: bytes) -> bytes:
    """What a verdict is remembered by."""
    text = f"{constraint.kind}\0{constraint.text}".encode(errors="surrogatepass")
    return namespace + hashlib.sha256(text).digest()
