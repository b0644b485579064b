"""Check the `HEARTH_` environment variables before `hearth up` starts any process.

Each process rejects invalid values itself, but only when it starts, and no process reports misspelled names.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from local_platform.errors import PlatformError
from local_platform.process_settings import ProcessName, settings_class

PREFIX = "HEARTH_"
_TOOL_VARIABLES = {"HEARTH_FIGURES", "HEARTH_TEST_DATA"}


def check_environment(environ: Mapping[str, str], overridden: frozenset[str]) -> list[str]:
    """Return one warning for each variable that no process reads.

    `overridden` names the variables that `hearth up` sets itself; their values in `environ` are ignored.

    Raises PlatformError if a value is invalid.
    """
    given = {name: text for name, text in environ.items() if name.startswith(PREFIX) and name not in overridden}
    if not given:
        return []
    from telemetry.settings import SettingError, describe, parse_environment

    known = _TOOL_VARIABLES | overridden
    for process in ProcessName:
        declared = settings_class(process)
        known |= {info.env for info in describe(declared)}
        try:
            parse_environment(declared, given)
        except SettingError as error:
            raise PlatformError(str(error)) from None
    return [_warning(name, known) for name in sorted(given.keys() - known)]


def _warning(name: str, known: set[str]) -> str:
    close = get_close_matches(name, known, n=1, cutoff=0.8)
    return f"{name} is not a known setting and is ignored" + (f": did you mean {close[0]}?" if close else "")
