"""Run a whole model with one and two ranks on GPUs: the tokens must be equal, and speed is measured.

    python -m bench.device.ranks [--ranks 1,2] [--shape 8B] [--streams 1,16,64] [--out FILE]
    python -m bench.device.ranks --device cpu --shape tiny --streams 1,4 [--tokens 32]     (here, through gloo)

Each number of ranks is a group in its own process, loaded as by a node (`engine.ranks.group`). First the built-in model
in float32, whose greedy tokens must equal those of one rank on the CPU; then random bfloat16 weights, timed: 128 prompt
tokens per stream and as many generated ones (`--tokens`), the last of three runs. Rank counts without enough devices
are skipped and named. Needs numpy, msgspec, llguidance and safetensors besides torch. Exits with status 1 if tokens
differ. Not yet run on GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

SPARK = Path(__file__).parents[2] / "catalog/builtin/spark"
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "head_dim": 64, "intermediate_size": 688, "vocab_size": 4096},
    "1B": {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
           "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128256},
    "8B": {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
           "head_dim": 128, "intermediate_size": 14336, "vocab_size": 128256},
    "m110": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 4,
             "head_dim": 64, "intermediate_size": 2048, "vocab_size": 32000},
}  # fmt: skip
NUM_PARITY = 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--shape", default="8B", choices=tuple(SHAPES))
    parser.add_argument("--streams", default="1,16,64")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1, help="of all ranks together, on the CPU")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--group", help=argparse.SUPPRESS)  # this process leads a group
    options = parser.parse_args()
    if options.group:
        json.dump(lead(json.loads(options.group)), sys.stdout)
        sys.stdout.flush()
        os._exit(0)  # required after using a process group: see engine.kernels.collectives
    found = compare(options)
    text = json.dumps(found, indent=1) + "\n"
    if options.out:
        options.out.write_text(text)
    sys.stdout.write(text)
    sys.exit(not found["is_equal"])


def compare(options: argparse.Namespace) -> dict[str, Any]:
    num_devices = torch.cuda.device_count() if options.device.startswith("cuda") else sys.maxsize
    rank_counts = [int(each) for each in options.ranks.split(",")]
    skipped = {n: f"{num_devices} devices found" for n in rank_counts if n > num_devices}
    parity = {"model_dir": str(SPARK), "dtype": "float32", "streams": [3], "tokens": NUM_PARITY, "threads": 1}
    expected = group(parity | {"device": "cpu", "ranks": 1})["first"]
    result: dict[str, Any] = {"torch": torch.__version__, "skipped": skipped, "is_equal": True, "by_ranks": {}}
    with tempfile.TemporaryDirectory() as folder:
        write_random(Path(folder), SHAPES[options.shape])
        timed = {"model_dir": folder, "dtype": "bfloat16", "tokens": options.tokens, "threads": options.threads,
                 "streams": [int(each) for each in options.streams.split(",")]}  # fmt: skip
        for ranks in rank_counts:
            if ranks in skipped:
                continue
            where = {"device": options.device, "ranks": ranks}
            is_equal = group(parity | where)["first"] == expected
            result["is_equal"] &= is_equal
            found = group(timed | where)
            result["by_ranks"][ranks] = {"is_equal": is_equal, "load_s": found["load_s"], "tok_s": found["tok_s"]}
    return result


def group(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the output of a group of ranks, led by a process that has not used a device before."""
    command = [sys.executable, "-m", "bench.device.ranks", "--group", json.dumps(settings)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def lead(settings: dict[str, Any]) -> dict[str, Any]:
    from engine.config import EngineConfig
    from engine.loop import Engine
    from engine.ranks.group import load

    most = max(settings["streams"])
    config = EngineConfig(
        Path(settings["model_dir"]), dtype=settings["dtype"], device=settings["device"],
        num_blocks=most * (-(-(128 + settings["tokens"]) // 16) + 1), max_sequences=most,
        num_threads=settings["threads"], tensor_parallel=settings["ranks"], is_prefix_cache_enabled=False,
    )  # fmt: skip
    hearth_tokens_per_s, _theirs = socket.socketpair()
    started = time.perf_counter()
    runner, _ = load(config, hearth_tokens_per_s)
    load_s = round(time.perf_counter() - started, 2)
    engine, tok_s, tokens, next_id = Engine(runner, config), {}, {}, 1
    for streams in settings["streams"]:
        for _ in range(3):
            seconds, tokens = run(engine, streams, settings["tokens"], runner.vocab_size, first_id=next_id)
            next_id += streams
        tok_s[streams] = round(streams * settings["tokens"] / seconds, 1)
    return {"load_s": load_s, "tok_s": tok_s, "first": [tokens[each] for each in sorted(tokens)]}


def run(engine: Any, streams: int, num_out: int, vocab_size: int, first_id: int) -> tuple[float, dict[int, list[int]]]:
    """Return the seconds from the first step to the last token, and the tokens of each stream."""
    from engine.protocol.sampling import Sampling
    from engine.scheduling.sequence import SequenceRequest

    prompts = np.random.default_rng(0).integers(3, vocab_size, (streams, 128)).astype(np.int32)
    sampling = Sampling(max_tokens=num_out, temperature=0.0, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        engine.add(SequenceRequest(first_id + number, prompt, sampling, b"bench", 0))
    tokens: dict[int, list[int]] = {first_id + number: [] for number in range(streams)}
    started = time.perf_counter()
    while engine.has_work:
        report = engine.step()
        for sequence_id, token in zip(report.sequence_ids.tolist(), report.token_ids.tolist(), strict=True):
            tokens[sequence_id].append(token)
    return time.perf_counter() - started, tokens


def write_random(folder: Path, shape: dict[str, Any]) -> None:
    """Write a random Llama of that shape in bfloat16, with weights large enough for distinct tokens."""
    from safetensors.torch import save_file

    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5, "rope_theta": 5e5,
              "max_position_embeddings": 4096, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
              "hidden_act": "silu", "bos_token_id": None, "eos_token_id": None} | shape  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    width, inner, head = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    queries, keys = shape["num_attention_heads"] * head, shape["num_key_value_heads"] * head
    generator = torch.Generator().manual_seed(0)

    def numbers(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float32).mul_(size[-1] ** -0.5).bfloat16()

    tensors = {"model.embed_tokens.weight": numbers(shape["vocab_size"], width)}
    tensors["model.norm.weight"] = torch.ones(width, dtype=torch.bfloat16)
    for number in range(shape["num_hidden_layers"]):
        prefix = f"model.layers.{number}."
        for name, size in {
            "self_attn.q_proj": (queries, width), "self_attn.k_proj": (keys, width), "self_attn.v_proj": (keys, width),
            "self_attn.o_proj": (width, queries), "mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width),
            "mlp.down_proj": (width, inner),
        }.items():  # fmt: skip
            tensors[f"{prefix}{name}.weight"] = numbers(*size)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = torch.ones(width, dtype=torch.bfloat16)
    save_file(tensors, folder / "model.safetensors")


if __name__ == "__main__":
    main()
