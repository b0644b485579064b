"""How a standalone server starts on folders good and bad, and how it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from catalog.builtin import find_folder
from tests.engine.standalone.serve_process import ServeProcess, serving
from tests.engine.weight_formats.made_gguf import write as write_gguf
from tests.waiting import wait_until_blocking


@pytest.fixture
def stories(test_data: Path, tmp_path: Path) -> Path:
    """The reference model in a folder that a test may spoil."""
    folder = tmp_path / "stories"
    shutil.copytree(test_data / "models/stories260K", folder)
    for file in folder.iterdir():
        file.chmod(0o644)
    folder.chmod(0o755)
    return folder


def run(tmp_path: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and what was told, of a server that cannot start."""
    server = ServeProcess(tmp_path, *arguments).start()
    try:
        return server.exit_code(), server.told
    finally:
        server.stop()


def test_a_folder_that_is_not_there_is_told_at_once(tmp_path: Path):
    code, told = run(tmp_path, "/nowhere/at-all")
    assert (code, told) == (2, "hearth engine: MODEL_DIR: /nowhere/at-all does not exist\n")


def test_a_port_that_is_taken_is_told_before_anything_is_loaded(tmp_path: Path, stories: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, told = run(tmp_path, str(stories), "--port", str(taken.getsockname()[1]))
    assert code == 2
    assert "cannot listen on" in told
    assert "loading" not in told


def test_generation_defaults_that_cannot_be_are_told(tmp_path: Path, stories: Path):
    (stories / "generation_config.json").write_text('{"temperature": "warm"}')
    code, told = run(tmp_path, str(stories))
    assert code == 2
    assert "generation_config.json: Type mismatch of '/temperature'" in told


def of_unknown_architecture(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["UnheardOfForCausalLM"]}))


def of_absurd_size(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": 10**12}))


def of_truncated_weights(folder: Path) -> None:
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])


def of_damaged_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model": 5}')


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (of_unknown_architecture, "UnheardOfForCausalLM"),
        (of_absurd_size, "hidden_size"),
        (of_truncated_weights, "model.safetensors"),
        (of_damaged_tokenizer, "tokenizer"),
    ],
)
def test_a_model_that_cannot_be_loaded_ends_the_server_with_its_reason(
    tmp_path: Path, stories: Path, spoil: Callable[[Path], None], named: str
):
    spoil(stories)
    code, told = run(tmp_path, str(stories))
    assert code == 1
    assert "cannot be served" in told.splitlines()[-1]
    assert named in told.splitlines()[-1]
    assert "Traceback" not in told


def test_more_context_than_the_model_has_is_refused(tmp_path: Path, stories: Path):
    code, told = run(tmp_path, str(stories), "--max-model-len", "4096")
    assert code == 1
    assert "max_model_len=4096" in told
    assert "512" in told


def test_a_context_that_the_memory_does_not_hold_is_refused(tmp_path: Path):
    code, told = run(tmp_path, str(find_folder("@cf/hearth/spark")), "--max-model-len", "2048", "--kv-memory", "1MiB")
    assert code == 1
    assert "--max-model-len=2048: --kv-memory holds" in told


def test_stopped_while_it_loads_it_leaves_in_order(tmp_path: Path, stories: Path):
    server = ServeProcess(tmp_path, stories).start()
    try:
        wait_until_blocking(lambda: "loading" in server.told, deadline_s=60)
        server.process.send_signal(signal.SIGINT)
        assert server.exit_code() == 0
    finally:
        server.stop()


def test_embeddings_are_served_from_their_own_folder(tmp_path: Path):
    with (
        serving(tmp_path, find_folder("@cf/hearth/minilm")) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        (model,) = {model.id for model in client.models.list() if "/" not in model.id}
        answer = client.embeddings.create(model=model, input=["a warm place", "a cold one"])
        assert [len(row.embedding) for row in answer.data] == [384, 384]
        assert answer.usage.prompt_tokens == 10
        assert "/v1/embeddings" in server.printed
        refused = httpx.post(f"{server.url}/v1/completions", json={"prompt": "a"})
        assert refused.status_code == 400
        assert "generates none" in refused.json()["error"]["message"]


def test_a_lone_gguf_file_answers_as_the_folder_it_was_made_from(tmp_path: Path, test_data: Path):
    source = test_data / "models/stories260K"
    pieces = json.loads((source / "tokenizer.json").read_text())["model"]["vocab"]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(pieces) - 259)]  # unknown, control, bytes, plain
    vocabulary = {
        "ggml.model": "llama",
        "ggml.tokens": sorted(pieces, key=pieces.__getitem__),
        "ggml.token_type": kinds,
        "ggml.scores": [-float(max(0, token_id - 258)) for token_id in range(len(pieces))],
        "ggml.bos_token_id": 1,
        "ggml.eos_token_id": 2,
    }
    write_gguf(tmp_path / "stories.gguf", "llama", source, "F32", vocabulary)
    case = json.loads((source / "reference.json").read_text())["cases"][1]
    with serving(tmp_path, tmp_path / "stories.gguf") as server:
        body = {"model": "stories", "prompt": case["prompt"], "max_tokens": len(case["greedy_ids"]), "temperature": 0}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
        assert case["prompt"] + answer["choices"][0]["text"] == case["text"]


def test_the_command_of_the_ready_line_gets_an_answer_and_a_second_signal_hurries(tmp_path: Path, stories: Path):
    with serving(tmp_path, stories, "--drain-timeout", "600") as server:
        command = server.printed.partition(": curl")[2]
        answer = subprocess.run(f"curl -s {command}", shell=True, capture_output=True, check=True, text=True).stdout
        assert json.loads(answer)["choices"][0]["text"]
        body = {"prompt": ["Once"] * 64, "max_tokens": 500, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            server.terminate()
            wait_until_blocking(lambda: "stopping: 64 answers" in server.told)
            server.terminate()
            rest = [line for line in lines if line]
        assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "shutting_down"
        assert server.exit_code() == 0


def test_the_front_imports_no_torch():
    code = (
        "import sys, engine.standalone.process, engine.standalone.server; print({'torch', 'triton'} & set(sys.modules))"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)
    assert found.stdout == "set()\n"


def test_a_node_takes_no_arguments():
    found = subprocess.run([sys.executable, "-m", "engine", "sevre"], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (2, "")
    assert "serve MODEL_DIR" in found.stderr
