"""How much of the engine each tenant has had: virtual token counters (VTC).

Work is charged in weighted tokens; who has had least goes next. A tenant that returns from idle is lifted to the least
served of those active, so that nobody saves up credit by staying away. A tenant here is a number, seen as an index
into the counters while it is known. Knows nothing of queues, blocks or steps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PROMPT_WEIGHT = 1.0  # per prompt token computed
COMPLETION_WEIGHT = 2.0  # per token generated
CACHED_WEIGHT = 0.1  # per prompt token found in the prefix cache

_MAX_IDLE_TENANTS = 4096  # remembered after they went idle


class TenantCounters:
    """Counters of every tenant with open sequences, and of the latest others."""

    def __init__(self) -> None:
        self.served = np.zeros(64, dtype=np.float64)
        self._num_open = np.zeros(64, dtype=np.int32)
        self._index_of: dict[int, int] = {}
        self._tenant_of: dict[int, int] = {}
        self._idle: dict[int, None] = {}  # indices in the order they went idle
        self._unused: list[int] = []
        self._floor = 0.0  # what the tenant that left last, leaving nobody, had been served

    def join(self, tenant: int) -> int:
        """Count one more open sequence of `tenant`. Returns its index, good until as many `leave`s."""
        index = self._index_of.get(tenant)
        if index is None:
            index = self._new_index(tenant)
        if self._num_open[index] == 0:
            active = self._num_open > 0
            least = float(self.served[active].min()) if active.any() else self._floor
            self.served[index] = max(float(self.served[index]), least)
            self._idle.pop(index, None)
        self._num_open[index] += 1
        return index

    def leave(self, index: int) -> None:
        """One sequence of the tenant ended."""
        self._num_open[index] -= 1
        if self._num_open[index] > 0:
            return
        if not self._num_open.any():
            self._floor = float(self.served[index])
        self._idle[index] = None
        if len(self._idle) > _MAX_IDLE_TENANTS:
            self._forget(next(iter(self._idle)))

    def charge_prompt(self, index: int, num_computed: int, num_cached: int) -> None:
        self.served[index] += PROMPT_WEIGHT * num_computed + CACHED_WEIGHT * num_cached

    def charge_completion(self, indices: NDArray[np.int32]) -> None:
        """One generated token for each entry of `indices`."""
        self.served += COMPLETION_WEIGHT * np.bincount(indices, minlength=len(self.served))

    def _new_index(self, tenant: int) -> int:
        index = self._unused.pop() if self._unused else len(self._index_of)
        if index == len(self.served):
            self.served = np.concatenate([self.served, np.zeros_like(self.served)])
            self._num_open = np.concatenate([self._num_open, np.zeros_like(self._num_open)])
        self.served[index] = 0.0
        self._index_of[tenant] = index
        self._tenant_of[index] = tenant
        return index

    def _forget(self, index: int) -> None:
        del self._idle[index]
        del self._index_of[self._tenant_of.pop(index)]
        self._unused.append(index)
