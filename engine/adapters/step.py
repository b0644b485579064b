"""Application of adapters in one step: which tokens use which adapter, and what is added to each linear map.

Each token reads only its own adapter's matrices, so that the result of a row does not depend on other rows. All tokens
of adapters of one shape need one call per linear map.

Letters: T tokens, R rows, C inputs of a map, n tokens of one group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from engine.adapters.slot_pool import SlotPool
from engine.arrays import Ints, Longs
from engine.kernels.interface import AddLowRank, LowRankTokens, Operator

AdapterSlot = tuple[SlotPool, int]


class _Group:
    """n tokens with adapters of one slot pool."""

    def __init__(self, pool: SlotPool, rows_of: Sequence[tuple[int, Longs]]) -> None:
        """`rows_of` lists the slots in use and the tokens of each, as indices among the step's tokens."""
        slots = np.repeat([slot for slot, _ in rows_of], [len(rows) for _, rows in rows_of]).astype(np.int32)
        rows = np.concatenate([rows for _, rows in rows_of])
        self._tokens = LowRankTokens(torch.from_numpy(slots), torch.from_numpy(rows))
        self._pool = pool
        self._bound: dict[int, AddLowRank] = {}  # by site

    def add(self, site: int, x: torch.Tensor, y: torch.Tensor) -> None:
        """Add the output of the adapters at one site to y [T, out], given x [T, C]."""
        add = self._bound.get(site)
        if add is None:
            found = self._pool.sites.get(site)
            if found is None:
                return
            add = self._bound[site] = found.bind(self._tokens)
        add(x, y)


@dataclass
class AdaptedStep:
    """The adapters of the current step: call `begin`, then run the linear maps made by `wrap`.

    `adapter_slots` maps adapter handles to slots; the adapter cache changes it.
    """

    adapter_slots: dict[int, AdapterSlot]
    _of_token: Ints = field(default_factory=lambda: np.empty(0, np.int32))
    _key: bytes = b""
    _groups: list[_Group] = field(default_factory=list)

    def begin(self, handles: Ints, query_starts: Ints) -> None:
        """`handles` [R] are the adapters of the rows, 0 for none; `query_starts` [R + 1] their offsets."""
        self._group(np.repeat(handles, np.diff(query_starts)))

    def narrow(self, rows: torch.Tensor) -> None:
        """Keep only the tokens `rows` [K]: the last layer computes no others."""
        self._group(self._of_token[rows.numpy()])

    def wrap(self, site: int, linear: Operator) -> Operator:
        """Return an operator that adds the output of the step's adapters to that of `linear`."""

        def forward(x: torch.Tensor) -> torch.Tensor:
            y = linear(x)
            for group in self._groups:
                group.add(site, x, y)
            return y

        return forward

    def _group(self, of_token: Ints) -> None:
        self._of_token = of_token
        key = of_token.tobytes()
        if key == self._key:
            return  # same adapters as in the previous decode step
        rows_of: dict[SlotPool, list[tuple[int, Longs]]] = {}
        for handle in np.unique(of_token[of_token > 0]).tolist():
            pool, slot = self.adapter_slots[handle]
            rows_of.setdefault(pool, []).append((slot, np.flatnonzero(of_token == handle)))
        self._key, self._groups = key, [_Group(pool, rows) for pool, rows in rows_of.items()]
