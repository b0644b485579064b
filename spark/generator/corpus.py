"""The corpus: kinds of dialogues, their frequency by phase, system prompts, and the held-out split.

One seed gives one stream. One prompt in twenty is held out by a hash of its content, and one wording of each list
entirely; training never shows either. Knows no tokens.
"""
# ruff: noqa: E501 - a table of wordings reads better with one entry per line

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

from spark.generator.checks import make_check
from spark.generator.dialogue import Dialogue, Source, system
from spark.generator.extract import make_extraction, make_json_list
from spark.generator.facts import make_fact
from spark.generator.followups import make_followup
from spark.generator.greetings import SHOWCASE, make_greeting, make_intent, make_showcase
from spark.generator.held_out import is_held_out
from spark.generator.labels import make_sentiment
from spark.generator.lists import make_list
from spark.generator.memory import make_memory, make_memory_drill
from spark.generator.numbers import make_number
from spark.generator.obey import draw_plain, make_obedience
from spark.generator.reading import make_reading
from spark.generator.refusals import make_refusal
from spark.generator.stories import make_story
from spark.generator.sums import make_sum
from spark.generator.text import make_copy, make_induction, make_text
from spark.generator.tools import make_tool_call, make_tool_drill
from spark.generator.topics import make_topic

KINDS: dict[str, Callable[[Source], Dialogue]] = {
    "induction": make_induction, "greeting": make_greeting, "intent": make_intent, "showcase": make_showcase,
    "fact": make_fact, "check": make_check, "list": make_list, "followup": make_followup, "sum": make_sum, "number": make_number,
    "memory": make_memory, "memory_drill": make_memory_drill, "reading": make_reading, "copy": make_copy, "text": make_text, "sentiment": make_sentiment, "topic": make_topic,
    "tool": make_tool_call, "tool_drill": make_tool_drill, "extract": make_extraction, "json_list": make_json_list, "story": make_story, "obey": make_obedience, "refusal": make_refusal,
}  # fmt: skip
"""Families of kinds: "sum", "number" and "text" draw from 6, 9 and 14 kinds of their own, "tool" from 4."""

# phase -> family -> weight (by dialogue); "mix" is what the tokenizer learns from
MIX: dict[str, dict[str, float]] = {
    "copying": {
        "induction": 26, "copy": 24, "memory": 14, "fact": 12, "greeting": 6, "showcase": 1, "sentiment": 4, "extract": 4, "sum": 4, "tool": 5, "reading": 3, "text": 2,
    },
    "answers": {
        "greeting": 9, "intent": 3, "showcase": 1.5, "fact": 34, "check": 3, "list": 1.5, "followup": 3, "sum": 7, "number": 4, "memory": 14, "memory_drill": 8, "reading": 4,
        "copy": 9, "text": 6, "sentiment": 7, "topic": 2, "tool": 7, "tool_drill": 9, "extract": 4, "json_list": 2, "story": 1, "obey": 4, "refusal": 6,
    },
}  # fmt: skip
MIX["mix"] = dict(
    MIX["answers"], fact=20, number=5, memory=9, memory_drill=0, text=9, sentiment=6, tool=10, tool_drill=0
)
MIX["long"] = MIX["answers"]
SYSTEM_SHARE = {"copying": 0.0, "mix": 0.35, "answers": 0.2, "long": 0.35}
"""The share of dialogues that get a plain system prompt."""


_OPEN_KINDS = ("tool_drill", "followup")


def has_held_out_part(dialogue: Dialogue) -> bool:
    """Return True if any assistant turn of the dialogue answers a held-out prompt (everything before it except the
    system prompt).

    In drills and follow-ups each question also counts alone, because it could occur without the others.
    """
    for i, message in enumerate(dialogue.messages):
        if message["role"] != "assistant":
            continue
        prompt = dialogue.messages[:i]
        bare = [part for part in prompt if part["role"] != "system"]
        if is_held_out(bare) or (dialogue.kind in _OPEN_KINDS and is_held_out(bare[-1:])):
            return True
    return False


def generate_training(seed: int, phase: str) -> Iterator[Dialogue]:
    """The endless training stream of one phase; nothing held out is in it, except that showcase prompts always are."""
    source = Source(f"train-{seed}-{phase}")
    kinds, weights = list(MIX[phase]), list(MIX[phase].values())
    while True:
        dialogue = _draw(source, source.choices(kinds, weights)[0])
        if phase != "copying":
            dialogue = _join(source, dialogue, kinds, weights)
            dialogue = add_system_prompt(source, dialogue, SYSTEM_SHARE[phase], is_long=phase == "long")
        yield dialogue


def _draw(source: Source, kind: str) -> Dialogue:
    while True:
        source.wants_new_phrasing, source.used_new_phrasing = False, False
        dialogue = KINDS[kind](source)
        if kind == "showcase" or not has_held_out_part(dialogue):
            return dialogue


def _join(source: Source, dialogue: Dialogue, kinds: list[str], weights: list[float]) -> Dialogue:
    """Sometimes one or two other dialogues come before this one in the same conversation."""
    if not dialogue.can_join or source.random() > 0.2:
        return dialogue
    for _ in range(source.randrange(1, 3)):
        before = _draw(source, source.choices(kinds, weights)[0])
        if before.can_join and not before.kind.startswith("memory"):
            dialogue = replace(dialogue, messages=before.messages + dialogue.messages)
    return dialogue


def add_system_prompt(source: Source, dialogue: Dialogue, share: float, is_long: bool) -> Dialogue:
    """Often a plain system prompt; with `is_long` sometimes one of several hundred tokens."""
    if dialogue.messages[0]["role"] == "system":
        return dialogue
    draw = source.random()
    if draw > share:
        return dialogue
    count = source.randrange(1, 4)
    if is_long and draw < 0.10:
        count = source.randrange(4, 50)
    return replace(dialogue, messages=[system(draw_plain(source, count)), *dialogue.messages])


def generate_evaluation(kind: str, count: int, seed: int = 1, is_new_phrasing: bool = False) -> list[Dialogue]:
    """`count` different held-out dialogues of a kind: by content, or with wordings training never used."""
    source = Source(f"evaluation-{seed}-{kind}-{is_new_phrasing}")
    found: dict[str, Dialogue] = {}
    for _ in range(count * 400):
        source.wants_new_phrasing, source.used_new_phrasing = is_new_phrasing, False
        dialogue = KINDS[kind](source)
        wanted = dialogue.is_new_phrasing if is_new_phrasing else _asks_held_out(dialogue)
        if wanted and dialogue.messages[-2]["content"] not in _SHOWN:
            found.setdefault(json.dumps(dialogue.prompt), dialogue)
        if len(found) == count:
            break
    return list(found.values())


_SHOWN = {question for question, _ in SHOWCASE}


def _asks_held_out(dialogue: Dialogue) -> bool:
    return is_held_out([part for part in dialogue.prompt if part["role"] != "system"])
