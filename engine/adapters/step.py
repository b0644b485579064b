"""Application of adapters in one step: which tokens use which adapter, and what is added to each linear map.

Each token reads only its own adapter's matrices, so that the result of a row does not depend on other rows. All tokens
of adapters of one shape need one call per linear map.

Letters: T tokens, R rows, C inputs of a map, n tokens of one group.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from engine.adapters.slot_pool import SlotPool
from engine.arrays import Ints, Longs
from engine.kernels.interface import AddLowRank, LowRankTokens, Operator
from engine.kernels.reference import Kernels

AdapterSlot = tuple[SlotPool, int]


class _Group:
    """n tokens with adapters of one slot pool."""

    def __init__(self, pool: SlotPool, tokens: LowRankTokens) -> None:
        self._pool, self._tokens = pool, tokens
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
    kernels: Kernels
    device: torch.device
    _groups: list[_Group] = field(default_factory=list)  # groups of the tokens that run now
    _narrowed: list[_Group] = field(default_factory=list)
    # Groups of the latest step, by their tokens' adapters: decode steps repeat them.
    _of_latest: dict[bytes, list[_Group]] = field(default_factory=dict)

    def begin(self, handles: Ints, query_starts: Ints, logit_rows: Longs) -> None:
        """`handles` [R] are the adapters of the rows, 0 for none; `query_starts` [R + 1] their offsets.

        `logit_rows` [K] are the tokens that the last layer computes.
        """
        of_token = np.repeat(handles, np.diff(query_starts))
        latest, self._of_latest = self._of_latest, {}
        self._groups, self._narrowed = (
            self._groups_of(each, len(handles), latest) for each in (of_token, of_token[logit_rows])
        )

    def narrow(self) -> None:
        """Continue with the tokens of `logit_rows` only."""
        self._groups = self._narrowed

    def wrap(self, site: int, linear: Operator) -> Operator:
        """Return an operator that adds the output of the step's adapters to that of `linear`."""

        def forward(x: torch.Tensor) -> torch.Tensor:
            y = linear(x)
            for group in self._groups:
                group.add(site, x, y)
            return y

        return forward

    def _groups_of(self, of_token: Ints, max_adapters: int, latest: dict[bytes, list[_Group]]) -> list[_Group]:
        key = of_token.tobytes()
        if key not in self._of_latest:
            self._of_latest[key] = latest[key] if key in latest else self._group(of_token, max_adapters)
        return self._of_latest[key]

    def _group(self, of_token: Ints, max_adapters: int) -> list[_Group]:
        rows_of: dict[SlotPool, list[tuple[int, Longs]]] = {}
        for handle in np.unique(of_token[of_token > 0]).tolist():
            pool, slot = self.adapter_slots[handle]
            rows_of.setdefault(pool, []).append((slot, np.flatnonzero(of_token == handle)))
        groups = []
        for pool, found in rows_of.items():
            slots = np.repeat([slot for slot, _ in found], [len(rows) for _, rows in found]).astype(np.int32)
            rows = np.concatenate([rows for _, rows in found])
            groups.append(
                _Group(pool, self.kernels.low_rank_tokens(slots, rows, len(of_token), max_adapters, self.device))
            )
        return groups
