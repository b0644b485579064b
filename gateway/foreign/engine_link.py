"""EngineLink: runs calls on one foreign engine over HTTP and presents the engine to dispatch as if it were a node.

Every response is streamed, also for clients that do not stream: a cancelled call then stops on the engine, and a stall
is noticed. Retries, timeouts and metering are those of all nodes. Each failure is one log line, without content.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable

import httpx

from catalog.foreign_engines import EngineKind, EngineModel, EngineSpec
from engine.protocol import wire
from engine.protocol.events import Event, Failed
from gateway.foreign.chunks import EngineFault, fault_of, read_models
from gateway.foreign.engine_call import EngineCall
from gateway.nodes.connections import NodeLost, NodeRefused
from gateway.nodes.inbox import Inbox

log = logging.getLogger(__name__)

NODE_ID_PREFIX = "engine:"  # a character that ids of Hearth's own nodes cannot have
PROBE_INTERVAL_S = 2.0
PROBE_TIMEOUT_S = 5.0
MAX_FAILED_PROBES = 2
_TIMEOUT = httpx.Timeout(connect=5.0, read=None, write=30.0, pool=1.0)  # dispatch limits the time between events

# The owner that each kind of server names in its list of models.
_KIND_OF_OWNER: dict[str, EngineKind] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llama.cpp",
    "me": "llama.cpp",  # llama-cpp-python
    "library": "ollama",
    "hearth": "hearth",
}


class EngineLink:
    """The link to one engine. `api_key` is "" without one. `on_change` is called when the engine becomes reachable or
    unreachable. `tokens_in_flight` are the estimated tokens of this gateway's running calls."""

    def __init__(
        self,
        spec: EngineSpec,
        api_key: str,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.spec = spec
        self.node_id = NODE_ID_PREFIX + spec.name
        self.address = spec.url
        self.pop = spec.pop
        self.tokens_in_flight = 0
        self.served: frozenset[str] = frozenset()  # the models that the engine lists
        self.detail = "not probed yet"
        self.kind: EngineKind = spec.kind or "openai"
        self._on_change = on_change
        self._is_open = False
        self._num_failed_probes = 0
        self._probe_now = asyncio.Event()
        self._jobs: dict[int, asyncio.Task[None]] = {}
        self._inboxes: dict[int, Inbox] = {}
        self._next_call_id = 1
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self.http = httpx.AsyncClient(
            base_url=spec.url.rstrip("/"),
            headers={**headers, "accept-encoding": "identity"},
            timeout=_TIMEOUT,
            limits=httpx.Limits(max_connections=spec.max_calls + 1, max_keepalive_connections=spec.max_calls + 1),
            follow_redirects=False,
            trust_env=False,
        )

    @property
    def is_open(self) -> bool:
        """True if the engine responds to probes."""
        return self._is_open

    @property
    def proven_pop(self) -> str:
        """The PoP that the operator has registered the engine for."""
        return self.spec.pop

    @property
    def round_trip_s(self) -> float | None:
        """None: the round trip to a foreign engine is estimated from its PoP."""
        return None

    @property
    def keeps_no_content(self) -> bool:
        return self.spec.keeps_no_content

    @property
    def num_calls(self) -> int:
        return len(self._jobs)

    def serves(self, model: EngineModel) -> bool:
        """Return True if the engine lists the model. Ollama lists a model with its tag."""
        return model.name in self.served or f"{model.name}:latest" in self.served

    # ── calls ──

    def execute(self, make_execute: Callable[[int], wire.Execute], inbox: Inbox) -> int:
        """Start a call; its events go to `inbox`. Return the call's id. Raises NodeLost if the engine cannot be
        reached or has its maximum of calls."""
        if not self._is_open or len(self._jobs) >= self.spec.max_calls:
            raise NodeLost
        call_id = self._next_call_id
        self._next_call_id += 1
        self._inboxes[call_id] = inbox
        call = EngineCall(self, make_execute(call_id), functools.partial(self._put, call_id))
        job = asyncio.create_task(call.run(), name=f"call on {self.node_id}")
        self._jobs[call_id] = job
        job.add_done_callback(functools.partial(self._end, call_id))
        return call_id

    def _end(self, call_id: int, job: asyncio.Task[None]) -> None:
        """End a call whose job is over. A job that failed, or was cancelled before it began, sent no last event."""
        del self._jobs[call_id]
        error = None if job.cancelled() else job.exception()
        if error is not None:
            log.error("call on a foreign engine failed", extra={"engine": self.spec.name}, exc_info=error)
        self._put(call_id, Failed("aborted" if error is None else "internal"))

    def _put(self, call_id: int, event: Event) -> None:
        inbox = self._inboxes.get(call_id)
        if inbox is not None:
            inbox.put(event)
            if inbox.has_ended:
                del self._inboxes[call_id]

    def cancel(self, call_id: int) -> None:
        """Close the call's connection, which stops the call on the engine."""
        job = self._jobs.get(call_id)
        if job is not None:
            job.cancel()

    def forget(self, call_id: int) -> None:
        self._inboxes.pop(call_id, None)

    async def manage(self, action: wire.ManageAction, _model: str, _timeout_s: float) -> None:
        """Raise NodeRefused: an engine manages its own models."""
        raise NodeRefused(f"a foreign engine does not support {action}; register it with other models, or remove it")

    # ── probes ──

    async def run(self) -> None:
        """Probe the engine until cancelled."""
        while True:
            await self.probe()
            self._probe_now.clear()
            try:
                async with asyncio.timeout(PROBE_INTERVAL_S):
                    await self._probe_now.wait()
            except TimeoutError:
                pass

    def suspect(self) -> None:
        """Probe soon: a call could not reach the engine."""
        self._probe_now.set()

    async def probe(self) -> None:
        """Read the engine's list of models once."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                response = await self.http.get("/models")
            if response.status_code != 200:
                raise fault_of(response.status_code, response.content)
            found = read_models(response.content)
        except (httpx.HTTPError, TimeoutError, EngineFault) as error:
            self._num_failed_probes += 1
            why = str(error) if isinstance(error, EngineFault) else f"is unreachable ({type(error).__name__})"
            if not self._is_open or self._num_failed_probes >= MAX_FAILED_PROBES:
                self._change(False, why)
            return
        self._num_failed_probes = 0
        owners = set(found.values())
        known = [kind for owner, kind in _KIND_OF_OWNER.items() if owner in owners]
        self.kind = self.spec.kind or (known[0] if known else "openai")
        served, self.served = self.served, frozenset(found)
        self._change(True, "", is_forced=served != self.served)

    def _change(self, is_open: bool, detail: str, *, is_forced: bool = False) -> None:
        if (is_open, detail) == (self._is_open, self.detail) and not is_forced:
            return
        if is_open != self._is_open or detail != self.detail:
            emit = log.info if is_open else log.warning
            emit("foreign engine is reachable" if is_open else "foreign engine is not usable",
                 extra={"engine": self.spec.name, "why": detail})  # fmt: skip
        self._is_open, self.detail = is_open, detail
        self._on_change()

    async def close(self, grace_s: float = 0.0) -> None:
        """Close every connection, after running calls have had `grace_s` seconds to end."""
        self._is_open = False
        if self._jobs and grace_s:
            await asyncio.wait(list(self._jobs.values()), timeout=grace_s)
        for inbox in list(self._inboxes.values()):
            inbox.fail(NodeLost())
        jobs = list(self._jobs.values())
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        await self.http.aclose()
