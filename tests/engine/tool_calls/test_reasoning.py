"""What a model thinks is told apart from its answer, for any split; a format holds for what follows a thought."""

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
from engine.tool_calls.grammar import Controls, ReasoningState, answer_after_reasoning
from engine.tool_calls.output_plan import make_output_plan
from engine.tool_calls.reasoning import (
    APERTUS,
    APRIEL,
    APRIEL_ENDED,
    COHERE,
    GEMMA,
    GRANITE,
    GRANITE_SPOKEN,
    HUNYUAN,
    KIMI_VL,
    MISTRAL,
    SEED,
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
    (THINK, "may_think", "<think>\nHm, 2.\n\nSo 4.\n</think>\n\nIt is 4.", "Hm, 2.\n\nSo 4.", "It is 4."),
    (THINK, "may_think", " \n<think></think> It", "", "It"),
    (THINK, "may_think", " It is <b>4</b>. <think>", "", " It is <b>4</b>. <think>"),
    (THINK, "thinks", "Hm.</think>\nIt is </think>.", "Hm.", "It is </think>."),
    (THINK, "thinks", "<think>Hm.</think>It", "Hm.", "It"),
    (THINK, "thinks", "and so on </thi", "and so on </thi", ""),
    (MISTRAL, "may_think", "[THINK]a[b]c[/THINK]d", "a[b]c", "d"),
    (GRANITE, "may_think", "<think>a</think><response>b</response>", "a", "b"),
    (GRANITE, "may_think", "<response>b</response>", "", "b"),
    (COHERE, "thinks", "a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|>", "a", "b"),
    (COHERE, "answers", "<|START_RESPONSE|>b", "", "b"),
    (SEED, "may_think", "<seed:think>a</seed:think>b", "a", "b"),
    (HUNYUAN, "may_think", "<think>a</think><answer>b</answer>", "a", "b"),
    (KIMI_VL, "may_think", "◁think▷a◁/think▷b", "a", "b"),
    (APRIEL, "thinks", "a [x]\n[BEGIN FINAL RESPONSE]\nb", "a [x]", "b"),
    (APRIEL_ENDED, "thinks", "a[BEGIN FINAL RESPONSE]b[END FINAL RESPONSE]", "a", "b"),
    (GRANITE_SPOKEN, "may_think", "Here is my thought process: a\n\nHere is my response: b", "a", "b"),
    (GRANITE_SPOKEN, "may_think", "Here is a list.", "", "Here is a list."),
    (GEMMA, "may_think", "<|channel>thought\na\n<channel|>b", "a", "b"),
    (GEMMA, "may_think", "<|channel>thoughts", "s", ""),
    (APERTUS, "may_think", "<|inner_prefix|>a<|inner_suffix|>b", "a", "b"),
]  # fmt: skip


def read(reasoning: Reasoning, phase: Phase, pieces: Sequence[str]) -> tuple[str, str]:
    """The thought, and the answer."""
    parser = ReasoningParser(reasoning, phase)
    said = [piece for text in pieces for piece in parser.push(text)] + parser.flush()
    assert all(piece != "" and piece != ReasoningPiece("") for piece in said)
    thought = "".join(piece.text for piece in said if isinstance(piece, ReasoningPiece))
    return thought, "".join(piece for piece in said if isinstance(piece, str))


@pytest.mark.parametrize(("reasoning", "phase", "text", "thought", "answer"), CASES)
def test_reasoning_is_separated_for_every_split(
    reasoning: Reasoning, phase: Phase, text: str, thought: str, answer: str
) -> None:
    assert read(reasoning, phase, [text]) == (thought, answer)
    assert read(reasoning, phase, list(text)) == (thought, answer)
    for at in range(len(text)):
        assert read(reasoning, phase, [text[:at], text[at:]]) == (thought, answer)


_noise = st.sampled_from(["<think>", "</think>", "<response>", "</response>", "<", "think", ">", " ", "\n", "a"])


@given(
    st.sampled_from((THINK, GRANITE)), st.sampled_from(("may_think", "thinks", "answers")), st.lists(_noise), st.data()
)
def test_any_text_gives_the_same_result_for_every_split(
    reasoning: Reasoning, phase: Phase, parts: list[str], data: st.DataObject
) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(reasoning, phase, pieces) == read(reasoning, phase, [text])


