"""The families of models by their syntax of tool calls: a table of marks.

`call_parser.py` parses by this table, `grammar.py` constrains models to it, and `tool_format.py` finds the family of a
chat template.
"""

from __future__ import annotations

from engine.tool_calls.bare_key_calls import BareKeyCalls
from engine.tool_calls.family import Family
from engine.tool_calls.harmony import HARMONY
from engine.tool_calls.headed_calls import HeadedCalls
from engine.tool_calls.json_calls import JsonCalls
from engine.tool_calls.tagged_calls import TaggedCalls

HERMES = JsonCalls(
    name="hermes",  # Hermes, Qwen 2.5 and 3, Granite 4, SmolLM 3, and the built-in model
    opening="<tool_call>",
    head="\n",
    between="\n</tool_call>\n<tool_call>\n",
    tail="\n</tool_call>",
    end_mark="</tool_call>",
    hints=("</tool_call>",),
)
MISTRAL = JsonCalls(
    name="mistral",  # up to its tokenizer v3
    opening="[TOOL_CALLS]",
    head="[",
    between=", ",
    tail="]",
    next_marks=(",",),
    end_mark="]",
    id_style="short",
)
MISTRAL_NAMED = HeadedCalls(
    name="mistral_named",  # from its tokenizer v11 on: Small 3.2, Devstral, Magistral, Ministral 3
    opening="[TOOL_CALLS]",
    between="[TOOL_CALLS]",
    headers=("{name}[ARGS]", "{name}[CALL_ID]{id}[ARGS]"),
    inner_marks=("[ARGS]", "[CALL_ID]"),
    id_style="short",
)
LLAMA3_JSON = JsonCalls(
    name="llama3_json",  # Llama 3.1 to 4
    opening="<|python_tag|>",
    between="; ",
    arguments_field="parameters",
    next_marks=(";",),
    bare_begin="{",
)
GRANITE = JsonCalls(
    name="granite",  # 3.x
    opening="<|tool_call|>",
    head="[",
    between=", ",
    tail="]",
    next_marks=(",",),
    end_mark="]",
    hints=("<|tool_call|>",),
)
PHI4_MINI = JsonCalls(
    name="phi4_mini_json",
    opening="functools",
    head="[",
    between=", ",
    tail="]",
    next_marks=(",",),
    end_mark="]",
    hints=("<|tool|>",),
)
COHERE = JsonCalls(
    name="cohere",  # Command R7B and A
    opening="<|START_ACTION|>",
    head="[\n",
    between=",\n",
    tail="\n]<|END_ACTION|>",
    name_field="tool_name",
    arguments_field="parameters",
    id_field="tool_call_id",
    next_marks=(",",),
    ignored_marks=("]",),
    end_mark="<|END_ACTION|>",
    hints=("<|START_ACTION|>",),
)
APERTUS = HeadedCalls(
    name="apertus",
    opening="<|tools_prefix|>",
    head="[",
    between="}, ",
    tail="}]<|tools_suffix|>",
    headers=('{"{name}": ',),
    next_marks=(",",),
    ignored_marks=("}", "]"),
    end_mark="<|tools_suffix|>",
)
DEEPSEEK_V3 = HeadedCalls(
    name="deepseek_v3",  # V3 and R1
    opening="<｜tool▁calls▁begin｜>",
    head="<｜tool▁call▁begin｜>",
    between="\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>",
    tail="\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    headers=("function<｜tool▁sep｜>{name}\n```json\n",),
    next_marks=("<｜tool▁call▁begin｜>",),
    ignored_marks=("```", "<｜tool▁call▁end｜>"),
    end_mark="<｜tool▁calls▁end｜>",
    inner_marks=("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
)
DEEPSEEK_V31 = HeadedCalls(
    name="deepseek_v31",
    opening="<｜tool▁calls▁begin｜>",
    head="<｜tool▁call▁begin｜>",
    between="<｜tool▁call▁end｜><｜tool▁call▁begin｜>",
    tail="<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    headers=("{name}<｜tool▁sep｜>",),
    next_marks=("<｜tool▁call▁begin｜>",),
    ignored_marks=("<｜tool▁call▁end｜>",),
    end_mark="<｜tool▁calls▁end｜>",
    inner_marks=("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
)
KIMI_K2 = HeadedCalls(
    name="kimi_k2",
    opening="<|tool_calls_section_begin|>",
    head="<|tool_call_begin|>",
    between="<|tool_call_end|><|tool_call_begin|>",
    tail="<|tool_call_end|><|tool_calls_section_end|>",
    headers=("functions.{numbered}<|tool_call_argument_begin|>",),
    next_marks=("<|tool_call_begin|>",),
    ignored_marks=("<|tool_call_end|>",),
    end_mark="<|tool_calls_section_end|>",
    inner_marks=("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    id_style="numbered",
)
GLM = TaggedCalls(
    name="glm45",  # GLM 4.5 to 5; the later ones write no new lines
    opening="<tool_call>",
    between="<tool_call>",
    has_free_line_between=True,
    before_key="<arg_key>",
    after_key="</arg_key>",
    before_value="<arg_value>",
    after_value="</arg_value>",
    call_end="</tool_call>",
    line="\n",
    is_line_free=True,
    inner_marks=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>"),
)
QWEN3_CODER = TaggedCalls(
    name="qwen3_coder",  # Qwen 3 Coder, Qwen 3.5, Nemotron 3, Step 3.5
    opening="<tool_call>",
    head="\n",
    closing="\n</tool_call>",
    between="<tool_call>\n",
    has_free_line_between=True,
    before_name="<function=",
    after_name=">",
    before_key="<parameter=",
    after_key=">",
    after_value="</parameter>",
    call_end="</function>",
    wraps_values=True,
    line="\n",
    end_mark="</tool_call>",
)
GEMMA4 = BareKeyCalls(
    name="gemma4",
    opening="<|tool_call>",
    closing="<tool_call|>",
    between="<|tool_call>",
    before_name="call:",
    text_mark='<|"|>',
    end_mark="<tool_call|>",
    inner_marks=('<|"|>',),
)


def _deepseek_marked(name: str, section: str) -> TaggedCalls:
    return TaggedCalls(
        name=name,
        opening=f"<｜DSML｜{section}>",
        head="\n",
        between="",
        tail=f"</｜DSML｜{section}>",
        before_name='<｜DSML｜invoke name="',
        after_name='">',
        before_key='<｜DSML｜parameter name="',
        after_text_key='" string="true">',
        after_json_key='" string="false">',
        after_value="</｜DSML｜parameter>",
        call_end="</｜DSML｜invoke>\n",
        line="\n",
        has_next_unmarked=True,
        end_mark=f"</｜DSML｜{section}>",
        inner_marks=("｜DSML｜",),
    )


DEEPSEEK_V32 = _deepseek_marked("deepseek_v32", "function_calls")
DEEPSEEK_V4 = _deepseek_marked("deepseek_v4", "tool_calls")

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        HERMES, MISTRAL, MISTRAL_NAMED, LLAMA3_JSON, COHERE, APERTUS, DEEPSEEK_V3, DEEPSEEK_V31, DEEPSEEK_V32,
        DEEPSEEK_V4, KIMI_K2, GLM, QWEN3_CODER, GEMMA4, GRANITE, PHI4_MINI, HARMONY,
    )
}  # fmt: skip
