"""cli/environment.py: what is wrong with the environment is said before anything starts."""

import pytest

from cli.environment import check_environment
from cli.output import CommandFailed


def test_a_value_that_cannot_work_is_refused_whichever_process_reads_it():
    for name, value in (("HEARTH_MAX_CALLS", "0"), ("HEARTH_NODE_DEVICE", "abacus")):
        with pytest.raises(CommandFailed, match=f"{name}='{value}': must be") as caught:
            check_environment({name: value}, frozenset())
        assert caught.value.exit_code == 2


def test_a_name_that_no_process_reads_is_told_with_the_one_it_is_like():
    said = check_environment({"HEARTH_RATE_LIMIT": "x", "HEARTH_ZZZ": "1", "PATH": "/bin"}, frozenset())
    assert said == [
        "HEARTH_RATE_LIMIT is no setting and does nothing: did you mean HEARTH_RATE_LIMITS?",
        "HEARTH_ZZZ is no setting and does nothing",
    ]


def test_what_works_what_belongs_to_tools_and_what_is_given_anyway_is_silent():
    given = {"HEARTH_POP": "lis", "HEARTH_TEST_DATA": "/x", "HEARTH_CACHE_SECRET": "no key", "HEARTH_MAX_CALLS": ""}
    assert check_environment(given, frozenset({"HEARTH_CACHE_SECRET"})) == []
