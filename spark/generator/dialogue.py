"""The dialogue type, and helpers shared by all kinds.

A kind is a function of a random source that returns one `Dialogue`. It draws its wording through `pick_phrasing`, which
keeps the last phrasing of each list out of training. Knows no particular kind, no tokens, no split.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]


@dataclass(frozen=True)
class Dialogue:
    """One training or test example. The last message is the assistant's and is compared by the gates."""

    kind: str
    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    is_new_phrasing: bool = False
    """The wording of the last question is one that training never shows."""
    can_join: bool = True
    """May follow or precede other dialogues in one conversation."""

    @property
    def prompt(self) -> list[Message]:
        return self.messages[:-1]

    @property
    def answer(self) -> str:
        return render_assistant(self.messages[-1])


class Source(random.Random):
    """The random source of one dialogue; `wants_new_phrasing` asks for the held-out wording where a kind has one."""

    wants_new_phrasing: bool = False
    used_new_phrasing: bool = False

    def pick_phrasing(self, phrasings: Sequence[str]) -> str:
        """One wording of a list whose last entry is held out of training."""
        if self.wants_new_phrasing:
            self.used_new_phrasing = True
            return phrasings[-1]
        return phrasings[self.randrange(len(phrasings) - 1)]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def recall(text: str, sought: str, statement: str, statements: Sequence[str]) -> Message:
    """Return an assistant message with its source: its part `sought` is in `statement`, the last of the earlier
    `statements` that contains these words.
    """
    return {**assistant(text), "recall": {"sought": sought, "statement": statement, "statements": list(statements)}}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def call(name: str, arguments: dict[str, Any]) -> Message:
    """An assistant message that calls one tool."""
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def ask(kind: str, source: Source, question: str, answer: str, can_join: bool = True) -> Dialogue:
    """The plain case: one question, one answer."""
    return Dialogue(kind, [user(question), assistant(answer)], [], source.used_new_phrasing, can_join)


def render_assistant(message: Message) -> str:
    """The text the model has to produce for an assistant message, without the end mark."""
    text = str(message.get("content") or "")
    for entry in message.get("tool_calls", []):
        function = entry["function"]
        arguments = json.dumps(function["arguments"], ensure_ascii=False)
        separator = "\n" if text else ""
        text += f'{separator}<tool_call>\n{{"name": "{function["name"]}", "arguments": {arguments}}}\n</tool_call>'
    return text


def join_words(words: Sequence[str]) -> str:
    """ "a, b and c"."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def sentence(text: str) -> str:
    """`text` with a capital first letter."""
    return text[:1].upper() + text[1:]
