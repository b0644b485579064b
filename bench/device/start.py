"""Time from starting the server's process to the first token, and to the first token of a long prompt. Part `start`,
with the swaps of `swap.py`.

The files of the model are in the page cache. The first start may compile kernels, later ones use the cache.

Seconds of each phase of a start, in order; `read_s`, `upload_s` and `weight_check_s` overlap within `weights_s`:

| Phase | What happens |
|---|---|
| `import_s` | the zygote imports torch and the kernels; a node does this once |
| `context_s` | the rank process creates the device's context |
| `headers_s` | the checkpoint's headers are read and checked |
| `allocation_s` | memory of weights, KV cache and steps |
| `weights_s` | all weights: `read_s` is the mean of the readers, `upload_s` and `weight_check_s` the device's time |
| `binding_s` | weights are passed to the kernels |
| `rotary_s` | position tables |
| `capture_s` | steps of padding and graphs; `compilation_s` of it if kernels are not in the cache |
| `first_token_s` | the first request |
"""

from __future__ import annotations

import time
from pathlib import Path

import torch

from bench.device import swap
from bench.device.figures import Sheet
from bench.device.served import first_token_s, random_prompt, served, vocab_size_of

_NUM_STARTS = 3
_LONG_PROMPT = 16_000
_LEAST_S = 12.0  # time needed for one more start


def rows() -> list[str]:
    return [*(f"start {number + 1}" for number in range(_NUM_STARTS)), "long prompt", "swap"]


def run(sheet: Sheet, device: torch.device, folder: Path, *, is_tiny: bool) -> None:
    """Fill a sheet."""
    vocab_size, long_prompt = vocab_size_of(folder), 200 if is_tiny else _LONG_PROMPT
    for number in range(1 if is_tiny else _NUM_STARTS):
        if sheet.left_s < _LEAST_S:
            sheet.headline(f"start {number + 1}: not run, out of time")
            break
        flags = ("--max-sequences", "8" if is_tiny else "256", "--log-level", "info")
        with served(folder, device.type, max_model_len=20_000, limit_s=sheet.left_s, flags=flags) as server:
            first_s = first_token_s(server, random_prompt(16, number, vocab_size))
            total_s = time.perf_counter() - server.started_s
            loaded_s = server.phases.get("load_s", 0.0) + first_s
            sheet.add(f"start {number + 1}", {"ready_s": round(server.ready_s, 3), "first_token_s": round(first_s, 4),
                                              "start_to_first_token_s": round(total_s, 3),
                                              "load_to_first_token_s": round(loaded_s, 3),
                                              "phases": server.phases})  # fmt: skip
            sheet.headline(f"start {number + 1}: {total_s:.2f} s to the first token, {loaded_s:.2f} s without imports")
            if number == 0:
                prompt = random_prompt(long_prompt, 99, vocab_size)
                new_s, cached_s = first_token_s(server, prompt), first_token_s(server, prompt)
                sheet.add("long prompt", {"tokens": long_prompt, "first_token_s": round(new_s, 4),
                                          "first_token_cached_s": round(cached_s, 4)})  # fmt: skip
                sheet.headline(f"cached prompt of {long_prompt} tokens: {1000 * cached_s:.0f} ms")
    if sheet.left_s < swap.LEAST_S:
        sheet.headline("swap: not run, out of time")
    else:
        swap.measure(sheet, device, folder, is_tiny=is_tiny)
