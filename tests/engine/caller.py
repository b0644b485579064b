"""Collects the outputs of sequences of replicas in rank processes."""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np

from engine.adapters.local_adapter import LocalAdapter
from engine.protocol.output_format import Constraint
from engine.protocol.sampling import Sampling
from engine.ranks.output import SequenceOutput
from engine.ranks.replica import Replica
from engine.scheduling.sequence import SequenceRequest
from engine.text.tokenizer import Tokenizer
from tests.engine.structured.spark_engine import NAMESPACE, SPARK


async def collect_outputs(
    replica: Replica, request: SequenceRequest, *, timeout_s: float = 60, abort_after_s: float | None = None
) -> list[SequenceOutput]:
    """Return all outputs of a sequence, which is aborted after `abort_after_s`. Raises TimeoutError."""
    outputs: list[SequenceOutput] = []
    ended = asyncio.Event()

    def on_output(output: SequenceOutput) -> None:
        outputs.append(output)
        if output.finish:
            ended.set()

    replica.add(request, on_output)
    if abort_after_s is not None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), abort_after_s)
        replica.abort(request.sequence_id)
    await asyncio.wait_for(ended.wait(), timeout_s)
    return outputs


def token_ids_of(outputs: list[SequenceOutput]) -> list[int]:
    return [token_id for output in outputs for token_id in output.token_ids]


class Caller:
    """Runs conversations on a replica of the built-in model, one at a time or several."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._tokenizer = Tokenizer(SPARK)
        self._next_id = 0

    async def ask(
        self,
        text: str,
        *,
        constraint: Constraint | None = None,
        adapter: LocalAdapter | None = None,
        **sampling: object,
    ) -> tuple[str, list[SequenceOutput]]:
        """Return the completion's text and all outputs."""
        self._next_id += 1
        prompt = self._tokenizer.encode_conversation([{"role": "user", "content": text}])
        request = SequenceRequest(
            self._next_id,
            np.array(prompt, np.int32),
            Sampling(**sampling),  # type: ignore[arg-type]
            NAMESPACE,
            1,
            constraint=constraint,
            adapter=adapter,
        )
        outputs = await collect_outputs(self._replica, request)
        return self._tokenizer.decode(token_ids_of(outputs)), outputs
