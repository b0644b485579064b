"""The process that compiles constraints of callers, one short-lived child process per constraint.

Run with `python -m`. Reads CheckRequest frames from standard input and writes CheckResult frames to standard output
(4-byte little-endian length, then MessagePack). The process itself only reads the tokenizer, forks and supervises. Each
child has a time limit and a memory limit, so a hostile schema costs at most two seconds of one core. Exits when its
input is closed.
"""

from __future__ import annotations

import gc
import os
import random
import resource
import select
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec import Struct

from engine.processes.frames import FrameReader, framed
from engine.protocol.output_format import Constraint
from engine.structured.compile import compile_matcher, constraint_name, matcher_error
from engine.structured.refusal import ConstraintRefused
from engine.structured.vocabulary import Vocabulary, read_vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher

TIMEOUT_S = 2.0
MEMORY_BYTES = 256 * 1024 * 1024
MAX_CHILDREN = 4

_TRIAL_TOKENS = 64
_SEED = 7
_READ_BYTES = 1 << 16


class CheckRequest(Struct, frozen=True, array_like=True):
    """One constraint to check."""

    check_id: int
    constraint: Constraint


class CheckResult(Struct, frozen=True, array_like=True):
    """The result of the request with the same `check_id`. `refusal` is empty if the constraint can be enforced."""

    check_id: int
    refusal: str = ""
    is_timeout: bool = False


@dataclass(eq=False)
class _Child:
    request: CheckRequest
    pid: int
    pipe: int  # read end; the child closes the other end when it exits
    deadline: float
    output: bytes = b""


_request_decoder = msgspec.msgpack.Decoder(CheckRequest)


def encode_frame(message: CheckRequest | CheckResult) -> bytes:
    return framed(msgspec.msgpack.encode(message))


def refusal_of(constraint: Constraint, vocabulary: Vocabulary) -> str:
    """Compile the constraint and generate a random text from it. Returns why it cannot be used, or ""."""
    try:
        matcher = compile_matcher(constraint, vocabulary)
    except ConstraintRefused as refused:
        return str(refused)
    error = _generate_some(matcher, vocabulary)
    if matcher.is_error():
        return matcher_error(constraint, matcher)
    return f"{constraint_name(constraint)} cannot be used: {error}" if error else ""


def _generate_some(matcher: LLMatcher, vocabulary: Vocabulary) -> str:
    """Consume random allowed tokens; a pattern such as ([a-z]{1,99}){1,99} exceeds llguidance's limits within a few.

    Returns what is wrong with the constraint, or "". The matcher may be in an error state afterwards.
    """
    dice = random.Random(_SEED)  # noqa: S311  # not for secrets; the same tokens every time
    for _ in range(_TRIAL_TOKENS):
        forced = matcher.compute_ff_tokens()
        if forced and matcher.try_consume_tokens(forced):
            continue
        if matcher.is_stopped() or matcher.is_error():
            break
        mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        bits = np.unpackbits(mask, bitorder="little")
        bits[list(vocabulary.eos_token_ids)] = 0
        allowed = np.flatnonzero(bits)
        if matcher.is_error() or not len(allowed):
            return "" if matcher.is_accepting() else "no text matches it"
        candidates = dice.choices(allowed.tolist(), k=4)
        longest = max(candidates, key=lambda token_id: len(vocabulary.tokenizer.decode_bytes([token_id])))
        if not matcher.try_consume_tokens([longest]):
            break
    return ""


class _CheckServer:
    """Running children and waiting requests."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._waiting: list[CheckRequest] = []
        self._children: dict[int, _Child] = {}  # by pipe

    def serve(self) -> None:
        reader = FrameReader()
        while True:
            while self._waiting and len(self._children) < MAX_CHILDREN:
                self._start(self._waiting.pop(0))
            ready, _, _ = select.select([0, *self._children], [], [], self._seconds_to_deadline())
            if 0 in ready:
                data = os.read(0, _READ_BYTES)
                if not data:
                    return
                self._waiting += [_request_decoder.decode(payload) for payload in reader.feed(data)]
            for pipe in ready:
                if pipe in self._children:
                    self._read(self._children[pipe])
            now = time.monotonic()
            for child in [child for child in self._children.values() if child.deadline <= now]:
                self._finish(child, is_timeout=True)

    def _seconds_to_deadline(self) -> float | None:
        deadlines = [child.deadline for child in self._children.values()]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _start(self, request: CheckRequest) -> None:
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read_end)
            _run_child(request.constraint, self._vocabulary, write_end)
        os.close(write_end)
        self._children[read_end] = _Child(request, pid, read_end, time.monotonic() + TIMEOUT_S)

    def _read(self, child: _Child) -> None:
        data = os.read(child.pipe, _READ_BYTES)
        child.output += data
        if not data:
            self._finish(child)

    def _finish(self, child: _Child, *, is_timeout: bool = False) -> None:
        """End the child process and write its result."""
        del self._children[child.pipe]
        os.close(child.pipe)
        os.kill(child.pid, signal.SIGKILL)  # a child that has exited is still a zombie, so the pid is not reused
        _, status = os.waitpid(child.pid, 0)
        name, check_id = constraint_name(child.request.constraint), child.request.check_id
        if is_timeout:
            result = CheckResult(check_id, f"{name} took longer than {TIMEOUT_S:g} s to compile", is_timeout=True)
        elif child.output[:1] == b"+" or child.output[:1] == b"-":
            result = CheckResult(check_id, child.output[1:].decode(errors="replace"))
        else:
            exit_reason = (
                f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"code {os.WEXITSTATUS(status)}"
            )
            print(f"constraint check process ended with {exit_reason}", file=sys.stderr)  # noqa: T201  # the process's log
            limit = MEMORY_BYTES >> 20
            result = CheckResult(check_id, f"{name} is too complex to compile within {limit} MiB")
        os.write(1, encode_frame(result))


def _run_child(constraint: Constraint, vocabulary: Vocabulary, pipe: int) -> None:
    """Check one constraint, write "+" or "-" and the refusal to `pipe`, and exit."""
    code = 1
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        refusal = refusal_of(constraint, vocabulary)
        os.write(pipe, (b"-" if refusal else b"+") + refusal.encode(errors="replace")[:4000])
        code = 0
    finally:
        os._exit(code)


def main(arguments: list[str]) -> None:
    """`arguments`: parent's process id, model folder, vocabulary size, end token ids."""
    from telemetry.child_process import die_with_parent

    parent_pid, folder, vocab_size, *eos_token_ids = arguments
    die_with_parent(int(parent_pid))
    vocabulary = read_vocabulary(Path(folder), int(vocab_size), tuple(map(int, eos_token_ids)))
    gc.collect()
    gc.freeze()
    _CheckServer(vocabulary).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