def test_reasoning_and_text_are_streamed() -> None:
    parser = ReasoningParser(THINK, "may_think")
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
        ("Qwen-Qwen3-0.6B", THINK, "may_think"),
        ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", THINK, "thinks"),
        ("GLM-4.7-Flash", THINK, "thinks"),
        ("deepseek-ai-DeepSeek-V3.1", THINK, "answers"),
        ("ibm-granite-granite-3.3-2B-Instruct", GRANITE, "may_think"),
        ("mistralai-Ministral-3-14B-Reasoning-2512", MISTRAL, "may_think"),
        ("ByteDance-Seed-OSS", SEED, "may_think"),
        ("Apertus-8B-Instruct", APERTUS, "may_think"),
        ("Kimi-K2-Thinking", THINK, "may_think"),
        ("google-gemma-4-31B-it", GEMMA, "answers"),
        ("Apriel-1.6-15b-Thinker-fixed", APRIEL, "thinks"),
        ("unsloth-Apriel-1.5", APRIEL_ENDED, "may_think"),
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


@pytest.mark.parametrize(("answer", "good", "bad"), KINDS)
def test_output_format_applies_after_reasoning(vocabulary: Vocabulary, answer: Constraint, good: str, bad: str) -> None:
    controls = Controls({})
    may_think = answer_after_reasoning(answer, controls, ReasoningState(THINK, "may_think"))
    for text in (good, f"<think>\nI < you\n</think>\n\n{good}"):
        assert accepts(vocabulary, may_think, text)
    thinks = answer_after_reasoning(answer, controls, ReasoningState(THINK, "thinks"))
    assert accepts(vocabulary, thinks, f"Hm {bad}\n</think>\n\n{good}")
    assert not accepts(vocabulary, thinks, good)
    for constraint, text in ((may_think, bad), (may_think, f"<think>a</think>{bad}"), (thinks, f"a</think>{bad}")):
        assert not accepts(vocabulary, constraint, text)
    framed = answer_after_reasoning(answer, controls, ReasoningState(GRANITE, "may_think"))
    assert accepts(vocabulary, framed, f"<think>a</think><response>{good}</response>")


def test_reasoning_marks_use_control_tokens(vocabulary: Vocabulary) -> None:
    opening, closing = (TOKENIZER.control_id(f"<|reserved_{number}|>") for number in (0, 1))
    assert opening is not None
    assert closing is not None
    marks = Reasoning("<|reserved_0|>", "<|reserved_1|>")
    controls = Controls({marks.opening: opening, marks.closing: closing}, in_text=(opening, closing))
    held = answer_after_reasoning(Constraint("json_object"), controls, ReasoningState(marks, "may_think"))
    assert accepts(vocabulary, held, "<|reserved_0|>a { b<|reserved_1|>\n\n{}", parse_special=True)
    assert not accepts(vocabulary, held, "<|reserved_0|>a<|reserved_0|>b<|reserved_1|>{}", parse_special=True)
    assert not accepts(vocabulary, held, "<|reserved_1|>{}", parse_special=True)


NOW = Tool(name="now")


def test_required_call_after_reasoning_is_parsed(vocabulary: Vocabulary) -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    task = TextGeneration(prompt="x", tools=(NOW,), tool_choice="required")
    plan = make_output_plan(task, ToolFormat(HERMES), Controls({}), ReasoningState(THINK, "may_think"))
    held = plan.constraints[0]
    for answer in (call, f"<think>\n<tool_call>?\n</think>\n\n{call}"):
        assert accepts(vocabulary, held, answer)
        parser = plan.parser(held)
        assert parser is not None
        said = [piece for character in answer for piece in parser.push(character)] + parser.flush()
        assert [piece.name for piece in said if isinstance(piece, ToolCallPiece) and piece.name] == ["now"]
        assert not any(isinstance(piece, str) for piece in said)
        assert parser.num_calls == 1
    assert not accepts(vocabulary, held, "<think>a</think>")


def test_optional_call_may_follow_reasoning(vocabulary: Vocabulary) -> None:
    ids = {mark: TOKENIZER.control_id(mark) for mark in HERMES.marks}
    controls = Controls({mark: token_id for mark, token_id in ids.items() if token_id is not None})
    plan = make_output_plan(
        TextGeneration(prompt="x", tools=(NOW,)), ToolFormat(HERMES), controls, ReasoningState(THINK, "thinks")
    )
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    for text, expected in ((f"a</think>b {call}", True), ("a</think>b", True), ("a", False), (f"a{call}", False)):
        assert accepts(vocabulary, plan.constraints[0], text, parse_special=True) is expected


def test_new_line_between_calls_is_optional(vocabulary: Vocabulary) -> None:
    task = TextGeneration(prompt="x", tools=(NOW,), tool_choice="required")
    held = make_output_plan(task, ToolFormat(QWEN3_CODER), Controls({})).constraints[0]
    call = "<tool_call>\n<function=now>\n</function>\n</tool_call>"
    assert accepts(vocabulary, held, f"{call}\n{call}")
    assert accepts(vocabulary, held, f"{call}{call}")
    assert not accepts(vocabulary, held, f"{call} {call}")
