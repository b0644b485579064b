"""engine/kernels/kernel_cache.py: a cache of other versions is reported once; kernels compiled anyway are counted."""

from __future__ import annotations

import json
import logging
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.kernels import kernel_cache
from engine.kernels.kernel_cache import STAMP, Compilations, running_versions, warn_if_stale, write_stamp
from engine.serving.cuda_check import has_cached_launchers


@pytest.fixture(autouse=True)
def triton_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "3.6.0" if name == "triton" else version(name))


@pytest.mark.parametrize("changes", [{"Triton": "3.5.1"}, {"Python": "3.10"}])
def test_cache_of_another_version_gives_one_warning_that_names_both(
    changes: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored = running_versions() | changes
    (tmp_path / STAMP).write_text(json.dumps(stored))
    warn_if_stale({"TRITON_CACHE_DIR": str(tmp_path)})
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    shown = [f"Triton {each['Triton']} and Python {each['Python']}" for each in (stored, running_versions())]
    assert record.getMessage() == (
        f"the kernel cache {tmp_path} was compiled by {shown[0]}; this process has {shown[1]}; "
        "kernels are compiled when they are first used"
    )


def test_cache_of_this_version_and_cache_without_a_record_give_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warn_if_stale({"TRITON_CACHE_DIR": str(tmp_path)})
    write_stamp(tmp_path)
    warn_if_stale({"TRITON_CACHE_DIR": str(tmp_path)})
    assert caplog.records == []


def test_launchers_of_another_version_do_not_replace_a_compiler(tmp_path: Path) -> None:
    for name in ("cuda_utils.cpython-312.so", "__triton_launcher.cpython-312.so"):
        (tmp_path / name[:4]).mkdir()
        (tmp_path / name[:4] / name).touch()
    environ = {"TRITON_CACHE_DIR": str(tmp_path)}
    write_stamp(tmp_path)
    assert has_cached_launchers(environ)
    (tmp_path / STAMP).write_text(json.dumps(running_versions() | {"Python": "3.10"}))
    assert not has_cached_launchers(environ)


def test_kernels_that_were_not_in_the_cache_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    triton = SimpleNamespace(knobs=SimpleNamespace(compilation=SimpleNamespace(listener=None)))
    monkeypatch.setattr(kernel_cache.util, "find_spec", lambda _name: triton)
    monkeypatch.setattr(kernel_cache, "import_module", lambda _name: triton)
    found = Compilations()
    for is_cached in (True, False, False):
        times = SimpleNamespace(total=250_000)
        triton.knobs.compilation.listener(src=None, metadata={}, metadata_group={}, times=times, cache_hit=is_cached)
    assert (found.num_kernels, found.seconds) == (2, 0.5)
