"""The network in plain torch: a small Llama (RMSNorm, rotary positions, grouped-query attention, SwiGLU, tied
embeddings).

Parameter names are those of Hugging Face's LlamaForCausalLM, so export is a cast. Training packs several dialogues into
a row and masks them from each other; `generate` decodes a batch greedily with a KV cache. Knows token ids only.
Letters: B batch, T tokens, H heads, D head size, C hidden.
"""

from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

Cache = list[tuple[Tensor, Tensor]]
_UNSEEN = -30000.0  # added to the score of a masked token


@dataclass(frozen=True)
class Shape:
    """The sizes of the network. The defaults are Spark's; `DRAFT` has those of its draft model."""

    hidden_size: int = 256
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    intermediate_size: int = 688
    vocab_size: int = 4096
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5

    def to_config(self) -> dict[str, Any]:
        """Return config.json of a LlamaForCausalLM with these sizes."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **asdict(self),
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "initializer_range": 0.02,
            "bos_token_id": None,
            "eos_token_id": [2, 0],
            "pad_token_id": 0,
            "torch_dtype": "bfloat16",
            "use_cache": True,
        }


DRAFT = Shape(hidden_size=128, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1, intermediate_size=384)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.is_watched, self.seen_weights = False, torch.empty(0)
        """Set the first to find in the second, after a pass, how every head spread its attention: [B, H, T, keys]."""
        queries, keys = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, shape.hidden_size, bias=False)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, bias: Tensor, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """`bias` [B*KV, G*T, keys] is added to the scores; G query heads share a key head."""
        batch, length, _ = x.shape
        size, num_kv = self.shape.head_dim, self.shape.num_key_value_heads
        fused = torch.cat((self.q_proj.weight, self.k_proj.weight, self.v_proj.weight))
        heads = functional.linear(x, fused).view(batch, length, -1, size).transpose(1, 2)  # B H+2KV T D
        turned, v = heads.split((self.shape.num_attention_heads + num_kv, num_kv), dim=1)
        q, k = rotate(turned, cos, sin).to(v.dtype).split((self.shape.num_attention_heads, num_kv), dim=1)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        scores = torch.baddbmm(
            bias, q.reshape(batch * num_kv, -1, size), k.reshape(batch * num_kv, -1, size).mT, alpha=size**-0.5
        )
        weights = scores.softmax(-1, dtype=torch.float32).to(v.dtype)
        if self.is_watched:
            self.seen_weights = weights.view(batch, -1, length, weights.shape[-1])
        y = torch.bmm(weights, v.reshape(batch * num_kv, -1, size)).view(batch, -1, length, size)  # B H T D
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, -1)), (k, v)


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = functional.linear(x, torch.cat((self.gate_proj.weight, self.up_proj.weight))).chunk(2, dim=-1)
        return self.down_proj(functional.silu(gate) * up)


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = MLP(shape)


class Body(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def each_layer(self) -> list[Layer]:
        """Return the layers in order, with their type."""
        return cast("list[Layer]", list(self.layers))


class Spark(nn.Module):
    """The whole network. `hidden` computes final states, `logits` turns states into token scores."""

    def __init__(self, shape: Shape | None = None) -> None:
        super().__init__()
        self.shape = shape or Shape()
        self.model = Body(self.shape)
        self._initialize()

    def _initialize(self) -> None:
        nn.init.normal_(self.model.embed_tokens.weight, std=0.02)
        for name, parameter in self.model.named_parameters():
            if parameter.ndim == 2 and "embed" not in name:
                is_output = name.endswith(("o_proj.weight", "down_proj.weight"))
                scale = (2 * self.shape.num_hidden_layers) ** -0.5 if is_output else 1.0
                nn.init.normal_(parameter, std=scale * parameter.shape[1] ** -0.5)

    def hidden(self, ids: Tensor, positions: Tensor, mask: Tensor, past: Cache | None = None) -> tuple[Tensor, Cache]:
        """Return the final states [B, T, C] of `ids` [B, T], and keys and values. `mask` [B, T, keys] is true where
        attended."""
        x = self.model.embed_tokens(ids)
        bias = self._make_bias(mask, torch.get_autocast_dtype(x.device.type) if is_autocast(x) else x.dtype)
        cos, sin = make_rotation(positions, self.shape)
        cache: Cache = []
        for i, layer in enumerate(self.model.each_layer()):
            y, seen = layer.self_attn(layer.input_layernorm(x), cos, sin, bias, past[i] if past else None)
            x = x + y
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            cache.append(seen)
        return self.model.norm(x), cache

    def _make_bias(self, mask: Tensor, dtype: torch.dtype) -> Tensor:
        """Return [B*KV, G*T, keys], 0 where `mask` [B, T, keys] is true."""
        num_kv = self.shape.num_key_value_heads
        groups = self.shape.num_attention_heads // num_kv
        bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, _UNSEEN)
        return bias[:, None].expand(-1, num_kv, -1, -1).repeat(1, 1, groups, 1).flatten(0, 1)

    def logits(self, states: Tensor) -> Tensor:
        return functional.linear(states, self.model.embed_tokens.weight)


def is_autocast(x: Tensor) -> bool:
    return torch.is_autocast_enabled(x.device.type)


def make_rotation(positions: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Return cos and sin [B, 1, T, D] for `positions` [B, T]."""
    half = shape.head_dim // 2
    frequency = shape.rope_theta ** (-torch.arange(half, dtype=torch.float32, device=positions.device) / half)
    angle = positions[:, None, :, None].float() * frequency
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


@torch.inference_mode()
def generate(
    model: Spark, prompts: list[list[int]], max_tokens: int, end_ids: tuple[int, ...] = (2, 0)
) -> list[list[int]]:
    """Return greedy answers without the end token. Prompts are padded on the left."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])  # B T
    is_text = torch.tensor([[False] * (longest - len(prompt)) + [True] * len(prompt) for prompt in prompts])
    positions = (is_text.cumsum(1) - 1).clamp(min=0)
    causal = torch.ones(longest, longest, dtype=torch.bool).tril()
    mask = (causal & is_text[:, None, :]) | torch.eye(longest, dtype=torch.bool)  # a padding token attends to itself
    answers: list[list[int]] = [[] for _ in prompts]
    is_open = [True] * len(prompts)
    past: Cache | None = None
    for _ in range(max_tokens):
        states, past = model.hidden(ids, positions, mask, past)
        chosen = model.logits(states[:, -1]).argmax(-1)  # B
        for i, token_id in enumerate(chosen.tolist()):
            is_open[i] = is_open[i] and token_id not in end_ids
            if is_open[i]:
                answers[i].append(token_id)
        if not any(is_open):
            break
        ids, positions = chosen[:, None], positions[:, -1:] + 1
        is_text = torch.cat((is_text, torch.ones(len(prompts), 1, dtype=torch.bool)), dim=1)
        mask = is_text[:, None, :]
    return answers
