"""Where a token that chooses a tool should look: a loss on the attention of a few heads.

Cross entropy alone learns slowly which of several schemas a question means, because a wrong look is told only through
what is written after it. The heads that already look best are held to it. Knows attention and batches, no optimizer.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import torch
from tokenizers import Tokenizer
from torch import Tensor

from spark.batches import Batch, make_steps
from spark.model import Spark

_LEAST = 1e-4
"""Attention that every schema is taken to have, so that the loss stays finite."""


@contextmanager
def watch(model: Spark, layers: Collection[int]) -> Iterator[None]:
    """Keep the attention of these layers' passes while this lasts."""
    watched = [model.model.each_layer()[number].self_attn for number in layers]
    for attention in watched:
        attention.is_watched = True
    try:
        yield
    finally:
        for attention in watched:
            attention.is_watched, attention.seen_weights = False, torch.empty(0)


def looking_loss(model: Spark, batch: Batch, heads: Sequence[tuple[int, int]]) -> Tensor:
    """Summed over the looks of `batch`, the mean over `heads` (layer, number): minus the logarithm of the share of the
    attention to all schemas that went to the right one. For a pass that was watched."""
    if not heads or not len(batch.looks):
        return torch.zeros((), device=batch.ids.device)
    return torch.stack([_loss_of_heads(model, batch, layer)[head] for layer, head in heads]).mean()


def _loss_of_heads(model: Spark, batch: Batch, layer: int) -> Tensor:
    """[H], summed over the looks."""
    row, place, start, end, first, last = batch.looks.unbind(1)
    attention = model.model.each_layer()[layer].self_attn.seen_weights[row, :, place].float()  # K H keys
    keys = torch.arange(attention.shape[-1], device=attention.device)
    right = (keys >= start[:, None]) & (keys < end[:, None])
    shown = (keys >= first[:, None]) & (keys < last[:, None])
    to_right, to_all = ((attention * part[:, None]).sum(-1) for part in (right, shown))
    return -((to_right + _LEAST) / (to_all + _LEAST)).log().sum(0)


@torch.no_grad()
def find_looking_heads(model: Spark, tokenizer: Tokenizer, seed: int, count: int) -> list[tuple[int, int]]:
    """The `count` heads (layer, number) that look best already, each in a layer of its own."""
    layers = range(model.shape.num_hidden_layers)
    total = torch.zeros(len(layers), model.shape.num_attention_heads)
    device = model.model.embed_tokens.weight.device
    with torch.autocast(device.type, torch.bfloat16), watch(model, layers):
        for batches in islice(make_steps(tokenizer, seed, "answers", 4096, 768), 4):
            for batch in (part.to(str(device)) for part in batches):
                if len(batch.looks):
                    model.hidden(batch.ids, batch.positions, batch.mask)
                    total += torch.stack([_loss_of_heads(model, batch, layer) for layer in layers]).cpu()
    best = [(float(losses.min()), layer, int(losses.argmin())) for layer, losses in enumerate(total)]
    return [(layer, head) for _, layer, head in sorted(best)[:count]]
