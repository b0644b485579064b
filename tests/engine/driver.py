"""Driver: runs an engine in the test process and checks its invariants after every operation.

Invariants: block states and reference counts, the step budget, no unneeded blocks, bounded preemptions, one end per
sequence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Items
from pathlib import Path

import numpy as np

from engine.adapters.local_adapter import LocalAdapter
from engine.arrays import ceil_div
from engine.config import EngineConfig
from engine.loop import Engine, StepRunner
from engine.protocol.output_format import Constraint
from engine.protocol.sampling import Sampling
from engine.report import FINISHES, StepReport
from engine.scheduling.scheduler import MAX_PREEMPTIONS
from engine.scheduling.sequence import SequenceRequest
from engine.speculation.speculator import Drafter
from tests.fakes.runner import FakeRunner

NAMESPACE = b"n" * 32
OTHER_NAMESPACE = b"o" * 32


class Driver:
    """An engine over `runner` (a FakeRunner of `num_blocks` by default) and everything it has reported."""

    def __init__(
        self,
        runner: StepRunner | None = None,
        *,
        num_blocks: int = 64,
        drafter: Drafter | None = None,
        **settings: object,
    ) -> None:
        self.runner = runner or FakeRunner(num_blocks=num_blocks)
        defaults = {"model_dir": Path(), "max_step_tokens": 64, "max_sequences": 16}
        self.config = EngineConfig(**(defaults | settings))  # type: ignore[arg-type]
        self.engine = Engine(self.runner, self.config, "r1", getattr(self.runner, "adapters", None), drafter)
        self.tokens: dict[int, list[int]] = defaultdict(list)
        self.finishes: dict[int, str | None] = {}
        self.num_cached: dict[int, int] = {}
        self.prompt_logprobs: dict[int, list[tuple[float, list[int]]]] = defaultdict(list)  # (logprob, likeliest ids)
        self.borrowed: list[np.ndarray] = []  # blocks that the test acquired from the pool
        self._next_id = 0

    def add(
        self,
        prompt: Items[int],
        *,
        namespace: bytes = NAMESPACE,
        tenant: int = 1,
        stop_token_ids: tuple[int, ...] = (),
        constraint: Constraint | None = None,
        adapter: LocalAdapter | None = None,
        is_ephemeral: bool = False,
        **sampling: object,
    ) -> int:
        """Add a sequence and return its id."""
        self._next_id += 1
        if isinstance(self.runner, FakeRunner):
            self.runner.namespaces[self._next_id] = namespace
        request = SequenceRequest(
            sequence_id=self._next_id,
            prompt=np.array(prompt, dtype=np.int32),
            sampling=Sampling(**sampling),  # type: ignore[arg-type]
            namespace=namespace,
            tenant=tenant,
            stop_token_ids=stop_token_ids,
            constraint=constraint,
            adapter=adapter,
            is_ephemeral=is_ephemeral,
        )
        self.engine.add(request)
        self.check()
        return self._next_id

    def abort(self, sequence_id: int) -> None:
        self.engine.abort(sequence_id)
        self.check()

    def step(self) -> StepReport:
        before = self.engine.num_computed_tokens
        report = self.engine.step()
        assert self.engine.num_computed_tokens - before <= self.config.max_step_tokens, "a step over its budget"
        for prompt in report.prompt_logprobs:
            assert not self.tokens[prompt.sequence_id], "prompt log-probabilities after a generated token"
            scores = zip(prompt.logprobs.tolist(), prompt.top_ids.tolist(), strict=True)
            self.prompt_logprobs[prompt.sequence_id] += scores
        rows = zip(report.sequence_ids, report.token_ids, report.finishes, report.num_cached, strict=True)
        for sequence_id, token_id, code, num_cached in ((int(a), int(b), int(c), int(d)) for a, b, c, d in rows):
            assert sequence_id not in self.finishes, "an entry after the end of its sequence"
            if token_id >= 0:
                self.tokens[sequence_id].append(token_id)
            self.num_cached.setdefault(sequence_id, num_cached)
            if code:
                self.finishes[sequence_id] = FINISHES[code]
        self.check()
        return report

    def run(self, max_steps: int = 20_000) -> None:
        """Step until every sequence has ended."""
        for _ in range(max_steps):
            if not self.engine.has_work:
                return
            self.step()
        raise AssertionError(f"sequences are still open after {max_steps} steps")

    def check(self) -> None:
        """Check the invariants."""
        engine, table = self.engine, self.engine.table
        running = engine.scheduler.running
        users = [table.block_table[slot, : table.num_blocks[slot]] for slot in running]
        engine.blocks.check_integrity(users + self.borrowed)
        needed = ceil_div(table.length[running], table.block_size)
        assert np.all(table.num_blocks[running] <= needed), "more blocks than the tokens need"
        assert len(set(running.tolist())) == len(running) <= self.config.max_sequences
        assert engine.scheduler.num_waiting <= self.config.max_waiting + self.config.max_sequences
        assert 0 <= engine.scheduler.sequence_blocks.num_reserved <= engine.blocks.num_available
        assert all(each.num_preemptions <= MAX_PREEMPTIONS for each in engine.sequences)

    def borrow_blocks(self, count: int) -> None:
        """Shrink the pool: allocate up to `count` blocks that are not reserved."""
        count = min(count, self.engine.blocks.num_available - self.engine.scheduler.sequence_blocks.num_reserved)
        self.borrowed.append(self.engine.blocks.allocate(count))
        self.check()

    def return_blocks(self) -> None:
        for blocks in self.borrowed:
            self.engine.blocks.release(blocks)
        self.borrowed = []
        self.check()
