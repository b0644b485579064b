"""`Kernels`: every operator of a decoder in plain torch, and the base class of the kernels for CPUs and GPUs.

This file defines what each operator computes; it is written to be read, not to be fast. Subclasses replace operators by
faster ones that are tested against these. A factory method receives constants (weights, shapes) once, after loading,
and may store them in its own layout; the operator it returns is called in every step.

Letters: T tokens, R rows (sequences), H query heads, G KV heads, D head size, C channels, N blocks, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from engine.checkpoints.quantized import PackedForm, QuantizedTensor
from engine.kernels.interface import (
    Activation,
    AddInPlace,
    AddLowRank,
    Attention,
    AttentionShape,
    AttentionStep,
    AttentionWindow,
    KvPool,
    LowRank,
    LowRankShape,
    LowRankTokens,
    Operator,
    RotaryTables,
    Rotate,
)

ACTIVATIONS: dict[str, Operator] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
}


class Kernels:
    """The operators. Residual streams are float32 [T, C]; everything between norms and residuals has `dtype`."""

    has_cheap_multi_token_rows = False
    """True if attention over several tokens of a decode row costs little more than over one."""

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Operator:
        """Return x [T, C] -> x @ weight.T + bias. The kernel may release `weight`."""
        return lambda x: functional.linear(x, weight, bias)

    def supports_packed(self, _form: PackedForm, _shape: tuple[int, int], _dtype: torch.dtype, /) -> bool:
        """Return True if `packed_linear` supports a weight [out, C] in this form with inputs of `dtype`."""
        return True

    def packed_linear(self, matrix: QuantizedTensor, bias: torch.Tensor | None, dtype: torch.dtype) -> Operator:
        """Return the operator of `linear` for a weight that stays packed.

        If the weight's form quantizes inputs, each row of x is first rounded to 255 levels of its largest absolute
        value.
        """
        weight = matrix.dequantize(torch.float32)

        def forward(x: torch.Tensor) -> torch.Tensor:
            y = functional.linear(round_rows(x) if matrix.is_input_quantized else x.float(), weight)
            return (y if bias is None else y + bias).to(dtype)

        return forward

    def packed_table(self, matrix: QuantizedTensor, dtype: torch.dtype) -> tuple[Operator, Operator]:
        """Return both uses of an embedding [V, C] that stays packed.

        The first operator looks up int64 token ids [T] as float32 [T, C]; the second is its `packed_linear`.
        """

        def look_up(token_ids: torch.Tensor) -> torch.Tensor:
            return matrix.reordered(token_ids).dequantize(torch.float32)

        return look_up, self.packed_linear(matrix, None, dtype)

    def linear_per_head(self, weight: torch.Tensor) -> Operator:
        """weight [H, in, out]. Return x [T, H × in] -> [T, H × out], each head through its own matrix."""
        num_heads, num_in, num_out = weight.shape

        def forward(x: torch.Tensor) -> torch.Tensor:
            heads = x.reshape(-1, num_heads, num_in).transpose(0, 1)  # [H, T, in]
            return torch.bmm(heads, weight).transpose(0, 1).reshape(-1, num_heads * num_out)

        return forward

    def rms_norm(self, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> Operator:
        """Return x [T, C] float32 -> x / sqrt(mean(x²) + eps) × weight, in `dtype`."""

        def norm(x: torch.Tensor) -> torch.Tensor:
            scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)  # [T, 1]
            return (x * scale * weight.float()).to(dtype)  # [T, C]

        return norm

    def layer_norm(self, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, dtype: torch.dtype) -> Operator:
        """Return x [T, C] float32 -> (x - mean(x)) / sqrt(variance(x) + eps) × weight + bias, in `dtype`."""
        width, exact = (weight.numel(),), weight.float()
        exact_bias = None if bias is None else bias.float()
        return lambda x: functional.layer_norm(x, width, exact, exact_bias, eps).to(dtype)  # [T, C]

    def norm_heads(self, weight: torch.Tensor, eps: float) -> Callable[[torch.Tensor], None]:
        """weight [heads, D] float32. Return the in-place RMS norm of each of the first heads of x [T, heads × D …]."""
        num_heads, head_dim = weight.shape

        def norm(x: torch.Tensor) -> None:
            heads = x[:, : num_heads * head_dim].unflatten(1, (num_heads, head_dim))  # [T, heads, D], a view
            exact = heads.float()
            scale = torch.rsqrt(exact.square().mean(-1, keepdim=True) + eps)  # [T, heads, 1]
            heads.copy_(exact * scale * weight)

        return norm

    def rotation(self, num_heads: int) -> Rotate:
        """Return the rotation of the first `num_heads` heads of qkv [T, …] in place.

        The tables are cos [T, 1, 1, D/2] and sin [T, 1, 2, D/2] with its first half negated:
        (a, b) -> (a cos - b sin, b cos + a sin).
        """

        def rotate(qkv: torch.Tensor, tables: RotaryTables) -> None:
            cos, sin = tables
            half = cos.shape[-1]
            heads = qkv[:, : num_heads * 2 * half].unflatten(1, (num_heads, 2, half))  # [T, heads, 2, D/2], a view
            heads.copy_(torch.addcmul(heads * cos, heads.flip(2), sin))  # flipped: (b, a)

        return rotate

    def activation(self, activation: Activation) -> Operator:
        """Return the activation. Gated: [T, 2 I] -> [T, I]. Not gated: [T, I] -> [T, I]."""
        function = ACTIVATIONS[activation.kind]
        if not activation.is_gated:
            return function
        limit, slope = activation.limit, activation.slope

        def gate(gate_up: torch.Tensor) -> torch.Tensor:
            gate, up = gate_up.chunk(2, dim=-1)  # 2 × [T, I]
            if limit is None:
                return function(gate).mul_(up)
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            return torch.sigmoid(gate * slope).mul_(gate).mul_(up.add_(1))

        return gate

    def add(self, multiplier: float) -> AddInPlace:
        """Return stream [T, C] float32, x [T, C] -> stream += x × multiplier, in place."""
        return lambda stream, x: stream.add_(x, alpha=multiplier)

    def low_rank(self, shape: LowRankShape, _dtype: torch.dtype, /) -> LowRank:
        """Return a kernel for LoRA adapters of `shape`."""
        return ReferenceLowRank(shape)

    def attention(self, pool: KvPool, shape: AttentionShape, sinks: Sequence[torch.Tensor] = ()) -> Attention:
        """Return attention over `pool`.

        `sinks`, float32 [H] per layer, are extra scores that take part in every softmax and have no value.
        """
        return ReferenceAttention(pool, shape, sinks)


class ReferenceLowRank:
    """A as [C, P r], then each part's B [r, width]; computes one token at a time in float32."""

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
    """Stores keys and values, gathers each sequence's whole context from its blocks, and sums in float32."""

    def __init__(self, pool: KvPool, shape: AttentionShape, sinks: Sequence[torch.Tensor] = ()) -> None:
        self._pool = pool
        self._shape = shape
        self._sinks = sinks
        windows, indices = shape.distinct_windows(pool.num_layers)
        self._windows = [windows[index] for index in indices]
        self._step: AttentionStep

    def begin(self, step: AttentionStep) -> None:
        self._step = step

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
            keys, values = kv[:, 0], kv[:, -1, :, : shape.output_head_dim]  # [context, G, ·]
            rows.append(attend_one(query[first:last], keys, values, shape, self._windows[layer], sinks))
        return torch.cat(rows)  # [T, H × output head size]


