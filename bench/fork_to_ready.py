"""Measure how long a replica takes to be ready, in milliseconds. Prints JSON.

    python -m bench.fork_to_ready MODEL_DIR

"cold" includes starting the zygote, which imports torch; "warm" is fork, load and first token from a running zygote;
"fork" is a child that only responds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import time
from pathlib import Path

import numpy as np

from engine.config import EngineConfig
from engine.processes.zygote import Zygote
from engine.protocol.sampling import Sampling
from engine.ranks.output import SequenceOutput
from engine.ranks.replica import Replica
from engine.scheduling.sequence import SequenceRequest


async def first_token_ms(zygote: Zygote, model_dir: Path) -> float:
    """Return the milliseconds from requesting a rank to its first token."""
    started = time.perf_counter()
    replica = await Replica.start(zygote, EngineConfig(model_dir=model_dir), "bench", print)
    ended = asyncio.Event()

    def sink(output: SequenceOutput) -> None:
        if output.finish:
            ended.set()

    prompt = np.ones(1, dtype=np.int32)
    replica.add(SequenceRequest(1, prompt, Sampling(max_tokens=1), b"bench", 1), sink)
    await ended.wait()
    took = time.perf_counter() - started
    await replica.close()
    return took * 1e3


def report_ready(connection: socket.socket, _arguments: bytes) -> None:
    """Respond to `fork_ms` from the child process."""
    connection.sendall(b"here")


async def fork_ms(zygote: Zygote) -> float:
    started = time.perf_counter()
    child = await zygote.fork("bench.fork_to_ready:report_ready")
    child.socket.setblocking(False)
    await asyncio.get_running_loop().sock_recv(child.socket, 4)
    took = time.perf_counter() - started
    child.socket.close()
    await child.wait()
    return took * 1e3


async def measure(model_dir: Path, num_rounds: int) -> dict[str, float]:
    zygote = Zygote()
    started = time.perf_counter()
    await first_token_ms(zygote, model_dir)
    cold = (time.perf_counter() - started) * 1e3
    warm = [await first_token_ms(zygote, model_dir) for _ in range(num_rounds)]
    forks = [await fork_ms(zygote) for _ in range(num_rounds)]
    await zygote.close()
    return {
        "cold_first_token_ms": round(cold, 1),
        "warm_first_token_ms": round(statistics.median(warm), 1),
        "fork_ms": round(statistics.median(forks), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    print(json.dumps(asyncio.run(measure(arguments.model_dir, arguments.rounds))))


if __name__ == "__main__":
    main()
