"""`A/audit_logs` and `/audit_logs`: the changes to an account or to the whole platform, newest first, and the
verification that the log is complete and unchanged."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from gateway.live.audit_verifier import AuditVerification
from gateway.management.endpoint import Count, ManagementRequest, PageQuery, format_time, respond, takes_query
from gateway.openapi.operation import describe
from gateway.services import Services
from tenants.audit import audit_log
from tenants.audit.audit_log import AuditEntry

_PLATFORM = ""  # the account id of entries about the platform itself


class AuditQuery(PageQuery, frozen=True, kw_only=True):
    """Query parameters of the audit log. `action.type` is an action such as `api_token.roll`, or a kind of object such
    as `api_token`."""

    per_page: Count = 100
    action_type: Annotated[str, Meta(max_length=64)] = msgspec.field(name="action.type", default="")


class PlatformAuditQuery(AuditQuery, frozen=True, kw_only=True):
    """Query parameters of the platform's audit log. `account_id` restricts it to one account; `platform` stands for
    changes that belong to no account."""

    account_id: Annotated[str, Meta(pattern="^([0-9a-f]{32}|platform)?$")] = ""


class AuditAction(Struct, frozen=True):
    """The kind of change, such as `api_token.roll`."""

    type: str
    result: bool


class AuditActor(Struct, frozen=True):
    """The author of a change: `cli`, or the id of an API token, user or operator."""

    id: str
    type: Literal["cli", "user"]


class AuditDetail(Struct, frozen=True):
    """A short description of the change."""

    detail: str


class AuditOwner(Struct, frozen=True):
    """The account of the change; "" for the platform itself."""

    id: str


class AuditResource(Struct, frozen=True):
    """The changed object."""

    id: str
    type: str


class AuditReport(Struct, frozen=True, kw_only=True):
    """One change. `sequence` and `digest` are its position in the hash chain and its digest, in hexadecimal."""

    id: str
    action: AuditAction
    actor: AuditActor
    interface: Literal["CLI", "API"]
    metadata: AuditDetail
    owner: AuditOwner
    resource: AuditResource
    when: str
    sequence: int
    digest: str | None


@describe(result=list[AuditReport], is_paged=True)
@takes_query(AuditQuery)
async def list_(services: Services, request: ManagementRequest, query: AuditQuery) -> Response:
    """List audit entries, newest first."""
    return await _list(services, request.account_id, query)


@describe(result=list[AuditReport], is_paged=True)
@takes_query(PlatformAuditQuery)
async def list_all(services: Services, _request: ManagementRequest, query: PlatformAuditQuery) -> Response:
    """List audit entries of all accounts and of the platform, newest first."""
    account_id = _PLATFORM if query.account_id == "platform" else query.account_id or None
    return await _list(services, account_id, query)


async def _list(services: Services, account_id: str | None, query: AuditQuery) -> Response:
    action, offset = query.action_type, (query.number - 1) * query.size
    found = await audit_log.list_recent(services.database, account_id, query.size, offset=offset, action=action)
    total = await audit_log.count(services.database, account_id, action=action)
    return query.respond([_report(entry) for entry in found], total)


@describe(result=AuditVerification)
async def verify(services: Services, _request: ManagementRequest) -> Response:
    """Verify the hash chain of the whole audit log, and the heads that this gateway has recorded. The result is at most
    a minute old."""
    return respond(await services.audit_verifier.get())


def _report(entry: AuditEntry) -> AuditReport:
    is_cli = entry.actor == "cli"
    return AuditReport(
        id=entry.audit_id,
        action=AuditAction(entry.action, True),
        actor=AuditActor(entry.actor, "cli" if is_cli else "user"),
        interface="CLI" if is_cli else "API",
        metadata=AuditDetail(entry.detail),
        owner=AuditOwner(entry.account_id),
        resource=AuditResource(entry.subject_id, entry.action.partition(".")[0]),
        when=format_time(entry.at),
        sequence=entry.sequence,
        digest=entry.digest.hex() if entry.digest is not None else None,
    )
