"""storage/spool.py as a state machine: append, move, crash at any byte, replay, and a store that returns to an older
copy.

The rows of the store are exactly the durable records. Records that were being written during a crash may be missing.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from storage.spool import Position, Spool

SEGMENT_BYTES = 1024


class Spooled(RuleBasedStateMachine):
    """One spool and the rows that its records become."""

    runner: asyncio.Runner
    numbers = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="hearth-spool-"))
        self.durable: set[bytes] = set()
        self.maybe_durable: set[bytes] = set()  # records that were being written during a crash
        self.rows: set[bytes] = set()
        self.places: list[tuple[Position, frozenset[bytes]]] = []  # confirmed positions and the rows at that time
        self.spool = self._opened()

    def teardown(self) -> None:
        self._run(self.spool.close())
        shutil.rmtree(self.folder)

    @rule(count=st.integers(1, 4), size=st.integers(1, 150))
    def append(self, count: int, size: int) -> None:
        records = [b"%d " % next(self.numbers) + bytes(size) for _ in range(count)]
        self._run(self._append(records))
        self.durable |= set(records)

    @rule(count=st.integers(1, 5), is_acknowledged=st.booleans())
    def move(self, count: int, is_acknowledged: bool) -> None:
        """Write records to the store, possibly crashing before the spool is acknowledged."""
        records, position = self._run(self.spool.read_batch(count))
        self.rows |= set(records)
        if is_acknowledged:
            self._run(self.spool.acknowledge(position))
            self.places.append((position, frozenset(self.rows)))

    @rule(size=st.integers(1, 150), count=st.integers(1, 3), share=st.floats(0, 1))
    def crash_while_writing(self, size: int, count: int, share: float) -> None:
        """Crash while writing: the file has the last write up to some byte, then zeros."""
        records = [b"%d " % next(self.numbers) + bytes(size) for _ in range(count)]
        before = {path: path.read_bytes() for path in self.folder.glob("*.log")}
        self._run(self._append(records))
        self._run(self.spool.close())
        for path in self.folder.glob("*.log"):
            now, old = path.read_bytes(), before.get(path, b"")
            changed = [place for place in range(len(now)) if place >= len(old) or now[place] != old[place]]
            changed = [place for place in changed if now[place]] or [0]
            start, end = changed[0], changed[-1] + 1
            cut = start + round((end - start) * share)
            if old != now:
                path.write_bytes(now[:cut] + old[cut:].ljust(len(now) - cut, b"\0")[: len(now) - cut])
        self.maybe_durable |= set(records)
        self.spool = self._opened()

    @rule(is_cursor_lost=st.booleans())
    def crash(self, is_cursor_lost: bool) -> None:
        self._run(self.spool.close())
        if is_cursor_lost:
            (self.folder / "cursor").unlink(missing_ok=True)
        self.spool = self._opened()

    @rule(data=st.data())
    def store_forgets(self, data: st.DataObject) -> None:
        """Replace the store by an older copy, as of an earlier confirmation."""
        if self.places:
            number = data.draw(st.integers(0, len(self.places) - 1))
            position, rows = self.places[number]
            del self.places[number + 1 :]
            self.rows = set(rows)
            self._run(self.spool.move_to(position.segment, position.offset))

    @rule()
    def replay_twice(self) -> None:
        for _ in range(2):
            self._run(self.spool.move_to(0, 0))
            self._drain()
        assert self.durable <= self.rows <= self.durable | self.maybe_durable

    @invariant()
    def rows_are_what_was_appended(self) -> None:
        assert self.rows <= self.durable | self.maybe_durable

    @rule()
    def drain(self) -> None:
        self._drain()
        assert self.durable <= self.rows
        assert self.spool.num_pending == 0

    def _drain(self) -> None:
        while True:
            records, position = self._run(self.spool.read_batch(100))
            if not records:
                return
            self.rows |= set(records)
            self._run(self.spool.acknowledge(position))
            self.places.append((position, frozenset(self.rows)))

    async def _append(self, records: list[bytes]) -> None:
        await asyncio.gather(*(self.spool.append(record) for record in records))

    def _opened(self) -> Spool:
        return Spool(self.folder, max_bytes=1 << 20, segment_bytes=SEGMENT_BYTES, keep_s=600)

    def _run(self, job):
        return self.runner.run(job)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("num_examples", [12, pytest.param(300, marks=pytest.mark.full)])
def test_no_order_of_events_loses_or_invents_a_record(num_examples: int) -> None:
    with asyncio.Runner() as runner:
        Spooled.runner = runner
        found = settings(max_examples=num_examples, stateful_step_count=15, deadline=None)
        run_state_machine_as_test(Spooled, settings=found)
