"""Universal Sentence Encoder Lite in its worker process: two transformer layers, the mean over the tokens, and a dense
layer. `catalog/conversions/sentence_encoder.py` writes its folder.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from engine.tasks.one_pass.row_groups import group_by_length
from engine.tasks.text_embeddings import EmbeddingModelInfo, TokenRow

MODEL_TYPE = "universal_sentence_encoder_lite"
_NUM_HEADS = 4
_EPSILON = 1e-6
_SIZES = (256, 512)  # width of the first and of the second layer
_INNER = 1536
_NUM_EMBEDDINGS, _NUM_PIECES = 8002, 8000


class _Layer(nn.Module):
    """A layer that normalizes its inputs. Its output has 512 columns."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, _EPSILON)
        self.qkv = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, _SIZES[1])
        self.widen = nn.Linear(width, _SIZES[1]) if width != _SIZES[1] else nn.Identity()
        self.feed_forward_norm = nn.LayerNorm(_SIZES[1], _EPSILON)
        self.up = nn.Linear(_SIZES[1], _INNER)
        self.down = nn.Linear(_INNER, _SIZES[1])

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return [B, T, 512] for `x` [B, T, width] and `mask` [B, 1, 1, T], True for tokens."""
        qkv = self.qkv(self.attention_norm(x)).unflatten(-1, (3, _NUM_HEADS, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind()  # [B, H, T, D] each
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = self.widen(x) + self.output(attended.transpose(1, 2).flatten(2))
        widened: Tensor = x + self.down(self.up(self.feed_forward_norm(x)).relu())
        return widened


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(_NUM_EMBEDDINGS, _SIZES[0])
        self.frequencies = nn.Parameter(torch.empty(_SIZES[0] // 2), requires_grad=False)
        self.layers = nn.ModuleList(_Layer(width) for width in _SIZES)
        self.head = nn.Linear(_SIZES[1], _SIZES[1])

    def forward(self, token_ids: Tensor, mask: Tensor) -> Tensor:
        """Return unit vectors [B, 512] for tokens [B, T] and their mask."""
        angles = torch.arange(token_ids.shape[1], device=token_ids.device)[:, None] * self.frequencies  # [T, 128]
        x = 2 * self.embeddings(token_ids) + torch.cat([angles.sin(), angles.cos()], dim=1)  # twice, as in the graph
        for layer in self.layers:
            x = layer(x, mask[:, None, None, :])
        mean = (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
        return functional.normalize(self.head(mean).tanh(), dim=-1)


class SentenceEncoder:
    """One loaded model, a `WorkerModel`. Raises OSError, ValueError or KeyError."""

    item_type = TokenRow

    def __init__(self, model_dir: Path, device: str) -> None:
        self._device = torch.device(device)
        self._model = _Encoder()
        try:
            self._model.load_state_dict(load_file(model_dir / "model.safetensors"))
        except RuntimeError as error:
            raise ValueError(f"the weights are not those of {MODEL_TYPE}: {error}") from None
        self._model.eval().to(self._device)
        self.info = EmbeddingModelInfo("mean", _NUM_PIECES, poolings=("mean",))

    def warm_up(self) -> None:
        self.run([TokenRow(bytes(4 * 8), is_cls=False)])

    @torch.inference_mode()
    def run(self, items: list[TokenRow]) -> list[bytes]:
        """Return the vector of each row as little-endian float32."""
        vectors = np.empty((len(items), _SIZES[1]), dtype="<f4")
        for group in group_by_length([item.cost for item in items]):
            rows = [torch.frombuffer(bytearray(items[index].token_ids), dtype=torch.int32).long() for index in group]
            token_ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1).to(self._device)
            mask = token_ids >= 0
            vectors[group] = self._model(token_ids.clamp(min=0), mask).cpu().numpy()
        return [vector.tobytes() for vector in vectors]
