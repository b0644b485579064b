"""The training command as a whole: two processes, a log, a snapshot, a checkpoint, and going on from it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from spark.export import load

ROOT = Path(__file__).parents[2]


def run_training(folder: Path, *options: str) -> str:
    command = [
        sys.executable, "-m", "spark.train", "--folder", str(folder), "--prompts", "1", "--processes", "2", *options,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.full
@pytest.mark.timeout(1200)  # a step takes 12 s on a CPU with AVX2 only, and longer beside other tests
def test_two_processes_train_one_model_and_go_on_from_its_checkpoint(tmp_path: Path) -> None:
    """Both processes' tokens are counted, both kinds of wording scored, and a resumed run starts where it ended."""
    run_training(tmp_path, "--minutes", "0.1")
    log = [json.loads(line) for line in (tmp_path / "training_log.jsonl").read_text().splitlines()]
    assert log[-1]["processes"] == 2
    assert log[-1]["tokens"] >= log[-1]["step"] * 2 * 2048
    assert set(log[-1]["gates"]) >= {"greetings", "facts", "tool name"}
    assert set(log[-1]["new_wordings"]) >= {"greetings", "facts", "tool name"}
    before, _ = load(tmp_path / "snapshot")
    assert all(torch.isfinite(parameter).all() for parameter in before.parameters())
    went_on_until = log[-1]["minutes"] + 0.15  # by tenths; a slow machine's last step may have ended late
    run_training(tmp_path, "--minutes", str(went_on_until), "--resume")
    resumed = [json.loads(line) for line in (tmp_path / "training_log.jsonl").read_text().splitlines()]
    assert resumed[: len(log)] == log
    assert resumed[-1]["step"] > log[-1]["step"]
