"""Sequences: what is asked of the engine, and the slot table that holds the running ones as columns of arrays.

One row (slot) per running sequence, one NumPy column per fact, so that a step costs a few array operations whatever
the batch is. A sequence that waits, or was preempted, has no slot: its tokens rest in its `Sequence`. Knows nothing of
blocks being shared, of policy, of text or of tensors.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.adapters.local_adapter import LocalAdapter
from engine.arrays import Ints, ceil_div
from engine.protocol.output_format import Constraint
from engine.protocol.sampling import Sampling

_SEED_MASK = (1 << 64) - 1
_LEAST_TEMPERATURE = 1e-4  # colder is greedy
_MOST = 100.0  # of temperature and penalties
_MOST_BIAS = 1e4  # of a logit


@dataclass(frozen=True, eq=False)
class SequenceRequest:
    """One sequence to generate.

    `sequence_id` is never used twice in an engine's life. `prompt` is int32 [P]. Equal `namespace` bytes (1 to 64, by
    custom 32) may share prefix blocks, different ones never do. `tenant` is a number for fairness only. A token of
    `stop_token_ids`, or one of the model's end tokens unless `sampling.ignore_eos`, ends the sequence with "stop" and
    is the last one reported. `sampling.stop` texts are none of the engine's business.

    With a `constraint` the completion's text matches it from its first token to its last, and end tokens count whatever
    `ignore_eos` says. It ends with "stop" once nothing more may follow, in an entry without a token; with "unclosed" if
    the limit came while the text was not yet a match; with "too_complex" if following it took more than its limits.
    With an `adapter` every token goes through it; one that cannot be had ends the sequence with "bad_adapter".

    What an `is_ephemeral` sequence computed is wiped when it leaves its blocks.
    """

    sequence_id: int
    prompt: Ints
    sampling: Sampling
    namespace: bytes
    tenant: int
    stop_token_ids: tuple[int, ...] = ()
    constraint: Constraint | None = None
    adapter: LocalAdapter | None = None
    is_ephemeral: bool = False


@dataclass(eq=False, slots=True)
class Sequence:
    """The engine's side of a request, from arrival to its end.

    `token_ids` is what is known of it while it has no slot: the prompt, after a preemption followed by the completion
    so far. `prefix_hashes` are those of its full blocks, as far as anyone needed them.
    """

    request: SequenceRequest
    tenant_index: int
    max_total_len: int  # prompt and completion may grow to this many tokens
    stop_token_ids: tuple[int, ...]
    token_ids: Ints
    seed: int
    slot: int = -1  # -1: waiting or preempted
    num_cached: int = -1  # prompt tokens found in the prefix cache at first admission; -1: never admitted
    num_preemptions: int = 0
    adapter: int = 0  # the handle of its adapter, once the rank has it; 0 without one
    has_returned_adapter: bool = False  # to one that waited for the place, before it had a slot
    num_deferrals: int = 0  # steps spent waiting for a prefix that another sequence is computing
    device_us: float = 0.0  # what it had of the devices' time until it last gave its slot back
    num_prompt_logprobs: int = 1  # of its prompt's first tokens, those whose log-probability was told, or is not to be
    prefix_hashes: list[bytes] = field(default_factory=list)

    @property
    def sequence_id(self) -> int:
        return self.request.sequence_id

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt)

    @property
    def needs_prompt_logprobs(self) -> bool:
        """Whether log-probabilities of its prompt are still to be told: those positions cannot come from a cache."""
        return self.request.sampling.wants_prompt_logprobs and self.num_prompt_logprobs < self.num_prompt


def draw_seed(seed: int | None) -> int:
    """`seed` as 64 unsigned bits; a fresh one for None."""
    return secrets.randbits(64) if seed is None else seed & _SEED_MASK


class SlotTable:
    """Columns over the slots of running sequences. S slots, `max_model_len` tokens and ceil(that / block size) blocks
    each. A free slot's values mean nothing."""

    def __init__(self, num_slots: int, max_model_len: int, block_size: int) -> None:
        def ints(*shape: int) -> Ints:
            return np.zeros(shape, dtype=np.int32)

        def floats() -> NDArray[np.float32]:
            return np.zeros(num_slots, dtype=np.float32)

        self.num_slots = num_slots
        self.max_model_len = max_model_len
        self.block_size = block_size
        self.sequence_id = np.zeros(num_slots, dtype=np.int64)
        self.tenant = ints(num_slots)  # index into the fairness counters
        max_blocks = ceil_div(max_model_len, block_size)
        self.token_blocks = ints(num_slots, max_blocks, block_size)
        self.token_ids = self.token_blocks.reshape(num_slots, -1)  # prompt, then completion; the same memory
        self.length = ints(num_slots)  # tokens known
        self.num_computed = ints(num_slots)  # tokens whose KV is written
        self.num_prompt = ints(num_slots)
        self.num_cached = ints(num_slots)  # see Sequence
        self.num_matched = ints(num_slots)  # tokens found in the prefix cache at the latest admission
        self.max_total_len = ints(num_slots)
        self.block_table = ints(num_slots, max_blocks)  # block ids in order
        self.num_blocks = ints(num_slots)  # how many of them are held
        self.num_registered = ints(num_slots)  # blocks already offered to the prefix cache
        self.last_step = np.zeros(num_slots, dtype=np.int64)  # number of the step that last gave it tokens
        self.is_protected = np.zeros(num_slots, dtype=np.bool_)  # never preempted again: its worst case is reserved
        self.stop_token_ids = np.full((1, num_slots), -1, dtype=np.int32)  # as many columns as some row ever needed
        self.temperature = floats()
        self.top_p = floats()
        self.min_p = floats()
        self.repetition_penalty = floats()
        self.presence_penalty = floats()
        self.frequency_penalty = floats()
        self.top_k = ints(num_slots)
        self.num_logprobs = ints(num_slots)  # -1: none asked
        self.seed = np.zeros(num_slots, dtype=np.uint64)
        self.device_us = np.zeros(num_slots, dtype=np.float64)  # its share of the devices' time
        self.adapter = ints(num_slots)  # handle, 0 without one
        self.has_adapters = False  # whether any slot ever had one
        self.logit_biases: dict[int, tuple[Ints, NDArray[np.float32]]] = {}  # slot -> token ids, what is added to each
        # slot -> the length before which it cannot end, its end tokens
        self.held_ends: dict[int, tuple[int, Ints]] = {}
        self.num_prompt_logprobs: dict[int, int] = {}  # slot -> see Sequence

    def fill(self, slot: int, sequence: Sequence, num_matched: int) -> None:
        """Give `slot` to `sequence`, of whose tokens `num_matched` already have their KV. Blocks are the caller's."""
        request, sampling = sequence.request, sequence.request.sampling
        length = len(sequence.token_ids)
        self.sequence_id[slot] = request.sequence_id
        self.tenant[slot] = sequence.tenant_index
        self.token_ids[slot, :length] = sequence.token_ids
        self.length[slot] = length
        self.num_computed[slot] = num_matched
        self.num_prompt[slot] = len(request.prompt)
        self.num_cached[slot] = sequence.num_cached
        self.num_matched[slot] = num_matched
        self.max_total_len[slot] = sequence.max_total_len
        self.adapter[slot] = sequence.adapter
        self.has_adapters = self.has_adapters or sequence.adapter > 0
        self.num_blocks[slot] = 0
        self.num_registered[slot] = num_matched // self.block_size
        self.last_step[slot] = 0
        self.is_protected[slot] = False
        self._fill_stop_tokens(slot, sequence.stop_token_ids)
        self._fill_sampling(slot, sampling)
        if sampling.min_tokens and request.constraint is None:
            ends = np.array(sequence.stop_token_ids, dtype=np.int32)
            self.held_ends[slot] = len(request.prompt) + sampling.min_tokens, ends
        if sequence.needs_prompt_logprobs:
            self.num_prompt_logprobs[slot] = sequence.num_prompt_logprobs
        self.seed[slot] = sequence.seed
        self.device_us[slot] = sequence.device_us

    def _fill_sampling(self, slot: int, sampling: Sampling) -> None:
        """Extremes are cut to what float32 logits can bear: beyond these bounds a value has no more effect, except
        that it could make a row overflow. A repetition penalty of 0 divides by nothing: it counts as off."""
        greedy = sampling.temperature < _LEAST_TEMPERATURE
        repetition = sampling.repetition_penalty
        self.temperature[slot] = 0 if greedy else min(sampling.temperature, _MOST)
        self.top_p[slot] = min(max(sampling.top_p, 0), 1)
        self.min_p[slot] = min(max(sampling.min_p, 0), 1)
        self.repetition_penalty[slot] = min(max(repetition, 1 / _MOST), _MOST) if repetition > 0 else 1
        self.presence_penalty[slot] = min(max(sampling.presence_penalty, -_MOST), _MOST)
        self.frequency_penalty[slot] = min(max(sampling.frequency_penalty, -_MOST), _MOST)
        self.top_k[slot] = sampling.top_k
        self.num_logprobs[slot] = -1 if sampling.logprobs is None else sampling.logprobs
        if sampling.logit_bias:
            token_ids, values = zip(*sampling.logit_bias, strict=True)
            bias = np.clip(np.array(values, dtype=np.float32), -_MOST_BIAS, _MOST_BIAS)
            self.logit_biases[slot] = np.array(token_ids, dtype=np.int32), bias

    def _fill_stop_tokens(self, slot: int, token_ids: tuple[int, ...]) -> None:
        missing = len(token_ids) - len(self.stop_token_ids)
        if missing > 0:
            self.stop_token_ids = np.pad(self.stop_token_ids, ((0, missing), (0, 0)), constant_values=-1)
        self.stop_token_ids[:, slot] = -1
        self.stop_token_ids[: len(token_ids), slot] = token_ids
