"""The main function of a forked process: run its work, log an error, exit.

The log never contains request content: only error types and lines of the code.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn

logger = logging.getLogger(__name__)


def run_and_exit(what: str, work: Callable[[], None]) -> NoReturn:
    """Run `work` and exit the process, with status 1 if it raised."""
    code = 1
    try:
        work()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException as error:  # the process's outermost loop
        logger.critical("%s ended by %s at %s", what, _describe(error), _frames(error))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _describe(error: BaseException) -> str:
    """Return the error's type, and its message only for types whose messages cannot contain request content."""
    is_harmless = isinstance(error, OSError | MemoryError | ImportError)
    return f"{type(error).__name__}: {error}" if is_harmless else type(error).__name__


def _frames(error: BaseException) -> str:
    """Return the traceback as file:line entries in one line, innermost last."""
    frames, traceback = [], error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append(f"{code.co_filename}:{traceback.tb_lineno} {code.co_name}")
        traceback = traceback.tb_next
    return " > ".join(frames)
