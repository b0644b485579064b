"""The Scaling view of the Fleet screen: the plan, an override, reserved capacity and a lost PoP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.clients.dashboard.conftest import Dashboard

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]

SPARK = "@cf/hearth/spark"


def choose(page: Page, label: str, option: str) -> None:
    page.get_by_label(label, exact=True).first.click()
    page.get_by_role("option", name=option, exact=True).click()


def test_operator_scales_a_model_and_sees_what_a_lost_pop_would_change(signed_in: Page, dashboard: Dashboard):
    page = signed_in
    page.goto(dashboard.url("fleet?tab=scaling"))
    page.get_by_text("Autoscaling is off").wait_for()
    page.get_by_role("table", name="Planned replicas").get_by_text(SPARK).first.wait_for()

    choose(page, "Model to scale", SPARK)
    page.get_by_role("button", name="Set override").click()
    overrides = page.get_by_role("table", name="Overrides")
    overrides.get_by_text(SPARK).wait_for()
    page.get_by_role("button", name=f"Remove the override of {SPARK}").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    overrides.get_by_text(SPARK).wait_for(state="detached")

    pop = dashboard.platform.dev.get("pop", "local")
    choose(page, "PoP to lose", pop)
    page.get_by_role("button", name="Lose it").click()
    page.get_by_text(f"Without {pop}").wait_for()
