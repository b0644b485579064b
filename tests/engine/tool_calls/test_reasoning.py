"""Tests of reasoning: it is separated from the text for every split; an output format applies to the text after it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol.output_format import Constraint
from engine.protocol.tasks.text_generation import TextGeneration
from engine.protocol.tools import Tool
from engine.structured.compile import compile_matcher
from engine.structured.vocabulary import Vocabulary, read_vocabulary
from engine.text.chat_template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from engine.tool_calls.call_parser import ReasoningPiece, ToolCallPiece
from engine.tool_calls.families import HERMES, QWEN3_CODER
from engine.tool_calls.grammar import Controls, ReasoningState, format_after_reasoning
from engine.tool_calls.output_plan import make_output_plan
from engine.tool_calls.reasoning import (
    APERTUS,
    COHERE,
    GEMMA,
    GRANITE,
    MISTRAL,
    THINK,
    Phase,
    Reasoning,
    ReasoningParser,
    find_reasoning,
)
from engine.tool_calls.tool_format import ToolFormat

SPARK = Path(__file__).parents[3] / "catalog/builtin/spark"
TOKENIZER = Tokenizer(SPARK)

CASES: list[tuple[Reasoning, Phase, str, str, str]] = [
    (THINK, "may_reason", "<think>\nHm, 2.\n\nSo 4.\n</think>\n\nIt is 4.", "Hm, 2.\n\nSo 4.", "It is 4."),
    (THINK, "may_reason", " \n<think></think> It", "", "It"),
    (THINK, "may_reason", " It is <b>4</b>. <think>", "", " It is <b>4</b>. <think>"),
    (THINK, "reasons", "Hm.</think>\nIt is </think>.", "Hm.", "It is </think>."),
    (THINK, "reasons", "<think>Hm.</think>It", "Hm.", "It"),
    (THINK, "reasons", "and so on </thi", "and so on </thi", ""),
    (MISTRAL, "may_reason", "[THINK]a[b]c[/THINK]d", "a[b]c", "d"),
    (GRANITE, "may_reason", "<think>a</think><response>b</response>", "a", "b"),
    (GRANITE, "may_reason", "<response>b</response>", "", "b"),
    (COHERE, "reasons", "a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|>", "a", "b"),
    (COHERE, "content", "<|START_RESPONSE|>b", "", "b"),
    (GEMMA, "may_reason", "<|channel>thought\na\n<channel|>b", "a", "b"),
    (GEMMA, "may_reason", "<|channel>thoughts", "s", ""),
    (APERTUS, "may_reason", "<|inner_prefix|>a<|inner_suffix|>b", "a", "b"),
]  # fmt: skip


def parse(reasoning: Reasoning, phase: Phase, parts: Sequence[str]) -> tuple[str, str]:
    """Return the reasoning and the text after it."""
    parser = ReasoningParser(reasoning, phase)
    pieces = [piece for part in parts for piece in parser.push(part)] + parser.flush()
    assert all(piece != "" and piece != ReasoningPiece("") for piece in pieces)
    thoughts = "".join(piece.text for piece in pieces if isinstance(piece, ReasoningPiece))
    return thoughts, "".join(piece for piece in pieces if isinstance(piece, str))


@pytest.mark.parametrize(("reasoning", "phase", "text", "thoughts", "content"), CASES)
def test_reasoning_is_separated_for_every_split(
    reasoning: Reasoning, phase: Phase, text: str, thoughts: str, content: str
) -> None:
    assert parse(reasoning, phase, [text]) == (thoughts, content)
    assert parse(reasoning, phase, list(text)) == (thoughts, content)
    for at in range(len(text)):
        assert parse(reasoning, phase, [text[:at], text[at:]]) == (thoughts, content)


_noise = st.sampled_from(["<think>", "</think>", "<response>", "</response>", "<", "think", ">", " ", "\n", "a"])


@given(
    st.sampled_from((THINK, GRANITE)),
    st.sampled_from(("may_reason", "reasons", "content")),
    st.lists(_noise),
    st.data(),
)
def test_any_text_gives_the_same_result_for_every_split(
    reasoning: Reasoning, phase: Phase, noise: list[str], data: st.DataObject
) -> None:
    text = "".join(noise)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parse(reasoning, phase, parts) == parse(reasoning, phase, [text])


def test_reasoning_and_text_are_streamed() -> None:
    parser = ReasoningParser(THINK, "may_reason")
    assert parser.push("<thi") == []
    assert parser.push("nk>\nOne ") == [ReasoningPiece("One")]
    assert parser.is_reasoning
    assert parser.push("two.<") == [ReasoningPiece(" two.")]
    assert parser.push("/think>\n") == []
    assert not parser.is_reasoning
    assert parser.push("4") == ["4"]


@pytest.mark.parametrize(
    ("name", "expected", "phase"),
    [
        ("Qwen-Qwen3-0.6B", THINK, "may_reason"),
        ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", THINK, "reasons"),
        ("GLM-4.7-Flash", THINK, "reasons"),
        ("deepseek-ai-DeepSeek-V3.1", THINK, "content"),
        ("ibm-granite-granite-3.3-2B-Instruct", GRANITE, "may_reason"),
        ("mistralai-Ministral-3-14B-Reasoning-2512", MISTRAL, "may_reason"),
        ("Apertus-8B-Instruct", APERTUS, "may_reason"),
        ("Kimi-K2-Thinking", THINK, "may_reason"),
        ("google-gemma-4-31B-it", GEMMA, "content"),
        ("Qwen-Qwen2.5-7B-Instruct", None, None),
        ("meta-llama-Llama-3.1-8B-Instruct", None, None),
    ],
)
def test_reasoning_marks_and_phase_are_found_in_templates(
    test_data: Path, name: str, expected: Reasoning | None, phase: Phase | None
) -> None:
    template = ChatTemplate((test_data / "templates" / f"{name}.jinja").read_text(), {"bos_token": "", "eos_token": ""})
    assert find_reasoning(template.words | template.written) == expected
    if expected is not None:
        prompt = template.render([{"role": "user", "content": "Is <think> a mark?"}])
        assert expected.phase_after(prompt) == phase


def test_control_token_of_an_opening_is_shown_to_the_parser() -> None:
    assert GEMMA.marks == ("<|channel>", "<channel|>")


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return read_vocabulary(SPARK, 4096, (0, 2))


def accepts(vocabulary: Vocabulary, constraint: Constraint | None, text: str, *, parse_special: bool = False) -> bool:
    assert constraint is not None
    matcher, token_ids = compile_matcher(constraint, vocabulary), TOKENIZER.encode(text, parse_special=parse_special)
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and bool(matcher.is_accepting())


KINDS = [
    (Constraint("json_schema", '{"type": "integer"}'), "42", "x"),
    (Constraint("json_object"), '{"a": 1}', "[1]"),
    (Constraint("regex", "^a/b+$"), "a/bb", "a/"),
    (Constraint("choice", '["yes", "no"]'), "no", "maybe"),
    (Constraint("grammar", 'start: "n" X\nX: /[0-9]+/'), "n12", "12"),
    (Constraint("grammar", 'root ::= "n" [0-9]+'), "n12", "12"),
]


@pytest.mark.parametrize(("output_format", "good", "bad"), KINDS)
def test_output_format_applies_after_reasoning(
    vocabulary: Vocabulary, output_format: Constraint, good: str, bad: str
) -> None:
    controls = Controls({})
    may_reason = format_after_reasoning(output_format, controls, ReasoningState(THINK, "may_reason"))
    for text in (good, f"<think>\nI < you\n</think>\n\n{good}"):
        assert accepts(vocabulary, may_reason, text)
    thinks = format_after_reasoning(output_format, controls, ReasoningState(THINK, "reasons"))
    assert accepts(vocabulary, thinks, f"Hm {bad}\n</think>\n\n{good}")
    assert not accepts(vocabulary, thinks, good)
    for constraint, text in ((may_reason, bad), (may_reason, f"<think>a</think>{bad}"), (thinks, f"a</think>{bad}")):
        assert not accepts(vocabulary, constraint, text)
    framed = format_after_reasoning(output_format, controls, ReasoningState(GRANITE, "may_reason"))
    assert accepts(vocabulary, framed, f"<think>a</think><response>{good}</response>")


def test_reasoning_marks_use_control_tokens(vocabulary: Vocabulary) -> None:
    opening, closing = (TOKENIZER.control_id(f"<|reserved_{number}|>") for number in (0, 1))
    assert opening is not None
    assert closing is not None
    marks = Reasoning("<|reserved_0|>", "<|reserved_1|>")
    controls = Controls({marks.opening: opening, marks.closing: closing}, in_text=(opening, closing))
    constraint = format_after_reasoning(Constraint("json_object"), controls, ReasoningState(marks, "may_reason"))
    assert accepts(vocabulary, constraint, "<|reserved_0|>a { b<|reserved_1|>\n\n{}", parse_special=True)
    assert not accepts(vocabulary, constraint, "<|reserved_0|>a<|reserved_0|>b<|reserved_1|>{}", parse_special=True)
    assert not accepts(vocabulary, constraint, "<|reserved_1|>{}", parse_special=True)


NOW = Tool(name="now")


def test_required_call_after_reasoning_is_parsed(vocabulary: Vocabulary) -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    task = TextGeneration(prompt="x", tools=(NOW,), tool_choice="required")
    plan = make_output_plan(task, ToolFormat(HERMES), Controls({}), ReasoningState(THINK, "may_reason"))
    constraint = plan.constraints[0]
    for output in (call, f"<think>\n<tool_call>?\n</think>\n\n{call}"):
        assert accepts(vocabulary, constraint, output)
        parser = plan.parser(constraint)
        assert parser is not None
        pieces = [piece for character in output for piece in parser.push(character)] + parser.flush()
        assert [piece.name for piece in pieces if isinstance(piece, ToolCallPiece) and piece.name] == ["now"]
        assert not any(isinstance(piece, str) for piece in pieces)
        assert parser.num_calls == 1
    assert not accepts(vocabulary, constraint, "<think>a</think>")


def test_optional_call_may_follow_reasoning(vocabulary: Vocabulary) -> None:
    ids = {mark: TOKENIZER.control_id(mark) for mark in HERMES.marks}
    controls = Controls({mark: token_id for mark, token_id in ids.items() if token_id is not None})
    plan = make_output_plan(
        TextGeneration(prompt="x", tools=(NOW,)), ToolFormat(HERMES), controls, ReasoningState(THINK, "reasons")
    )
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    for text, expected in ((f"a</think>b {call}", True), ("a</think>b", True), ("a", False), (f"a{call}", False)):
        assert accepts(vocabulary, plan.constraints[0], text, parse_special=True) is expected


def test_new_line_between_calls_is_optional(vocabulary: Vocabulary) -> None:
    task = TextGeneration(prompt="x", tools=(NOW,), tool_choice="required")
    constraint = make_output_plan(task, ToolFormat(QWEN3_CODER), Controls({})).constraints[0]
    call = "<tool_call>\n<function=now>\n</function>\n</tool_call>"
    assert accepts(vocabulary, constraint, f"{call}\n{call}")
    assert accepts(vocabulary, constraint, f"{call}{call}")
    assert not accepts(vocabulary, constraint, f"{call} {call}")
