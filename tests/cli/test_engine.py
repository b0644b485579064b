"""`hearth engine` on a running platform, with real OpenAI-compatible servers: Hearth's standalone server, and the
server of llama-cpp-python with a small random GGUF model."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli import main
from tests.cli.test_up import Up
from tests.ports import free_port
from tests.waiting import wait_until_blocking

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]

ROOT = Path(__file__).parent.parent.parent
SPARK_FOLDER = ROOT / "catalog" / "builtin" / "spark"
STANDALONE, LLAMA = "@cf/elsewhere/spark", "@cf/elsewhere/llama"
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    with tempfile.TemporaryDirectory(prefix="hearth-engine-") as name:  # short enough for Unix sockets
        up = Up(Path(name) / "p", "--no-starter").wait_ready()
        yield up
        up.stop()


@pytest.fixture
def hearth(up: Up, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run a command with --json; return its output, or the error message if `status` is not 0."""
    monkeypatch.delenv("DATABASE_URL", raising=False)

    def run(*arguments: str, status: int = 0) -> Any:
        assert main.run([*arguments, "--data", str(up.data), "--json"]) == status
        captured = capsys.readouterr()
        if status:
            return json.loads(captured.err.splitlines()[-1])["error"]["message"]
        return json.loads(captured.out)

    return run


@contextlib.contextmanager
def serving(command: list[str], url: str, environ: dict[str, str], log: Path) -> Iterator[str]:
    """Run an OpenAI-compatible server; yield its base URL once it lists its models."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environ}, stdout=file, stderr=file)

    def is_listing() -> bool:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{url}/models", headers={"authorization": "Bearer engine-key"}).status_code == 200
        return False

    try:
        wait_until_blocking(is_listing, 120)
        yield url
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, port = tmp_path_factory.mktemp("standalone"), free_port()
    command = [sys.executable, "-m", "engine", "serve", str(SPARK_FOLDER), "--port", str(port)]
    command += ["--served-model-name", "spark", "--api-key", "engine-key", "--threads", "1"]
    with serving(command, f"http://127.0.0.1:{port}/v1", {}, folder / "log") as url:
        yield url


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    python = os.environ.get("HEARTH_LLAMA_CPP_PYTHON", "")
    if not python:
        pytest.skip("HEARTH_LLAMA_CPP_PYTHON does not name a Python with llama-cpp-python[server]")
    folder, port = tmp_path_factory.mktemp("llama"), free_port()
    model = write_gguf(folder / "tiny.gguf")
    command = [python, "-m", "llama_cpp.server", "--model", str(model), "--model_alias", "tiny", "--port", str(port)]
    command += ["--n_ctx", "256", "--n_threads", "1", "--chat_format", "chatml"]
    with serving(command, f"http://127.0.0.1:{port}/v1", {}, folder / "log") as url:
        yield url


def write_gguf(path: Path) -> Path:
    """Write a random Llama model of two layers whose vocabulary is the 256 bytes and three control tokens."""
    import gguf
    import numpy as np

    width, heads, layers, ff = 32, 2, 2, 64
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL, *[gguf.TokenType.BYTE] * 256]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(ff)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_rope_dimension_count(width // heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    rng = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        data = np.ones(shape) if "norm" in name else rng.normal(0, 0.05, shape)
        writer.add_tensor(f"{name}.weight", data.astype(np.float32))

    add("token_embd", len(tokens), width)
    add("output", len(tokens), width)
    add("output_norm", width)
    for layer in range(layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{name}", width, width)
        add(f"blk.{layer}.ffn_gate", ff, width)
        add(f"blk.{layer}.ffn_up", ff, width)
        add(f"blk.{layer}.ffn_down", width, ff)
        add(f"blk.{layer}.attn_norm", width)
        add(f"blk.{layer}.ffn_norm", width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def wait_reachable(hearth: Callable[..., Any], name: str) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        return next((each for each in hearth("engine", "list") if each["name"] == name and each["is_reachable"]), None)

    return wait_until_blocking(found, 60)


def client_of(up: Up) -> httpx.Client:
    dev = up.dev
    return httpx.Client(
        base_url=f"{dev['base_url']}/accounts/{dev['account_id']}/ai/v1/",
        headers={"authorization": f"Bearer {dev['api_token']}"},
        timeout=120,
    )


def test_engine_behind_the_platform_generates_what_it_generates_alone(
    up: Up, hearth: Callable[..., Any], standalone: str, tmp_path: Path
):
    (tmp_path / "key").write_text("engine-key\n")
    model = f"{STANDALONE}=spark,context_window=1024,output_usd=0.5"
    hearth("engine", "register", "alone", standalone, "--model", model, "--key-file", str(tmp_path / "key"))
    assert wait_reachable(hearth, "alone")["kind"] == "hearth"
    body = {"messages": [{"role": "user", "content": "What is the capital of Portugal?"}], "max_tokens": 24, "seed": 1}
    alone = httpx.post(
        f"{standalone}/chat/completions", json={"model": "spark", **body, "temperature": 0},
        headers={"authorization": "Bearer engine-key"}, timeout=120,
    ).json()  # fmt: skip
    with client_of(up) as client:
        behind = client.post("chat/completions", json={"model": STANDALONE, **body, "temperature": 0}).json()
        schema = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
        formatted = client.post(
            "chat/completions", json={"model": STANDALONE, **body, "response_format": schema}
        ).json()
    assert behind["choices"][0]["message"]["content"] == alone["choices"][0]["message"]["content"]
    assert behind["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]
    assert behind["usage"]["completion_tokens"] == alone["usage"]["completion_tokens"]
    assert "city" in json.loads(formatted["choices"][0]["message"]["content"])
    nodes = {node["node_id"] for node in hearth("node", "list")}
    assert "engine:alone" in nodes
    assert "engine:alone" in json.dumps(hearth("node", "explain", STANDALONE))
    hearth("engine", "remove", "alone")
    assert hearth("engine", "list") == []


def test_llama_cpp_server_behind_the_platform(up: Up, hearth: Callable[..., Any], llama: str):
    hearth("engine", "register", "llama", llama, "--model", f"{LLAMA}=tiny,context_window=256")
    assert wait_reachable(hearth, "llama")["kind"] == "llama.cpp"
    body = {"model": LLAMA, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "seed": 1}
    with client_of(up) as client:
        whole = client.post("chat/completions", json=body)
        assert whole.status_code == 200, whole.text
        assert 0 < whole.json()["usage"]["completion_tokens"] <= 8
        streamed = client.post("chat/completions", json={**body, "stream": True}).text
        assert streamed.endswith("data: [DONE]\n\n")
        # For a prompt beyond its context, this server sends the head of a stream and closes the connection.
        too_long = client.post("chat/completions", json={**body, "messages": [{"role": "user", "content": "x" * 900}]})
        assert too_long.status_code == 408, too_long.text
        rejected = client.post("chat/completions", json={**body, "ignore_eos": True})
        assert rejected.status_code == 400
        assert "ignore_eos" in rejected.text
    hearth("engine", "remove", "llama")


def test_invalid_options_are_rejected_by_name(hearth: Callable[..., Any]):
    url = "http://127.0.0.1:9/v1"
    assert "MODEL=NAME" in hearth("engine", "register", "x", url, "--model", "nonsense", status=2)
    model = "@cf/a/b=c,price=1"
    assert "'price'" in hearth("engine", "register", "x", url, "--model", model, status=2)
    assert "context_window is needed" in hearth("engine", "register", "x", url, "--model", "@cf/a/b=c", status=1)
