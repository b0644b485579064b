"""`Kernels`: every operator of a decoder in plain torch, and the base class of the kernels for CPUs and GPUs.

This file defines what each operator computes; it is written to be read, not to be fast. Subclasses replace operators by
faster ones that are tested against these. A factory method receives constants (weights, shapes) once, after loading,
and may store them in its own layout; the operator it returns is called in every step.

Letters: T tokens, R rows (sequences), H query heads, G KV heads, D head size, C channels, N blocks, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch.nn import functional

from engine.arrays import Ints, Longs
from engine.checkpoints.quantized import PackedForm, QuantizedTensor
from engine.kernels.float8_kv import from_stored, indexable, to_stored
from engine.kernels.grouped_experts import GroupedExperts
from engine.kernels.interface import (
    FLOAT8,
    Activation,
    AddInPlace,
    AddLowRank,
    AddNorm,
    Attention,
    AttentionShape,
    AttentionStep,
    AttentionWindow,
    EmbedNorm,
    ExpertMatrices,
    Float8Rows,
    KvPool,
    LowRank,
    LowRankShape,
    LowRankTokens,
    MixExperts,
    NormConstants,
    Operator,
    RotaryTables,
    Rotate,
    SelfAttend,
)

MAX_FLOAT8 = torch.finfo(FLOAT8).max  # 448

ACTIVATIONS: dict[str, Operator] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
}


class Kernels:
    """The operators. Residual streams are float32 [T, C]; everything between norms and residuals has `dtype`."""

    looks_up_positions = False
    """True if `self_attention` looks up cosines and sines itself: the tables of a step are then a `RotaryLookup`."""

    has_cheap_multi_token_rows = False
    """True if attention over several tokens of a decode row costs little more than over one."""

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Operator:
        """Return x [T, C] -> x @ weight.T + bias. The kernel may release `weight`."""
        return lambda x: functional.linear(x, weight, bias)

    def supports_packed(self, _form: PackedForm, _shape: tuple[int, int], _dtype: torch.dtype, /) -> bool:
        """Return True if `packed_linear` supports a weight [out, C] in this form with inputs of `dtype`."""
        return True

    def float8_fault(self) -> str:
        """Return why this device cannot compute with 8-bit floats although kernels exist, or "" if it can."""
        return ""

    def packed_linear(self, matrix: QuantizedTensor, bias: torch.Tensor | None, dtype: torch.dtype) -> Operator:
        """Return the operator of `linear` for a weight that stays packed.

        If the weight's form quantizes inputs, each row of x is first rounded to 255 levels of its largest absolute
        value. 8-bit floats with one scale per output take x as `Float8Rows`, or round its rows to these.
        """
        weight = matrix.dequantize(torch.float32)

        def forward(x: torch.Tensor | Float8Rows) -> torch.Tensor:
            if isinstance(x, Float8Rows) or matrix.rounds_to_float8:
                exact = (x if isinstance(x, Float8Rows) else float8_rows(x)).expand(torch.float32)
            else:
                exact = round_rows(x) if matrix.is_input_quantized else x.float()
            y = functional.linear(exact, weight)
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

    def norm(self, norm: NormConstants) -> Operator:
        """Return x [T, C] float32 -> normalized x, see `NormConstants`."""
        if norm.dtype == FLOAT8:
            exact = self.norm(replace(norm, dtype=torch.float32))
            return lambda x: float8_rows(exact(x)).as_operand()
        if norm.weight is None:
            return lambda x: x.to(norm.dtype)
        if norm.kind == "rms":
            return self.rms_norm(norm.weight, norm.eps, norm.dtype)
        return self.layer_norm(norm.weight, norm.bias, norm.eps, norm.dtype)

    def add_norm(self, multiplier: float, norm: NormConstants, before: NormConstants | None = None) -> AddNorm:
        """Return (stream float32 [T, C], x [T, C]) -> `norm` of the stream, after stream += x × multiplier in place.

        With `before`, that norm of x is added instead of x.
        """
        add, normalize = self.add(multiplier), self.norm(norm)
        normalize_input = None if before is None else self.norm(before)

        def forward(stream: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            add(stream, x if normalize_input is None else normalize_input(x.float()))
            return normalize(stream)

        return forward

    def embed_norm(self, table: torch.Tensor, multiplier: float, norm: NormConstants) -> EmbedNorm:
        """table [V, C]. Return token ids [T] -> their rows × multiplier, float32 [T, C], and `norm` of these."""
        normalize = self.norm(norm)

        def forward(token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            stream = table.index_select(0, token_ids).float()
            if multiplier != 1:
                stream.mul_(multiplier)
            return stream, normalize(stream)

        return forward

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

    def float8_activation(self, activation: Activation) -> Operator:
        """Return the operator of `activation` with results rounded to `Float8Rows`."""
        activate = self.activation(activation)
        return lambda x: float8_rows(activate(x)).as_operand()

    def experts(self, matrices: ExpertMatrices) -> MixExperts:
        """Return (x [T, C], weights float32 [T, K], experts int64 [T, K]) -> float32 [T, C].

        The result is the weighted sum of each token's experts, of those that this rank has. The kernel may release the
        matrices.
        """
        return GroupedExperts(matrices, self.linear, self.activation(matrices.activation)).mix

    def add(self, multiplier: float) -> AddInPlace:
        """Return stream [T, C] float32, x [T, C] -> stream += x × multiplier, in place."""
        return lambda stream, x: stream.add_(x, alpha=multiplier)

    def low_rank(self, shape: LowRankShape, _dtype: torch.dtype, /) -> LowRank:
        """Return a kernel for LoRA adapters of `shape`."""
        return ReferenceLowRank(shape)

    def allocate_pool(
        self,
        shape: AttentionShape,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> KvPool:
        """Return a KV pool with undefined contents in the layout that `attention` reads."""
        data = torch.empty(num_layers, num_blocks * block_size, shape.kv_width, dtype=dtype, device=device)
        return KvPool(data, block_size)

    def self_attention(
        self, num_rotated_heads: int, norm_weight: torch.Tensor | None = None, eps: float = 0.0
    ) -> SelfAttend:
        """Return the operator that normalizes heads, rotates heads, stores keys and values, and attends.

        norm_weight [heads, D] float32 as for `norm_heads`; without one, heads are not normalized. The first
        `num_rotated_heads` heads, all queries and keys or none, are rotated.
        """
        normalize = None if norm_weight is None else self.norm_heads(norm_weight, eps)
        rotate = self.rotation(num_rotated_heads) if num_rotated_heads else None

        def attend(attention: Attention, layer: int, qkv: torch.Tensor, tables: RotaryTables) -> torch.Tensor:
            if normalize is not None:
                normalize(qkv)
            if rotate is not None:
                rotate(qkv, tables)
            return attention.attend(layer, qkv)

        return attend

    def low_rank_tokens(
        self, slots: Ints, rows: Longs, _num_tokens: int, _max_adapters: int, _device: torch.device, /
    ) -> LowRankTokens:
        """Return the tokens that use adapters, for `LowRank.bind`: those at `rows` of a step's `num_tokens` tokens.

        Shapes on a device depend only on `num_tokens` and `max_adapters`, the most adapters that they may use.
        """
        return LowRankTokens(torch.from_numpy(slots), torch.from_numpy(rows))

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
        shape, step, scales = self._shape, self._step, self._pool.scales_of(layer)
        pool = indexable(self._pool.data[layer])  # [slots, planes G D]
        vectors = (shape.num_planes, shape.num_kv_heads, shape.head_dim)
        new = to_stored(qkv[:, shape.query_width :].unflatten(1, vectors), scales)  # [T, planes, G, D]
        pool.index_copy_(0, step.slot_mapping, new.flatten(1))
        query = qkv[:, : shape.query_width].unflatten(1, (shape.num_heads, shape.head_dim))  # [T, H, D]
        sinks = self._sinks[layer] if self._sinks else None
        rows = []
        for row, context_len in enumerate(step.context_lens.tolist()):
            first, last = step.query_starts[row : row + 2].tolist()
            positions = torch.arange(context_len)  # [context]
            block_ids = torch.from_numpy(step.block_tables[row]).long()[positions // self._pool.block_size]
            slots = block_ids * self._pool.block_size + positions % self._pool.block_size  # [context]
            kv = from_stored(pool[slots].unflatten(1, vectors), scales)
            keys, values = kv[:, 0], kv[:, -1, :, : shape.output_head_dim]  # [context, G, ·]
            rows.append(attend_one(query[first:last], keys, values, shape, self._windows[layer], sinks))
        return torch.cat(rows)  # [T, H × output head size]


def float8_rows(x: torch.Tensor) -> Float8Rows:
    """Round each row of x [T, C] to 8-bit floats scaled so that its largest absolute value is the largest of these."""
    exact = x.float()
    scales = exact.abs().amax(-1, keepdim=True).clamp(min=1e-12) / MAX_FLOAT8  # [T, 1]
    return Float8Rows((exact / scales).clamp(-MAX_FLOAT8, MAX_FLOAT8).to(FLOAT8), scales)


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
