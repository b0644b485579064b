"""A replica whose tokens are set by the test."""

from __future__ import annotations

from collections.abc import Sequence

from engine.ranks.output import SequenceOutput, TokenIdLogprob
from engine.ranks.replica import Sink
from engine.report import EngineInfo, EngineStatus, Finish
from engine.scheduling.sequence import SequenceRequest


class ScriptedReplica:
    """Records added and aborted sequences. `say` sends the output of one step to the latest sequence, or to sequence
    number `at`.
    """

    def __init__(self, *, vocab_size: int = 512, max_model_len: int = 64) -> None:
        self.info = EngineInfo(
            max_model_len=max_model_len,
            vocab_size=vocab_size,
            eos_token_ids=(2,),
            num_blocks=100,
            block_size=16,
            layout_tag="test",
        )
        self.requests: list[SequenceRequest] = []
        self.aborted: list[int] = []
        self.is_closed = False
        self._sinks: list[Sink] = []

    def add(self, request: SequenceRequest, sink: Sink) -> None:
        self.requests.append(request)
        self._sinks.append(sink)

    def abort(self, sequence_id: int) -> None:
        self.aborted.append(sequence_id)

    def status(self) -> EngineStatus:
        return EngineStatus()

    async def close(self) -> None:
        self.is_closed = True

    def say(
        self,
        *token_ids: int,
        finish: Finish | None = None,
        num_cached: int = 0,
        logprobs: Sequence[TokenIdLogprob] = (),
        at: int = -1,
    ) -> None:
        self._sinks[at](SequenceOutput(token_ids, finish, num_cached, tuple(logprobs)))
