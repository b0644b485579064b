"""Sandbox for processes that parse untrusted files: no new files, no network, no new programs.

Two layers: resource limits (no new file descriptors, bounded memory and CPU time) and, on Linux on x86-64 and ARM64, a
seccomp filter that allows only system calls for memory, time and already open files. Other platforms have only the
resource limits.
"""

from __future__ import annotations

import ctypes
import platform
import resource
import signal
import struct
import sys
from pathlib import Path

_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 4, 22, 38
_SECCOMP_MODE_FILTER = 2
# BPF opcodes: load a word, compare with a constant, return a constant
_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _REJECT, _KILL = 0x7FFF0000, 0x00050001, 0x80000000  # rejected calls fail with EPERM
_CALL_NUMBER_OFFSET, _ARCHITECTURE_OFFSET = 0, 4  # offsets in struct seccomp_data
_X32 = 0x40000000  # flag of x32 calls, which share the x86-64 architecture value

# read, write, close, fstat, lseek, mmap, mprotect, munmap, brk, rt_sigaction, rt_sigprocmask, rt_sigreturn, readv,
# writev, sched_yield, mremap, madvise, nanosleep, getitimer, alarm, setitimer, getpid, exit, fcntl, getuid,
# sigaltstack, gettid, futex, clock_gettime, clock_nanosleep, exit_group, getrandom, sched_getaffinity, sysinfo
_ALLOWED_CALLS = {
    "x86_64": (0xC000003E, (
        0, 1, 3, 5, 8, 9, 10, 11, 12, 13, 14, 15, 19, 20, 24, 25, 28, 35, 36, 37, 38, 39, 60, 72, 102, 131, 186, 202,
        228, 230, 231, 318, 204, 99,
    )),
    "aarch64": (0xC00000B7, (
        63, 64, 57, 80, 62, 222, 226, 215, 214, 134, 135, 139, 65, 66, 124, 216, 233, 101, 102, 103, 172, 93, 25, 174,
        132, 178, 98, 113, 115, 94, 278, 123, 179,
    )),
}  # fmt: skip


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def enter(memory_bytes: int, processor_s: int) -> bool:
    """Enter the sandbox with `memory_bytes` of additional memory and `processor_s` seconds of CPU time.

    Return True if the seccomp filter is active too. The sandbox cannot be left.
    """
    resource.setrlimit(resource.RLIMIT_AS, (_mapped_bytes() + memory_bytes,) * 2)
    spent_s = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    resource.setrlimit(resource.RLIMIT_CPU, (int(spent_s) + processor_s + 1,) * 2)
    signal.alarm(clock_s(processor_s))
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE):
        resource.setrlimit(limit, (0, 0))
    return sys.platform == "linux" and _filter_calls()


def clock_s(processor_s: int) -> int:
    """Return the wall-clock limit in seconds for a limit of CPU seconds, with room for a busy machine."""
    return 3 * processor_s + 5


def _mapped_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return 1 << 30


def _filter_calls() -> bool:
    known = _ALLOWED_CALLS.get(platform.machine())
    if known is None:
        return False
    architecture, calls = known
    libc = ctypes.CDLL(None, use_errno=True)
    code = _program(architecture, calls)
    program = _Program(len(code) // 8, code)
    zero, one = ctypes.c_ulong(0), ctypes.c_ulong(1)
    libc.prctl(_PR_SET_DUMPABLE, zero, zero, zero, zero)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, one, zero, zero, zero) != 0:
        return False
    mode = ctypes.c_ulong(_SECCOMP_MODE_FILTER)
    return bool(libc.prctl(_PR_SET_SECCOMP, mode, ctypes.byref(program), zero, zero) == 0)


def _program(architecture: int, calls: tuple[int, ...]) -> bytes:
    """Return the BPF program: 8 bytes per instruction (operation, jump if true, jump if false, constant)."""
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE_OFFSET),
        (_JUMP_IF_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _CALL_NUMBER_OFFSET),
        (_JUMP_IF_AT_LEAST, len(calls), 0, _X32),
    ]
    steps += [(_JUMP_IF_EQUAL, len(calls) - i, 0, number) for i, number in enumerate(calls)]
    steps += [(_RETURN, 0, 0, _REJECT), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)
