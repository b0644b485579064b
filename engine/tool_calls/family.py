"""One family's way to write calls of tools: what stands around them (`Family`), and who reads one (`CallReader`).

Each syntax is a subclass in a file of its own, which also writes the grammar's rules for one call; `families.py` is the
table of the families themselves. Knows no tokens but by the text of their marks.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

NAME = r"[A-Za-z0-9_.:/-]{1,128}"  # of a tool, as `engine/protocol/tools.py` admits it

ShownIds = Literal["given", "short", "numbered"]
Tools = Collection[str]  # names; a Mapping from them to the schemas of their arguments, where these are needed


class CallReader(ABC):
    """One call as it comes, from its first character; of one of `tools`.

    `text` is all that was taken. `is_none`: this is no call; `is_whole`: it is all there; `is_said`: its name was told.
    """

    def __init__(self, tools: Tools) -> None:
        self.text = ""
        self.is_whole = False
        self.is_none = False
        self.is_said = False
        self._tools = tools

    @abstractmethod
    def push(self, text: str) -> int:
        """Take the characters that belong to the call for certain, and return how many; the others are offered again
        with what follows. What is taken does not depend on how the text is split."""

    @abstractmethod
    def take_news(self) -> tuple[str | None, str]:
        """What is new of a call that must be one: its name once it is known, and the next part of its arguments."""

    @abstractmethod
    def call(self) -> tuple[str, str] | None:
        """Name and arguments of a whole call; None when it is none."""


@dataclass(frozen=True)
class RuleWriter:
    """What a family needs to write the rules of one call. `literal`: characters as the grammar spells them, with
    control tokens where they are some of the model's. `options` go into every JSON schema."""

    literal: Callable[[str], str]
    controls: Mapping[str, int]
    options: Mapping[str, Any]

    @property
    def is_lenient(self) -> bool:
        """Whether what cannot be held to is given up."""
        return bool(self.options.get("lenient"))

    def json(self, schema: Mapping[str, Any]) -> str:
        """A value by its schema."""
        return f"%json {quoted({**schema, 'x-guidance': self.options})}"


@dataclass(frozen=True, kw_only=True)
class Family(ABC):
    """One way to write calls: `opening head call closing (between call closing)* tail`. With `has_free_line_between`, a
    new line may stand in front of `between`.

    Behind a call, `skips` may stand in any number; one of `next_marks` says that another call follows, `end_mark` that
    none does; text may follow both. `has_next_unmarked`: another call may follow without a mark. `inner_marks` may be
    control tokens as `opening` and `end_mark` may. `bare_begin`: an answer may begin with a call without the opening,
    and this is its first character. `hints`: what a template may spell that shows no calls, but whose model writes
    them in this way. `shown_ids`: how templates of this family want ids of calls, `short` for nine letters and digits,
    `numbered` for `functions.NAME:NUMBER`.
    """

    name: str
    opening: str
    head: str = ""
    closing: str = ""
    between: str
    has_free_line_between: bool = False
    tail: str = ""
    skips: tuple[str, ...] = ()
    next_marks: tuple[str, ...] = ()
    has_next_unmarked: bool = False
    end_mark: str = ""
    inner_marks: tuple[str, ...] = ()
    bare_begin: str = ""
    hints: tuple[str, ...] = ()
    shown_ids: ShownIds = "given"

    @property
    def is_bare(self) -> bool:
        return bool(self.bare_begin)

    @property
    def marks(self) -> tuple[str, ...]:
        """What may be control tokens of the model."""
        return tuple(mark for mark in (self.opening, *self.inner_marks, self.end_mark) if len(mark) > 1)

    @abstractmethod
    def reader(self, tools: Tools) -> CallReader:
        """For one call of one of `tools`."""

    @abstractmethod
    def call_rules(self, index: int, name: str, schema: Mapping[str, Any], writer: RuleWriter) -> list[str]:
        """Lark rules for `call_INDEX`: a call of the tool `name` whose arguments meet `schema`. Their names end in
        `_INDEX`. Raises SchemaUnwritable."""

    def begin_of(self, name: str) -> str:
        """What a call of `name` begins with, up to where its arguments may differ; looked for in what a template shows
        of a bare family."""
        return name


class SchemaUnwritable(Exception):
    """A tool's schema asks for what cannot be held to in this family's syntax; the text says what."""


def schemas_of(tools: Tools) -> Mapping[str, Any]:
    """The schemas of arguments by the tool's name, as far as they are known."""
    return tools if isinstance(tools, Mapping) else {}


def quoted(value: Any) -> str:
    """JSON, which is also how Lark spells a string."""
    return json.dumps(value, ensure_ascii=False)
