"""storage/spool.py: after any crash or damage, all durable records are read and no others."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import Conflict, StoreUnavailable
from storage.spool import Spool, SpoolFull
from storage.spool_segments import framed_size
from tests.waiting import PATIENCE_S, wait_until

_records = st.binary(min_size=1, max_size=200)
_batches = st.lists(st.lists(_records, min_size=1, max_size=5), min_size=1, max_size=6)


async def _fill(spool: Spool, batches: list[list[bytes]]) -> list[bytes]:
    """Append the records of each batch concurrently; return all records in order."""
    for batch in batches:
        await asyncio.gather(*(spool.append(record) for record in batch))
    return [record for batch in batches for record in batch]


async def _drain(spool: Spool, max_records: int = 1000) -> list[bytes]:
    """Read and acknowledge until the spool is empty."""
    records: list[bytes] = []
    while True:
        batch, position = await spool.read_batch(max_records)
        if not batch:
            return records
        records += batch
        await spool.acknowledge(position)


async def _reopened(directory: Path, segment_bytes: int = 4 << 20) -> list[bytes]:
    spool = Spool(directory, segment_bytes=segment_bytes)
    records = await _drain(spool)
    await spool.close()
    return records


@given(batches=_batches, max_records=st.integers(1, 7), segment_bytes=st.sampled_from([1024, 4 << 20]))
def test_records_are_read_in_order_across_segments_and_batches(
    batches: list[list[bytes]], max_records: int, segment_bytes: int
) -> None:
    async def check(directory: Path) -> None:
        spool = Spool(directory, segment_bytes=segment_bytes)
        written = await _fill(spool, batches)
        assert spool.num_pending == len(written)
        assert await _drain(spool, max_records) == written
        assert spool.num_pending == 0
        await spool.close()
        assert await _reopened(directory) == []

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(check(Path(folder)))


@given(batches=_batches, num_acknowledged=st.integers(0, 30), segment_bytes=st.sampled_from([1024, 4 << 20]))
def test_unacknowledged_records_are_read_again_after_a_restart(
    batches: list[list[bytes]], num_acknowledged: int, segment_bytes: int
) -> None:
    async def check(directory: Path) -> None:
        spool = Spool(directory, segment_bytes=segment_bytes)
        written = await _fill(spool, batches)
        records, position = await spool.read_batch(max(1, num_acknowledged))
        if num_acknowledged:
            await spool.acknowledge(position)
        await spool.close()
        assert await _reopened(directory) == written[len(records) if num_acknowledged else 0 :]

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(check(Path(folder)))


@given(batches=_batches, unfinished=st.lists(_records, min_size=1, max_size=4), data=st.data())
def test_crash_at_any_byte_of_a_write_neither_loses_nor_invents_records(
    batches: list[list[bytes]], unfinished: list[bytes], data: st.DataObject
) -> None:
    """After a crash, the file has everything synced and any part of the next write."""

    async def check(directory: Path) -> None:
        spool = Spool(directory / "spool", segment_bytes=8192)
        acknowledged = await _fill(spool, batches)
        before = _last_segment(spool.directory).read_bytes()
        await _fill(spool, [unfinished])
        after = bytearray(_last_segment(spool.directory).read_bytes())
        start = sum(map(framed_size, acknowledged))
        end = start + sum(map(framed_size, unfinished))
        for at in data.draw(st.lists(st.integers(start, end - 1), max_size=6)):
            after[at] = data.draw(st.sampled_from([0, 0xFF, before[at]]))
        cut = data.draw(st.integers(start, len(after)) | st.integers(start, end))
        shutil.copytree(spool.directory, directory / "crashed")
        _last_segment(directory / "crashed").write_bytes(after[:cut])
        await spool.close()
        found = await _reopened(directory / "crashed")
        assert found == (acknowledged + unfinished)[: len(found)]
        assert len(found) >= len(acknowledged)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(check(Path(folder)))


@given(batches=_batches, data=st.data())
def test_damaged_segment_yields_only_written_records(batches: list[list[bytes]], data: st.DataObject) -> None:
    async def check(directory: Path) -> None:
        spool = Spool(directory, segment_bytes=8192)
        written = await _fill(spool, batches)
        await spool.close()
        path = _last_segment(directory)
        content = bytearray(path.read_bytes())
        end = len(content.rstrip(b"\0"))
        content[data.draw(st.integers(0, end - 1))] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content[: data.draw(st.integers(0, end))])
        found = await _reopened(directory)
        assert found == written[: len(found)]
        assert len(found) < len(written)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(check(Path(folder)))


@pytest.mark.parametrize("cursor", [b"", b"short", b"\xff" * 20, None])
async def test_damaged_cursor_repeats_records_and_loses_none(tmp_path: Path, cursor: bytes | None) -> None:
    spool = Spool(tmp_path)
    await _fill(spool, [[b"one", b"two"]])
    _, position = await spool.read_batch(1)
    await spool.acknowledge(position)
    await spool.close()
    if cursor is None:
        (tmp_path / "cursor").unlink()
    else:
        (tmp_path / "cursor").write_bytes(cursor)
    assert await _reopened(tmp_path) == [b"one", b"two"]


@settings(max_examples=20)
@given(
    batches=_batches,
    num_read=st.integers(1, 30),
    num_back=st.integers(0, 30),
    segment_bytes=st.sampled_from([1024, 4 << 20]),
    is_reopened=st.booleans(),
)
def test_recently_acknowledged_records_can_be_read_again_from_any_position(
    batches: list[list[bytes]], num_read: int, num_back: int, segment_bytes: int, is_reopened: bool
) -> None:
    async def check(directory: Path) -> None:
        spool = Spool(directory, segment_bytes=segment_bytes, keep_s=600)
        written = await _fill(spool, batches)
        places = [spool.acknowledged]
        for _ in range(num_read):
            records, position = await spool.read_batch(1)
            if records:
                places.append(position)
                await spool.acknowledge(position)
        if is_reopened:
            await spool.close()
            spool = Spool(directory, segment_bytes=segment_bytes, keep_s=600)
        back_to = max(0, len(places) - 1 - num_back)
        assert await spool.move_to(*places[back_to][:2]) == len(places) - 1 - back_to
        assert spool.num_pending == len(written) - back_to
        assert await spool.move_to(*places[-1][:2]) == back_to + 1 - len(places)
        await spool.move_to(*places[back_to][:2])
        await spool.append(b"more")
        assert await _drain(spool, 3) == [*written[back_to:], b"more"]
        assert spool.num_pending == 0
        await spool.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(check(Path(folder)))


async def test_restart_after_moving_back_reads_the_records_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path, keep_s=600)
    await spool.append(b"one")
    assert await _drain(spool) == [b"one"]
    first = spool.acknowledged
    await spool.append(b"two")
    assert await _drain(spool) == [b"two"]
    assert await spool.move_to(first.segment, first.offset) == 1
    await spool.close()
    spool = Spool(tmp_path, keep_s=600)
    assert spool.num_pending == 1
    assert await _drain(spool) == [b"two"]
    await spool.close()


async def test_kept_segments_expire_and_do_not_reduce_the_room_for_new_work(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=32_768, segment_bytes=2048, keep_s=600)
    for number in range(200):
        await spool.append(b"%0100d" % number)
    await _drain(spool)
    segments = _segments(tmp_path)
    assert 2 <= len(segments) <= 1 + 4, "a quarter of the bound, and the segment being read"
    assert spool.has_room
    spool_id = spool.id
    await spool.close()
    for path in segments:
        os.utime(path, (time.time() - 700,) * 2)
    spool = Spool(tmp_path, max_bytes=32_768, segment_bytes=2048, keep_s=600)
    assert spool.id == spool_id
    await spool.append(b"x")
    await _drain(spool)
    assert not set(segments[:-1]) & set(_segments(tmp_path))
    assert await spool.move_to(0, 0) < 40
    await spool.close()


async def test_unknown_position_moves_nothing(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    await _fill(spool, [[b"one", b"two"]])
    assert await spool.move_to(7, 0) == 0
    assert await _drain(spool) == [b"one", b"two"]
    await spool.close()


async def test_killed_process_loses_no_durable_record(tmp_path: Path) -> None:
    program = (
        "import asyncio, itertools, sys\n"
        "from pathlib import Path\n"
        "from storage.spool import Spool\n"
        "async def main():\n"
        "    spool = Spool(Path(sys.argv[1]), segment_bytes=20_000)\n"
        "    async def one(number):\n"
        "        await spool.append(b'%d' % number)\n"
        "        sys.stdout.write(f'{number}\\n')\n"
        "        sys.stdout.flush()\n"
        "    for start in itertools.count(0, 20):\n"
        "        await asyncio.gather(*(one(start + i) for i in range(20)))\n"
        "asyncio.run(main())\n"
    )
    for round_number in range(3):
        directory = tmp_path / str(round_number)
        output = tmp_path / f"{round_number}.out"
        with output.open("wb") as stdout:
            child = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(directory), stdout=stdout)
        await wait_until(lambda: output.stat().st_size > 500 * (round_number + 1))  # noqa: B023
        child.kill()
        await child.wait()
        acknowledged = set(output.read_bytes().split(b"\n")[:-1])
        found = await _reopened(directory)
        assert acknowledged <= set(found)
        assert found == [b"%d" % number for number in range(len(found))]


async def test_concurrent_appends_share_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    num_syncs = itertools.count()
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (next(num_syncs), real(fd)))
    spool = Spool(tmp_path)
    await _fill(spool, [[b"%d" % number for number in range(500)]])
    assert next(num_syncs) <= 3
    await spool.close()


async def test_sync_waits_for_more_records_only_after_a_large_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_s = []
    real = asyncio.sleep

    async def sleep(delay_s: float) -> None:
        waits_s.append(delay_s)
        await real(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    spool = Spool(tmp_path)
    for num_records in (1, 1, 50, 50, 1, 1):
        await _fill(spool, [[b"x"] * num_records])
    assert [wait_s > 0 for wait_s in waits_s] == [False, False, False, True, True, False]
    assert max(waits_s) <= 0.002
    await spool.close()


async def test_slow_sync_does_not_block_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, others_went_on = os.fdatasync, threading.Event()

    def slow(fd: int) -> None:
        assert others_went_on.wait(PATIENCE_S)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", slow)
    spool = Spool(tmp_path)
    appending = asyncio.create_task(spool.append(b"x"))
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert not appending.done()
    others_went_on.set()
    await appending
    await spool.close()


async def test_cancelled_append_does_not_affect_others(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    first, second = asyncio.create_task(spool.append(b"first")), asyncio.create_task(spool.append(b"second"))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert b"second" in await _drain(spool)
    await spool.close()


async def test_full_spool_rejects_records_until_some_are_acknowledged(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=8192, segment_bytes=2048)
    assert spool.has_room
    while spool.has_room:
        await spool.append(bytes(100))
    num_when_told = spool.num_pending
    with pytest.raises(SpoolFull):
        await _fill(spool, [[bytes(100)]] * 1000)
    assert spool.num_pending - num_when_told > 10, "room is reported gone well before a record is refused"
    num_pending = spool.num_pending
    assert len(await _drain(spool)) == num_pending
    assert spool.has_room
    await spool.append(b"again")
    await spool.close()


async def test_oversized_record_is_rejected(tmp_path: Path) -> None:
    spool = Spool(tmp_path, segment_bytes=4096)
    for record in (b"", b"x" * 4096):
        with pytest.raises(ValueError, match="must have 1 to"):
            await spool.append(record)
    await spool.close()


async def test_failed_sync_is_reported_and_the_next_append_starts_a_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path)
    await spool.append(b"before")
    real = os.fdatasync

    def fails(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fails)
    with pytest.raises(StoreUnavailable, match="Input/output"):
        await spool.append(b"during")
    monkeypatch.setattr(os, "fdatasync", real)
    await spool.append(b"after")
    assert await _drain(spool) == [b"before", b"after"]
    await spool.close()


async def test_spool_has_no_room_without_space_for_a_spare_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.posix_fallocate

    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    spool = Spool(tmp_path, segment_bytes=4096)
    await spool.append(b"x")
    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr("storage.spool_segments._SPARE_RETRY_S", 0.0)
    for number in range(60):  # the spare segment, whose space is allocated in advance
        await spool.append(b"%0100d" % number)
    assert not spool.has_room
    monkeypatch.setattr(os, "posix_fallocate", real)
    await wait_until(lambda: spool.has_room)
    assert len(await _drain(spool)) == 61
    await spool.close()


async def test_only_one_process_opens_a_folder(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    with pytest.raises(Conflict, match="another process"):
        Spool(tmp_path)
    await spool.close()
    await Spool(tmp_path).close()


async def test_acknowledged_segments_are_deleted(tmp_path: Path) -> None:
    spool = Spool(tmp_path, segment_bytes=4096)
    for number in range(200):
        await spool.append(b"%0100d" % number)
    assert len(_segments(tmp_path)) > 3
    await _drain(spool)
    assert len(_segments(tmp_path)) == 1
    await spool.close()


def _segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def _last_segment(directory: Path) -> Path:
    return _segments(directory)[-1]


def test_spool_imports_neither_database_nor_network_clients() -> None:
    program = "import sys; import storage.spool; assert not {'sqlalchemy', 'redis', 'boto3'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
