"""What an engine says after a step: one entry for each token drawn and each end, as columns; and its state in numbers.

NumPy and msgspec only: the front of a node reads these and never imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

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
    "crashed",  # never said by an engine: a replica says it of a dead rank
]
# By finish code: the index is the code, and 0 says that the sequence goes on.
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


@dataclass(frozen=True, eq=False)
class PromptLogprobs:
    """The log-probabilities of the next N tokens of a sequence's prompt, from its second one on, and the likeliest in
    each one's place."""

    sequence_id: int
    logprobs: NDArray[np.float32]  # [N]
    top_ids: NDArray[np.int32]  # [N, most asked]
    top_logprobs: NDArray[np.float32]  # [N, most asked]


@dataclass(frozen=True, eq=False)
class StepReport:
    """E entries, those of one sequence after each other. `token_ids` is -1 where an entry brings no token; a finish
    code other than RUNNING is the sequence's last entry. The logprob columns are there only when some row asked; they
    are NaN and -1 where a row did not. `prompts` come before what their sequences say in the entries."""

    sequence_ids: NDArray[np.int64]  # [E]
    token_ids: NDArray[np.int32]  # [E]
    finishes: NDArray[np.uint8]  # [E]
    num_cached: NDArray[np.int32]  # [E], prompt tokens served from the prefix cache
    logprobs: NDArray[np.float32] | None = None  # [E]
    top_ids: NDArray[np.int32] | None = None  # [E, most asked]
    top_logprobs: NDArray[np.float32] | None = None  # [E, most asked]
    device_us: NDArray[np.int64] | None = None  # [E], microseconds of devices that the sequence has had until now
    prompts: tuple[PromptLogprobs, ...] = ()

    @property
    def num_entries(self) -> int:
        return len(self.sequence_ids)


class EngineStatus(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An engine in numbers; the fields mean what `ReplicaStatus` says of them."""

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


class EngineInfo(Struct, frozen=True, kw_only=True):
    """What is fixed once a model is loaded. `max_model_len` bounds prompt and completion together and never exceeds
    what the KV pool holds."""

    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    num_blocks: int
    block_size: int
    layout_tag: str
    adapter_sites: dict[str, tuple[int, int]] = {}  # modules that adapters can change, and their (in, out)
    architecture: str = ""  # the name in the checkpoint's config
    load_s: float = 0.0
