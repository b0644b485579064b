"""How families of models write the calls of tools: marks, separators, and the name of the arguments' field. A table.

In all of them a call is a JSON object, `{"name": …, "arguments": …}`; what stands around it differs. `parser.py` reads
by this table and `grammar.py` holds models to it. Knows no tokens.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """One way to write calls: `opening head call (between call)* tail`.

    `next_mark` after a call says that another follows, `end_mark` that none does; text may follow both. `is_bare`: an
    answer may begin with a call without the opening. `takes_short_ids`: templates of this family insist on ids of nine
    letters and digits.
    """

    name: str
    opening: str
    head: str
    between: str
    tail: str
    arguments_field: str
    next_mark: str = ""
    end_mark: str = ""
    is_bare: bool = False
    takes_short_ids: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """What may be control tokens of the model."""
        return tuple(mark for mark in (self.opening, self.end_mark) if len(mark) > 1)


HERMES = Family(
    name="hermes",  # Hermes, Qwen 2.5 and 3, and our own
    opening="<tool_call>",
    head="\n",
    between="\n</tool_call>\n<tool_call>\n",
    tail="\n</tool_call>",
    arguments_field="arguments",
    end_mark="</tool_call>",
)
MISTRAL = Family(
    name="mistral",
    opening="[TOOL_CALLS]",
    head="[",
    between=", ",
    tail="]",
    arguments_field="arguments",
    next_mark=",",
    end_mark="]",
    takes_short_ids=True,
)
LLAMA3_JSON = Family(
    name="llama3_json",  # Llama 3.1 to 3.3
    opening="<|python_tag|>",
    head="",
    between="; ",
    tail="",
    arguments_field="parameters",
    next_mark=";",
    is_bare=True,
)
FAMILIES = {family.name: family for family in (HERMES, MISTRAL, LLAMA3_JSON)}
