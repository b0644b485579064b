"""`/settings`: the effective settings of this gateway, where each comes from, and its help. Secrets are masked."""

from __future__ import annotations

import os
from typing import Literal

from msgspec import Struct
from starlette.responses import Response

from gateway.management.endpoint import ManagementRequest, respond
from gateway.openapi.operation import describe
from gateway.services import Services
from gateway.settings import GatewaySettings
from telemetry import settings as process_settings


class SettingReport(Struct, frozen=True, kw_only=True):
    """One setting. `value` and `default` are texts; secrets, and passwords in URLs, are shown as asterisks. `default`
    is null for a required setting."""

    name: str
    value: str
    default: str | None
    source: Literal["environment", "default"]
    is_secret: bool
    help: str


@describe(result=list[SettingReport])
async def list_(services: Services, _request: ManagementRequest) -> Response:
    """List the effective settings of the gateway that responds, with their sources."""
    values = process_settings.masked(services.settings)
    return respond(
        [
            SettingReport(
                name=info.env,
                value=values[info.env],
                default=None if info.is_required else "" if info.default is None else str(info.default),
                source="environment" if os.environ.get(info.env) else "default",
                is_secret=info.is_secret,
                help=info.help,
            )
            for info in process_settings.describe(GatewaySettings)
        ]
    )
