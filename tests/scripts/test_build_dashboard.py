"""The build of the dashboard: skipped without changes, repeated after changes, and never in the way of a setup."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scripts import build_dashboard

NODE = """#!/bin/sh
echo v24.1.0
"""
NPM = """#!/bin/sh
if [ "$1" = ci ]; then mkdir -p node_modules; exit 0; fi
echo x >> ../builds
[ ! -e src/broken ] || { echo "src/broken: syntax error" >&2; exit 1; }
mkdir -p ../static && echo page > ../static/index.html
"""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources in a folder of their own, and a Node.js on PATH whose build writes one page."""
    folder, programs = tmp_path / "dashboard", tmp_path / "bin"
    (folder / "src").mkdir(parents=True)
    programs.mkdir()
    for name in ("package.json", "package-lock.json", ".npmrc", "src/main.ts"):
        (folder / name).write_text("1")
    for name, text in (("node", NODE), ("npm", NPM)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(build_dashboard, "SOURCES", folder)
    monkeypatch.setattr(build_dashboard, "OUTPUT", tmp_path / "static")
    return folder


def num_builds(sources: Path) -> int:
    return (sources.parent / "builds").read_text().count("x")


def test_dashboard_is_built_again_only_after_a_change(sources: Path):
    assert build_dashboard.main([]) == 0
    assert build_dashboard.main([]) == 0
    (sources / "node_modules/installed.js").write_text("not a source")
    assert build_dashboard.main([]) == 0
    assert num_builds(sources) == 1
    (sources / "src/main.ts").write_text("2")
    assert build_dashboard.main([]) == 0
    assert num_builds(sources) == 2
    (sources.parent / "static/index.html").unlink()
    assert build_dashboard.main([]) == 0
    assert num_builds(sources) == 3


def test_failed_build_is_reported_and_fails_only_when_asked_for(sources: Path, capsys: pytest.CaptureFixture[str]):
    (sources / "src/broken").touch()
    assert build_dashboard.main(["--optional"]) == 0
    assert build_dashboard.main([]) == 1
    assert num_builds(sources) == 2, "a failure is not taken for a build"
    said = capsys.readouterr().out
    assert "src/broken: syntax error" in said
    assert "make dashboard" in said
    (sources / "src/broken").unlink()
    assert build_dashboard.main([]) == 0


def test_missing_sources_do_not_fail_a_setup(sources: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(build_dashboard, "SOURCES", sources / "nowhere")
    assert build_dashboard.main(["--optional"]) == 0
