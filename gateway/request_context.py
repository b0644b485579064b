"""RequestContext: everything known about an inference request before its body is parsed."""

from __future__ import annotations

from msgspec import Struct

from catalog.registry import Resolved
from gateway.admission import ConcurrencySlot
from gateway.call import Endpoint
from gateway.metering import Ledger
from gateway.services import Services
from tenants.credentials.principal import Principal


class RequestContext(Struct, frozen=True, kw_only=True):
    """`model` is the model that runs, `session` the client's session affinity. `slot` is the concurrency slot that the
    request holds. Usage is recorded in `ledger`. `started_s` is the monotonic clock's. `is_batch`: the request comes
    from a queued batch. `takes_long`: parsing the body takes long. `traceparent` is the request's
    header, if traces are exported. The remaining fields are those of `Call`."""

    services: Services
    endpoint: Endpoint
    request_id: str
    principal: Principal
    model: Resolved
    slot: ConcurrencySlot
    ledger: Ledger
    started_s: float
    session: bytes | None = None
    is_batch: bool = False
    num_bytes_in: int = 0
    takes_long: bool = False
    body_hash: int = 0
    is_retry: bool = False
    traceparent: bytes | None = None

    @property
    def account_id(self) -> str:
        return self.principal.account_id

    @property
    def may_store_content(self) -> bool:
        """True if the residency rules allow to store the content of this request."""
        return self.principal.residency.may_keep(self.services.locations.stores)
