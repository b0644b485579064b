"""Every kernel in plain torch, one sequence at a time: the specification that faster twins are compared with.

Written to be read. Knows nothing of speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from engine.checkpoints.quantized import PackedForm, QuantizedTensor
from engine.kernels.interface import (
    Activation,
    Add,
    AddLowRank,
    Attention,
    AttentionShape,
    AttentionStep,
    Facts,
    KvPool,
    LowRankShape,
    LowRankTokens,
    Operator,
    Place,
    Reach,
)

ACTIVATIONS: dict[str, Operator] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
}


class ReferenceKernels:
    """See `engine.kernels.interface.Kernels` for the law of each."""

    has_cheap_multi_token_rows = False

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Operator:
        return lambda x: functional.linear(x, weight, bias)

    def takes_packed(self, _form: PackedForm, _shape: tuple[int, int], _dtype: torch.dtype) -> bool:
        return True

    def packed_linear(self, matrix: QuantizedTensor, bias: torch.Tensor | None, dtype: torch.dtype) -> Operator:
        weight = matrix.dequantize(torch.float32)

        def forward(x: torch.Tensor) -> torch.Tensor:
            y = functional.linear(round_rows(x) if matrix.is_input_quantized else x.float(), weight)
            return (y if bias is None else y + bias).to(dtype)

        return forward

    def linear_per_head(self, weight: torch.Tensor) -> Operator:
        return lambda x: torch.einsum("thi,hio->tho", x.unflatten(1, weight.shape[:2]), weight).flatten(1)

    def rms_norm(self, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> Operator:
        def norm(x: torch.Tensor) -> torch.Tensor:
            scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)  # [T, 1]
            return (x * scale * weight.float()).to(dtype)  # [T, C]

        return norm

    def layer_norm(self, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, dtype: torch.dtype) -> Operator:
        def norm(x: torch.Tensor) -> torch.Tensor:
            centred = x - x.mean(-1, keepdim=True)  # [T, C]
            scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)  # [T, 1]
            scaled = centred * scale * weight.float()  # [T, C]
            return (scaled if bias is None else scaled + bias.float()).to(dtype)

        return norm

    def norm_heads(self, weight: torch.Tensor, eps: float) -> Callable[[torch.Tensor], None]:
        num_heads, head_dim = weight.shape

        def norm(x: torch.Tensor) -> None:
            heads = x[:, : num_heads * head_dim].unflatten(1, (num_heads, head_dim))  # [T, heads, D], a view
            exact = heads.float()
            scale = torch.rsqrt(exact.square().mean(-1, keepdim=True) + eps)  # [T, heads, 1]
            heads.copy_(exact * scale * weight)

        return norm

    def rotation(self, num_heads: int) -> Place:
        def rotate(qkv: torch.Tensor, facts: Facts) -> None:
            cos, sin = facts
            half = cos.shape[-1]
            heads = qkv[:, : num_heads * 2 * half].unflatten(1, (num_heads, 2, half))  # [T, heads, 2, D/2], a view
            swapped = heads.flip(2)  # [T, heads, 2, D/2]: (b, a)
            heads.copy_(heads * cos + swapped * sin)

        return rotate

    def activation(self, activation: Activation) -> Operator:
        function = ACTIVATIONS[activation.kind]
        if not activation.is_gated:
            return function

        def gate(gate_up: torch.Tensor) -> torch.Tensor:
            gate, up = gate_up.chunk(2, dim=-1)  # 2 × [T, I]
            if activation.limit is None:
                return function(gate) * up
            gate, up = gate.clamp(max=activation.limit), up.clamp(-activation.limit, activation.limit)
            return gate * torch.sigmoid(gate * activation.slope) * (up + 1)

        return gate

    def add(self, multiplier: float) -> Add:
        return lambda stream, x: stream.add_(x, alpha=multiplier)

    def low_rank(self, shape: LowRankShape, _dtype: torch.dtype) -> ReferenceLowRank:
        return ReferenceLowRank(shape)

    def attention(self, pool: KvPool, shape: AttentionShape, sinks: Sequence[torch.Tensor] = ()) -> Attention:
        return ReferenceAttention(pool, shape, sinks)


class ReferenceLowRank:
    """A [C, P r], then each part's B [r, width]; one token after the other, in float32."""

    def __init__(self, shape: LowRankShape) -> None:
        self._shape = shape
        num_hidden = len(shape.parts) * shape.rank
        self._sizes = [shape.num_in * num_hidden, *(shape.rank * (last - first) for first, last in shape.parts)]
        self.size = sum(self._sizes)

    def _matrices(self, memory: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        a, *bs = memory.split(self._sizes)
        return a.view(self._shape.num_in, -1), [b.view(self._shape.rank, -1) for b in bs]

    def write(self, memory: torch.Tensor, part: int, a: torch.Tensor, b: torch.Tensor) -> None:
        inputs, outputs = self._matrices(memory)
        first = part * self._shape.rank
        inputs[:, first : first + len(a)] = a.t()
        outputs[part][: len(a)] = b.t()

    def bind(self, memory: torch.Tensor, tokens: LowRankTokens) -> AddLowRank:
        def add(x: torch.Tensor, y: torch.Tensor) -> None:
            for slot, row in zip(tokens.slots.tolist(), tokens.rows.tolist(), strict=True):
                inputs, outputs = self._matrices(memory[slot])
                hidden = (x[row].float() @ inputs.float()).to(memory.dtype).float()  # [P r]
                for own, matrix, (first, last) in zip(
                    hidden.split(self._shape.rank), outputs, self._shape.parts, strict=True
                ):
                    y[row, first:last] = (y[row, first:last].float() + own @ matrix.float()).to(y.dtype)

        return add


class ReferenceAttention:
    """Store, gather each sequence's whole context from its blocks, softmax in float32."""

    def __init__(self, pool: KvPool, shape: AttentionShape, sinks: Sequence[torch.Tensor] = ()) -> None:
        self._pool = pool
        self._shape = shape
        self._sinks = sinks
        reaches, indices = shape.distinct_reaches(pool.num_layers)
        self._reaches = [reaches[index] for index in indices]
        self._step: AttentionStep

    def begin(self, step: AttentionStep) -> None:
        self._step = step

    def wipe(self) -> None:
        """It has nothing beside the pool."""

    def attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        shape, step, pool = self._shape, self._step, self._pool.data[layer]  # pool [slots, planes G D]
        pool.index_copy_(0, step.slot_mapping, qkv[:, shape.query_width :])
        query = qkv[:, : shape.query_width].unflatten(1, (shape.num_heads, shape.head_dim))  # [T, H, D]
        sinks = self._sinks[layer] if self._sinks else None
        rows = []
        for row, context_len in enumerate(step.context_lens.tolist()):
            first, last = step.query_starts[row : row + 2].tolist()
            positions = torch.arange(context_len)  # [context]
            block_ids = torch.from_numpy(step.block_tables[row]).long()[positions // self._pool.block_size]
            slots = block_ids * self._pool.block_size + positions % self._pool.block_size  # [context]
            kv = pool[slots].unflatten(1, (shape.num_planes, shape.num_kv_heads, shape.head_dim))
            keys, values = kv[:, 0], kv[:, -1, :, : shape.mixed_head_dim]  # [context, G, ·]
            rows.append(attend_one(query[first:last], keys, values, shape, self._reaches[layer], sinks))
        return torch.cat(rows)  # [T, H × mixed head size]


def round_rows(x: torch.Tensor) -> torch.Tensor:
    """[T, C] -> float32, each row rounded to the 255 levels from minus to plus its largest number."""
    exact = x.float()
    peak = exact.abs().amax(-1, keepdim=True)  # [T, 1]
    return (exact * (127 / peak.clamp(min=1e-30))).round() * (peak / 127)


def attend_one(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    shape: AttentionShape,
    reach: Reach,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """query [T, H, D] are the last T of the positions whose keys and values are [context, G, ·] -> [T, H × ·]."""
    num_tokens, num_heads, _ = query.shape
    context_len, num_kv_heads, _ = keys.shape
    keys = keys.repeat_interleave(num_heads // num_kv_heads, dim=1)  # [context, H, D]
    values = values.repeat_interleave(num_heads // num_kv_heads, dim=1)  # [context, H, ·]
    scores = torch.einsum("thd,chd->htc", query.float(), keys.float()) * shape.score_scale  # [H, T, context]
    if shape.softcap is not None:
        scores = shape.softcap * torch.tanh(scores / shape.softcap)
    scores = scores + causal_bias(num_tokens, context_len, reach)
    if sinks is not None:
        sink = sinks.view(-1, 1, 1).expand(-1, num_tokens, 1)  # [H, T, 1]
        weights = torch.cat((scores, sink), -1).softmax(-1)[..., :-1]  # [H, T, context]
    else:
        weights = scores.softmax(-1)
    return torch.einsum("htc,chd->thd", weights, values.float()).to(query.dtype).flatten(1)


def causal_bias(num_tokens: int, context_len: int, reach: Reach, first_key: int = 0) -> torch.Tensor:
    """float32 [T, keys]: 0 where a query may look, -inf where not.

    The queries are the last T of `context_len` positions, the keys all from `first_key` on.
    """
    query_position = torch.arange(context_len - num_tokens, context_len).unsqueeze(1)  # [T, 1]
    key_position = torch.arange(first_key, context_len)  # [keys]
    is_hidden = key_position > query_position  # [T, keys]
    if reach.window is not None:
        is_hidden |= key_position <= query_position - reach.window
    if reach.chunk is not None:
        is_hidden |= key_position < query_position - query_position % reach.chunk
    return torch.zeros(is_hidden.shape).masked_fill_(is_hidden, float("-inf"))
