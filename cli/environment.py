"""What `hearth up` makes of the environment before it starts anything: settings that cannot work, names that are none.

Its processes would refuse the first too, each when it starts; nobody would ever say the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from cli.output import CommandFailed
from cli.settings import ProcessName, settings_class

PREFIX = "HEARTH_"
_OF_TOOLS = {"HEARTH_FIGURES", "HEARTH_TEST_DATA"}


def check_environment(environ: Mapping[str, str], own: frozenset[str]) -> list[str]:
    """What to say of variables that no process reads, a line each. `own` are those that `hearth up` itself gives its
    processes: what is said of them counts for nothing. Raises CommandFailed for a value that cannot work."""
    given = {name: text for name, text in environ.items() if name.startswith(PREFIX) and name not in own}
    if not given:
        return []
    from telemetry.settings import SettingError, describe, read_given

    known = _OF_TOOLS | own
    for process in ProcessName:
        declared = settings_class(process)
        known |= {info.env for info in describe(declared)}
        try:
            read_given(declared, given)
        except SettingError as error:
            raise CommandFailed(str(error), exit_code=2) from None
    return [_said_of(name, known) for name in sorted(given.keys() - known)]


def _said_of(name: str, known: set[str]) -> str:
    close = get_close_matches(name, known, n=1, cutoff=0.8)
    return f"{name} is no setting and does nothing" + (f": did you mean {close[0]}?" if close else "")
