"""Kill a process that records usage at every step from the spool's write to its truncation, and simulate power
failures.

    python -m tests.tenants.kill_points TEMPLATE FOLDER --points 220 --seed 1 [--without fsync|conflict]

Each process records calls and moves them to the ledger until it reaches the step at which it is killed. Unsynced data
is then lost, partly written or kept, depending on the seed. After some processes, a survivor moves the remaining
entries: every acknowledged call must have exactly one row, and there must be no other rows. Prints how often each step
was reached, and exits with status 1 if a row is lost, doubled or invented, or if a step was never reached. `--without`
removes a safeguard, to verify that the campaign detects its absence.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import delete, func, select

from storage import spool_segments
from storage.database import Database
from storage.errors import StoreUnavailable
from storage.many_rows import ManyRows
from storage.spool import Spool
from tenants.tables import usage_entries, usage_spools
from tenants.tables import usage_sums as sums_table
from tenants.usage import ledger as ledger_module
from tenants.usage import usage_entries as usage
from tenants.usage import usage_sums
from tenants.usage.ledger import UsageLedger
from tests.tenants.usage.made_entries import entry

STEPS = (
    "opened",  # segments of an earlier process are read
    "compared",  # compared with the ledger's position
    "spare allocated",
    "segment begun",  # the spare segment is renamed
    "segment's name synced",
    "before the write",
    "half written",
    "written",
    "synced",
    "acknowledged",  # the call's response may end
    "batch read",
    "place noted",  # in the ledger's transaction
    "entries inserted",
    "before the commit",
    "committed",
    "cursor written",
    "cursor renamed",
    "before the deletion",
    "deleted",
)
LIVES_PER_ROUND = 8
NUM_CALLS = 12
AT_ONCE = 4
SEGMENT_BYTES = 4096
LIFE_S = 20


class Disk:
    """The changes to the spool's folder that a power failure can undo, as a journal of operations. Unsynced data is
    undone byte by byte, unsynced names of a folder as a whole.
    """

    def __init__(self, folder: Path, journal: Path, reach: Callable[[str], None]) -> None:
        self.folder = folder
        self.reach = reach
        self._fd = os.open(journal, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_TRUNC, 0o600)

    def note(self, *what: Any) -> None:
        os.write(self._fd, (json.dumps(what) + "\n").encode())

    def install(self, *, syncs: bool) -> None:
        """Replace the system calls of `spool_segments` in this process."""
        real_pwrite, real_sync, real_fsync, real_allocate = os.pwrite, os.fdatasync, os.fsync, os.posix_fallocate
        real_rename, real_unlink = Path.rename, Path.unlink

        def pwrite(fd: int, data: Any, offset: int) -> int:
            self.reach("before the write")
            name = os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))
            self.note("write", name, offset, os.pread(fd, len(data), offset).ljust(len(data), b"\0").hex())
            half = real_pwrite(fd, data[: len(data) // 2], offset)
            self.reach("half written")
            return half + real_pwrite(fd, data[half:], offset + half)

        def fdatasync(fd: int) -> None:
            self.reach("written")
            if syncs:
                real_sync(fd)
                self.note("sync", os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
            self.reach("synced")

        def fsync(fd: int) -> None:
            real_fsync(fd)
            self.note("sync names")
            self.reach("segment's name synced")

        def allocate(fd: int, offset: int, length: int) -> None:
            real_allocate(fd, offset, length)
            self.reach("spare allocated")

        def rename(path: Path, target: Path) -> Path:
            if path.parent != self.folder:
                return real_rename(path, target)
            if path.name == "cursor.new":
                self.reach("cursor written")
                self.note("cursor", target.read_bytes().hex() if target.exists() else None)
            else:
                self.note("rename", path.name, target.name)
            found = real_rename(path, target)
            self.reach("cursor renamed" if path.name == "cursor.new" else "segment begun")
            return found

        def unlink(path: Path, missing_ok: bool = False) -> None:
            if path.parent == self.folder and path.suffix == ".log" and path.exists():
                self.reach("before the deletion")
                self.note("delete", path.name, path.read_bytes().hex())
                real_unlink(path)
                self.reach("deleted")
            else:
                real_unlink(path, missing_ok)

        os.pwrite, os.fdatasync, os.fsync, os.posix_fallocate = pwrite, fdatasync, fsync, allocate  # type: ignore[assignment]
        Path.rename, Path.unlink = rename, unlink  # type: ignore[method-assign,assignment]


def cut_power(folder: Path, journal: Path, choose: random.Random) -> None:
    """Undo unsynced operations: completely, partly, or not at all."""
    notes = [json.loads(line) for line in journal.read_text().splitlines()]
    names: dict[str, str] = {}
    unsynced: list[tuple[int, str, int, bytes]] = []
    undone: list[Callable[[], object]] = []
    for number, note in enumerate(notes):
        if note[0] == "write":
            unsynced.append((number, note[1], note[2], bytes.fromhex(note[3])))
        elif note[0] == "sync":
            unsynced = [each for each in unsynced if each[1] != note[1]]
        elif note[0] == "sync names":
            undone.clear()
        elif note[0] == "rename":
            names[note[1]] = note[2]
            undone.append(lambda note=note: _rename_back(folder / note[2], folder / note[1]))  # type: ignore[misc]
        elif note[0] == "delete":
            undone.append(lambda note=note: (folder / note[1]).write_bytes(bytes.fromhex(note[2])))  # type: ignore[misc]
        elif note[0] == "cursor":
            undone.append(lambda note=note: _older_cursor(folder / "cursor", note[1], choose))  # type: ignore[misc]
    for _, name, offset, before in reversed(unsynced):
        path = folder / name
        num_written = choose.choice([0, len(before), choose.randrange(len(before) + 1)])
        if path.exists():
            with path.open("r+b") as file:
                file.seek(offset + num_written)
                file.write(before[num_written:])
    if choose.random() < 0.5:
        for undo in reversed(undone):
            undo()


def _rename_back(now: Path, before: Path) -> None:
    if now.exists():
        now.replace(before)


def _older_cursor(path: Path, before: str | None, choose: random.Random) -> None:
    path.unlink(missing_ok=True)
    if before is not None:
        content = bytes.fromhex(before)
        path.write_bytes(content[: choose.choice([len(content), 0, 7])])


class WithoutConflictClause(ManyRows):
    """An insert that rejects existing rows."""

    @property
    def _tail(self) -> str:
        return f'RETURNING "{self._key}"'


async def live(
    url: str, folder: Path, life: str, reach: Callable[[str], None], *, keep_s: float, forgets: bool
) -> None:
    """Record calls, four at a time, and move them; write the ids of acknowledged calls to `acknowledged`."""
    database = Database.connect(url)
    if forgets:
        async with database.transaction() as connection:  # a ledger that does not know the spool gets all entries again
            await connection.execute(delete(usage_spools))
    spool = Spool(folder / "spool", segment_bytes=SEGMENT_BYTES, keep_s=keep_s)
    reach("opened")
    ledger = UsageLedger(spool, database)
    _announce_steps(spool, ledger, reach)
    running = asyncio.create_task(ledger.run())
    acknowledged = os.open(folder / "acknowledged", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    async def call(number: int) -> None:
        request_id = f"{life}-{number}"
        await ledger.record(entry(request_id))
        os.write(acknowledged, f"{request_id}\n".encode())
        reach("acknowledged")

    for start in range(0, NUM_CALLS, AT_ONCE):
        await asyncio.gather(*(call(number) for number in range(start, start + AT_ONCE)))
        await ledger.flush()
    await ledger.close()
    await running
    await database.close()


def _announce_steps(spool: Spool, ledger: UsageLedger, reach: Callable[[str], None]) -> None:
    """Wrap the steps of the ledger."""
    real_compare, real_read = ledger._compare, spool.read_batch
    real_place, real_add, real_write = usage._store_position, usage_sums.add, ledger_module.write

    async def compare() -> None:
        await real_compare()
        reach("compared")

    async def read_batch(max_records: int) -> Any:
        found = await real_read(max_records)
        if found[0]:
            reach("batch read")
        return found

    async def place(*arguments: Any) -> None:
        await real_place(*arguments)
        reach("place noted")

    async def add(connection: Any, dialect: str, rows: Any) -> None:
        reach("entries inserted")
        await real_add(connection, dialect, rows)
        reach("before the commit")

    async def write(*arguments: Any, **named: Any) -> int:
        found = await real_write(*arguments, **named)
        reach("committed")
        return found

    ledger._compare, spool.read_batch = compare, read_batch  # type: ignore[method-assign]
    usage._store_position, usage_sums.add, ledger_module.write = place, add, write  # type: ignore[assignment]


def run_life(
    url: str, folder: Path, life: str, target: tuple[str, int] | None, without: str, forgets: bool, keep_s: float
) -> Counter[str]:
    """Run one life in a forked process; return the steps that it reached."""
    hits_path, journal = folder / "hits", folder / "journal"
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        died_as_told = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if not died_as_told and status:
            (folder / "failed").write_text(life)
        return Counter(hits_path.read_text().splitlines())
    signal.alarm(LIFE_S)
    hits = os.open(hits_path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_TRUNC, 0o600)
    seen: Counter[str] = Counter()

    def reach(step: str) -> None:
        seen[step] += 1
        if target == (step, seen[step]):
            os.write(hits, f"{step}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        Disk(folder / "spool", journal, reach).install(syncs=without != "fsync")
        if without == "conflict":
            usage._ledger_rows = WithoutConflictClause(usage_entries, usage._FIELDS, key="request_id")
        asyncio.run(live(url, folder, life, reach, keep_s=keep_s, forgets=forgets))
    except BaseException as error:
        os.write(2, f"life {life}: {error!r}\n".encode())
        os._exit(1)
    os._exit(0)


async def survive(url: str, folder: Path) -> list[str]:
    """Move the remaining entries; return the problems found in the ledger."""
    database = Database.connect(url)
    ledger = UsageLedger(Spool(folder / "spool", segment_bytes=SEGMENT_BYTES), database)
    problems = ["a process could not continue from the files it found"] if (folder / "failed").exists() else []
    try:
        await ledger.flush()
    except StoreUnavailable as error:
        problems.append(str(error))
    await ledger.close()
    acknowledged = (folder / "acknowledged").read_text().split() if (folder / "acknowledged").exists() else []
    async with database.connection() as connection:
        rows = list((await connection.execute(select(usage_entries.c.request_id))).scalars())
        num_summed = (await connection.execute(select(func.coalesce(func.sum(sums_table.c.num_calls), 0)))).scalar_one()
    await database.close()
    lost = set(acknowledged) - set(rows)
    made_up = [id for id in rows if not id.startswith("life-")]
    if lost:
        problems.append(f"{len(lost)} acknowledged calls have no row, such as {min(lost)}")
    if len(set(rows)) != len(rows) or made_up:
        problems.append("rows are doubled or made up")
    if num_summed != len(rows):
        problems.append(f"{num_summed} calls are in the sums, {len(rows)} in the ledger")
    if (folder / "spool" / "refused.hex").exists():
        problems.append("entries were refused")
    return problems


def campaign(
    make_url: Callable[[Path], str], folder: Path, num_points: int, seed: int, without: str = ""
) -> tuple[Counter[str], list[str]]:
    """Kill `num_points` processes; return how often each step was reached, and the problems."""
    choose = random.Random(seed)
    hits: Counter[str] = Counter()
    problems: list[str] = []
    order: list[str] = []
    number = 0
    while sum(hits.values()) < num_points and number < 3 * num_points:
        here = folder / f"round-{number}"
        here.mkdir(parents=True)
        url = make_url(here)
        keep_s = choose.choice([0.0, 600.0])
        for _ in range(LIVES_PER_ROUND):
            order = order or choose.sample(STEPS, len(STEPS))
            step = order.pop()
            if "delet" in step:
                keep_s = 0.0
            life, forgets = f"life-{number}", choose.random() < 0.3
            number += 1
            hits += run_life(url, here, life, (step, choose.choice([1, 1, 2])), without, forgets, keep_s)
            cut_power(here / "spool", here / "journal", choose)
        found = asyncio.run(survive(url, here))
        problems += [f"seed {seed}, {here.name}: {problem}" for problem in found]
        shutil.rmtree(here)
    problems += [f"never hit: {step}" for step in STEPS if not hits[step]]
    return hits, problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("template", help="a migrated SQLite file to copy, or the URL of a migrated Postgres database")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--points", type=int, default=220)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without", choices=["fsync", "conflict"], default="")
    options = parser.parse_args()

    def make_url(folder: Path) -> str:
        if options.template.startswith("postgres"):
            asyncio.run(_empty(options.template))
            return str(options.template)
        shutil.copyfile(options.template, folder / "hearth.db")
        return f"sqlite://{folder / 'hearth.db'}"

    hits, problems = campaign(make_url, options.folder, options.points, options.seed, options.without)
    lines = [f"{hits[step]:4} {step}" for step in STEPS] + [f"{sum(hits.values()):4} in all"]
    sys.stdout.write("\n".join([*lines, *problems]) + "\n")
    sys.exit(bool(problems))


async def _empty(url: str) -> None:
    database = Database.connect(url)
    async with database.transaction() as connection:
        for table in (usage_entries, sums_table, usage_spools):
            await connection.execute(delete(table))
    await database.close()


if __name__ == "__main__":
    assert spool_segments.os is os, "the disk stands in for what the spool calls"
    main()
