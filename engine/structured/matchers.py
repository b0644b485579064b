"""The grammar matchers of one engine: compiles constraints, and provides the constrained rows of each step.

Compilation runs in a thread, so a new grammar delays no running sequence; the sequence starts when its matcher is
ready. Compiled grammars are cached per namespace and copied for each sequence. A matcher that fails ends its own
sequence only. Knows no text and no logits.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import llguidance
import numpy as np
from numpy.typing import NDArray

from engine.protocol.output_format import Constraint
from engine.structured.compile import cache_key, compile_matcher
from engine.structured.constrained_rows import ConstrainedRows
from engine.structured.grammar_matcher import GrammarMatcher
from engine.structured.refusal import ConstraintRefused
from engine.structured.vocabulary import Vocabulary, read_vocabulary

logger = logging.getLogger(__name__)

_MAX_COMPILED = 64
_PREFETCH_BITS = 1 << 20  # a step whose masks are at least this large computes them beside the forward pass


@dataclass(frozen=True, eq=False)
class _CompiledGrammar:
    """A matcher before its first token, to be copied for each sequence."""

    matcher: llguidance.LLMatcher
    vocabulary: Vocabulary
    closes_json: bool

    def new_matcher(self) -> GrammarMatcher:
        return GrammarMatcher(self.matcher.deep_copy(), self.vocabulary, closes_json=self.closes_json)


class GrammarMatchers:
    """Belongs to one engine and is called by its thread only. Reads `model_dir` when first needed, or by `warm_up`."""

    def __init__(self, model_dir: Path, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self._arguments = (model_dir, vocab_size, eos_token_ids)
        self._vocabulary: Future[Vocabulary] | None = None
        self._compiled: OrderedDict[bytes, _CompiledGrammar] = OrderedDict()
        self._compiling: dict[bytes, Future[_CompiledGrammar]] = {}
        self._waiting: dict[int, bytes] = {}  # cache keys of the grammars that sequences wait for, by sequence id
        self._matchers: dict[int, GrammarMatcher] = {}
        self._keys: dict[int, bytes] = {}
        self._latest: ConstrainedRows | None = None

    @cached_property
    def _compiler(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, thread_name_prefix="compile")

    @cached_property
    def _mask_executor(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, thread_name_prefix="masks")

    @property
    def is_compiling(self) -> bool:
        """True if a sequence waits for its matcher."""
        return bool(self._waiting)

    @property
    def num_matchers(self) -> int:
        return len(self._matchers)

    @property
    def num_compiled(self) -> int:
        """Number of cached grammars."""
        return len(self._compiled)

    @property
    def has_jump_forward(self) -> bool:
        """True if a row of the latest step has jump-forward tokens."""
        return self._latest is not None and self._latest.has_jump_forward

    @property
    def has_completed(self) -> bool:
        """True if the text of a row of the latest step is complete."""
        return self._latest is not None and self._latest.has_completed

    @property
    def is_warm(self) -> bool:
        """True once `warm_up` was called."""
        return self._vocabulary is not None

    def find(self, sequence_id: int) -> GrammarMatcher | None:
        return self._matchers.get(sequence_id)

    def warm_up(self) -> Future[Vocabulary]:
        """Start reading the vocabulary in the background. Errors surface with the first constraint."""
        if self._vocabulary is None:
            self._vocabulary = self._compiler.submit(read_vocabulary, *self._arguments)
        return self._vocabulary

    def submit(self, sequence_id: int, constraint: Constraint, namespace: bytes) -> None:
        """Start compiling the matcher of a sequence; `take_ready` returns the sequence when it is done."""
        key = cache_key(constraint, namespace)
        self._waiting[sequence_id] = key
        if key not in self._compiled and key not in self._compiling:
            self.warm_up()
            self._compiling[key] = self._compiler.submit(self._compile, constraint)

    def take_ready(self, timeout_s: float = 0.0) -> list[tuple[int, bool]]:
        """Return the sequences whose compilation has ended, with True if they have a matcher and False if the
        constraint did not compile. Waits up to `timeout_s` for the first."""
        if timeout_s and not any(key in self._compiled for key in self._waiting.values()):
            wait(self._compiling.values(), timeout_s, return_when="FIRST_COMPLETED")
        for key in [key for key, future in self._compiling.items() if future.done()]:
            self._store(key, self._compiling.pop(key))
        ready = [(id_, key) for id_, key in self._waiting.items() if key not in self._compiling]
        for sequence_id, key in ready:
            del self._waiting[sequence_id]
            compiled = self._compiled.get(key)
            if compiled is not None:
                self._compiled.move_to_end(key)
                self._matchers[sequence_id] = compiled.new_matcher()
                self._keys[sequence_id] = key
        while len(self._compiled) > _MAX_COMPILED:
            self._compiled.popitem(last=False)
        return [(sequence_id, sequence_id in self._matchers) for sequence_id, _ in ready]

    def release(self, sequence_id: int) -> None:
        """Drop the matcher of a sequence that has ended. The grammar of a failed matcher is compiled anew next time."""
        self._waiting.pop(sequence_id, None)
        matcher, key = self._matchers.pop(sequence_id, None), self._keys.pop(sequence_id, b"")
        if matcher is not None and matcher.is_failed:
            self._compiled.pop(key, None)

    def begin(self, sequence_ids: NDArray[np.int64], remaining: NDArray[np.int32]) -> ConstrainedRows | None:
        """Return the constrained rows among the K rows that sample in this step; None if there are none. `remaining`
        [K]: tokens left before each row's limit."""
        self._latest = None
        if not self._matchers:
            return None
        ids: list[int] = sequence_ids.tolist()
        found = [(row, matcher) for row, id_ in enumerate(ids) if (matcher := self._matchers.get(id_)) is not None]
        if not found:
            return None
        assert self._vocabulary is not None
        num_tokens = self._vocabulary.result().num_tokens
        self._latest = rows = ConstrainedRows(found, remaining, num_tokens)
        if rows.num_sampling * num_tokens >= _PREFETCH_BITS:
            rows.prefetch_masks(self._mask_executor)
        return rows

    def _compile(self, constraint: Constraint) -> _CompiledGrammar:
        assert self._vocabulary is not None
        vocabulary = self._vocabulary.result()
        closes_json = constraint.kind in ("json_schema", "json_object")
        return _CompiledGrammar(compile_matcher(constraint, vocabulary), vocabulary, closes_json)

    def _store(self, key: bytes, future: Future[_CompiledGrammar]) -> None:
        try:
            self._compiled[key] = future.result()
        except ConstraintRefused:
            logger.warning("constraint does not compile")
        except Exception as error:
            logger.exception("constraint could not be compiled: %s", type(error).__name__)
