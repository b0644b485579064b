"""The constrained sequences of one engine: compiles what each is held to, and gives every step its masks.

Compiling happens in a thread of its own, so that a new grammar costs the running sequences no step; but for what it
takes of the interpreter for a small schema, a fraction of a millisecond. A sequence joins when its matcher is ready.
What compiled is kept, per namespace, and copied for the next sequence. Rows draw first and ask for a mask only if what
they drew is refused; large masks are filled beside the forward pass, for all rows. A matcher that fails takes its own
sequence with it and no other. Knows no text and no logits.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import llguidance
import numpy as np
from numpy.typing import NDArray

from engine.arrays import Ints, ceil_div
from engine.protocol.tasks import Constraint
from engine.structured.closing import Closing
from engine.structured.compile import ConstraintRefused, grammar_for, matcher_of
from engine.structured.hold import REFUSED, Hold
from engine.structured.token_view import TokenView, read_token_view

logger = logging.getLogger(__name__)

_MAX_COMPILED = 64
_MANY_BITS = 1 << 20  # masks of as much in one step are filled by a thread, beside the forward pass
_SMALL_SCHEMA = 4096  # characters
_STEPS_INLINE = 256  # steps without that thread, once it was late: this machine's cores are busy

Masks = NDArray[np.uint8]

_Begun = tuple[str, Closing]  # a grammar, and what is known of closing its texts without a matcher

_NO_MASKS: Masks = np.empty((0, 0), dtype=np.uint8)


@dataclass(frozen=True, eq=False)
class _Compiled:
    """A matcher that no sequence uses, before its first token, and what is known of closing its texts."""

    matcher: llguidance.LLMatcher
    closing: Closing
    view: TokenView

    def hold(self) -> Hold:
        """For one more sequence."""
        return Hold(self.matcher.deep_copy(), self.closing, self.view)


@dataclass(frozen=True, eq=False)
class _Held:
    """The C constrained ones among K rows, the same from step to step until one comes or goes. Not to be changed."""

    rows: list[int]
    holds: list[Hold]
    unending: list[int]


_NOBODY = _Held([], [], [])


class ConstrainedRows:
    """The constrained ones among the K rows that sample in one step: C of them draw, the others get what their
    constraint forces. What a row draws is offered to its matcher; where that refuses, the row draws again, under a
    mask. A row that failed may draw anything. `unending`: the rows that draw and whose texts end themselves, so that
    none of `end_ids` is ever allowed."""

    def __init__(self, held: _Held, remaining: Ints, view: TokenView) -> None:
        """`remaining`: of all K rows. `has_forced` and `has_ended` are known when the rows are settled."""
        self.has_forced = False
        self.has_ended = False
        self.was_late = False
        self.rows = held.rows
        self.unending = held.unending
        self.end_ids = view.eos_token_ids
        self._holds = held.holds
        self._forced: list[tuple[int, Hold]] = []
        self._remaining: list[int] = remaining.tolist()
        self._view = view
        self._filling: Future[Masks] | None = None
        self._masks: Masks | None = None  # of all rows, filled beside the forward pass
        self._refused: list[int] = []  # indices of rows
        self._closed: list[int] = []  # indices of rows
        is_forced = False
        for index, hold in enumerate(held.holds):
            if hold.is_quick:
                continue
            if not hold.is_prepared:
                _prepare(hold, self._remaining[held.rows[index]])
            if hold.forced:
                is_forced = True
            elif not hold.is_open:
                self._closed.append(index)
        if is_forced:
            self._set_aside()

    def _set_aside(self) -> None:
        """The rows for which something is forced: the others draw."""
        held = list(zip(self.rows, self._holds, strict=True))
        self._forced = [(row, hold) for row, hold in held if hold.forced]
        self.rows = [row for row, hold in held if not hold.forced]
        self._holds = [hold for hold in self._holds if not hold.forced]
        closed = {held[index][0] for index in self._closed}
        self._closed = [index for index, row in enumerate(self.rows) if row in closed]

    def fill_beside(self, filler: ThreadPoolExecutor) -> None:
        """Have the masks of all rows filled by a thread."""
        self._filling = filler.submit(self._fill, list(range(len(self.rows))))

    def allowed(self, is_filtered: NDArray[np.bool_]) -> tuple[list[int], Masks]:
        """Which rows have to draw under a mask at once, R of them, and their masks [R, bytes]: bits at least the
        vocabulary, the lowest first. `is_filtered` [K]: whose draw looks at other tokens than the one drawn."""
        if self._filling is not None:
            self._wait(self._filling)
        chosen = self._closed
        if np.count_nonzero(is_filtered):
            filtered: list[bool] = is_filtered.tolist()
            chosen = [index for index, row in enumerate(self.rows) if filtered[row] or index in self._closed]
        if not chosen:
            return [], _NO_MASKS
        return [self.rows[index] for index in chosen], self._masks_of(chosen)

    def settle(self, token_ids: Ints, is_failed: NDArray[np.bool_]) -> list[int]:
        """Tell the matchers what the K rows drew, write over in `token_ids` what must not stand, and mark in
        `is_failed` whose matcher failed. Returns the rows that have to draw again, and be settled again."""
        for row, hold in self._forced:
            token_ids[row] = hold.forced[0]
            hold.spend(1)
            self._note(hold)
        self._offer(range(len(self.rows)), token_ids, is_failed)
        return [self.rows[index] for index in self._refused]

    def allowed_again(self) -> Masks:
        """[R, bytes], for the rows that have to draw again."""
        return self._masks_of(self._refused)

    def settle_again(self, token_ids: Ints, is_failed: NDArray[np.bool_]) -> None:
        """The same for what they drew under their masks."""
        self._offer(self._refused, token_ids, is_failed)
        for index in self._refused:  # its mask allowed what it does not take: it is at one of its limits
            self._holds[index].is_failed = is_failed[self.rows[index]] = True

    def _offer(self, indices: Iterable[int], token_ids: Ints, is_failed: NDArray[np.bool_]) -> None:
        """To the matchers of these rows; those that refuse are noted in `_refused`."""
        drawn: list[int] = token_ids.tolist()
        failed: list[bool] | None = is_failed.tolist() if np.count_nonzero(is_failed) else None
        rows, holds, plain = self.rows, self._holds, self._view.plain
        refused = []
        for index in indices:
            row, hold = rows[index], holds[index]
            token_id = drawn[row]
            if hold.is_quick and plain[token_id] and failed is None:
                hold.note(token_id)
                hold.slack -= 1
                if not hold.slack:
                    hold.is_quick = False
                continue
            if hold.is_failed or (failed is not None and failed[row]):
                is_failed[row] = True
                continue
            try:
                taken = hold.take(token_id, self._remaining[row])
            except Exception as error:
                _fail(hold, error)
                taken = token_id
            if taken == REFUSED:
                refused.append(index)
            elif taken != token_id:
                token_ids[row] = taken
            if hold.is_failed:
                is_failed[row] = True
            elif hold.forced or hold.is_over:
                self._note(hold)
        self._refused = refused

    def _note(self, hold: Hold) -> None:
        if hold.forced:
            self.has_forced = True
        if hold.is_over:
            self.has_ended = True

    def _wait(self, filling: Future[Masks]) -> None:
        """For the masks that a thread fills."""
        self.was_late = not filling.done()
        if not filling.cancel():
            self._masks = filling.result()

    def _masks_of(self, indices: list[int]) -> Masks:
        return self._masks[indices] if self._masks is not None else self._fill(indices)

    def _fill(self, indices: list[int]) -> Masks:
        num_bytes = ceil_div(self._view.num_tokens, 32) * 4
        masks = np.empty((len(indices), num_bytes), dtype=np.uint8)
        address: int = masks.__array_interface__["data"][0]
        for place, index in enumerate(indices):
            hold = self._holds[index]
            try:
                hold.matcher.unsafe_compute_mask_ptr(address + place * num_bytes, num_bytes)
                hold.is_failed = hold.is_failed or hold.matcher.is_error() or not np.count_nonzero(masks[place])
            except Exception as error:
                _fail(hold, error)
            if hold.is_failed:
                masks[place], hold.is_quick = 255, False
        return masks


class Matchers:
    """Belongs to one engine and is called by its thread only. `model_dir` is read when first needed, or by `warm`."""

    def __init__(self, model_dir: Path, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self._arguments = (model_dir, vocab_size, eos_token_ids)
        self._view: Future[TokenView] | None = None
        self._compiled: OrderedDict[bytes, _Compiled] = OrderedDict()
        self._compiling: dict[bytes, Future[_Compiled]] = {}
        self._preparing: dict[int, bytes] = {}  # sequence id -> what it waits for
        self._holds: dict[int, Hold] = {}
        self._keys: dict[int, bytes] = {}
        self._latest: ConstrainedRows | None = None
        self._num_inline = 0
        self._batch: list[int] = []  # the sequences of the latest step
        self._held_in_batch = _NOBODY

    @cached_property
    def _compiler(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, thread_name_prefix="compile")

    @cached_property
    def _filler(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, thread_name_prefix="masks")

    @property
    def is_preparing(self) -> bool:
        """Whether some sequence waits for its matcher."""
        return bool(self._preparing)

    @property
    def num_held(self) -> int:
        """Sequences that have a matcher."""
        return len(self._holds)

    @property
    def has_forced(self) -> bool:
        """Whether something is forced after what the latest rows drew."""
        return self._latest is not None and self._latest.has_forced

    @property
    def has_ended(self) -> bool:
        """Whether one of the latest rows has said all there is to say."""
        return self._latest is not None and self._latest.has_ended

    @property
    def is_warm(self) -> bool:
        """Whether `warm` has begun."""
        return self._view is not None

    def find(self, sequence_id: int) -> Hold | None:
        return self._holds.get(sequence_id)

    def warm(self) -> Future[TokenView]:
        """Begin to read the tokenizer, in the background. Errors show when a constraint comes."""
        if self._view is None:
            self._view = self._compiler.submit(read_token_view, *self._arguments)
        return self._view

    def prepare(self, sequence_id: int, constraint: Constraint, namespace: bytes) -> None:
        """Have a matcher made for a sequence; `take_ready` tells when."""
        text = f"{constraint.kind}\0{constraint.text}".encode(errors="surrogatepass")
        key = namespace + hashlib.sha256(text).digest()
        self._preparing[sequence_id] = key
        if key not in self._compiled and key not in self._compiling:
            self.warm()
            self._compiling[key] = self._compiler.submit(self._compile, constraint, self._begin(constraint))

    def take_ready(self, timeout_s: float = 0.0) -> list[tuple[int, bool]]:
        """Sequences whose wait is over, and whether they have a matcher: the others cannot be served. Waits up to
        `timeout_s` for the first."""
        if timeout_s and not any(key in self._compiled for key in self._preparing.values()):
            wait(self._compiling.values(), timeout_s, return_when="FIRST_COMPLETED")
        for key in [key for key, future in self._compiling.items() if future.done()]:
            self._keep(key, self._compiling.pop(key))
        ready = [(id_, key) for id_, key in self._preparing.items() if key not in self._compiling]
        for sequence_id, key in ready:
            del self._preparing[sequence_id]
            compiled = self._compiled.get(key)
            if compiled is not None:
                self._compiled.move_to_end(key)
                self._holds[sequence_id] = compiled.hold()
                self._batch = []
                self._keys[sequence_id] = key
        while len(self._compiled) > _MAX_COMPILED:
            self._compiled.popitem(last=False)
        return [(sequence_id, sequence_id in self._holds) for sequence_id, _ in ready]

    def forget(self, sequence_id: int) -> None:
        """It ended, wherever it was. One that failed takes what it was copied from along: the next compiles anew."""
        self._preparing.pop(sequence_id, None)
        hold, key = self._holds.pop(sequence_id, None), self._keys.pop(sequence_id, b"")
        if hold is not None:
            self._batch, self._held_in_batch = [], _NOBODY
        if hold is not None and hold.is_failed:
            self._compiled.pop(key, None)

    def begin(self, sequence_ids: NDArray[np.int64], remaining: Ints) -> ConstrainedRows | None:
        """The constrained rows among K that will sample, each of which may draw `remaining` [K] more tokens; None if
        there are none. Their masks are begun."""
        latest, self._latest = self._latest, None
        if not self._holds:
            return None
        held = self._held(sequence_ids.tolist())
        if not held.rows:
            return None
        assert self._view is not None
        view = self._view.result()
        if latest is not None and latest.was_late:
            self._num_inline = _STEPS_INLINE
        self._latest = rows = ConstrainedRows(held, remaining, view)
        if len(rows.rows) * view.num_tokens >= _MANY_BITS and self._num_inline == 0:
            rows.fill_beside(self._filler)
        self._num_inline = max(0, self._num_inline - 1)
        return rows

    def _held(self, sequence_ids: list[int]) -> _Held:
        """The constrained ones among K rows, and whose they are; the same lists as for the step before if they are."""
        if sequence_ids != self._batch:
            self._batch = sequence_ids
            found = [(row, hold) for row, id_ in enumerate(sequence_ids) if (hold := self._holds.get(id_)) is not None]
            self._held_in_batch = _Held(
                [row for row, _ in found],
                [hold for _, hold in found],
                [row for row, hold in found if hold.ends_itself],
            )
        return self._held_in_batch

    def _begin(self, constraint: Constraint) -> _Begun | None:
        """What compiling a small schema takes of the interpreter, done at once: a thread would take its lock from the
        step for as long, and for handing it over. None where it is left to the thread."""
        if constraint.kind != "json_schema" or len(constraint.text) > _SMALL_SCHEMA:
            return None
        if self._view is None or not self._view.done():
            return None
        try:
            return _begin(constraint, self._view.result())
        except Exception:
            return None  # the thread comes to the same, and says so

    def _compile(self, constraint: Constraint, begun: _Begun | None) -> _Compiled:
        assert self._view is not None
        view = self._view.result()
        grammar, closing = begun or _begin(constraint, view)
        closing.matcher = matcher = matcher_of(constraint, grammar, view)
        if closing.bound is None:
            _ = closing.first, closing.largest_step  # every sequence asks for them, and this thread has the time
        return _Compiled(matcher, closing, view)

    def _keep(self, key: bytes, future: Future[_Compiled]) -> None:
        try:
            self._compiled[key] = future.result()
        except ConstraintRefused:
            logger.warning("a constraint came that does not compile")
        except Exception as error:
            logger.exception("a constraint could not be compiled: %s", type(error).__name__)


def _begin(constraint: Constraint, view: TokenView) -> _Begun:
    return grammar_for(constraint, view), Closing(constraint, None, view)


def _prepare(hold: Hold, remaining: int) -> None:
    try:
        hold.prepare(remaining)
    except Exception as error:
        _fail(hold, error)


def _fail(hold: Hold, error: Exception) -> None:
    logger.error("a matcher failed: %s", type(error).__name__)
    hold.is_failed, hold.is_quick = True, False
