"""Sends the results of finished batches to their webhooks, at least once, with retries.

Any gateway sends; rows in the database say which webhooks are due and which gateway has leased them. A delivery is
judged by the status of the response alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from datetime import timedelta
from typing import Any

import msgspec

from gateway import envelope
from gateway.jobs.webhook import Webhook, signature_headers, webhook_body
from gateway.jobs.webhook_http import TIMEOUT_S, NotSent
from gateway.services import Services
from storage.errors import StoreUnavailable
from storage.waiters import wait_for_event
from telemetry import metrics
from tenants.jobs import batches, webhook_keys, webhooks
from tenants.jobs.webhooks import Due

log = logging.getLogger(__name__)

RETRY_DELAYS_S = (1.0, 10.0, 60.0, 300.0, 1800.0)  # the webhook is dropped after the last
POLL_INTERVAL_S = 5.0
MAX_CONCURRENT = 8
MAX_PER_ACCOUNT = 5  # so that slow receivers of one account do not delay the webhooks of others
_LEASE_S = 6 * TIMEOUT_S

_decode_target = msgspec.json.Decoder(Webhook).decode
_decode_item = msgspec.json.Decoder(dict[str, Any]).decode


class WebhookSender:
    """The sender of one gateway."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._has_work = asyncio.Event()
        self._sending: dict[asyncio.Task[None], str] = {}  # account ids

    def wake(self) -> None:
        """Look for due webhooks now: a batch may have finished."""
        self._has_work.set()

    async def run(self) -> None:
        """Send due webhooks, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._has_work.clear()
                try:
                    await self._send_some(group)
                except StoreUnavailable:
                    log.warning("webhooks were not sent: the database is unavailable")
                await wait_for_event(self._has_work, POLL_INTERVAL_S)

    async def _send_some(self, group: asyncio.TaskGroup) -> None:
        """Start to send due webhooks, as many as there is room for. Raises StoreUnavailable."""
        services = self._services
        while len(self._sending) < MAX_CONCURRENT and not services.admission.is_draining:
            found = await webhooks.take(
                services.database,
                services.clock.now(),
                limit=1,
                lease_s=_LEASE_S,
                excluded=self._accounts_with_enough(),
            )
            if not found:
                return
            task = group.create_task(self._send(found[0]))
            self._sending[task] = found[0].account_id
            task.add_done_callback(self._end)

    def _accounts_with_enough(self) -> set[str]:
        return {
            account_id for account_id, number in Counter(self._sending.values()).items() if number >= MAX_PER_ACCOUNT
        }

    def _end(self, task: asyncio.Task[None]) -> None:
        if len(self._sending) == MAX_CONCURRENT or self._sending[task] in self._accounts_with_enough():
            self.wake()  # others may be waiting for room
        del self._sending[task]

    async def _send(self, due: Due) -> None:
        """Try to deliver one webhook, and store the outcome."""
        services = self._services
        try:
            outcome = await self._try(due)
        except StoreUnavailable:
            return  # retried when the lease expires
        except (ValueError, msgspec.MsgspecError):
            log.error("webhook is unreadable; has HEARTH_CACHE_SECRET changed?", extra={"batch": due.batch_id})
            outcome = "unreadable"
        is_over = outcome in ("delivered", "unreadable") or due.num_tries > len(RETRY_DELAYS_S)
        metrics.WEBHOOKS.labels(outcome).inc()
        if outcome != "delivered":
            log.info("webhook was not delivered", extra={"batch": due.batch_id, "why": outcome, "is_over": is_over})
        now, next_at = services.clock.now(), None
        if not is_over:
            delay_s = RETRY_DELAYS_S[due.num_tries - 1]
            next_at = now + timedelta(seconds=delay_s)
            asyncio.get_running_loop().call_later(delay_s, self.wake)
        with contextlib.suppress(StoreUnavailable):
            await webhooks.finish_attempt(services.database, due.batch_id, outcome, now, next_at)

    async def _try(self, due: Due) -> str:
        """Return `delivered`, or why the webhook was not. Raises StoreUnavailable; ValueError for unreadable rows."""
        services = self._services
        webhook = _decode_target(services.batches.decrypt(due.account_id, due.target))
        sealed = await batches.read_results(services.database, due.account_id, due.batch_id, 0, due.num_requests)
        if len(sealed) < due.num_requests:
            return "expired"
        items = [_decode_item(services.batches.decrypt(due.account_id, each)) for each in sealed]
        created = int(due.finished_at.timestamp())
        body = envelope.encode(webhook_body(webhook, due.batch_id, due.requested_model, created, items))
        now = services.clock.now()
        keys = await webhook_keys.signing(services.database, due.account_id, now)
        secrets = [key.secret(services.settings.cache_secret) for key in keys]
        headers = [
            ("content-type", "application/json"),
            ("user-agent", "Hearth"),
            ("cf-ai-req-id", due.batch_id),
            *signature_headers(f"msg_{due.batch_id}", int(now.timestamp()), body, secrets),
        ]
        try:
            status = await services.webhook_client.post(webhook.url, body, headers)
        except NotSent as error:
            return str(error)
        return "delivered" if 200 <= status < 300 else "refused"
