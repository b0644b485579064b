"""Sends what finished batches gave to where their requests asked for it: at least once, and some times if need be.

Any gateway of the platform sends; the database says which webhooks are due, and whose they are for now. A target's
answer counts by its status alone. Knows the kept answers' form, not how they came about.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec

from gateway import envelope
from gateway.jobs.webhook import Webhook, body_of
from gateway.jobs.webhook_http import TIMEOUT_S, NotSent
from gateway.jobs.webhook_signature import headers_of
from gateway.services import Services
from storage.errors import StoreUnavailable
from telemetry import metrics
from tenants.jobs import batches, webhook_keys, webhooks
from tenants.jobs.webhooks import Due

log = logging.getLogger(__name__)

PAUSES_S = (1.0, 10.0, 60.0, 300.0, 1800.0)  # between tries; after the last of them it is given up
LOOK_INTERVAL_S = 5.0  # for what other gateways finished, or is to be tried again
MAX_AT_ONCE = 8
_LEASE_S = 6 * TIMEOUT_S

_decode_target = msgspec.json.Decoder(Webhook).decode
_decode_item = msgspec.json.Decoder(dict[str, Any]).decode


class WebhookSender:
    """One gateway's. `run` runs for ever."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._is_wanted = asyncio.Event()
        self._sending: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        """A batch may have been finished."""
        self._is_wanted.set()

    async def run(self) -> None:
        """Send what is due, for ever."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._is_wanted.clear()
                try:
                    await self._send_some(group)
                except StoreUnavailable:
                    log.warning("webhooks wait for the database")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_INTERVAL_S):
                        await self._is_wanted.wait()

    async def _send_some(self, group: asyncio.TaskGroup) -> None:
        """Begin to send what is due and has room beside what is being sent. Raises StoreUnavailable."""
        services, room = self._services, MAX_AT_ONCE - len(self._sending)
        if not room or services.admission.is_draining:
            return
        for due in await webhooks.take(services.database, services.clock.now(), limit=room, lease_s=_LEASE_S):
            task = group.create_task(self._send(due))
            self._sending.add(task)
            task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        if len(self._sending) == MAX_AT_ONCE:
            self.wake()  # more may have waited for room
        self._sending.discard(task)

    async def _send(self, due: Due) -> None:
        """Try one, and note what became of it."""
        services = self._services
        try:
            outcome = await self._try(due)
        except StoreUnavailable:
            return  # its lease runs out
        except (ValueError, msgspec.MsgspecError):
            log.error("a webhook cannot be read: has the cache secret changed?", extra={"batch": due.batch_id})
            outcome = "unreadable"
        is_over = outcome in ("delivered", "unreadable") or due.num_tries > len(PAUSES_S)
        metrics.WEBHOOKS.labels(outcome).inc()
        if outcome != "delivered":
            log.info("a webhook was not delivered", extra={"batch": due.batch_id, "why": outcome, "is_over": is_over})
        with contextlib.suppress(StoreUnavailable):
            if is_over:
                await webhooks.remove(services.database, due.batch_id)
            else:
                pause_s = PAUSES_S[due.num_tries - 1]
                next_at = services.clock.now() + timedelta(seconds=pause_s)
                await webhooks.put_off(services.database, due.batch_id, next_at)
                asyncio.get_running_loop().call_later(pause_s, self.wake)

    async def _try(self, due: Due) -> str:
        """`delivered`, or why it was not. Raises StoreUnavailable, and ValueError for what cannot be opened."""
        services = self._services
        webhook = _decode_target(services.batches.opened(due.account_id, due.target))
        sealed = await batches.answers(services.database, due.account_id, due.batch_id, 0, due.num_requests)
        if len(sealed) < due.num_requests:
            return "expired"
        items: list[Mapping[str, Any]] = [
            _decode_item(services.batches.opened(due.account_id, each)) for each in sealed
        ]
        created = int(due.finished_at.timestamp())
        body = envelope.encode(body_of(webhook, due.batch_id, due.shown_model, created, items))
        headers = [("content-type", "application/json"), ("user-agent", "Hearth"), ("cf-ai-req-id", due.batch_id)]
        now = services.clock.now()
        keys = await webhook_keys.signing(services.database, due.account_id, now)
        secrets = [key.secret(services.settings.cache_secret) for key in keys]
        signed = headers_of(f"msg_{due.batch_id}", int(now.timestamp()), body, secrets)
        headers += [(name.decode(), value.decode()) for name, value in signed]
        try:
            status = await services.outgoing.post(webhook.url, body, headers)
        except NotSent as error:
            return str(error)
        return "delivered" if 200 <= status < 300 else "refused"
