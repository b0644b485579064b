"""A Runner that computes nothing: its KV cache holds the token ids themselves, so reading a wrong block is detected.

The sampled token is a fixed function of the context as read from the KV cache, and `expected_tokens` computes the same
from a plain list. A stale, foreign or unwritten block either fails an assertion or changes the tokens.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence as Items

import numpy as np
from numpy.typing import NDArray

from engine.devices.arena import SleepSizes
from engine.inputs import StepInputs, StepOutput
from engine.launched_step import FinishedOutput, PendingOutput

VOCAB_SIZE = 997
END_TOKEN = 0


def draw(context: NDArray[np.int32]) -> int:
    """Return the token that follows `context`."""
    return zlib.crc32(np.ascontiguousarray(context, dtype=np.int32).tobytes()) % VOCAB_SIZE


def expected_tokens(prompt: Items[int], max_tokens: int, *, ignore_end: bool = False) -> list[int]:
    """Return the tokens that an engine must generate for `prompt`, whatever other sequences run."""
    context = np.empty(len(prompt) + max_tokens, dtype=np.int32)
    context[: len(prompt)] = prompt
    drawn: list[int] = []
    while len(drawn) < max_tokens:
        length = len(prompt) + len(drawn)
        drawn.append(draw(context[:length]))
        context[length] = drawn[-1]
        if drawn[-1] == END_TOKEN and not ignore_end:
            break
    return drawn


class FakeRunner:
    """Checks every step: token budget, order of rows, and that KV is written before it is read, by the right sequence.

    `namespaces` maps sequence ids to their namespaces. Reading a block of another namespace fails.
    """

    def __init__(self, *, num_blocks: int = 64, block_size: int = 16, max_model_len: int = 512) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.vocab_size = VOCAB_SIZE
        self.weight_bytes = 1 << 20
        self.kv_bytes = num_blocks * block_size * 4
        self.eos_token_ids: tuple[int, ...] = (END_TOKEN,)
        self.layout_tag = "fake"
        self.has_cheap_multi_token_rows = True
        self.can_run_ahead = False
        self.can_sleep = True
        self.is_asleep = False
        self.namespaces: dict[int, bytes] = {}
        self.num_forward_tokens = 0
        self.forward_tokens_of: dict[int, int] = {}
        self.largest_step = 0
        self.largest_batch = 0
        self.failing_ids: set[int] = set()
        slots = num_blocks * block_size
        self._tokens = np.full(slots, -1, dtype=np.int32)  # -1 marks KV that was never written
        self._positions = np.full(slots, -1, dtype=np.int64)
        self._writers = np.full(slots, -1, dtype=np.int64)

    def sleep(self, snapshot: str) -> SleepSizes:
        """Forget the KV cache."""
        assert not self.is_asleep
        self.is_asleep = True
        for column in (self._tokens, self._positions, self._writers):
            column.fill(-1)
        return SleepSizes(self.weight_bytes, 0)

    def wake(self) -> int:
        assert self.is_asleep
        self.is_asleep = False
        return 0

    def launch(self, inputs: StepInputs) -> PendingOutput:
        return FinishedOutput(self.run(inputs))

    def run(self, inputs: StepInputs) -> StepOutput:
        assert not self.is_asleep, "a step of a sleeping model"
        token_ids, slot_mapping = inputs.token_ids.numpy(), inputs.slot_mapping.numpy()
        query_lens = np.diff(inputs.query_starts)
        self._check_rows(inputs, query_lens)
        self.num_forward_tokens += len(token_ids)
        self.largest_step = max(self.largest_step, len(token_ids))
        self.largest_batch = max(self.largest_batch, inputs.num_rows)
        assert len(np.unique(slot_mapping)) == len(slot_mapping), "two tokens write one KV slot"
        self._tokens[slot_mapping] = token_ids
        self._positions[slot_mapping] = inputs.positions.numpy()
        self._writers[slot_mapping] = np.repeat(inputs.sequence_ids, query_lens)
        contexts = [self._read(inputs, row) for row in range(inputs.num_rows)]
        logit_rows = inputs.logit_rows.numpy()
        sampling_rows = np.searchsorted(inputs.query_starts, logit_rows, side="right") - 1
        lengths = inputs.positions.numpy()[logit_rows] + 1
        drawn = np.array(
            [draw(contexts[row][:length]) for row, length in zip(sampling_rows, lengths, strict=True)], dtype=np.int32
        )
        failed = np.isin(inputs.sequence_ids[sampling_rows], list(self.failing_ids)) if self.failing_ids else None
        for row, sequence_id in enumerate(inputs.sequence_ids.tolist()):
            self.forward_tokens_of[sequence_id] = self.forward_tokens_of.get(sequence_id, 0) + int(query_lens[row])
        return StepOutput(drawn, is_failed=failed, **self._logprobs(inputs, drawn))

    def _check_rows(self, inputs: StepInputs, query_lens: NDArray[np.int32]) -> None:
        assert inputs.num_rows > 0
        assert np.all(query_lens > 0), "a row without tokens"
        assert np.all(query_lens[: inputs.num_decode_rows] == 1), "decode rows come first"
        assert np.all(query_lens[inputs.num_decode_rows :] > 1), "a row of one token after the decode rows"
        assert len(np.unique(inputs.sequence_ids)) == inputs.num_rows, "a sequence twice in a step"

    def _read(self, inputs: StepInputs, row: int) -> NDArray[np.int32]:
        """Return the row's context as stored in the KV cache."""
        positions = np.arange(inputs.context_lens[row])
        blocks = inputs.block_tables[row, positions // self.block_size]
        slots = blocks.astype(np.int64) * self.block_size + positions % self.block_size
        assert np.all(self._tokens[slots] >= 0), "KV read that was never written"
        assert np.array_equal(self._positions[slots], positions), "a block read at another position than written"
        if self.namespaces:
            own = self.namespaces[int(inputs.sequence_ids[row])]
            writers = {self.namespaces[int(writer)] for writer in np.unique(self._writers[slots])}
            assert writers == {own}, "KV of another namespace"
        return self._tokens[slots]

    def _logprobs(self, inputs: StepInputs, drawn: NDArray[np.int32]) -> dict[str, NDArray[np.generic]]:
        """Return made-up log-probabilities for the rows that request them: minus the token id, then its neighbors."""
        num_logprobs = inputs.sampling.num_logprobs
        if not len(num_logprobs) or num_logprobs.max() < 0:
            return {}
        offsets = np.arange(max(int(num_logprobs.max()), 0))
        top_ids = np.where(offsets < num_logprobs[:, None], drawn[:, None] + offsets, -1).astype(np.int32)
        return {
            "logprobs": -drawn.astype(np.float32),
            "top_ids": top_ids,
            "top_logprobs": -top_ids.astype(np.float32),
        }
