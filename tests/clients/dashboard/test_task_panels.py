"""The playground's panels for tasks other than chat, in a real browser, with speech recognition as the task."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.clients.added_models import add_model
from tests.clients.dashboard.conftest import Dashboard

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

MODEL = "@cf/usefulsensors/moonshine-tiny"


@pytest.fixture(scope="module")
def speech_model(dashboard: Dashboard) -> str:
    """The speech model, added to the platform by the command."""
    add_model(dashboard.platform, MODEL)
    return MODEL


@pytest.fixture
def panel(signed_in: Page, dashboard: Dashboard, speech_model: str) -> Page:
    account_id = dashboard.platform.account_id
    signed_in.goto(dashboard.url(f"playground?account={account_id}&panel=speech&model={speech_model}"))
    return signed_in


def test_uploaded_recording_becomes_text_with_times_and_subtitles(panel: Page, test_data: Path):
    panel.locator("input[type=file]").set_input_files(test_data / "speech" / "jfk.wav")
    panel.get_by_role("button", name="Run").click()
    text = panel.get_by_test_id("result-text").inner_text()
    assert "ask what you can do for your country" in re.sub(r"[^a-z ]", "", text.lower())
    with panel.expect_download() as download:
        panel.get_by_role("link", name="Download as WebVTT").click()
    assert Path(download.value.path()).read_text().startswith("WEBVTT")


def test_recording_from_the_microphone_is_accepted_by_the_model(panel: Page):
    panel.get_by_role("button", name="Record from the microphone").click()
    stop = panel.get_by_role("button", name="Stop recording")
    stop.wait_for()
    panel.wait_for_timeout(1500)  # length of the recording
    stop.click()
    panel.get_by_text("recording.wav").wait_for()
    panel.get_by_role("button", name="Run").click()
    panel.get_by_test_id("result-text").wait_for()
    assert panel.get_by_text("The call failed").count() == 0


def test_file_that_is_no_recording_shows_the_error_and_the_form_stays(panel: Page, tmp_path: Path):
    (tmp_path / "notes.wav").write_text("These are notes.")
    panel.locator("input[type=file]").set_input_files(tmp_path / "notes.wav")
    panel.get_by_role("button", name="Run").click()
    panel.get_by_text("The call failed").wait_for()
    assert panel.get_by_role("button", name="Run").is_enabled()
