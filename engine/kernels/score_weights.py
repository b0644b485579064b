"""Scores -> the weights with which values are mixed: cap, bias, sink, softmax. Knows no layout and no cache."""

from __future__ import annotations

import torch


def weigh(scores: torch.Tensor, bias: torch.Tensor, softcap: float | None, sink: torch.Tensor | None) -> torch.Tensor:
    """Scores [..., keys], already scaled and used up, to weights of that shape.

    `bias` hides keys with -inf; `sink` [..., 1] is one more score, whose weight is thrown away.
    """
    if softcap is not None:
        scores.div_(softcap).tanh_().mul_(softcap)
    scores.add_(bias)
    if sink is None:
        return torch.softmax(scores, -1)
    sinks = sink.expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat((scores, sinks), -1), -1)[..., :-1]
