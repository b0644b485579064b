"""Valid and invalid model folders and files under the standalone server, in this process. One zygote serves all
tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI

from catalog.builtin import find_folder
from engine.processes.zygote import Zygote
from engine.standalone.model_folder import FolderUnusable
from engine.standalone.server import StandaloneServer
from engine.standalone.settings import read_flags
from tests.engine.checkpoints.made_gguf import write as write_gguf
from tests.waiting import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")


def server_of(zygote: Zygote, model_dir: Path | None, *flags: str) -> StandaloneServer:
    return StandaloneServer(read_flags([str(model_dir), "--port", "0", "--threads", "1", *flags]), zygote)


@contextlib.asynccontextmanager
async def serving(
    zygote: Zygote, capsys: pytest.CaptureFixture[str], model_dir: Path | None
) -> AsyncIterator[tuple[str, str]]:
    """Run a server and yield its address and its ready line; drain it at the end."""
    server = server_of(zygote, model_dir)
    running = asyncio.create_task(server.run())
    said: list[str] = []

    async def is_ready() -> bool:
        said.append(capsys.readouterr().out)
        return running.done() or " is ready " in "".join(said)

    try:
        await wait_until(is_ready, deadline_s=60)
        ready = "".join(said)
        found = re.search(r"http://127\.0\.0\.1:\d+", ready)
        assert found is not None, ready
        yield found[0], ready
    finally:
        server.stop()
        code = await running
    assert code == 0


async def test_invalid_generation_defaults_are_reported(zygote: Zygote, stories: Path):
    (stories / "generation_config.json").write_text('{"temperature": "warm"}')
    with pytest.raises(FolderUnusable, match=r"generation_config\.json: Type mismatch of '/temperature'"):
        server_of(zygote, stories)


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
async def test_load_failure_ends_the_server_with_the_reason(
    zygote: Zygote,
    capsys: pytest.CaptureFixture[str],
    stories: Path,
    spoil: Callable[[Path], None],
    named: str,
):
    spoil(stories)
    assert await server_of(zygote, stories).run() == 1
    result = capsys.readouterr().err
    assert "cannot be served" in result.splitlines()[-1]
    assert named in result.splitlines()[-1]
    assert "Traceback" not in result


async def test_max_model_len_above_the_models_context_is_rejected(
    zygote: Zygote, capsys: pytest.CaptureFixture[str], stories: Path
):
    assert await server_of(zygote, stories, "--max-model-len", "4096").run() == 1
    result = capsys.readouterr().err
    assert "max_model_len must be at most 512" in result
    assert "512" in result


async def test_max_model_len_that_does_not_fit_the_kv_memory_is_rejected(
    zygote: Zygote, capsys: pytest.CaptureFixture[str]
):
    flags = ["--max-model-len", "2048", "--kv-memory", "1MiB"]
    assert await server_of(zygote, find_folder("@cf/hearth/spark"), *flags).run() == 1
    assert "--max-model-len=2048: --kv-memory holds" in capsys.readouterr().err


async def test_server_stopped_while_loading_exits_cleanly(
    zygote: Zygote, capsys: pytest.CaptureFixture[str], stories: Path
):
    server = server_of(zygote, stories)
    running = asyncio.create_task(server.run())
    await wait_until(lambda: "loading" in capsys.readouterr().err, deadline_s=60)
    server.stop()
    assert await running == 0
    assert " is ready " not in capsys.readouterr().out


async def test_embeddings_are_served_from_their_own_folder(zygote: Zygote, capsys: pytest.CaptureFixture[str]):
    async with (
        serving(zygote, capsys, find_folder("@cf/hearth/minilm")) as (url, ready),
        AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
        httpx.AsyncClient() as http,
    ):
        (model,) = {model.id for model in (await client.models.list()).data if "/" not in model.id}
        response = await client.embeddings.create(model=model, input=["a warm place", "a cold one"])
        assert [len(row.embedding) for row in response.data] == [384, 384]
        assert response.usage.prompt_tokens == 10
        assert "/v1/embeddings" in ready
        refused = await http.post(f"{url}/v1/completions", json={"prompt": "a"})
        assert refused.status_code == 400
        assert "not for text-generation" in refused.json()["error"]["message"]


async def test_single_gguf_file_gives_the_output_of_its_source_folder(
    zygote: Zygote, capsys: pytest.CaptureFixture[str], tmp_path: Path, test_data: Path
):
    source = test_data / "models/stories260K"
    pieces = json.loads((source / "tokenizer.json").read_text())["model"]["vocab"]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(pieces) - 259)]  # token types: unknown, control, bytes, normal
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
    async with serving(zygote, capsys, tmp_path / "stories.gguf") as (url, _), httpx.AsyncClient(timeout=60) as http:
        body = {"model": "stories", "prompt": case["prompt"], "max_tokens": len(case["greedy_ids"]), "temperature": 0}
        document = (await http.post(f"{url}/v1/completions", json=body)).json()
        assert case["prompt"] + document["choices"][0]["text"] == case["text"]
