"""The life of a forked process around its work: what it does ends with it, and how it ended is said.

What is said holds nothing of a caller's: types of errors and places in the code.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn

logger = logging.getLogger(__name__)


def run_and_exit(what: str, work: Callable[[], None]) -> NoReturn:
    """`work`, and then the end of the process, whatever came of it."""
    code = 1
    try:
        work()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException as error:  # the process's outermost loop
        logger.critical("%s ended by %s at %s", what, _said(error), _frames(error))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _said(error: BaseException) -> str:
    """The error's type; its own text only where that cannot hold a caller's content."""
    is_harmless = isinstance(error, OSError | MemoryError | ImportError)
    return f"{type(error).__name__}: {error}" if is_harmless else type(error).__name__


def _frames(error: BaseException) -> str:
    """Where it happened, innermost last, as file:line in one line."""
    frames, traceback = [], error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append(f"{code.co_filename}:{traceback.tb_lineno} {code.co_name}")
        traceback = traceback.tb_next
    return " > ".join(frames)
