"""Engine reports: the tokens and ends of one step as columns, and the engine's status in numbers.

Needs NumPy and msgspec only: the front process of a node reads these and never imports torch.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.arrays import Floats, Ints, Longs

Finish = Literal[
    "stop",
    "length",
    "aborted",
    "out_of_capacity",
    "context_too_long",
    "error",
    "unclosed",
    "bad_adapter",
    "too_complex",
    "crashed",  # never reported by an engine: the replica reports it when the rank process has ended
]
# Indexed by finish code. Code 0 means that the sequence continues.
FINISHES: tuple[Finish | None, ...] = (None, *(each for each in get_args(Finish) if each != "crashed"))
(
    RUNNING,
    STOP,
    LENGTH,
    ABORTED,
    OUT_OF_CAPACITY,
    CONTEXT_TOO_LONG,
    ERROR,
    UNCLOSED,
    BAD_ADAPTER,
    TOO_COMPLEX,
) = range(len(FINISHES))


class PromptLogprobs(Struct, frozen=True, eq=False, array_like=True):
    """Log-probabilities of the next N prompt tokens of a sequence, beginning with the second token of the prompt."""

    sequence_id: int
    logprobs: Floats  # [N]
    top_ids: Ints  # [N, most wanted]
    top_logprobs: Floats  # [N, most wanted]


class StepReport(Struct, frozen=True, eq=False, array_like=True):
    """E entries; those of one sequence are adjacent.

    An entry with a finish code other than RUNNING is the last of its sequence. `prompt_logprobs` precede the entries
    of their sequences.
    """

    sequence_ids: Longs  # [E]
    token_ids: Ints  # [E], -1 for an entry without a token
    finishes: NDArray[np.uint8]  # [E], finish codes
    num_cached: Ints  # [E], prompt tokens served from the prefix cache
    logprobs: Floats | None = None  # [E], NaN where not wanted; None if no row wants log-probabilities
    top_ids: Ints | None = None  # [E, most wanted], -1 where not wanted
    top_logprobs: Floats | None = None  # [E, most wanted]
    device_us: Longs | None = None  # [E], device time of the sequence so far, in microseconds
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()

    @property
    def num_entries(self) -> int:
        return len(self.sequence_ids)


class EngineStatus(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Status of an engine in numbers. `ReplicaStatus` documents the fields."""

    num_running: int = 0
    num_waiting: int = 0
    queued_tokens: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_cached_blocks: int = 0
    num_computed_tokens: int = 0
    num_preemptions: int = 0
    num_steps: int = 0
    num_ranks: int = 1
    num_drafted: int = 0
    num_accepted: int = 0
    busy_us: int = 0
    weight_bytes: int = 0
    kv_bytes: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0


class SleepReport(Struct, frozen=True, kw_only=True):
    """A model that was put to sleep or woken. While `is_asleep`, its weights take `host_bytes` of host memory, and
    `device_bytes` stay allocated on its device. `host_bytes` can also be kept while it is awake, for its next sleep."""

    is_asleep: bool
    host_bytes: int = 0
    device_bytes: int = 0


class SleepFailed(Exception):
    """A model could not be put to sleep or woken and is in the same state as before. The message has the sizes."""


class EngineInfo(Struct, frozen=True, kw_only=True):
    """Properties of a loaded model. `max_model_len` limits prompt and completion together."""

    max_model_len: int  # never more than the KV pool holds
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    num_blocks: int
    block_size: int
    layout_tag: str
    adapter_sites: dict[str, tuple[int, int]] = {}  # modules that adapters can change -> (in, out)
    can_sleep: bool = False  # see `engine.devices.arena`
    architecture: str = ""  # name in the checkpoint's config
    load_s: float = 0.0
