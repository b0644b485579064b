"""EngineCall: one call on a foreign engine, from its HTTP requests to its last event."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

import httpx

from catalog.foreign_engines import EngineKind, EngineSpec
from engine.protocol import wire
from engine.protocol.events import ChoiceEnded, Event, Failed, FailureReason, Finished, Started, Usage
from engine.protocol.tasks.text_embeddings import TextEmbeddings
from engine.protocol.tasks.text_generation import TextGeneration
from gateway.foreign.chunks import (
    ChoiceReader,
    EngineFault,
    SseDecoder,
    client_error,
    fault_of,
    plausible_usage,
    read_embeddings,
)
from gateway.foreign.requests import EngineRequest, NotOffered, requests_for

log = logging.getLogger(__name__)

SILENCE_S = 5.0  # a call that is cancelled after this much silence of the engine is logged
MAX_ERROR_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 1024 * 1024
_DONE = b"[DONE]"


class Engine(Protocol):
    """The engine that runs a call."""

    spec: EngineSpec
    kind: EngineKind
    http: httpx.AsyncClient

    def suspect(self) -> None: ...


class ClientError(Exception):
    """The engine rejected the client's input."""

    def __init__(self, reason: FailureReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class EngineCall:
    """One call. `emit` receives its events; the last one is Finished or Failed, also if `run` is cancelled."""

    def __init__(self, engine: Engine, execute: wire.Execute, emit: Callable[[Event], None]) -> None:
        self._engine = engine
        self._execute = execute
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        self._received_s = self._loop.time()
        self._has_started = False
        self._readers: list[ChoiceReader] = []

    async def run(self) -> None:
        """Run the call to its end."""
        end: Finished | Failed
        try:
            end = await self._run()
        except asyncio.CancelledError:
            silent_s = self._loop.time() - self._received_s
            if silent_s >= SILENCE_S:
                self._warn(f"sent nothing for {silent_s:.1f} s")
            end = Failed("aborted", usage=self._usage())
        except NotOffered as error:
            end = Failed("invalid_input", str(error), is_retryable=True)
        except ClientError as error:
            end = Failed(error.reason, str(error), usage=self._usage())
        except EngineFault as error:
            self._warn(str(error))
            end = self._failure(error)
        except httpx.HTTPError as error:
            self._engine.suspect()
            self._warn(f"connection failed ({type(error).__name__})")
            end = self._failure(EngineFault("connection failed", "out_of_capacity"))
        self._emit(end)

    def _failure(self, fault: EngineFault) -> Failed:
        message = f"the engine that serves this model {fault}"
        return Failed(fault.reason, message, is_retryable=True, usage=self._usage())

    def _warn(self, why: str) -> None:
        log.warning(
            "foreign engine failed",
            extra={"engine": self._engine.spec.name, "request_id": self._execute.request_id, "why": why},
        )

    async def _run(self) -> Finished:
        execute, engine = self._execute, self._engine
        model = engine.spec.models[execute.model]
        requests = requests_for(execute.task, model.name, engine.kind, execute.namespace.hex())
        if isinstance(execute.task, TextEmbeddings):
            return await self._embed(execute.task, requests[0])
        self._readers = [ChoiceReader(model.name, choice) for choice in range(len(requests))]
        if len(requests) == 1:
            await self._read_choice(requests[0], self._readers[0])
        else:
            await self._read_choices(requests)
        reason = self._readers[0].reason
        assert reason is not None
        return Finished(reason, self._usage())

    async def _read_choices(self, requests: list[EngineRequest]) -> None:
        """Read all choices at the same time; the first failure ends the others."""
        jobs = [
            asyncio.create_task(self._read_choice(request, reader))
            for request, reader in zip(requests, self._readers, strict=True)
        ]
        try:
            await asyncio.gather(*jobs)
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    async def _read_choice(self, request: EngineRequest, reader: ChoiceReader) -> None:
        decoder = SseDecoder()
        async with self._engine.http.stream("POST", request.path, json=request.body) as response:
            await self._check(response, "text/event-stream")
            async for data in response.aiter_bytes():
                self._received_s = self._loop.time()
                for document in decoder.feed(data):
                    if document == _DONE:
                        break
                    for event in reader.read(document):
                        self._start()
                        self._emit(event)
        if reason := reader.reason:
            self._start()
            if len(self._readers) > 1:
                self._emit(ChoiceEnded(self._readers.index(reader), reason))
        else:
            raise EngineFault("ended the response too early")

    def _start(self) -> None:
        """Emit Started before the first output."""
        if not self._has_started:
            self._has_started = True
            usage = self._usage()
            self._emit(Started(usage.prompt_tokens, usage.cached_tokens))

    async def _check(self, response: httpx.Response, media_type: str) -> None:
        """Raise ClientError or EngineFault unless the response is a success of this type."""
        self._received_s = self._loop.time()
        if response.status_code != 200:
            body = await _read_limited(response, MAX_ERROR_BYTES)
            error = client_error(response.status_code, body)
            raise fault_of(response.status_code, body) if error is None else ClientError(*error)
        found = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if found != media_type:
            raise EngineFault(f"responded with a media type other than {media_type}")

    async def _embed(self, task: TextEmbeddings, request: EngineRequest) -> Finished:
        async with self._engine.http.stream("POST", request.path, json=request.body) as response:
            await self._check(response, "application/json")
            body = await _read_limited(response, MAX_BODY_BYTES)
        result, prompt_tokens = read_embeddings(body, task)
        if prompt_tokens is None:
            prompt_tokens = max(1, task.num_estimated_tokens)
        self._emit(Started(prompt_tokens))
        self._emit(result)
        return Finished("stop", Usage(prompt_tokens=prompt_tokens))

    def _usage(self) -> Usage:
        """Return the usage so far: as reported, or estimated where the engine reported none or an impossible one. The
        prompt counts once."""
        task = self._execute.task
        if not isinstance(task, TextGeneration) or not any(
            reader.num_tokens or reader.usage for reader in self._readers
        ):
            return Usage()
        reported = [plausible_usage(reader.usage, task) for reader in self._readers]
        estimate = max(1, (task.num_estimated_tokens - task.max_completion_tokens))
        first = reported[0] or Usage()
        return Usage(
            prompt_tokens=first.prompt_tokens or estimate,
            cached_tokens=first.cached_tokens,
            completion_tokens=sum(
                reader.num_tokens if usage is None else usage.completion_tokens
                for reader, usage in zip(self._readers, reported, strict=True)
            ),
            reasoning_tokens=sum(0 if usage is None else usage.reasoning_tokens for usage in reported),
        )


async def _read_limited(response: httpx.Response, max_bytes: int) -> bytes:
    """Return the body. Raises EngineFault if it is longer than `max_bytes`."""
    parts, size = [], 0
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            raise EngineFault("sent a response that is too large")
    return b"".join(parts)
