"""Base classes of the syntaxes in which model families write tool calls: `Family` (a syntax and its markers) and
`CallReader` (the parser of one call).

Each syntax is a subclass in its own file, which also writes the grammar rules for one call. `families.py` is the table
of families.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

NAME = r"[A-Za-z0-9_.:/-]{1,128}"  # a tool name, as validated by `engine/protocol/tools.py`

IdStyle = Literal["given", "short", "numbered"]
Tools = Collection[str]  # names, or a mapping from names to the schemas of arguments


class CallReader(ABC):
    """Incremental parser of one call of one of `tools`, from its first character.

    `text` is the text consumed so far. `is_rejected`: the text is not a call. `is_complete`: the call has ended.
    `is_name_sent`: `take_delta` has returned the name.
    """

    def __init__(self, tools: Tools) -> None:
        self.text = ""
        self.is_complete = False
        self.is_rejected = False
        self.is_name_sent = False
        self._tools = tools

    @abstractmethod
    def push(self, text: str) -> int:
        """Consume the characters that certainly belong to the call and return their number. The rest is pushed again
        with the text that follows. The result does not depend on how the text is split."""

    @abstractmethod
    def take_delta(self) -> tuple[str | None, str]:
        """Return the name, once it is known, and the next part of the arguments. Only if the text must be a call."""

    @abstractmethod
    def call(self) -> tuple[str, str] | None:
        """Return name and arguments of a complete call; None if the text is not a call."""


@dataclass(frozen=True)
class RuleWriter:
    """The means to write a family's grammar rules of a call. `literal` writes text as the grammar spells it, with
    control tokens where the model has them. `options` apply to every JSON schema."""

    literal: Callable[[str], str]
    controls: Mapping[str, int]
    options: Mapping[str, Any]

    @property
    def is_lenient(self) -> bool:
        """True if schema keywords that cannot be enforced are ignored."""
        return bool(self.options.get("lenient"))

    def json(self, schema: Mapping[str, Any]) -> str:
        """Return the rule for a JSON value that matches the schema."""
        return f"%json {quoted({**schema, 'x-guidance': self.options})}"


@dataclass(frozen=True, kw_only=True)
class Family(ABC):
    """A syntax of tool calls: `opening head call closing (between call closing)* tail`.

    - `has_free_line_between`: a new line may precede `between`.
    - `ignored_marks`: may follow a call any number of times.
    - `next_marks`: announce another call; `end_mark`: no call follows, text may follow.
    - `has_next_unmarked`: another call may follow without a mark.
    - `inner_marks`: may be control tokens, like `opening` and `end_mark`.
    - `bare_begin`: first character of a call without `opening`, if the output may begin with such a call.
    - `hints`: strings in chat templates of this family that do not render calls.
    - `id_style`: form of call ids in templates; `short`: nine letters and digits, `numbered`: `functions.NAME:N`.
    """

    name: str
    opening: str
    head: str = ""
    closing: str = ""
    between: str
    has_free_line_between: bool = False
    tail: str = ""
    ignored_marks: tuple[str, ...] = ()
    next_marks: tuple[str, ...] = ()
    has_next_unmarked: bool = False
    end_mark: str = ""
    inner_marks: tuple[str, ...] = ()
    bare_begin: str = ""
    hints: tuple[str, ...] = ()
    id_style: IdStyle = "given"

    @property
    def is_bare(self) -> bool:
        return bool(self.bare_begin)

    @property
    def marks(self) -> tuple[str, ...]:
        """Marks that may be control tokens of the model."""
        return tuple(mark for mark in (self.opening, *self.inner_marks, self.end_mark) if len(mark) > 1)

    @abstractmethod
    def reader(self, tools: Tools) -> CallReader:
        """Return the parser of one call of one of `tools`."""

    @abstractmethod
    def call_rules(self, index: int, name: str, schema: Mapping[str, Any], writer: RuleWriter) -> list[str]:
        """Return the Lark rules of `call_INDEX`: a call of the tool `name` whose arguments match `schema`. All rule
        names end in `_INDEX`. Raises UnsupportedSchema."""

    def begin_of(self, name: str) -> str:
        """Return the beginning of a call of `name` up to its arguments, to find a rendered call of a bare family."""
        return name


class UnsupportedSchema(Exception):
    """A tool's schema cannot be enforced in this family's syntax; the message says why."""


def quoted(value: Any) -> str:
    """Return `value` as JSON, which is also the spelling of a string in Lark."""
    return json.dumps(value, ensure_ascii=False)
