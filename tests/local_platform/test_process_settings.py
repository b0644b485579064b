"""Meaning of an empty environment variable, for the settings of every process."""

import re

import pytest

from local_platform.process_settings import ProcessName, settings_class
from telemetry.settings import SettingInfo, describe

SETTINGS = [(process, info) for process in ProcessName for info in describe(settings_class(process))]


@pytest.mark.parametrize(("process", "info"), SETTINGS, ids=lambda value: getattr(value, "env", str(value)))
def test_setting_whose_help_explains_the_empty_value_is_empty_by_default(process: ProcessName, info: SettingInfo):
    """An empty variable counts as unset. With another default, the empty value could not be set."""
    if re.search(r"\bempty\b", info.help, re.IGNORECASE):
        assert info.default in ("", None)
