"""Quotas of requests: select the rules that apply, reserve quota, report the windows in headers, and refuse.

One Redis round trip per request, none if no rule applies. Counting itself is in `tenants/quota/quota.py`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Sequence

from catalog.pricing import price_in_micro_neurons
from gateway.call import Call
from gateway.errors import Reason, Refusal
from gateway.http.exchange import Exchange, Headers
from gateway.services import Services
from tenants.credentials.principal import Principal
from tenants.quota.allowance import ACCOUNT_BUDGET, ALLOWANCE
from tenants.quota.quota_plan import Plan, QuotaExceeded, Reservation, WindowStatus


class QuotaReservation:
    """Quota for the calls of one request, for `async with`: reserved together at the beginning, settled at the end with
    what `set_actual` reported. The state of the windows is appended to `headers`. With `is_batch` only budgets apply.

    Entering raises Refusal.
    """

    __slots__ = ("_calls", "_headers", "_is_batch", "_micro_neurons", "_num_tokens", "_reservation", "_services")

    def __init__(
        self, services: Services, calls: Sequence[Call], headers: Headers | None = None, *, is_batch: bool = False
    ) -> None:
        self._services = services
        self._calls = calls
        self._headers = headers
        self._is_batch = is_batch
        self._num_tokens = self._micro_neurons = 0
        self._reservation: Reservation

    async def __aenter__(self) -> QuotaReservation:
        calls = self._calls
        plan = _plan_of(self._services, calls[0], self._is_batch)
        try:
            self._reservation = await self._services.quota.reserve(
                plan,
                calls[0].request_id,
                tokens=sum([call.num_estimated_tokens for call in calls]),
                micro_neurons=sum(map(_estimated_price, calls)) if plan.budgets else 0,
            )
        except QuotaExceeded as error:
            self._add_headers(error.window_statuses)
            raise _refusal_of(self._services, error) from None
        self._add_headers(self._reservation.window_statuses)
        return self

    @property
    def on_first_output(self) -> Callable[[], None] | None:
        """A function to call when the call has output; None if no rule depends on it."""
        reservation = self._reservation
        return (
            functools.partial(self._services.quota.release_waiting, reservation) if reservation.plan.waiting else None
        )

    def set_actual(self, num_tokens: int, micro_neurons: int) -> None:
        """Set the consumption to settle with."""
        self._num_tokens, self._micro_neurons = num_tokens, micro_neurons

    async def __aexit__(self, *_error: object) -> None:
        self._services.quota.settle(self._reservation, tokens=self._num_tokens, micro_neurons=self._micro_neurons)

    def _add_headers(self, window_statuses: Sequence[WindowStatus]) -> None:
        if window_statuses and self._headers is not None:
            self._headers += headers_of(window_statuses)


async def count_request(services: Services, exchange: Exchange, principal: Principal) -> None:
    """Count a request that runs no model, and add the state of its windows to the response headers. Raises Refusal."""
    items = tuple(item for item in services.limits.items(principal) if item.kind == "r")
    plan = services.quota.plan(principal.account_id, items)
    try:
        reservation = await services.quota.count_request(plan, exchange.request_id)
    except QuotaExceeded as error:
        exchange.response_headers += headers_of(error.window_statuses)
        raise _refusal_of(services, error) from None
    exchange.response_headers += headers_of(reservation.window_statuses)


@contextlib.asynccontextmanager
async def reserve_for_task(
    services: Services, exchange: Exchange, principal: Principal, task: str
) -> AsyncIterator[None]:
    """Apply the limits of a task that runs no model while the block runs: its request windows and its concurrency.
    `count_request` has already counted the request for its account and token. Raises Refusal."""
    items = services.limits.items(principal, task)
    items = tuple(item for item in items if item.kind == "c" or (item.kind == "r" and item.name == task))
    plan = services.quota.plan(principal.account_id, tuple(item for item in items if not item.ends_at_first_output))
    try:
        reservation = await services.quota.reserve(plan, exchange.request_id)
    except QuotaExceeded as error:
        raise _refusal_of(services, error) from None
    try:
        yield
    finally:
        services.quota.settle(reservation)


def headers_of(window_statuses: Sequence[WindowStatus]) -> Headers:
    """Return `Ratelimit` and `Ratelimit-Policy` for the request window and the token window with the least left."""
    now, policy = [], []
    for kind, name in (("r", "default"), ("t", "tokens")):
        nearest = nearest_of(window_statuses, kind)
        if nearest is not None:
            item = nearest.item
            now.append(f'"{name}";r={nearest.remaining};t={nearest.reset_s}')
            policy.append(f'"{name}";q={item.limit};w={item.span_ms // 1000}')
    if not now:
        return []
    return [(b"ratelimit", ", ".join(now).encode()), (b"ratelimit-policy", ", ".join(policy).encode())]


def nearest_of(window_statuses: Sequence[WindowStatus], kind: str) -> WindowStatus | None:
    """Return the window of this kind with the least left."""
    found: WindowStatus | None = None
    for status in window_statuses:
        if status.item.kind == kind and (found is None or status.remaining < found.remaining):
            found = status
    return found


def _plan_of(services: Services, call: Call, is_batch: bool) -> Plan:
    items = () if is_batch else services.limits.items(call.principal, call.card.task_slug, call.card.name)
    return services.quota.plan(call.principal.account_id, items, services.allowance.of(call.principal))


def _estimated_price(call: Call) -> int:
    """Return the micro-neurons to reserve: for the estimated prompt, and for all tokens that may be generated."""
    completion_tokens = call.task.max_completion_tokens
    prompt_tokens = max(0, call.num_estimated_tokens - completion_tokens)
    return price_in_micro_neurons(
        call.card.prices,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        audio_ms=call.task.audio_ms,
        num_image_tiles=call.task.num_image_tiles,
        num_steps=call.task.num_steps,
        num_characters=call.task.num_characters,
        is_batch=call.is_batch,
    )


def _refusal_of(services: Services, error: QuotaExceeded) -> Refusal:
    """Return the refusal for an exceeded limit."""
    item = error.item
    if item.kind == "b":
        left_s = services.allowance.left_s(item.name)
        if item.name == ALLOWANCE:
            return Refusal(Reason.ALLOWANCE_USED, f"{item.limit // 1_000_000:,}", retry_after_s=left_s)
        subject = "this account" if item.name == ACCOUNT_BUDGET else "this API token"
        return Refusal(Reason.BUDGET_USED, subject, retry_after_s=left_s)
    subject = item.name.partition(".")[0]
    if item.kind == "c":
        reason = Reason.TOO_MANY_WAITING if item.ends_at_first_output else Reason.CONCURRENCY_LIMITED
        whose = {"account": "account", "token": "API token"}.get(subject, "model")
        return Refusal(reason, whose, retry_after_s=error.retry_after_s)
    reasons = {"token": Reason.RATE_LIMITED, "account": Reason.ACCOUNT_RATE_LIMITED}
    return Refusal(reasons.get(subject, Reason.TASK_RATE_LIMITED), retry_after_s=error.retry_after_s)
