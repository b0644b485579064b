"""One step in which some tokens go through adapters: which, and what that adds to each linear map.

Single tokens of decode rows, whatever mix of adapters they are of, cost two operators a map, in which every row reads
its own adapter's matrices and nothing else, so that no row's numbers depend on the others. Many tokens of one adapter
in a row, as prefill has them, are plain products. Tokens without an adapter are not touched.

Letters: T tokens, R rows, C inputs of a map, P changed parts of it, r padded rank, n tokens of one group.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from engine.adapters.shelf import Run, Shelf, SiteTables
from engine.kernels.interface import AddLowRank, Kernels, LowRank, LowRankRun, Operator

_LONG = {4: 8, 2: 32}  # bytes of a number -> tokens in a row from which on a product is the better way
_SUM = 0  # mode of embedding_bag

Place = tuple[Shelf, int]


class Singles:
    """n tokens with adapters of one shelf. Makes, once, the rows of the tables that they read."""

    def __init__(
        self, shelf: Shelf, slots: NDArray[np.int32], tokens: NDArray[np.int64] | None, kernels: Kernels
    ) -> None:
        """`tokens` are their places among the step's; None if they are all of them, in order."""
        self.shelf, self._slots, self._kernels = shelf, slots, kernels
        self._tokens = None if tokens is None else torch.from_numpy(tokens)
        self._rows: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self._bound: dict[int, AddLowRank | None] = {}  # of the tables of a map, where a kernel computes them

    def add(self, tables: SiteTables, x: torch.Tensor, y: torch.Tensor) -> None:
        """What the adapters add to y [T, out], given x [T, C]."""
        if id(tables) not in self._bound:
            self._bound[id(tables)] = self._bind(tables)
        add = self._bound[id(tables)]
        if add is not None and x.stride(1) == y.stride(1) == 1 and x.dtype == y.dtype == tables.inputs.data.dtype:
            add(x, y)
        else:
            self._add_by_bags(tables, x, y)

    def _bind(self, tables: SiteTables) -> AddLowRank | None:
        """One kernel call for the whole map; None if there is no such kernel."""
        rank = tables.rank
        runs = [LowRankRun(run.table.data, len(run.parts), run.parts.start * rank, run.first) for run in tables.runs]
        slots = torch.from_numpy(self._slots)
        return self._kernels.low_rank(
            LowRank(tables.inputs.data, tables.num_in, rank, tuple(runs), slots, self._tokens)
        )

    def _add_by_bags(self, tables: SiteTables, x: torch.Tensor, y: torch.Tensor) -> None:
        """The same through torch."""
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

    shelf: Shelf
    slot: int
    first: int
    last: int

    def add(self, tables: SiteTables, x: torch.Tensor, y: torch.Tensor) -> None:
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
    kernels: Kernels
    _of_token: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    _key: bytes = b""
    _groups: list[Singles | Span] = field(default_factory=list)

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
                tables = group.shelf.tables.get(site)
                if tables is not None:
                    group.add(tables, x, y)
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
        single: dict[int, tuple[Shelf, list[int], list[int]]] = {}
        for first, last, handle in zip(firsts.tolist(), lasts.tolist(), of_token[firsts].tolist(), strict=True):
            if not handle:
                continue
            shelf, slot = self.places[handle]
            if last - first >= _LONG[shelf.itemsize]:
                self._groups.append(Span(shelf, slot, first, last))
                continue
            _, tokens, slots = single.setdefault(id(shelf), (shelf, [], []))
            tokens += range(first, last)
            slots += [slot] * (last - first)
        for shelf, tokens, slots in single.values():
            are_all = len(tokens) == len(of_token)
            places = None if are_all else np.array(tokens, dtype=np.int64)
            self._groups.append(Singles(shelf, np.array(slots, dtype=np.int32), places, self.kernels))
