"""local_platform/environment.py: invalid and unknown environment variables are reported before any process starts."""

import pytest

from local_platform.environment import check_environment
from local_platform.errors import PlatformError


def test_invalid_value_of_any_process_is_rejected():
    for name, value in (("HEARTH_MAX_CALLS", "0"), ("HEARTH_NODE_DEVICE", "abacus")):
        with pytest.raises(PlatformError, match=f"{name}='{value}': must be"):
            check_environment({name: value}, frozenset())


def test_unknown_name_is_reported_with_the_closest_setting():
    warnings = check_environment({"HEARTH_RATE_LIMIT": "x", "HEARTH_ZZZ": "1", "PATH": "/bin"}, frozenset())
    assert warnings == [
        "HEARTH_RATE_LIMIT is not a known setting and is ignored: did you mean HEARTH_RATE_LIMITS?",
        "HEARTH_ZZZ is not a known setting and is ignored",
    ]


def test_valid_values_tool_variables_and_overridden_variables_give_no_warning():
    given = {"HEARTH_POP": "lis", "HEARTH_TEST_DATA": "/x", "HEARTH_CACHE_SECRET": "no key", "HEARTH_MAX_CALLS": ""}
    assert check_environment(given, frozenset({"HEARTH_CACHE_SECRET"})) == []
