"""Fairness between tenants: virtual token counters (VTC).

Each tenant is charged weighted tokens for its work, and the least served tenant is next. A tenant that returns from
idle is raised to the counter of the least served active tenant, so that idling does not accumulate credit. Tenants are
numbers; each known tenant has an index into the counters.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PROMPT_WEIGHT = 1.0  # per prompt token computed
COMPLETION_WEIGHT = 2.0  # per token generated
CACHED_WEIGHT = 0.1  # per prompt token found in the prefix cache

_MAX_IDLE_TENANTS = 4096  # counters kept after a tenant becomes idle


class TenantCounters:
    """Counters of every tenant with open sequences and of the tenants that became idle most recently."""

    def __init__(self) -> None:
        self.served = np.zeros(64, dtype=np.float64)
        self._num_open = np.zeros(64, dtype=np.int32)
        self._index_of: dict[int, int] = {}
        self._tenant_of: dict[int, int] = {}
        self._idle: dict[int, None] = {}  # indices in the order in which they became idle
        self._unused: list[int] = []
        self._floor = 0.0  # counter of the last tenant when no tenant was left active

    def join(self, tenant: int) -> int:
        """Count one more open sequence of `tenant`. Return its index, valid until `leave` was called as often."""
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
        """Count one open sequence less."""
        self._num_open[index] -= 1
        if self._num_open[index] > 0:
            return
        if not self._num_open.any():
            self._floor = float(self.served[index])
        self._idle[index] = None
        if len(self._idle) > _MAX_IDLE_TENANTS:
            self._forget(next(iter(self._idle)))

    def charge_prompt(self, index: int, num_computed: int, num_cached: int) -> None:
        """Charge a prompt of `num_computed` tokens to compute and `num_cached` from the prefix cache."""
        self.served[index] += PROMPT_WEIGHT * num_computed + CACHED_WEIGHT * num_cached

    def charge_completion(self, indices: NDArray[np.int32]) -> None:
        """Charge one generated token for each entry of `indices`."""
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
