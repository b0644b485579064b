"""`hearth doctor`: check the installation and the platform."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cli.output import CommandFailed, JsonOption, print_rows
from cli.target import DataOption, Target

if TYPE_CHECKING:
    from local_platform.checks import Check


def doctor(data: DataOption = None, json: JsonOption = False) -> None:
    """Check software, devices, models, stores and processes. Fails if a required one does not work."""
    from local_platform.checks import installation_checks

    checks = [*installation_checks(), *asyncio.run(_platform(data))]
    print_rows([asdict(check) for check in checks], ("name", "result", "detail"), is_json=json, empty="")
    if any(check.result == "failed" for check in checks):
        raise typer.Exit(1)


async def _platform(data: Path | None) -> list[Check]:
    from local_platform.checks import Check, platform_checks

    try:
        target = Target.find(data)
    except CommandFailed as error:
        return [Check("platform", "absent", str(error))]
    checks = platform_checks(target.environ, target.processes("gateway").values())
    return [Check("platform", "ok", f"settings from {target.origin}"), *[check async for check in checks]]
