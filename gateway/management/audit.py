"""`A/audit_logs`: who did what to an account, newest first."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import Reason, Refusal
from gateway.management.objects import page_query, shown_time
from gateway.services import Services
from tenants.audit import audit_log as audit
from tenants.audit.audit_log import AuditEntry

DEFAULT_PER_PAGE = 100
_MAX_ACTION = 64


async def list_(services: Services, request: Request) -> Response:
    """A page of entries, newest first. `action.type` keeps those of one action (`api_token.roll`) or of one kind
    (`api_token`)."""
    query, account_id = page_query(request, DEFAULT_PER_PAGE), request.path_params["account_id"]
    action = request.query_params.get("action.type", "")
    if len(action) > _MAX_ACTION:
        raise Refusal(Reason.QUERY_INVALID, f"the query parameter 'action.type' must have <= {_MAX_ACTION} characters")
    first = (query.page - 1) * query.per_page
    found = await audit.list_recent(services.database, account_id, query.per_page, offset=first, action=action)
    total = await audit.count(services.database, account_id, action=action)
    return query.answer([_shown(entry) for entry in found], total)


def _shown(entry: AuditEntry) -> dict[str, Any]:
    kind = "cli" if entry.who == "cli" else "user"
    return {
        "id": entry.audit_id,
        "action": {"type": entry.action, "result": True},
        "actor": {"id": entry.who, "type": kind},
        "interface": "CLI" if kind == "cli" else "API",
        "metadata": {"detail": entry.detail},
        "owner": {"id": entry.account_id},
        "resource": {"id": entry.subject_id, "type": entry.action.partition(".")[0]},
        "when": shown_time(entry.at),
        "sequence": entry.sequence,
        "digest": entry.digest.hex() if entry.digest is not None else None,
    }
