"""An engine with the built-in model in this process, for tests of constrained generation."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from engine.config import EngineConfig
from engine.loop import Engine
from engine.protocol.output_format import Constraint
from engine.protocol.sampling import Sampling
from engine.report import FINISHES, StepReport
from engine.runner import Runner
from engine.scheduling.sequence import SequenceRequest
from engine.text.tokenizer import Tokenizer
from tests.engine import one_thread  # noqa: F401

SPARK = Path(__file__).parents[3] / "catalog/builtin/spark"
NAMESPACE = b"n" * 32
_ids = itertools.count(1)  # unique across engines: a shared runner remembers sequences by their ids


@dataclass
class Completion:
    """The output of one sequence. End tokens are not part of `token_ids`."""

    token_ids: list[int] = field(default_factory=list)
    finish: str | None = None
    text: str = ""


class SparkEngine:
    """An engine over `runner`, or over a runner of its own."""

    def __init__(self, runner: Runner | None = None, **settings: object) -> None:
        defaults: dict[str, object] = {"dtype": "float32", "num_blocks": 512, "max_sequences": 32}
        self.config = EngineConfig(model_dir=SPARK, **(defaults | settings))  # type: ignore[arg-type]
        self.runner = runner or Runner(self.config)
        self.tokenizer = Tokenizer(SPARK)
        self.engine = Engine(self.runner, self.config, revision="r1")
        self.completions: dict[int, Completion] = defaultdict(Completion)

    def submit(
        self,
        prompt: str,
        constraint: Constraint | None = None,
        *,
        namespace: bytes = NAMESPACE,
        stop_token_ids: tuple[int, ...] = (),
        **sampling: object,
    ) -> int:
        """Add a sequence and return its id."""
        sequence_id = next(_ids)
        prompt_ids = self.tokenizer.encode_conversation([{"role": "user", "content": prompt}])
        request = SequenceRequest(
            sequence_id=sequence_id,
            prompt=np.array(prompt_ids, dtype=np.int32),
            sampling=Sampling(**sampling),  # type: ignore[arg-type]
            namespace=namespace,
            tenant=1,
            stop_token_ids=stop_token_ids,
            constraint=constraint,
        )
        self.engine.add(request)
        return sequence_id

    def step(self) -> StepReport:
        report = self.engine.step()
        for sequence_id, token_id, code in zip(report.sequence_ids, report.token_ids, report.finishes, strict=True):
            completion = self.completions[int(sequence_id)]
            assert completion.finish is None, "a sequence has an entry after its last"
            if token_id >= 0 and FINISHES[code] != "stop":
                completion.token_ids.append(int(token_id))
            completion.finish = FINISHES[code]
        return report

    def run(self, max_steps: int = 20_000) -> None:
        """Step until every sequence has ended."""
        for _ in range(max_steps):
            if not self.engine.has_work:
                break
            self.step()
        assert not self.engine.has_work, f"still working after {max_steps} steps"
        for completion in self.completions.values():
            completion.text = self.tokenizer.decode(completion.token_ids)

    def complete(
        self,
        prompt: str,
        constraint: Constraint | None = None,
        *,
        stop_token_ids: tuple[int, ...] = (),
        **sampling: object,
    ) -> Completion:
        """Run all sequences and this one to their end, and return this one's completion."""
        sequence_id = self.submit(prompt, constraint, stop_token_ids=stop_token_ids, **sampling)
        self.run()
        return self.completions[sequence_id]
