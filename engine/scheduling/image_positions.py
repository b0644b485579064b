"""Positions on three axes (time, row, column) of prompts with images, for models that rotate by them (Qwen2-VL).

A text token has the same position on each axis. The tokens of an image share the time of its first token, and count
rows and columns from there. The token after an image continues after the largest of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from engine.arrays import Longs

_NUM_AXES = 3


class _Image(Protocol):
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def grid(self) -> tuple[int, int] | None: ...


def axis_positions(images: Iterable[_Image], num_prompt: int) -> Longs:
    """Return the positions [3, num_prompt] of a prompt's tokens. The images are in ascending order."""
    found = np.empty((_NUM_AXES, num_prompt), np.int64)
    done, position = 0, 0
    for image in images:
        if image.grid is None:
            continue
        found[:, done : image.start] = np.arange(position, position + image.start - done)
        position += image.start - done
        rows, columns = np.indices(image.grid).reshape(2, -1)
        found[:, image.start : image.end] = position + np.stack((np.zeros_like(rows), rows, columns))
        done, position = image.end, position + max(image.grid)
    found[:, done:] = np.arange(position, position + num_prompt - done)
    return found


def positions_after(known: Longs, indices: Longs) -> Longs:
    """Return the positions [3, n] of the tokens with these indices [n] in a sequence whose first tokens have the
    `known` positions [3, P] and are followed by text."""
    num_known = known.shape[1]
    follows = known[:, -1].max() + 1 - num_known
    found: Longs = np.where(indices < num_known, known[:, np.minimum(indices, num_known - 1)], indices + follows)
    return found
