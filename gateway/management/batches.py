"""`A/ai/batches`: list, show and cancel batches. Results are read with the poll of `ai/run`."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import Struct
from starlette.responses import Response

from gateway.management.endpoint import ManagementRequest, PageQuery, existing, respond, takes_query
from gateway.openapi.operation import describe
from gateway.services import Services
from tenants.jobs import batches
from tenants.jobs.batches import BatchRecord, State

Kind = Literal["run", "response"]


class BatchProgress(Struct, frozen=True):
    """Numbers of requests. `done` includes `failed`."""

    done: int
    failed: int
    total: int


class Batch(Struct, frozen=True, kw_only=True):
    """A batch, or a background response (kind `response`, which has one request)."""

    id: str
    kind: Kind
    state: State
    model: str
    requested_model: str
    api_token_id: str
    progress: BatchProgress
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    cancelled_at: datetime | None
    expires_at: datetime | None


@describe(result=list[Batch], is_paged=True)
@takes_query(PageQuery)
async def list_(services: Services, request: ManagementRequest, query: PageQuery) -> Response:
    """List the account's batches and background responses that are not expired, newest first."""
    offset, now = (query.number - 1) * query.size, services.clock.now()
    found, total = await batches.list_records(services.database, request.account_id, now, query.size, offset=offset)
    return query.respond([render_batch(each) for each in found], total)


@describe(result=Batch)
async def get(services: Services, request: ManagementRequest) -> Response:
    """Get the state and progress of a batch."""
    return respond(render_batch(await _find(services, request)))


@describe(result=Batch)
async def cancel(services: Services, request: ManagementRequest) -> Response:
    """Cancel a batch. Running calls end, and requests without a result fail; a finished batch stays as it is."""
    batch = await _find(services, request)
    now = services.clock.now()
    if await batches.cancel(services.database, request.account_id, batch.batch_id, now):
        await services.batches.wake_workers(batch.batch_id)
    return respond(render_batch(await _find(services, request)))


async def _find(services: Services, request: ManagementRequest) -> BatchRecord:
    batch_id, now = request.path_params["batch_id"], services.clock.now()
    return existing(await batches.find_record(services.database, request.account_id, batch_id, now))


def render_batch(batch: BatchRecord) -> Batch:
    return Batch(
        id=batch.batch_id,
        kind=batch.kind,
        state=batch.state,
        model=batch.model,
        requested_model=batch.requested_model,
        api_token_id=batch.api_token_id,
        progress=BatchProgress(batch.num_done, batch.num_failed, batch.num_requests),
        created_at=batch.created_at,
        started_at=batch.started_at,
        finished_at=batch.finished_at,
        cancelled_at=batch.cancelled_at,
        expires_at=batch.expires_at,
    )
