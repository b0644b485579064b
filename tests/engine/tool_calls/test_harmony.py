"""Tests of harmony: messages are parsed into reasoning, content and calls for every split, and match the grammar."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.protocol.output_format import Constraint
from engine.protocol.tasks.text_generation import TextGeneration
from engine.protocol.tools import Tool
from engine.structured.compile import compile_matcher
from engine.structured.vocabulary import Vocabulary, read_vocabulary
from engine.text.tokenizer import Tokenizer
from engine.tool_calls.call_parser import ReasoningPiece, ToolCallPiece
from engine.tool_calls.grammar import Controls
from engine.tool_calls.harmony import HARMONY, MARKS, HarmonyParser
from engine.tool_calls.output_plan import make_output_plan
from engine.tool_calls.tool_format import ToolFormat

SPARK = Path(__file__).parents[3] / "catalog/builtin/spark"
TOKENIZER = Tokenizer(SPARK)
TOOL = Tool(name="f", parameters={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})

THOUGHT = "<|channel|>analysis<|message|>Hm. <b>2</b><|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>It is 4."
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'
CASES: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    (THOUGHT + FINAL, "Hm. <b>2</b>", "It is 4.", []),
    (THOUGHT + FINAL + "<|return|>", "Hm. <b>2</b>", "It is 4.", []),
    (THOUGHT + "<|start|>assistant" + CALL, "Hm. <b>2</b>", "", [("f", '{"a": 1}')]),
    (CALL + "<|call|>", "", "", [("f", '{"a": 1}')]),
    (' to=functions.f<|channel|>commentary json<|message|> {"a": "}"}\n<|call|>', "", "", [("f", '{"a": "}"}')]),
    ("<|channel|>commentary<|message|>So.<|end|><|start|>assistant" + CALL, "", "So.", [("f", '{"a": 1}')]),
    (THOUGHT + "<|start|>assistant" + THOUGHT + FINAL, "Hm. <b>2</b>\nHm. <b>2</b>", "It is 4.", []),
    ("It is 4.", "", "It is 4.", []),
    ("to be or not", "", "to be or not", []),
    ('<|channel|>commentary to=functions.g <|constrain|>json<|message|>{"a": 1}<|call|>', "", '{"a": 1}', []),
    ("<|channel|>commentary to=functions.f <|constrain|>json<|message|>[1]<|call|>", "", "[1]", []),
    ("<|channel|>final", "", "", []),
]  # fmt: skip


def parse(
    parts: Sequence[str], *, is_constrained: bool = False, is_cut: bool = False
) -> tuple[str, str, list[tuple[str, str]]]:
    parser = HarmonyParser({"f"}, is_constrained=is_constrained)
    pieces = [piece for part in parts for piece in parser.push(part)] + parser.flush(is_cut=is_cut)
    calls: dict[int, list[ToolCallPiece]] = {}
    for piece in pieces:
        assert piece not in ("", ReasoningPiece(""))
        if isinstance(piece, ToolCallPiece):
            calls.setdefault(piece.index, []).append(piece)
    thoughts = "".join(piece.text for piece in pieces if isinstance(piece, ReasoningPiece))
    found = [(of[0].name or "", "".join(piece.arguments for piece in of)) for of in calls.values()]
    return thoughts, "".join(piece for piece in pieces if isinstance(piece, str)), found


@pytest.mark.parametrize(("text", "thoughts", "content", "calls"), CASES)
def test_messages_are_separated_for_every_split(
    text: str, thoughts: str, content: str, calls: list[tuple[str, str]]
) -> None:
    assert parse([text]) == parse(list(text)) == (thoughts, content, calls)
    for at in range(len(text)):
        assert parse([text[:at], text[at:]]) == (thoughts, content, calls)


def test_constrained_call_is_streamed_and_completes_the_output() -> None:
    parser = HarmonyParser({"f"}, is_constrained=True)
    begin, more = CALL[:-2], CALL[-2:]
    assert parser.push(begin) == [ToolCallPiece(0, "f", ""), ToolCallPiece(0, None, '{"a": ')]
    assert not parser.is_complete
    assert parser.push(more) == [ToolCallPiece(0, None, "1}")]
    assert (parser.is_complete, parser.num_calls) == (True, 1)
    assert not parser.is_reasoning


CUT_CALLS = [  # output cut by the token limit, and the content and calls parsed from it
    (CALL[:-1], "", [("f", '{"a": 1')]),
    (CALL[:-8], "", [("f", "")]),
    (CALL[:-8] + " ", "", [("f", "")]),
    (CALL[:-8] + "so", "so", []),
    (CALL[:-8] + "{so}", "{so}", []),
    (CALL[:-12], "", []),
]


@pytest.mark.parametrize(("text", "content", "calls"), CUT_CALLS)
def test_call_cut_by_the_limit_is_returned_as_far_as_it_goes(
    text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    for parts in ([text], list(text)):
        assert parse(parts, is_cut=True) == ("", content, calls)
        if not content:
            assert parse(parts, is_constrained=True, is_cut=True) == ("", "", calls)


def test_is_reasoning_is_true_during_reasoning() -> None:
    parser = HarmonyParser((), is_constrained=False)
    parser.push("<|channel|>analysis<|message|>Hm")
    assert parser.is_reasoning
    parser.push(".<|end|>")
    assert not parser.is_reasoning


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return read_vocabulary(SPARK, 4096, (0, 2))


CONTROLS = Controls({mark: 6 + number for number, mark in enumerate(MARKS)})


def accepts(vocabulary: Vocabulary, constraint: Constraint | None, text: str) -> bool:
    """Return True if the text matches, with reserved control tokens in place of those of harmony."""
    assert constraint is not None
    for number, mark in enumerate(MARKS):
        text = text.replace(mark, f"<|reserved_{number + 1}|>")
    assert TOKENIZER.control_id("<|reserved_1|>") == 6
    matcher, token_ids = compile_matcher(constraint, vocabulary), TOKENIZER.encode(text, parse_special=True)
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and bool(matcher.is_accepting())


def test_required_call_may_follow_reasoning(vocabulary: Vocabulary) -> None:
    task = TextGeneration(prompt="x", tools=(TOOL,), tool_choice="required")
    constraint = make_output_plan(task, ToolFormat(HARMONY, supports_parallel=False), CONTROLS).constraints[0]
    for text, expected in (
        (CALL, True),
        (THOUGHT + "<|start|>assistant" + CALL, True),
        (' to=functions.f<|channel|>commentary json<|message|>{"a": 1}', True),
        (CALL.replace("1}", '"x"}'), False),
        (CALL.replace("functions.f", "functions.g"), False),
        (THOUGHT + FINAL, False),
        ("Hello.", False),
    ):
        assert accepts(vocabulary, constraint, text) is expected


def test_output_format_applies_to_the_final_channel(vocabulary: Vocabulary) -> None:
    form = ToolFormat(HARMONY, supports_parallel=False)
    free = make_output_plan(TextGeneration(prompt="x", tools=(TOOL,)), form, CONTROLS).constraints[0]
    for text in (
        CALL,
        THOUGHT + FINAL,
        THOUGHT + "<|start|>assistant" + CALL,
        FINAL.removeprefix("<|start|>assistant"),
    ):
        assert accepts(vocabulary, free, text)
    assert not accepts(vocabulary, free, "Hello.")
    plan = make_output_plan(TextGeneration(prompt="x", constraint=Constraint("json_object")), form, CONTROLS)
    for final, expected in (('{"b": 2}', True), ("It is 4.", False)):
        text = THOUGHT + FINAL.replace("It is 4.", final)
        assert accepts(vocabulary, plan.constraints[0], text) is expected
    parser = plan.parser(plan.constraints[0])
    assert parser is not None
    pieces = parser.push(THOUGHT + FINAL.replace("It is 4.", '{"b": 2}')) + parser.flush()
    assert json.loads("".join(piece for piece in pieces if isinstance(piece, str))) == {"b": 2}
    assert pieces[0] == ReasoningPiece("Hm. <b>2</b>")


def test_raw_prompt_is_continued_without_a_grammar() -> None:
    plan = make_output_plan(TextGeneration(prompt="x", raw=True), ToolFormat(HARMONY), CONTROLS, is_turn=False)
    assert (plan.constraints, plan.parser(None)) == ((None,), None)
