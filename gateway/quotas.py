"""What a request is held to, asked of the quota: which rules are about it, how they are told in headers, and refusals.

One exchange with Redis for each request, and none where no rule is about it. Knows rules and headers; counting is
`tenants/quota/quota.py`'s.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Sequence

from catalog.pricing import price_in_micro_neurons
from gateway.call import Call, most_completion_tokens_of
from gateway.errors import Reason, Refusal
from gateway.http.exchange import Exchange, Headers
from gateway.services import Services
from tenants.credentials.principal import Principal
from tenants.quota.allowance import ACCOUNT_BUDGET, ALLOWANCE
from tenants.quota.quota_plan import Entered, Plan, QuotaExceeded, Standing


class Held:
    """The calls of one request, held to their limits while the `async with` runs: let in together at its beginning,
    left at its end with what they really took. `headers` are told how it stands. Of a batch, only what it costs counts.
    Raises Refusal."""

    __slots__ = ("_calls", "_entered", "_headers", "_is_batch", "_micro_neurons", "_num_tokens", "_services")

    def __init__(
        self, services: Services, calls: Sequence[Call], headers: Headers | None = None, *, is_batch: bool = False
    ) -> None:
        self._services = services
        self._calls = calls
        self._headers = headers
        self._is_batch = is_batch
        self._num_tokens = self._micro_neurons = 0
        self._entered: Entered

    async def __aenter__(self) -> Held:
        calls = self._calls
        plan = _plan_of(self._services, calls[0], self._is_batch)
        try:
            self._entered = await self._services.quota.enter(
                plan,
                calls[0].request_id,
                tokens=sum([call.num_estimated_tokens for call in calls]),
                micro_neurons=sum(map(_estimated_price, calls)) if plan.budgets else 0,
            )
        except QuotaExceeded as error:
            self._tell(error.standings)
            raise _refusal_of(self._services, error) from None
        self._tell(self._entered.standings)
        return self

    @property
    def begun(self) -> Callable[[], None] | None:
        """To be called when the call has output, if that changes anything."""
        entered = self._entered
        return functools.partial(self._services.quota.begun, entered) if entered.plan.waiting else None

    def was(self, num_tokens: int, micro_neurons: int) -> None:
        """What the call came to."""
        self._num_tokens, self._micro_neurons = num_tokens, micro_neurons

    async def __aexit__(self, *_error: object) -> None:
        self._services.quota.leave(self._entered, tokens=self._num_tokens, micro_neurons=self._micro_neurons)

    def _tell(self, standings: Sequence[Standing]) -> None:
        if standings and self._headers is not None:
            self._headers += headers_of(standings)


async def pass_by(services: Services, exchange: Exchange, principal: Principal) -> None:
    """Count a request that runs no model; say in the answer how it stands. Raises Refusal."""
    items = tuple(item for item in services.limits.items(principal) if item.kind == "r")
    plan = services.quota.plan(principal.account_id, items)
    try:
        entered = await services.quota.pass_by(plan, exchange.request_id)
    except QuotaExceeded as error:
        exchange.response_headers += headers_of(error.standings)
        raise _refusal_of(services, error) from None
    exchange.response_headers += headers_of(entered.standings)


@contextlib.asynccontextmanager
async def held_beside(services: Services, exchange: Exchange, principal: Principal, task: str) -> AsyncIterator[None]:
    """A request of a task that runs no model, held to that task's limits and to calls at once while the block runs;
    `pass_by` has counted it already in the windows of its account and token. Raises Refusal."""
    items = services.limits.items(principal, task)
    items = tuple(item for item in items if item.kind == "c" or (item.kind == "r" and item.name == task))
    plan = services.quota.plan(principal.account_id, tuple(item for item in items if not item.is_until_begun))
    try:
        entered = await services.quota.enter(plan, exchange.request_id)
    except QuotaExceeded as error:
        raise _refusal_of(services, error) from None
    try:
        yield
    finally:
        services.quota.leave(entered)


def headers_of(standings: Sequence[Standing]) -> Headers:
    """`Ratelimit` and its policy: the window of requests that is nearest to refusing, and that of tokens."""
    now, policy = [], []
    for kind, name in (("r", "default"), ("t", "tokens")):
        nearest = nearest_of(standings, kind)
        if nearest is not None:
            item = nearest.item
            now.append(f'"{name}";r={nearest.remaining};t={nearest.reset_s}')
            policy.append(f'"{name}";q={item.limit};w={item.span_ms // 1000}')
    if not now:
        return []
    return [(b"ratelimit", ", ".join(now).encode()), (b"ratelimit-policy", ", ".join(policy).encode())]


def nearest_of(standings: Sequence[Standing], kind: str) -> Standing | None:
    """The window of this kind that has the least left."""
    found: Standing | None = None
    for standing in standings:
        if standing.item.kind == kind and (found is None or standing.remaining < found.remaining):
            found = standing
    return found


def _plan_of(services: Services, call: Call, is_batch: bool) -> Plan:
    items = () if is_batch else services.limits.items(call.principal, call.card.task_slug, call.card.name)
    return services.quota.plan(call.principal.account_id, items, services.allowance.of(call.principal))


def _estimated_price(call: Call) -> int:
    """Micro-neurons to reserve: of a prompt whose length is guessed, and of all it may generate."""
    most = most_completion_tokens_of(call.task)
    prompt_tokens = max(0, call.num_estimated_tokens - most)
    return price_in_micro_neurons(
        call.card.prices, prompt_tokens=prompt_tokens, completion_tokens=most, is_batch=call.is_batch
    )


def _refusal_of(services: Services, error: QuotaExceeded) -> Refusal:
    """What a limit that is reached means to the client."""
    item = error.item
    if item.kind == "b":
        left_s = services.allowance.left_s(item.name)
        if item.name == ALLOWANCE:
            return Refusal(Reason.ALLOWANCE_USED, f"{item.limit // 1_000_000:,}", retry_after_s=left_s)
        subject = "this account" if item.name == ACCOUNT_BUDGET else "this API token"
        return Refusal(Reason.BUDGET_USED, subject, retry_after_s=left_s)
    subject = item.name.partition(".")[0]
    if item.kind == "c":
        reason = Reason.TOO_MANY_WAITING if item.is_until_begun else Reason.CONCURRENCY_LIMITED
        whose = {"account": "account", "token": "API token"}.get(subject, "model")
        return Refusal(reason, whose, retry_after_s=error.retry_after_s)
    reasons = {"token": Reason.RATE_LIMITED, "account": Reason.ACCOUNT_RATE_LIMITED}
    return Refusal(reasons.get(subject, Reason.TASK_RATE_LIMITED), retry_after_s=error.retry_after_s)
