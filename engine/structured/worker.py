"""The process that compiles what callers bring, one short-lived child for each constraint: `python -m` this module.

Frames come on standard input and verdicts leave on standard output (4 bytes little-endian length, then MessagePack).
The process itself only reads the tokenizer, forks, and watches: each child has a wall clock and a memory cap of its
own, so a hostile schema costs a second or two of one core and nobody else's time. Ends with its input.
"""

from __future__ import annotations

import gc
import os
import random
import re
import resource
import select
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from engine.processes.frames import FrameReader, framed
from engine.protocol.output_format import Constraint
from engine.structured.closing import find_close
from engine.structured.compile import (
    ConstraintRefused,
    compile_matcher,
    complaint_of,
    name_of,
    num_endings_of,
    patterns_of,
    words_of,
)
from engine.structured.token_view import TokenView, read_token_view

TIMEOUT_S = 2.0
MEMORY_BYTES = 256 * 1024 * 1024
MAX_CHILDREN = 4

_MAX_CHOICES = 5_000  # in looking for one text that matches: more would not fit a context either
_MAX_PATTERNS = 128  # of a schema, whose texts are followed
_MAX_STEPS = 32  # for each of them
_ALL_STEPS = 2048  # together: half a second
_REPEATED_PART = re.compile(r"(?<!\\)(\{\d|\)[*+])")
_SEED = 7
_READ_BYTES = 1 << 16


class Check(Struct, frozen=True, array_like=True):
    """What the front asks. `check_id` comes back."""

    check_id: int
    constraint: Constraint


class Verdict(Struct, frozen=True, array_like=True):
    """`refusal` is empty for a constraint that sequences can be held to."""

    check_id: int
    refusal: str = ""
    is_timeout: bool = False


@dataclass(eq=False)
class _Child:
    check: Check
    pid: int
    pipe: int  # where its refusal comes from, closed when it ends
    deadline: float
    said: bytes = b""


_check_decoder = msgspec.msgpack.Decoder(Check)


def encode_frame(message: Check | Verdict) -> bytes:
    return framed(msgspec.msgpack.encode(message))


