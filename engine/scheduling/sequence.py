"""Sequences: the request, the engine's state of it, and the slot table of the running ones.

The slot table has one row (slot) per running sequence and one NumPy column per fact, so that a step costs a few array
operations whatever the batch size. A waiting or preempted sequence has no slot; its tokens are in its `Sequence`.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

import numpy as np
from msgspec import Struct

from engine.adapters.local_adapter import LocalAdapter
from engine.arrays import Floats, Ints, Longs, ceil_div
from engine.protocol.output_format import Constraint
from engine.protocol.sampling import Sampling
from engine.sampling_columns import SamplingColumns, needs_history, zero_columns
from engine.scheduling.image_positions import axis_positions

_SEED_MASK = (1 << 64) - 1
_MAX_BIAS = 1e4  # bound of a logit bias
UNKNOWN_TOKEN = -1  # placeholder for a token that a launched step samples


class PromptImage(Struct, frozen=True, eq=False, array_like=True):
    """An image in a prompt: the model's input vectors (float32 [n, C]) in place of the embeddings of the n tokens from
    `start`, and the digest of the image.

    `grid` is the number of rows and columns of the n tokens, for models whose positions have a row and a column. The
    tokens of an image that `is_mutual` attend to each other, whatever their order.
    """

    start: int
    digest: bytes
    embeddings: Floats
    grid: tuple[int, int] | None = None
    is_mutual: bool = False

    @property
    def end(self) -> int:
        """The token after the last."""
        return self.start + len(self.embeddings)


class SequenceRequest(Struct, frozen=True, eq=False, array_like=True):
    """One sequence to generate.

    `sequence_id` is unique in an engine's life. `prompt` is int32 [P]. Sequences with equal `namespace` (1 to 64 bytes,
    usually 32) may share prefix blocks, others never do. `tenant` is a number used for fairness only. A token of
    `stop_token_ids`, or one of the model's end tokens unless `sampling.ignore_eos`, ends the sequence with "stop" and
    is the last token reported. The engine ignores `sampling.stop`.

    With a `constraint` the completion matches it from the first token to the last, and end tokens count whatever
    `ignore_eos` says. The sequence ends with "stop" when nothing more may follow (in an entry without a token), with
    "unclosed" if the limit comes before the text is a match, with "too_complex" if the matcher exceeds its limits.
    With an `adapter` every token is computed with it; if it cannot be loaded, the sequence ends with "bad_adapter".

    The KV of an `is_ephemeral` sequence is wiped when its blocks are released. `images` do not overlap and are in
    ascending order.
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
    images: tuple[PromptImage, ...] = ()


@dataclass(eq=False, slots=True)
class Sequence:
    """The engine's state of a request, from arrival to end.

    `token_ids` are the known tokens while the sequence has no slot: the prompt, and after a preemption the completion
    so far. `block_hashes` are the hashes of its full blocks, computed on demand.
    """

    request: SequenceRequest
    tenant_index: int
    max_total_len: int  # limit of prompt and completion together
    stop_token_ids: tuple[int, ...]
    token_ids: Ints
    seed: int
    slot: int = -1  # -1: waiting or preempted
    num_cached: int = -1  # prompt tokens found in the prefix cache at first admission; -1: never admitted
    num_preemptions: int = 0
    adapter: int = 0  # handle of its adapter once loaded; 0: none
    has_yielded_adapter: bool = False  # gave its adapter up once for another tenant, before it had a slot
    num_deferrals: int = 0  # steps spent waiting for a prefix that another sequence is computing
    device_us: float = 0.0  # device time until it last gave up its slot
    num_prompt_logprobs: int = 1  # leading prompt tokens whose log-probability is reported or (the first) has none
    block_hashes: list[bytes] = field(default_factory=list)

    @property
    def sequence_id(self) -> int:
        return self.request.sequence_id

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt)

    @property
    def needs_prompt_logprobs(self) -> bool:
        """True while log-probabilities of the prompt are missing: these positions cannot come from the prefix cache."""
        return self.request.sampling.wants_prompt_logprobs and self.num_prompt_logprobs < self.num_prompt


def draw_seed(seed: int | None) -> int:
    """Return `seed` as 64 unsigned bits, or a random seed for None."""
    return secrets.randbits(64) if seed is None else seed & _SEED_MASK


