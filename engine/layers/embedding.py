"""Token embedding and output head; a tied head uses the embedding's weight."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from engine.arrays import ceil_div
from engine.checkpoints.quantized import PackedForm, PackedSlot
from engine.checkpoints.shard_slice import Destination, Span, destination_for
from engine.kernels.interface import EmbedNorm, NormConstants, Operator
from engine.kernels.reference import Kernels
from engine.layers.linear import Linear
from engine.layers.shard import WHOLE, Shard


def vocabulary_span(shard: Shard, vocab_size: int) -> tuple[Span, int]:
    """Return a rank's range of the vocabulary, and the number of rows per rank; rows of the last rank may be unused."""
    num_rows = ceil_div(vocab_size, shard.size)
    first = min(shard.rank * num_rows, vocab_size)
    return (first, min(first + num_rows, vocab_size)), num_rows


class Embedding:
    """One row of `weight` [V, C], or of this rank's shard of it, times `multiplier` per token id.

    After `keep_packed`, which a tied head allows, the weight stays packed as stored, and `tied_head` has to be called
    before `bind`.
    """

    start: EmbedNorm  # int64 [T] -> the residual stream [T, C] and the first layer's input; exists after `bind`

    def __init__(
        self,
        vocab_size: int,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
        shard: Shard = WHOLE,
        multiplier: float = 1.0,
    ) -> None:
        self._shard, self._multiplier = shard, multiplier
        self._span, num_rows = vocabulary_span(shard, vocab_size)
        self._cut = shard.cut(0, vocab_size, self._span)
        self.weight = torch.empty(num_rows, width, dtype=dtype, device=device)  # [V, C]
        self._look_up: Operator = self._look_up_whole if shard.is_whole else self._look_up_shard
        if not shard.is_whole:
            self.weight[self._span[1] - self._span[0] :] = 0
        self.shape = (num_rows, width)
        self.names: tuple[str, ...] = ()  # checkpoint name of the weight, set by `destinations`
        self._slot: PackedSlot | None = None

    def destinations(self, name: str) -> Iterator[tuple[str, Destination]]:
        first, last = self._span
        self.names = (f"{name}.weight",)
        if self._slot is None:
            yield f"{name}.weight", destination_for(self.weight[: last - first], self._cut)

    def own_form(self, form: PackedForm) -> PackedForm | None:
        """Return the packed form of the weight, or None for a shard, which looks rows up in an expanded weight."""
        return form if self._shard.is_whole else None

    def keep_packed(self) -> dict[str, PackedSlot]:
        """Keep the weight packed; return its slot by name."""
        self._slot = PackedSlot(self.shape)
        self.weight = self.weight.new_empty(0)
        return {self.names[0]: self._slot}

    def bind(self, kernels: Kernels, norm: NormConstants) -> None:
        """Build the operators. `norm` is that of the first layer's input."""
        self._normalize = kernels.norm(norm)
        is_plain = self._shard.is_whole and self.weight.numel() > 0
        self.start = kernels.embed_norm(self.weight, self._multiplier, norm) if is_plain else self._start

    def start_with(
        self, token_ids: torch.Tensor, rows: torch.Tensor, vectors: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Like `start`, with the embeddings of some `rows` int64 [N] replaced by `vectors` [N, C]."""
        stream = self.forward(token_ids)
        stream[rows] = vectors
        return stream, self._normalize(stream)

    def _start(self, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        stream = self.forward(token_ids)
        return stream, self._normalize(stream)

    def _look_up_whole(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self.weight.index_select(0, token_ids).float()

    def _look_up_shard(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Look up ids in a shard: each rank looks up the ids of its shard and contributes zeros for all others."""
        first, last = self._span
        is_absent = (token_ids < first) | (token_ids >= last)  # [T]
        rows = self.weight.index_select(0, (token_ids - first).masked_fill_(is_absent, 0)).float()
        return self._shard.all_reduce(rows.masked_fill_(is_absent.unsqueeze(1), 0))

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [T] -> float32 [T, C], the start of the residual stream."""
        stream = self._look_up(token_ids)
        return stream if self._multiplier == 1 else stream.mul_(self._multiplier)

    def tied_head(self, kernels: Kernels) -> Operator:
        """x [K, C] -> logits [K, V]. The embedding keeps its weight."""
        if self._slot is None:
            return kernels.linear(self.weight, None)
        self._look_up, head = kernels.packed_table(self._slot.matrix, self.weight.dtype)
        self._slot = None
        return head


class Head(Linear):
    """x [K, C] -> logits [K, V], or those of this rank's shard of the vocabulary."""

    def __init__(
        self, vocab_size: int, width: int, dtype: torch.dtype, device: torch.device, shard: Shard = WHOLE
    ) -> None:
        span, num_rows = vocabulary_span(shard, vocab_size)
        super().__init__({"": num_rows}, width, False, dtype, device)
        self._num_held, self._cut = span[1] - span[0], shard.cut(0, vocab_size, span)
        if not shard.is_whole:
            self._weight[self._num_held :] = 0

    def destinations(self, prefix: str) -> Iterator[tuple[str, Destination]]:
        if self._cut is None:
            yield from super().destinations(prefix)
            return
        yield f"{prefix}.weight", destination_for(self._weight[: self._num_held], self._cut)


def gathered(head: Operator, shard: Shard, vocab_size: int) -> Operator:
    """Return an operator that gathers all ranks' logits, float32 [K, V]; ranks other than the leader return none."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        parts = shard.all_gather(head(x).float())  # ranks × [K, V / ranks]
        if not parts:
            return x.new_empty(0, vocab_size, dtype=torch.float32)
        return torch.cat(parts, 1)[:, :vocab_size].contiguous()

    return forward
