"""An attention loss: tokens that choose a tool or repeat a statement should attend to the right schema or statement.

Cross entropy alone learns this slowly, because wrong attention is penalized only through the tokens written after it.
The heads that already attend best are trained with this loss. Knows attention and batches; no optimizer.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import torch
from tokenizers import Tokenizer
from torch import Tensor

from spark.batches import MEMORY, TOOL, Batch, make_steps
from spark.model import Spark

TASKS = (TOOL, MEMORY)
Head = tuple[int, int, int]
"""Task, layer, number."""
_LEAST = 1e-4
"""Attention that every schema or statement is taken to have, so that the loss stays finite."""


@contextmanager
def watch(model: Spark, layers: Collection[int]) -> Iterator[None]:
    """Keep the attention weights of these layers' passes within the context."""
    watched = [model.model.each_layer()[number].self_attn for number in layers]
    for attention in watched:
        attention.is_watched = True
    try:
        yield
    finally:
        for attention in watched:
            attention.is_watched, attention.seen_weights = False, torch.empty(0)


def looking_loss(model: Spark, batch: Batch, heads: Sequence[Head]) -> Tensor:
    """Return the loss of a watched pass, summed over the attention targets of `batch`: for each, the mean over the
    task's `heads` of minus the log of the share of attention that went to the right candidate among all candidates."""
    total = torch.zeros((), device=batch.ids.device)
    for task in TASKS:
        held = [(layer, head) for of, layer, head in heads if of == task]
        if held and (batch.looks[:, 1] == task).any():
            losses = [_loss_of_heads(model, batch, task, layer)[head] for layer, head in held]
            total = total + torch.stack(losses).mean()
    return total


def _loss_of_heads(model: Spark, batch: Batch, task: int, layer: int) -> Tensor:
    """Return the loss per head [H], summed over the targets of one task."""
    row, _, place, start, end, first, last = batch.looks[batch.looks[:, 1] == task].unbind(1)
    attention = model.model.each_layer()[layer].self_attn.seen_weights[row, :, place].float()  # K H keys
    keys = torch.arange(attention.shape[-1], device=attention.device)
    right = (keys >= start[:, None]) & (keys < end[:, None])
    shown = (keys >= first[:, None]) & (keys < last[:, None])
    to_right, to_all = ((attention * part[:, None]).sum(-1) for part in (right, shown))
    return -((to_right + _LEAST) / (to_all + _LEAST)).log().sum(0)


@torch.no_grad()
def find_looking_heads(model: Spark, tokenizer: Tokenizer, seed: int, count: int) -> list[Head]:
    """Return the `count` heads that already attend best for each task, each in a different layer; no head has two
    tasks."""
    layers = range(model.shape.num_hidden_layers)
    total = torch.zeros(len(TASKS), len(layers), model.shape.num_attention_heads)
    device = model.model.embed_tokens.weight.device
    with torch.autocast(device.type, torch.bfloat16), watch(model, layers):
        for batches in islice(make_steps(tokenizer, seed, "answers", 4096, 768), 4):
            for batch in (part.to(str(device)) for part in batches):
                if len(batch.looks):
                    model.hidden(batch.ids, batch.positions, batch.mask)
                    for task in TASKS:
                        total[task] += torch.stack([_loss_of_heads(model, batch, task, at) for at in layers]).cpu()
    found: list[Head] = []
    for task in TASKS:
        for _, layer, head in found:
            total[task, layer, head] = torch.inf
        best = [(float(losses.min()), layer, int(losses.argmin())) for layer, losses in enumerate(total[task])]
        found += [(task, layer, head) for _, layer, head in sorted(best)[:count]]
    return found