def judge(constraint: Constraint, view: TokenView) -> str:
    """Compile, and look for one text that matches: "" if there is one, and texts can be followed for a while; else what
    to tell the caller."""
    try:
        matcher = compile_matcher(constraint, view)
    except ConstraintRefused as refusal:
        return str(refusal)
    endings = num_endings_of(constraint)
    if find_close(matcher, view, words_of(constraint), _MAX_CHOICES, num_endings=endings) is None:
        none_found = f"{name_of(constraint)} cannot be used: no text short enough to generate matches it"
        return complaint_of(constraint, matcher) or none_found
    patterns = sorted(patterns_of(constraint), key=lambda pattern: not _has_repeated_part(pattern))
    if len(patterns) > _MAX_PATTERNS and _has_repeated_part(patterns[_MAX_PATTERNS]):
        return f"{name_of(constraint)} has more than {_MAX_PATTERNS} different patterns with counted or repeated parts"
    steps = min(_MAX_STEPS, _ALL_STEPS // max(1, min(len(patterns), _MAX_PATTERNS)))
    if not all(_can_be_followed(pattern, view, steps) for pattern in patterns[:_MAX_PATTERNS]):
        return (
            f"{name_of(constraint)} cannot be used: a pattern's texts can be read in too many ways to follow them "
            "(counted parts within counted parts, as in ([a-z]{1,99}){1,99}, can: give one count)"
        )
    return ""


def _has_repeated_part(pattern: Constraint) -> bool:
    """Whether its texts may be read in many ways."""
    return _REPEATED_PART.search(pattern.text) is not None


def _can_be_followed(pattern: Constraint, view: TokenView, num_steps: int) -> bool:
    """Whether the parser stays within its limits for so many tokens, any that it allows."""
    try:
        matcher = compile_matcher(pattern, view)
    except ConstraintRefused:
        return True  # as a part of its schema it was not
    dice = random.Random(_SEED)  # noqa: S311  # the same walk every time
    for _ in range(num_steps):
        mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        if matcher.is_error():
            return False
        bits = np.unpackbits(mask, bitorder="little")
        bits[list(view.eos_token_ids)] = 0
        allowed = np.flatnonzero(bits)
        if not len(allowed):
            break
        some = dice.choices(allowed.tolist(), k=4)
        longest = max(some, key=lambda token_id: len(view.tokenizer.decode_bytes([token_id])))
        if not matcher.try_consume_tokens([longest]):
            break
    return not matcher.is_error()


class _Nursery:
    """The children at work and the checks that wait for one."""

    def __init__(self, view: TokenView) -> None:
        self._view = view
        self._waiting: list[Check] = []
        self._children: dict[int, _Child] = {}  # by pipe

    def serve(self) -> None:
        reader = FrameReader()
        while True:
            while self._waiting and len(self._children) < MAX_CHILDREN:
                self._bear(self._waiting.pop(0))
            ready, _, _ = select.select([0, *self._children], [], [], self._patience_s())
            if 0 in ready:
                data = os.read(0, _READ_BYTES)
                if not data:
                    return
                self._waiting += [_check_decoder.decode(payload) for payload in reader.feed(data)]
            for pipe in ready:
                if pipe in self._children:
                    self._hear(self._children[pipe])
            now = time.monotonic()
            for child in [child for child in self._children.values() if child.deadline <= now]:
                self._bury(child, is_timeout=True)

    def _patience_s(self) -> float | None:
        deadlines = [child.deadline for child in self._children.values()]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _bear(self, check: Check) -> None:
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(ours)
            _work(check.constraint, self._view, theirs)
        os.close(theirs)
        self._children[ours] = _Child(check, pid, ours, time.monotonic() + TIMEOUT_S)

    def _hear(self, child: _Child) -> None:
        data = os.read(child.pipe, _READ_BYTES)
        child.said += data
        if not data:
            self._bury(child)

    def _bury(self, child: _Child, *, is_timeout: bool = False) -> None:
        del self._children[child.pipe]
        os.close(child.pipe)
        os.kill(child.pid, signal.SIGKILL)  # it may have ended: then it is a zombie still, and the id is its own
        _, status = os.waitpid(child.pid, 0)
        name, check_id = name_of(child.check.constraint), child.check.check_id
        if is_timeout:
            verdict = Verdict(check_id, f"{name} took longer than {TIMEOUT_S:g} s to compile", is_timeout=True)
        elif child.said[:1] == b"+" or child.said[:1] == b"-":
            verdict = Verdict(check_id, child.said[1:].decode(errors="replace"))
        else:
            how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"code {os.WEXITSTATUS(status)}"
            print(f"a check ended by {how}", file=sys.stderr)  # noqa: T201  # the process's log
            limit = MEMORY_BYTES >> 20
            verdict = Verdict(check_id, f"{name} is too complex to compile within {limit} MiB")
        os.write(1, encode_frame(verdict))


def _work(constraint: Constraint, view: TokenView, pipe: int) -> None:
    """A child's whole life."""
    code = 1
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        refusal = judge(constraint, view)
        os.write(pipe, (b"-" if refusal else b"+") + refusal.encode(errors="replace")[:4000])
        code = 0
    finally:
        os._exit(code)


def main(arguments: list[str]) -> None:
    """`arguments`: parent's process id, model folder, vocabulary size, end token ids."""
    from telemetry.child_process import die_with_parent

    parent_pid, folder, vocab_size, *eos_token_ids = arguments
    die_with_parent(int(parent_pid))
    view = read_token_view(Path(folder), int(vocab_size), tuple(map(int, eos_token_ids)))
    gc.collect()
    gc.freeze()
    _Nursery(view).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
