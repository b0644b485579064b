"""Call: the frozen record of one authenticated inference call, carried to the end. Knows no stage that uses it."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from catalog.card import ModelCard
from engine.protocol.tasks import TaskInput
from tenants.principal import Principal


class Call(Struct, frozen=True, kw_only=True):
    """Who asks for what, and what placement and metering need to know of it.

    `shown_model` is the id the client used, `card` the model that answers. `namespace` (32 bytes) keys the prefix
    cache and `tenant` fairness; both are derived by us. `affinity` is what should meet the same node again.
    `num_estimated_tokens` is prompt and completion, guessed from text length. Times named `_s` are monotonic.
    """

    request_id: str
    principal: Principal
    card: ModelCard
    shown_model: str
    task: TaskInput
    is_stream: bool
    namespace: bytes
    tenant: int
    affinity: bytes
    num_estimated_tokens: int
    started_at: datetime
    started_s: float
    deadline_s: float
