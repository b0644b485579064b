"""One step in which some tokens go through adapters: which, and what that adds to each linear map.

Every token reads its own adapter's matrices and nothing else, so that no row's numbers depend on the others; tokens
without an adapter are not touched. Where the kernels have an operator for it, all tokens of one kind of adapter are one
call a map. Else single tokens of decode rows, whatever mix of adapters they are of, cost two operators a map, and many
tokens of one adapter in a row, as prefill has them, are plain products.

Letters: T tokens, R rows, C inputs of a map, P changed parts of it, r padded rank, n tokens of one group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from engine.adapters.slot_pool import SlotPool
from engine.adapters.tables import Run, SiteTables
from engine.kernels.interface import AddLowRank, LowRankTokens, Operator

_LONG = {4: 8, 2: 32}  # bytes of a number -> tokens in a row from which on a product is the better way
_SUM = 0  # mode of embedding_bag

Place = tuple[SlotPool, int]


class Packed:
    """n tokens with adapters of one shelf whose maps have a kernel. Tells the kernels, once, who reads what."""

    def __init__(self, shelf: SlotPool, slots: Sequence[int], tokens: Sequence[int]) -> None:
        order = np.argsort(np.array(slots, dtype=np.int32), kind="stable")
        self._tokens = LowRankTokens(
            torch.from_numpy(np.array(slots, dtype=np.int32)[order]),
            torch.from_numpy(np.array(tokens, dtype=np.int64)[order]),
        )
        self._shelf = shelf
        self._bound: dict[int, AddLowRank] = {}  # by site

    def add(self, site: int, x: torch.Tensor, y: torch.Tensor) -> None:
        """What the adapters add to y [T, out], given x [T, C]."""
        add = self._bound.get(site)
        if add is None:
            packed = self._shelf.packed.get(site)
            if packed is None:
                return
            add = self._bound[site] = packed.bind(self._tokens)
        add(x, y)


class Singles:
    """n tokens with adapters of one shelf. Makes, once, the rows of the tables that they read."""

    def __init__(self, shelf: SlotPool, slots: Sequence[int], tokens: NDArray[np.int64] | None) -> None:
        """`tokens` are their places among the step's; None if they are all of them, in order."""
        self._shelf, self._slots = shelf, np.array(slots, dtype=np.int32)
        self._tokens = None if tokens is None else torch.from_numpy(tokens)
        self._rows: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def add(self, site: int, x: torch.Tensor, y: torch.Tensor) -> None:
        """What the adapters add to y [T, out], given x [T, C]."""
        tables = self._shelf.tables.get(site)
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
        """Of tables with `num_rows` rows for each adapter: those of all tokens, int32 [n × rows], and where a sum of
        `num_in_bag` of them begins."""
        found = self._rows.get((num_rows, num_in_bag))
        if found is None:
            first = self._slots[:, None] * np.int32(num_rows)
            rows = (first + np.arange(num_rows, dtype=np.int32)).ravel()
            starts = np.arange(0, len(rows), num_in_bag, dtype=np.int32)
            found = self._rows[num_rows, num_in_bag] = (torch.from_numpy(rows), torch.from_numpy(starts))
        return found


def _bags(table: torch.Tensor, rows: torch.Tensor, starts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """For each bag the sum of its rows of the table, each times its weight."""
    return torch.embedding_bag(table, rows, starts, False, _SUM, False, weights.reshape(-1))[0]


@dataclass(frozen=True)
class Span:
    """Tokens [first, last) of the step, all of one adapter."""

    shelf: SlotPool
    slot: int
    first: int
    last: int

    def add(self, site: int, x: torch.Tensor, y: torch.Tensor) -> None:
        tables = self.shelf.tables.get(site)
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
    """Reads `places`, the bank's; `begin` a step, then run the maps that `wrap` made, `narrow` on the way."""

    places: dict[int, Place]
    _of_token: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    _key: bytes = b""
    _groups: list[Packed | Singles | Span] = field(default_factory=list)

    def begin(self, handles: NDArray[np.int32], query_starts: NDArray[np.int32]) -> None:
        """`handles` [R] say which adapter each row goes through, 0 none; `query_starts` [R + 1], where it begins."""
        self._group(np.repeat(handles, np.diff(query_starts)))

    def narrow(self, rows: torch.Tensor) -> None:
        """Only the tokens `rows` [K] are left."""
        self._group(self._of_token[rows.numpy()])

    def wrap(self, site: int, linear: Operator) -> Operator:
        """x [T, C] -> what `linear` gives, and on top of it what the step's adapters add at this map."""

        def forward(x: torch.Tensor) -> torch.Tensor:
            y = linear(x)
            for group in self._groups:
                group.add(site, x, y)
            return y

        return forward

    def _group(self, of_token: NDArray[np.int32]) -> None:
        self._of_token = of_token
        key = of_token.tobytes()
        if key == self._key:
            return  # a decode step like the one before: its rows of tables are known
        self._key, self._groups = key, []
        if not len(of_token):
            return
        firsts = np.flatnonzero(np.diff(of_token, prepend=of_token[0] - 1))
        lasts = np.append(firsts[1:], len(of_token))
        single: dict[int, tuple[SlotPool, list[int], list[int]]] = {}
        for first, last, handle in zip(firsts.tolist(), lasts.tolist(), of_token[firsts].tolist(), strict=True):
            if not handle:
                continue
            shelf, slot = self.places[handle]
            if shelf.tables and last - first >= _LONG[shelf.itemsize]:
                self._groups.append(Span(shelf, slot, first, last))
                continue
            _, tokens, slots = single.setdefault(id(shelf), (shelf, [], []))
            tokens += range(first, last)
            slots += [slot] * (last - first)
        for shelf, tokens, slots in single.values():
            if shelf.packed:
                self._groups.append(Packed(shelf, slots, tokens))
                continue
            are_all = len(tokens) == len(of_token)
            places = None if are_all else np.array(tokens, dtype=np.int64)
            self._groups.append(Singles(shelf, slots, places))
