"""A plugin of pytest: `--failed-tests FILE` writes the ids of tests that failed into a file, one a line.

Not pytest's own cache, which also remembers the failures of earlier runs.
"""

from __future__ import annotations

from pathlib import Path

import pytest


def arguments(path: Path) -> list[str]:
    """What makes pytest write there."""
    return ["-p", __name__, f"--failed-tests={path}"]


def read(path: Path) -> list[str]:
    """Each id once, in the order of the failures: a test may fail and then be torn down badly too."""
    return list(dict.fromkeys(path.read_text().splitlines())) if path.exists() else []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--failed-tests", type=Path, required=True)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Writer(config.getoption("--failed-tests")))


class _Writer:
    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            with self._path.open("a") as file:
                file.write(f"{report.nodeid}\n")
