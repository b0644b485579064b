"""The other half of `bench.engine_cpu`'s `Peer`: one engine in a process of its own, which waits for its turn.

Runs in the peer's environment, where nothing of ours is installed. One JSON line in, one JSON line out.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

Prompts = list[list[int]]
Generate = Callable[[Prompts, int], list[list[int]]]


def serve(load: Callable[[], tuple[Generate, str]]) -> None:
    """Load, say which version this is, and from then on generate what each line asks for, greedily and to the end."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever the engine prints is not an answer
    started = time.perf_counter()
    generate, version = load()
    print(json.dumps({"version": version, "load_s": round(time.perf_counter() - started, 2)}), file=answers)
    for line in sys.stdin:
        asked = json.loads(line)
        started = time.perf_counter()
        token_ids = generate(asked["prompts"], asked["num_out"])
        seconds = time.perf_counter() - started
        lengths = {len(row) for row in token_ids}
        if lengths != {asked["num_out"]}:
            raise SystemExit(f"asked for {asked['num_out']} tokens a stream and got {sorted(lengths)}")
        print(json.dumps({"seconds": seconds, "first": [row[0] for row in token_ids]}), file=answers)
