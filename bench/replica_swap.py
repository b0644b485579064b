"""Measure how fast models replace each other in a node's memory, and how fast a node with cached weights starts.

    python -m bench.replica_swap [--sleep]

Two models alternate in a budget for one: Spark, and a random Llama model of `--mb` megabytes. "reload_s" is from the
call that evicts the other model to the moment when this one is ready, with its files in the page cache; "copy_s" is a
read of the same file into untouched memory with the same number of threads. With `--sleep`, the other model sleeps
instead of being evicted. "start_s" is from the start of a node
process to the first token of a call, and "restart_s" the same with the weights in its disk cache. Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import torch

from bench.load_weights import copy
from catalog.builtin import find_folder
from engine.processes.zygote import Zygote
from engine.serving.disk_cache import DiskCache
from engine.serving.loaders import Loaders
from engine.serving.model_store import ModelStore
from engine.serving.replicas import ReplicaMemory, Replicas
from storage.objects import Objects
from tests.engine.node.node_process import NodeProcess
from tests.engine.node.published import publish_folder
from tests.service_keys import service_keys

SMALL, LARGE = "@cf/bench/spark", "@cf/bench/large"
HIDDEN, INNER = 2048, 8192


@dataclass(frozen=True)
class Settings:
    """Settings of a node with one model at a time."""

    device: str = "cpu"
    dtype: str = "auto"
    kv_dtype: str = "auto"
    has_graphs: bool = True
    num_threads: int = 0
    kv_memory_bytes: int = 64 << 20
    attention: str = "auto"
    adapter_memory_bytes: int = 0
    max_sequences: int = 8
    max_waiting: int = 8
    max_step_tokens: int = 512
    tensor_parallel: int = 1
    step_timeout_s: float = 60.0
    coalesce_ms: int = 0
    speculation: str = "off"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=1024, help="size of the random model")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sleep", action="store_true", help="let models sleep instead of evicting them")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # the keys of tests expire soon
    with tempfile.TemporaryDirectory(prefix="hearth-swap-") as folder:
        print(
            json.dumps(
                asyncio.run(measure(Path(folder), arguments.mb, arguments.rounds, sleeps=arguments.sleep)), indent=2
            )
        )


async def measure(folder: Path, size_mb: int, num_rounds: int, *, sleeps: bool) -> dict[str, object]:
    url = f"file://{folder}/objects"
    objects = Objects.connect(url)
    spark = find_folder("@cf/hearth/spark")
    assert spark is not None
    write_model(folder / "large", spark, size_mb)
    revisions = {
        SMALL: (await publish_folder(objects, SMALL, spark, context_window=512)).revision,
        LARGE: (await publish_folder(objects, LARGE, folder / "large", context_window=512)).revision,
    }
    sizes = {SMALL: spark / "model.safetensors", LARGE: folder / "large" / "model.safetensors"}
    seconds = await swap(folder, objects, revisions, num_rounds, sleeps=sleeps)
    await objects.close()
    return {
        "load_average": os.getloadavg()[0],
        "models": {model: report(sizes[model], seconds[model], num_rounds) for model in revisions},
        "nodes": {} if sleeps else {model: await start_node(folder, url, model) for model in revisions},
    }


def write_model(folder: Path, spark: Path, size_mb: int) -> None:
    """Write a random Llama model in bfloat16 with Spark's tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shutil.copytree(spark, folder)
    (folder / "model.safetensors").unlink()
    vocab_size = json.loads((spark / "config.json").read_text())["vocab_size"]
    layer_bytes = 2 * (HIDDEN * HIDDEN * 2 + HIDDEN * HIDDEN // 2 + 3 * HIDDEN * INNER)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=max(1, (size_mb << 20) // layer_bytes),
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    generation_config = (folder / "generation_config.json").read_bytes()
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").write_bytes(generation_config)


async def swap(
    folder: Path, objects: Objects, revisions: dict[str, str], num_rounds: int, *, sleeps: bool
) -> dict[str, list[tuple[float, float]]]:
    """Return (seconds from the call to ready, seconds of the load in the rank's own process) of each reload."""
    zygote = Zygote()
    await zygote.start()
    cache = DiskCache(folder / "cache", 64 << 30)
    store = ModelStore(cache, objects)
    memory = ReplicaMemory(sleep_bytes=64 << 30 if sleeps else 0)
    replicas = Replicas(store, Loaders(zygote, Settings(), store, sleeps=sleeps), 1, memory=memory)
    seconds: dict[str, list[tuple[float, float]]] = {model: [] for model in revisions}
    for turn in range(num_rounds + 2):
        for model, revision in revisions.items():
            started_s = time.perf_counter()
            replica = await replicas.acquire(model, revision)
            replicas.release(replica)
            if turn >= 2:  # the first turn downloads, the second one hashes
                seconds[model].append((time.perf_counter() - started_s, replica.return_s))
    await replicas.close()
    await zygote.close()
    cache.close()
    return seconds


def report(path: Path, seconds: list[tuple[float, float]], num_rounds: int) -> dict[str, object]:
    size_bytes = path.stat().st_size
    num_threads = min(8, (os.cpu_count() or 1) + 1)
    copies = []
    for _ in range(num_rounds):
        room = torch.empty(size_bytes, dtype=torch.uint8)
        started_s = time.perf_counter()
        copy(path, room, num_threads)
        copies.append(time.perf_counter() - started_s)
        del room
    reload_s, copy_s = statistics.median(each for each, _ in seconds), statistics.median(copies)
    return {
        "mb": size_bytes >> 20,
        "reload_s": round(reload_s, 3),
        "reload_best_s": round(min(each for each, _ in seconds), 3),
        "load_s": round(statistics.median(each for _, each in seconds), 3),
        "copy_s": round(copy_s, 3),
        "reload_gb_per_s": round(size_bytes / reload_s / 1e9, 2),
        "copy_gb_per_s": round(size_bytes / copy_s / 1e9, 2),
        "reload_to_copy": round(copy_s / reload_s, 3),
    }


async def start_node(parent: Path, url: str, model: str) -> dict[str, float]:
    """Return the seconds from the start of a node to the first token, without and with weights in its disk cache."""
    folder = Path(tempfile.mkdtemp(dir=parent))
    found = {}
    for name in ("start_s", "restart_s", "restart_again_s"):
        node = NodeProcess(folder, url, HEARTH_NODE_MODELS=model, HEARTH_NODE_DTYPE="auto", HEARTH_NODE_THREADS="0")
        started_s = time.perf_counter()
        node.start()
        try:
            await first_token(folder, model)
            found[name] = round(time.perf_counter() - started_s, 2)
        finally:
            node.stop()
        (folder / "http.sock").unlink(missing_ok=True)
        (folder / "node.sock").unlink(missing_ok=True)
    return found


async def first_token(folder: Path, model: str) -> None:
    """Wait for the first token of a call that is sent as soon as the node listens."""
    body = {"model": model, "task": {"type": "text-generation", "prompt": "Hello", "sampling": {"max_tokens": 1}}}
    transport = httpx.AsyncHTTPTransport(uds=f"{folder}/http.sock")
    identity = service_keys().identity("operator/bench")
    async with httpx.AsyncClient(transport=transport, base_url="http://node", timeout=300) as client:
        while True:
            token = identity.sign("node/n1")
            try:
                async with client.stream(
                    "POST", "/execute", json=body, headers={"authorization": f"Bearer {token}"}
                ) as response:
                    lines = [line async for line in response.aiter_lines()]
            except httpx.TransportError:
                await asyncio.sleep(0.01)
                continue
            assert response.status_code == 200, lines
            # The first token of a random model may be a part of a character, so its text may be empty.
            assert any('"completion_tokens":1' in line for line in lines), lines
            return


if __name__ == "__main__":
    main()
