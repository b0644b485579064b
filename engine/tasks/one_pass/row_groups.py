"""Choose rows of tokens for one forward pass: of similar length, because shorter rows are padded."""

from __future__ import annotations

from collections.abc import Iterator

MAX_PADDED_TOKENS = 4096  # per forward pass
_MAX_WASTE = 1.25  # longest to shortest row of a pass


def group_by_length(lengths: list[int]) -> Iterator[list[int]]:
    """Yield indices of rows for one pass: of similar length, and with few padded tokens."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    group: list[int] = []
    for index in order:
        longest = lengths[group[0]] if group else 0
        is_full = (len(group) + 1) * longest > MAX_PADDED_TOKENS or longest > lengths[index] * _MAX_WASTE + 8
        if group and is_full:
            yield group
            group = []
        group.append(index)
    if group:
        yield group