def round_rows(x: torch.Tensor) -> torch.Tensor:
    """Round each row of x [T, C] to 255 levels from minus to plus its largest absolute value. Returns float32."""
    exact = x.float()
    peak = exact.abs().amax(-1, keepdim=True)  # [T, 1]
    return (exact * (127 / peak.clamp(min=1e-30))).round() * (peak / 127)


def attend_one(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    shape: AttentionShape,
    window: AttentionWindow,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the attention [T, H × ·] of one sequence.

    query [T, H, D] are the last T positions of the context whose keys and values are [context, G, ·].
    """
    num_tokens, num_heads, _ = query.shape
    context_len, num_kv_heads, _ = keys.shape
    keys = keys.repeat_interleave(num_heads // num_kv_heads, dim=1)  # [context, H, D]
    values = values.repeat_interleave(num_heads // num_kv_heads, dim=1)  # [context, H, ·]
    scores = torch.einsum("thd,chd->htc", query.float(), keys.float()) * shape.score_scale  # [H, T, context]
    if shape.softcap is not None:
        scores = shape.softcap * torch.tanh(scores / shape.softcap)
    scores = scores + causal_bias(num_tokens, context_len, window)
    if sinks is not None:
        sink = sinks.view(-1, 1, 1).expand(-1, num_tokens, 1)  # [H, T, 1]
        weights = torch.cat((scores, sink), -1).softmax(-1)[..., :-1]  # [H, T, context]
    else:
        weights = scores.softmax(-1)
    return torch.einsum("htc,chd->thd", weights, values.float()).to(query.dtype).flatten(1)


def causal_bias(num_tokens: int, context_len: int, window: AttentionWindow, first_key: int = 0) -> torch.Tensor:
    """Return the float32 bias [T, keys]: 0 for visible keys, -inf for hidden ones.

    The queries are the last T of `context_len` positions; the keys are all positions from `first_key` on.
    """
    query_position = torch.arange(context_len - num_tokens, context_len).unsqueeze(1)  # [T, 1]
    key_position = torch.arange(first_key, context_len)  # [keys]
    is_hidden = key_position > query_position  # [T, keys]
    if window.size is not None:
        is_hidden |= key_position <= query_position - window.size
    if window.chunk is not None:
        is_hidden |= key_position < query_position - query_position % window.chunk
    return torch.zeros(is_hidden.shape).masked_fill_(is_hidden, float("-inf"))
