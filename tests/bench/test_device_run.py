"""`bench.device run` and `record` without a GPU: every part runs, failures are recorded, altered files are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.device import figures, isolated, kernels, parts, runs
from bench.device.__main__ import _parser
from bench.device.figures import Sheet, WrongResult
from bench.device.parts import PARTS, PartOptions, run_part
from bench.device.records import store
from tests.engine import one_thread  # noqa: F401


def run(out: Path, *flags: str) -> int:
    return runs.run_all(_parser().parse_args(["run", "--out", str(out), *flags]))


def options_for(out: Path, name: str) -> PartOptions:
    return PartOptions("cpu", out / f"{name}.json", out, 10.0, 1.0, 1.0, (64,), 1, keeps_going=False)


def wrong_result(*_: object) -> None:
    raise WrongResult([{"kernel": "fused", "shape": "silu 40", "error": 0.5}])


def test_fake_device_fills_every_row_as_not_measured_and_record_stores_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, results = tmp_path / "out", tmp_path / "results"
    assert run(out, "--device", "fake") == 0
    assert {path.stem for path in out.iterdir()} == set(PARTS)
    for name in PARTS:
        content = figures.read(out / f"{name}.json")
        states = {each["value"] for each in content["figures"].values()}
        assert states <= {figures.NOT_MEASURED}
        assert content["state"] == figures.NOT_MEASURED
        assert content["figures"]
    table = capsys.readouterr().out
    assert all(f"\n{name}" in table for name in PARTS)
    assert store(out, results) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(PARTS)
    assert all(line.startswith("| ") and "| not " in line for line in lines)
    (folder,) = results.iterdir()
    assert "_fake_" in folder.name
    assert {path.name for path in folder.iterdir()} == {path.name for path in out.iterdir()}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "facts.json is not complete JSON"),
        (lambda text: text.replace('"gb_s": 3000', '"gb_s": 4000'), "facts.json was altered after it was written"),
        (lambda _: "[]", "facts.json was altered after it was written"),
    ],
)
def test_record_refuses_truncated_or_altered_files(
    tmp_path: Path, damage: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sheet = Sheet(tmp_path / "facts.json", "facts", "cpu")
    sheet.add("copy", {"gb_s": 3000})
    sheet.close()
    results = tmp_path / "bench" / "results"
    assert store(tmp_path, results) == 0
    assert json.loads((tmp_path / "bench/facts_cpu.json").read_text())["copy"] == {"gb_s": 3000}
    path = tmp_path / "facts.json"
    path.write_text(damage(path.read_text()))
    assert store(tmp_path, results) == 2
    assert message in capsys.readouterr().err


def test_record_refuses_files_of_different_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("facts", "kernels"):
        monkeypatch.setenv("BENCH_COMMIT", name)
        Sheet(tmp_path / f"{name}.json", name, "cpu").close()
    assert store(tmp_path, tmp_path / "results") == 2
    assert "files of several cards or commits" in capsys.readouterr().err


def test_wrong_kernel_gives_status_1_and_names_kernel_shape_and_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_runner", lambda _: wrong_result)
    monkeypatch.setattr(isolated, "prepare", lambda: None)
    assert run_part("kernels", options_for(tmp_path, "kernels")) == 1
    content = figures.read(tmp_path / "kernels.json")
    assert content["state"] == "wrong"
    assert content["wrong"] == [{"kernel": "fused", "shape": "silu 40", "error": 0.5}]


def test_no_speed_is_measured_after_a_wrong_kernel_unless_the_run_keeps_going(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = []

    def run_one(name: str, *rest: Any) -> str:
        started.append(name)
        wrong = [{"kernel": "fused", "shape": "silu 40", "error": 0.5}] if name == "kernels" else []
        Sheet(rest[-1], name, "cpu").close("wrong" if wrong else "complete", "", wrong)
        return ""

    monkeypatch.setattr(runs, "_run_one", run_one)
    flags = ("--device", "cpu", "--parts", "kernels,families,offline")
    assert run(tmp_path, *flags) == 1
    assert started == ["kernels", "families"]
    output = capsys.readouterr().out
    assert '"shape": "silu 40"' in output
    assert "offline    not started: a result is wrong" in output
    assert run(tmp_path, *flags, "--keep-going") == 1
    assert started[2:] == ["kernels", "families", "offline"]


def test_kernels_are_timed_only_if_all_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = {"fused": {"silu 40": 0.5, "silu 40 float8": 0.1}, "sampler": {"greedy": 0.0}}
    calls = []

    def run_each(function: Any, items: Any, **_: Any) -> Iterator[isolated.Message]:
        calls.append(function)
        for name, device in items:
            if name in errors:
                value = errors[name] if function is kernels.check_family else ("case", {"us": 1.0})
                yield isolated.Message((name, device), value)

    monkeypatch.setattr(kernels, "run_each", run_each)
    cpu = torch.device("cpu")
    with pytest.raises(WrongResult) as raised:
        kernels.run(Sheet(tmp_path / "a.json", "kernels", "cpu", 9), cpu, keeps_going=False)
    assert raised.value.wrong == [{"kernel": "fused", "shape": "silu 40", "error": 0.5}]
    assert calls == [kernels.check_family]
    errors["fused"]["silu 40"] = 0.001
    kernels.run(Sheet(tmp_path / "b.json", "kernels", "cpu", 9), cpu, keeps_going=False)
    assert figures.read(tmp_path / "b.json")["figures"]["fused: case"]["value"] == {"us": 1.0}


def test_failed_part_is_recorded_with_its_error_and_the_figures_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(sheet: Sheet, _: PartOptions) -> None:
        sheet.add("copy", 1)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(parts, "_runner", lambda _: fail)
    assert run_part("facts", options_for(tmp_path, "facts")) == 3
    content = figures.read(tmp_path / "facts.json")
    assert content["state"] == "failed"
    assert "an illegal memory access" in content["error"]
    assert content["figures"]["copy"]["value"] == 1


@pytest.mark.parametrize(("ends", "state"), [("time.sleep(60)", "timed out"), ("os._exit(9)", "failed")])
def test_part_that_hangs_or_dies_leaves_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str, state: str
) -> None:
    program = tmp_path / "part"
    script = (
        f"#!{sys.executable}\nimport os, sys, time\nsys.path.insert(0, {str(Path.cwd())!r})\n"
        "from pathlib import Path\nfrom bench.device.figures import Sheet\n"
        "sheet = Sheet(Path(sys.argv[6]), 'facts', 'cpu')\nsheet.add('copy', 1)\n"
        f"print('the last words', flush=True)\n{ends}\n"
    )
    program.write_text(script)
    program.chmod(0o755)
    monkeypatch.setattr(runs, "_GRACE_S", 0.1)
    monkeypatch.setitem(PARTS, "facts", parts.Part(0.1, 3.0))
    monkeypatch.setattr(sys, "executable", str(program))
    started = time.monotonic()
    assert run(tmp_path / "out", "--device", "cpu", "--parts", "facts") == 0
    assert time.monotonic() - started < 30
    content = figures.read(tmp_path / "out" / "facts.json")
    assert content["state"] == state
    assert content["figures"]["copy"]["value"] == 1
    assert "the last words" in content["error"]


def test_part_that_does_not_fit_into_the_remaining_time_is_not_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--device", "cuda", "--until", "20", "--parts", "offline") == 0
    assert "not started: 16 s are left, and it needs 60" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_unknown_part_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--parts", "facts,speed") == 2
    assert "no part 'speed'" in capsys.readouterr().err


def behave(kind: str) -> Iterator[str]:
    yield f"{kind} started"
    if kind == "dies":
        os._exit(9)
    if kind == "hangs":
        time.sleep(60)
    if kind == "raises":
        raise ValueError("not possible")


def test_process_that_dies_hangs_or_raises_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "_PRELOADED", [__name__])
    kinds = ("dies", "hangs", "raises", "ends")
    until = time.monotonic() + 60
    found = list(isolated.run_each(behave, kinds, num_processes=2, until=until, limit_s=3.0))
    errors = {each.item: each.error for each in found if each.error}
    assert {each.value for each in found if not each.error} == {f"{kind} started" for kind in kinds}
    assert errors.keys() == {"dies", "hangs", "raises"}
    assert "status 9" in errors["dies"]
    assert "took too long" in errors["hangs"]
    assert "ValueError: not possible" in errors["raises"]


def test_items_that_do_not_start_in_time_are_reported() -> None:
    found = list(isolated.run_each(behave, ["ends"], num_processes=1, until=time.monotonic() - 1, limit_s=1.0))
    assert [each.error for each in found] == ["not run: out of time"]


@pytest.mark.full
@pytest.mark.timeout(600)
def test_every_part_runs_on_a_cpu(tmp_path: Path) -> None:
    flags = ("--device", "cpu", "--seconds", "1", "--budgets", "64", "--repeats", "1", "--out", str(tmp_path))
    command = [sys.executable, "-m", "bench.device", "run", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    contents = {name: figures.read(tmp_path / f"{name}.json") for name in PARTS}
    assert {name: each["error"] for name, each in contents.items() if each["state"] != "complete"} == {}
    offline = contents["offline"]["figures"]["greedy, budget 64, run 1"]["value"]
    assert offline["whole_run"]["output_tokens_s"] > 0
    of_float8 = contents["fp8"]["figures"]
    assert of_float8["fp8 weights and KV: greedy, budget 64, run 1"]["value"]["whole_run"]["output_tokens_s"] > 0
    assert of_float8["accuracy, fp8 weights and KV"]["value"]["top1_agreement"] > 0.8
    assert contents["http"]["figures"]["4 in flight"]["value"]["num_failures"] == 0
    start = contents["start"]["figures"]["start 1"]["value"]
    assert start["start_to_first_token_s"] > start["load_to_first_token_s"] > 0
    assert {"import_s", "context_s", "headers_s", "weights_s", "binding_s", "rotary_s", "capture_s"} <= set(
        start["phases"]
    )
    assert contents["families"]["figures"]["llama 2, float32"]["value"]["equal_tokens"] == 1.0
    assert store(tmp_path, tmp_path / "results") == 0
