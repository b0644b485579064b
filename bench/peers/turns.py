"""The peer's side of `bench.engine_cpu`'s `Peer`: one engine in its own process that waits for its turn.

Runs in the peer's environment, where nothing of Hearth is installed. Reads and writes one JSON line per turn.
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
    """Load the engine, report its version, then greedily generate what each line requests."""
    responses = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output of the engine itself must not mix with the protocol
    started = time.perf_counter()
    generate, version = load()
    print(json.dumps({"version": version, "load_s": round(time.perf_counter() - started, 2)}), file=responses)
    for line in sys.stdin:
        request = json.loads(line)
        started = time.perf_counter()
        token_ids = generate(request["prompts"], request["num_out"])
        seconds = time.perf_counter() - started
        lengths = {len(row) for row in token_ids}
        if lengths != {request["num_out"]}:
            raise SystemExit(f"requested {request['num_out']} tokens a stream and got {sorted(lengths)}")
        print(json.dumps({"seconds": seconds, "first": [row[0] for row in token_ids]}), file=responses)