class SlotTable:
    """Columns over the slots of running sequences: S slots of `max_model_len` tokens each.

    The values of a free slot are undefined.
    """

    def __init__(self, num_slots: int, max_model_len: int, block_size: int) -> None:
        def ints(*shape: int) -> Ints:
            return np.zeros(shape, dtype=np.int32)

        self.num_slots = num_slots
        self.max_model_len = max_model_len
        self.block_size = block_size
        self.sequences: list[Sequence | None] = [None] * num_slots
        self.sequence_id = np.zeros(num_slots, dtype=np.int64)
        self.tenant = ints(num_slots)  # index into the fairness counters
        max_blocks = ceil_div(max_model_len, block_size)
        self.token_blocks = ints(num_slots, max_blocks, block_size)
        self.token_ids = self.token_blocks.reshape(num_slots, -1)  # prompt, then completion; same memory as above
        self.length = ints(num_slots)  # known tokens, plus pending tokens (see `num_pending`)
        self.num_pending = ints(num_slots)  # tokens in `length` that are not sampled yet; their ids are UNKNOWN_TOKEN
        self.num_computed = ints(num_slots)  # tokens whose KV is written
        self.num_prompt = ints(num_slots)
        self.num_cached = ints(num_slots)  # see Sequence
        self.num_matched = ints(num_slots)  # tokens found in the prefix cache at the latest admission
        self.max_total_len = ints(num_slots)
        self.block_table = ints(num_slots, max_blocks)  # block ids in order
        self.num_blocks = ints(num_slots)  # number of valid entries in block_table
        self.is_mirrored = False  # True if the device has a copy of the block table
        self.num_mirrored = ints(num_slots)  # leading entries of block_table that the device already has
        self.epoch = np.zeros(num_slots, dtype=np.int64)  # changes when the slot is filled or freed
        self.num_registered = ints(num_slots)  # blocks already offered to the prefix cache
        self.last_step = np.zeros(num_slots, dtype=np.int64)  # number of the latest step with tokens of the sequence
        self.is_protected = np.zeros(num_slots, dtype=np.bool_)  # never preempted: blocks for its limit are reserved
        self.stop_token_ids = np.full((1, num_slots), -1, dtype=np.int32)  # [most stop tokens of any row, S]
        self.sampling = SamplingColumns(**zero_columns(num_slots))
        self.needs_history = np.zeros(num_slots, dtype=np.bool_)  # the sampler reads the tokens before
        self.device_us = np.zeros(num_slots, dtype=np.float64)  # device time charged to the sequence
        self.adapter = ints(num_slots)  # handle; 0: none
        self.has_adapters = False  # True once any slot had an adapter
        # Sparse columns: slot -> value, only for slots that have one.
        self.logit_biases: dict[int, tuple[Ints, Floats]] = {}  # token ids, added values
        self.min_lengths: dict[int, tuple[int, Ints]] = {}  # length before which the given end tokens are forbidden
        self.images: dict[int, tuple[PromptImage, ...]] = {}
        self.axis_positions: dict[int, Longs] = {}  # [3, P], see `image_positions.py`
        self.num_prompt_logprobs: dict[int, int] = {}  # see Sequence; removed when complete

    def fill(self, slot: int, sequence: Sequence, num_matched: int) -> None:
        """Give `slot` to `sequence`, whose first `num_matched` tokens have KV. The caller assigns the blocks."""
        request, sampling = sequence.request, sequence.request.sampling
        length = len(sequence.token_ids)
        self.sequences[slot] = sequence
        sequence.slot = slot
        self.sequence_id[slot] = request.sequence_id
        self.tenant[slot] = sequence.tenant_index
        self.token_ids[slot, :length] = sequence.token_ids
        self.length[slot] = length
        self.num_pending[slot] = 0
        self.epoch[slot] += 1
        self.num_computed[slot] = num_matched
        self.num_prompt[slot] = len(request.prompt)
        self.num_cached[slot] = sequence.num_cached
        self.num_matched[slot] = num_matched
        self.max_total_len[slot] = sequence.max_total_len
        self.adapter[slot] = sequence.adapter
        self.has_adapters = self.has_adapters or sequence.adapter > 0
        self.num_blocks[slot] = 0
        self.num_mirrored[slot] = 0
        self.num_registered[slot] = num_matched // self.block_size
        self.last_step[slot] = 0
        self.is_protected[slot] = False
        self._fill_stop_tokens(slot, sequence.stop_token_ids)
        self.sampling.fill(slot, sampling, sequence.seed)
        self.needs_history[slot] = needs_history(sampling)
        if sampling.logit_bias:
            token_ids, values = zip(*sampling.logit_bias, strict=True)
            bias = np.clip(np.array(values, dtype=np.float32), -_MAX_BIAS, _MAX_BIAS)
            self.logit_biases[slot] = np.array(token_ids, dtype=np.int32), bias
        if sampling.min_tokens and request.constraint is None:
            ends = np.array(sequence.stop_token_ids, dtype=np.int32)
            self.min_lengths[slot] = len(request.prompt) + sampling.min_tokens, ends
        if sequence.needs_prompt_logprobs:
            self.num_prompt_logprobs[slot] = sequence.num_prompt_logprobs
        self.device_us[slot] = sequence.device_us
        if request.images:
            self.images[slot] = request.images
            if any(image.grid for image in request.images):
                self.axis_positions[slot] = axis_positions(request.images, len(request.prompt))

    def sequence_at(self, slot: int) -> Sequence:
        """Return the sequence in a used slot."""
        sequence = self.sequences[slot]
        assert sequence is not None, "the slot is free"
        return sequence

    def clear(self, slot: int) -> None:
        """Free a used slot and store in its sequence what the sequence needs to continue later."""
        sequence = self.sequence_at(slot)
        self.sequences[slot], sequence.slot = None, -1
        self.epoch[slot] += 1
        self.logit_biases.pop(slot, None)
        self.min_lengths.pop(slot, None)
        self.images.pop(slot, None)
        self.axis_positions.pop(slot, None)
        sequence.num_prompt_logprobs = self.num_prompt_logprobs.pop(slot, sequence.num_prompt)
        sequence.device_us = float(self.device_us[slot])
        if sequence.request.is_ephemeral:
            self.token_ids[slot] = 0

    def _fill_stop_tokens(self, slot: int, token_ids: tuple[int, ...]) -> None:
        missing = len(token_ids) - len(self.stop_token_ids)
        if missing > 0:
            self.stop_token_ids = np.pad(self.stop_token_ids, ((0, missing), (0, 0)), constant_values=-1)
        self.stop_token_ids[:, slot] = -1
        self.stop_token_ids[: len(token_ids), slot] = token_ids
