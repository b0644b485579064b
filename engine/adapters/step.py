"""Application of adapters in one step: which tokens use which adapter, and what is added to each linear map.

Each token reads only its own adapter's matrices, so that the result of a row does not depend on other rows. If the
kernels have an operator for low-rank products, all tokens of adapters of one shape need one call per linear map.
Otherwise single tokens of any mix of adapters need two operators per map, and longer runs of tokens of one adapter
(prefill) are plain matrix products.

Letters: T tokens, R rows, C inputs of a map, P changed parts of it, r padded rank, n tokens of one group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from engine.adapters.slot_pool import SlotPool
from engine.adapters.tables import Run, SiteTables
from engine.arrays import Ints, Longs
from engine.kernels.interface import AddLowRank, LowRankTokens, Operator

_MIN_SPAN_TOKENS = {4: 8, 2: 32}  # bytes per value -> consecutive tokens from which a matrix product is faster
_SUM = 0  # `mode` of embedding_bag

AdapterSlot = tuple[SlotPool, int]


class PackedGroup:
    """n tokens with adapters of one slot pool, applied by a kernel."""

    def __init__(self, pool: SlotPool, slots: Sequence[int], tokens: Sequence[int]) -> None:
        order = np.argsort(np.array(slots, dtype=np.int32), kind="stable")
        self._tokens = LowRankTokens(
            torch.from_numpy(np.array(slots, dtype=np.int32)[order]),
            torch.from_numpy(np.array(tokens, dtype=np.int64)[order]),
        )
        self._pool = pool
        self._bound: dict[int, AddLowRank] = {}  # by site

    def add(self, site: int, x: torch.Tensor, y: torch.Tensor) -> None:
        """Add the output of the adapters at one site to y [T, out], given x [T, C]."""
        add = self._bound.get(site)
        if add is None:
            packed = self._pool.packed.get(site)
            if packed is None:
                return
            add = self._bound[site] = packed.bind(self._tokens)
        add(x, y)


class TokenGroup:
    """n single tokens with adapters of one slot pool, applied with embedding_bag. Caches the table rows they read."""

    def __init__(self, pool: SlotPool, slots: Sequence[int], tokens: Longs | None) -> None:
        """`tokens` are indices among the step's tokens; None for all of them, in order."""
        self._pool, self._slots = pool, np.array(slots, dtype=np.int32)
        self._tokens = None if tokens is None else torch.from_numpy(tokens)
        self._rows: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def add(self, site: int, x: torch.Tensor, y: torch.Tensor) -> None:
        """Add the output of the adapters at one site to y [T, out], given x [T, C]."""
        tables = self._pool.tables.get(site)
        if tables is not None:
            self._add(tables, x, y)

    def _add(self, tables: SiteTables, x: torch.Tensor, y: torch.Tensor) -> None:
        if self._tokens is not None:
            x = x.index_select(0, self._tokens)
        num_parts, rank = len(tables.names), tables.rank
        hidden = _bags(tables.inputs.data, *self._rows_of(tables.num_in, tables.num_in), x)  # [n, P r]
        for run in tables.runs:
            run_rank = len(run.parts) * rank
            part = hidden
            if len(run.parts) < num_parts:
                part = hidden[:, run.parts.start * rank : run.parts.stop * rank]
            added = _bags(run.table.data, *self._rows_of(run_rank, rank), part)  # [n × parts of the run, width]
            added = added.view(x.shape[0], run.last - run.first)
            target = y if tables.is_whole and len(tables.runs) == 1 else y[:, run.first : run.last]
            if self._tokens is None:
                target.add_(added)
            else:
                target.index_add_(0, self._tokens, added)

    def _rows_of(self, num_rows: int, num_in_bag: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows of all tokens in tables of `num_rows` rows per slot, int32 [n × rows], and the offsets of
        bags of `num_in_bag` rows."""
        found = self._rows.get((num_rows, num_in_bag))
        if found is None:
            first = self._slots[:, None] * np.int32(num_rows)
            rows = (first + np.arange(num_rows, dtype=np.int32)).ravel()
            starts = np.arange(0, len(rows), num_in_bag, dtype=np.int32)
            found = self._rows[num_rows, num_in_bag] = (torch.from_numpy(rows), torch.from_numpy(starts))
        return found


def _bags(table: torch.Tensor, rows: torch.Tensor, starts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the weighted sum of the table rows of each bag."""
    return torch.embedding_bag(table, rows, starts, False, _SUM, False, weights.reshape(-1))[0]


@dataclass(frozen=True)
class SpanGroup:
    """Tokens [first, last) of the step, all of one adapter, applied with matrix products."""

    pool: SlotPool
    slot: int
    first: int
    last: int

    def add(self, site: int, x: torch.Tensor, y: torch.Tensor) -> None:
        """Add the adapter's output at one site to y [T, out], given x [T, C]."""
        tables = self.pool.tables.get(site)
        if tables is None:
            return
        hidden = torch.mm(x[self.first : self.last], tables.inputs.slot(self.slot))  # [n, P r]
        for run in tables.runs:
            self._add_run(tables.rank, run, hidden, y)

    def _add_run(self, rank: int, run: Run, hidden: torch.Tensor, y: torch.Tensor) -> None:
        width = (run.last - run.first) // len(run.parts)
        matrices = run.table.slot(self.slot)  # [parts r, width]
        for number, part in enumerate(run.parts):
            column = run.first + number * width
            matrix = matrices[number * rank : (number + 1) * rank]
            added = torch.mm(hidden[:, part * rank : (part + 1) * rank], matrix)
            y[self.first : self.last, column : column + width].add_(added)


@dataclass
class AdaptedStep:
    """The adapters of the current step: call `begin`, then run the linear maps made by `wrap`.

    `adapter_slots` maps adapter handles to slots; the adapter cache changes it.
    """

    adapter_slots: dict[int, AdapterSlot]
    _of_token: Ints = field(default_factory=lambda: np.empty(0, np.int32))
    _key: bytes = b""
    _groups: list[PackedGroup | TokenGroup | SpanGroup] = field(default_factory=list)

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
        self._key, self._groups = key, []
        if not len(of_token):
            return
        firsts = np.flatnonzero(np.diff(of_token, prepend=of_token[0] - 1))
        lasts = np.append(firsts[1:], len(of_token))
        single: dict[int, tuple[SlotPool, list[int], list[int]]] = {}
        for first, last, handle in zip(firsts.tolist(), lasts.tolist(), of_token[firsts].tolist(), strict=True):
            if not handle:
                continue
            pool, slot = self.adapter_slots[handle]
            if pool.tables and last - first >= _MIN_SPAN_TOKENS[pool.itemsize]:
                self._groups.append(SpanGroup(pool, slot, first, last))
                continue
            _, tokens, slots = single.setdefault(id(pool), (pool, [], []))
            tokens += range(first, last)
            slots += [slot] * (last - first)
        for pool, tokens, slots in single.values():
            if pool.packed:
                self._groups.append(PackedGroup(pool, slots, tokens))
                continue
            are_all = len(tokens) == len(of_token)
            indices = None if are_all else np.array(tokens, dtype=np.int64)
            self._groups.append(TokenGroup(pool, slots, indices))
