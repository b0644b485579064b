"""Worker process that parses untrusted files, each in a short-lived forked child. Run with `python -m`.

Standard input is a Unix socket that receives one open socket per file. The child forked for a file reads the job from
that socket, enters the sandbox (`sandbox.py`), sends the outcome and exits. The worker itself never reads a file, so a
child cannot find the file of another. A child is killed when its time or memory is used up or its client disconnects.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import gc
import importlib
import os
import signal
import socket
import sys
import traceback
from typing import NoReturn

import msgspec

from documents import sandbox, tokens
from documents.errors import DocumentRefused
from documents.kinds import AUDIO, IMAGE, KINDS, PDF_SCANS
from documents.messages import ERROR_REPORT, DecodedImage, Job, Outcome
from documents.text_encoding import ENCODINGS
from telemetry.child_process import die_with_parent, set_process_name

READERS = tuple(sorted({kind.reader for kind in (*KINDS, AUDIO, IMAGE, PDF_SCANS)} - {"image"}))
MAX_JOB_BYTES = 256 << 20
_F_SETSIG = 10
_READ_BYTES = 1 << 20
_NICENESS = 10  # the processes that serve requests go first
_decode_job = msgspec.msgpack.Decoder(Job).decode


def convert(job: Job) -> Outcome:
    """Convert one file. The process may crash on a malicious file."""
    try:
        reader = importlib.import_module(f"documents.{job.reader}")
        content: str | bytes | DecodedImage | list[bytes] = reader.read(job.data, job.name, job.options)
    except DocumentRefused as refusal:
        return Outcome(refusal=str(refusal))
    except RecursionError:
        return Outcome(refusal="the file is nested too deeply")
    except MemoryError:
        return Outcome(refusal=f"conversion needs more than {job.memory_bytes >> 20} MiB of memory")
    if isinstance(content, DecodedImage):
        return Outcome(image=content)
    if isinstance(content, list):
        return Outcome(pages=tuple(content))
    if isinstance(content, bytes):
        return Outcome(samples=content)
    text = content.encode("utf-8", "replace").decode()
    if len(text.encode()) > job.max_text_bytes:
        return Outcome(refusal=f"the file has more than {job.max_text_bytes} bytes of text")
    return Outcome(text, tokens.count(text))


def _serve() -> None:
    channel = socket.socket(fileno=0)
    while True:
        data, sockets, _, _ = socket.recv_fds(channel, 1, 1)
        if not data:
            return
        for number in sockets:
            if os.fork() == 0:
                _run_child(number)
            os.close(number)


def _run_child(number: int) -> NoReturn:
    """Run a child until it exits. `number` is the socket of its job."""
    status = 1
    try:
        # Restore the default that the worker changed: the child must not ignore SIGCHLD. The kernel kills the child if
        # the worker exits.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with_parent()
        if number != 3:
            os.dup2(number, 3)
        os.closerange(4, 1024)
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.closerange(4, 16)
        _run_job(3)
        status = 0
    except BaseException as error:
        _report_error(error)
    finally:
        os._exit(status)


def _run_job(number: int) -> None:
    job = _decode_job(_read_all(number))
    sandbox.enter(job.memory_bytes, job.timeout_s)
    _set_kill_on_disconnect(number, True)
    outcome = msgspec.msgpack.encode(convert(job))
    _set_kill_on_disconnect(number, False)
    frame = memoryview(len(outcome).to_bytes(8, "little") + outcome)
    while frame:
        frame = frame[os.write(number, frame) :]


def _report_error(error: BaseException) -> None:
    """Write the location of an unexpected error to stderr, without its message, which may quote the file."""
    locations = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-4:]]
    with contextlib.suppress(OSError):
        os.write(2, ERROR_REPORT + f"{type(error).__name__} at {', '.join(locations)}\n".encode())


def _set_kill_on_disconnect(number: int, is_enabled: bool) -> None:
    """Set whether the kernel kills this process when the client closes its end of the socket."""
    if sys.platform == "linux":
        fcntl.fcntl(number, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(number, fcntl.F_SETOWN, os.getpid())
        flags = fcntl.fcntl(number, fcntl.F_GETFL)
        fcntl.fcntl(number, fcntl.F_SETFL, flags | os.O_ASYNC if is_enabled else flags & ~os.O_ASYNC)


def _read_all(number: int) -> bytes:
    """Return the content of a frame, which follows 8 bytes of little-endian length."""
    data = bytearray()
    while len(data) < 8 or len(data) < 8 + int.from_bytes(data[:8], "little"):
        if len(data) >= 8 and int.from_bytes(data[:8], "little") > MAX_JOB_BYTES:
            raise ValueError("the job is larger than MAX_JOB_BYTES")
        chunk = os.read(number, _READ_BYTES)
        if not chunk:
            os._exit(0)
        data += chunk
    return bytes(memoryview(data)[8:])


def main() -> None:
    die_with_parent()
    set_process_name("hearth-docs")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps exited children
    os.nice(_NICENESS)
    sys.setrecursionlimit(4_000)
    for reader in READERS:
        importlib.import_module(f"documents.{reader}")
    for encoding in ENCODINGS:
        codecs.lookup(encoding)
    gc.collect()
    gc.freeze()
    with contextlib.suppress(ConnectionError):
        _serve()


if __name__ == "__main__":
    main()
