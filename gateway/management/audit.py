"""`A/audit_logs`: the changes to an account, newest first."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.responses import Response

from gateway.management.endpoint import Count, ManagementRequest, PageQuery, format_time, takes_query
from gateway.services import Services
from tenants.audit import audit_log
from tenants.audit.audit_log import AuditEntry


class AuditQuery(PageQuery, frozen=True, kw_only=True):
    """Query parameters of the audit log. `action.type` is an action such as `api_token.roll`, or a kind of object such
    as `api_token`."""

    per_page: Count = 100
    action_type: Annotated[str, Meta(max_length=64)] = msgspec.field(name="action.type", default="")


@takes_query(AuditQuery)
async def list_(services: Services, request: ManagementRequest, query: AuditQuery) -> Response:
    """List audit entries, newest first."""
    account_id, action = request.account_id, query.action_type
    offset = (query.number - 1) * query.size
    found = await audit_log.list_recent(services.database, account_id, query.size, offset=offset, action=action)
    total = await audit_log.count(services.database, account_id, action=action)
    return query.respond([_render_entry(entry) for entry in found], total)


def _render_entry(entry: AuditEntry) -> dict[str, Any]:
    kind = "cli" if entry.actor == "cli" else "user"
    return {
        "id": entry.audit_id,
        "action": {"type": entry.action, "result": True},
        "actor": {"id": entry.actor, "type": kind},
        "interface": "CLI" if kind == "cli" else "API",
        "metadata": {"detail": entry.detail},
        "owner": {"id": entry.account_id},
        "resource": {"id": entry.subject_id, "type": entry.action.partition(".")[0]},
        "when": format_time(entry.at),
        "sequence": entry.sequence,
        "digest": entry.digest.hex() if entry.digest is not None else None,
    }
