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
from engine.tool_calls.python_calls import PythonCalls
from engine.tool_calls.tagged_calls import TaggedCalls

HERMES = JsonCalls(
    name="hermes",  # Hermes, Qwen 2.5 and 3, Granite 4, SmolLM 3, and our own
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
LLAMA4_PYTHONIC = PythonCalls(
    name="llama4_pythonic",  # Llama 3.2 and 4 where they were asked for Python
    opening="<|python_start|>",
    head="[",
    between=", ",
    tail="]",
    next_marks=(",",),
    ignored_marks=("]",),
    end_mark="<|python_end|>",
    bare_begin="[",
)
LFM2 = PythonCalls(
    name="lfm2",
    opening="<|tool_call_start|>",
    head="[",
    between=", ",
    tail="]<|tool_call_end|>",
    next_marks=(",",),
    ignored_marks=("]",),
    end_mark="<|tool_call_end|>",
    hints=("<|tool_list_start|>", "List of tools: ["),
)
OLMO3 = PythonCalls(
    name="olmo3",
    opening="<function_calls>",
    head="\n",
    between="\n",
    tail="\n</function_calls>",
    has_next_unmarked=True,
    end_mark="</function_calls>",
    has_json_words=True,
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
GRANITE_20B = JsonCalls(
    name="granite_20b_fc",
    opening="<function_call>",
    head=" ",
    between="<function_call> ",
    has_free_line_between=True,
    hints=("<function_call>",),
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
INTERNLM = JsonCalls(
    name="internlm",  # versions 2, 2.5 and 3, with one call per turn
    opening="<|action_start|><|plugin|>",
    head="\n",
    between="<|action_end|>\n<|action_start|><|plugin|>\n",
    tail="<|action_end|>",
    arguments_field="parameters",
    end_mark="<|action_end|>",
    inner_marks=("<|action_start|>", "<|plugin|>"),
    hints=("<|plugin|>",),
)
NEMOTRON_NANO = JsonCalls(
    name="nemotron_nano",  # Nano v2
    opening="<TOOLCALL>",
    head="[",
    between=", ",
    tail="]</TOOLCALL>",
    next_marks=(",",),
    ignored_marks=("]",),
    end_mark="</TOOLCALL>",
    hints=("<TOOLCALL>",),
)
GIGACHAT = JsonCalls(
    name="gigachat3",  # 3
    opening="function call<|role_sep|>",
    head="\n",
    between="<|message_sep|>\n\nfunction call<|role_sep|>\n",
    inner_marks=("<|role_sep|>", "<|message_sep|>"),
)
GIGACHAT_MARKED = JsonCalls(
    name="gigachat31",  # 3.1
    opening="<|function_call|>",
    between="<|function_call|>",
)
XLAM = JsonCalls(
    name="xlam",
    opening="[TOOL_CALLS]",
    head="[",
    between=", ",
    tail="]",
    next_marks=(",",),
    end_mark="]",
    bare_begin="[",
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
APRIEL = JsonCalls(
    name="apriel",
    opening="<tool_calls>",
    head="[",
    between=", ",
    tail="]</tool_calls>",
    next_marks=(",",),
    ignored_marks=("]",),
    end_mark="</tool_calls>",
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
FUNCTIONARY = HeadedCalls(
    name="functionary_v31",
    opening="<function=",
    between="</function><function=",
    tail="</function>",
    headers=("{name}>",),
    end_mark="</function>",
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
LONGCAT = TaggedCalls(
    name="longcat",
    opening="<longcat_tool_call>",
    between="<longcat_tool_call>",
    has_free_line_between=True,
    before_key="<longcat_arg_key>",
    after_key="</longcat_arg_key>",
    before_value="<longcat_arg_value>",
    after_value="</longcat_arg_value>",
    call_end="</longcat_tool_call>",
    line="\n",
    is_line_free=True,
    inner_marks=(
        "<longcat_arg_key>",
        "</longcat_arg_key>",
        "<longcat_arg_value>",
        "</longcat_arg_value>",
        "</longcat_tool_call>",
    ),
)
MINIMAX_M2 = TaggedCalls(
    name="minimax_m2",
    opening="<minimax:tool_call>",
    head="\n",
    between="",
    tail="</minimax:tool_call>",
    before_name='<invoke name="',
    after_name='">',
    before_key='<parameter name="',
    after_key='">',
    after_value="</parameter>",
    call_end="</invoke>\n",
    line="\n",
    has_next_unmarked=True,
    end_mark="</minimax:tool_call>",
)
STEP3 = TaggedCalls(
    name="step3",
    opening="<｜tool_calls_begin｜>",
    head="<｜tool_call_begin｜>",
    closing="<｜tool_call_end｜>",
    between="<｜tool_call_begin｜>",
    has_free_line_between=True,
    tail="<｜tool_calls_end｜>",
    before_name='function<｜tool_sep｜><steptml:invoke name="',
    after_name='">',
    before_key='<steptml:parameter name="',
    after_key='">',
    after_value="</steptml:parameter>",
    call_end="</steptml:invoke>",
    line="\n",
    is_line_free=True,
    next_marks=("<｜tool_call_begin｜>",),
    ignored_marks=("<｜tool_call_end｜>",),
    end_mark="<｜tool_calls_end｜>",
    inner_marks=("<｜tool_call_begin｜>", "<｜tool_sep｜>", "<｜tool_call_end｜>"),
)
SEED_OSS = TaggedCalls(
    name="seed_oss",
    opening="<seed:tool_call>",
    head="\n",
    between="\n</seed:tool_call>\n<seed:tool_call>\n",
    tail="\n</seed:tool_call>",
    before_name="<function=",
    after_name=">",
    before_key="<parameter=",
    after_key=">",
    after_value="</parameter>",
    call_end="</function>",
    line="\n",
    end_mark="</seed:tool_call>",
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
        HERMES, MISTRAL, MISTRAL_NAMED, LLAMA3_JSON, COHERE, APRIEL, APERTUS, DEEPSEEK_V3, DEEPSEEK_V31, DEEPSEEK_V32,
        DEEPSEEK_V4, KIMI_K2, GLM, QWEN3_CODER, SEED_OSS, GEMMA4, MINIMAX_M2, STEP3, LONGCAT, OLMO3, FUNCTIONARY,
        GRANITE, GRANITE_20B, PHI4_MINI, INTERNLM, NEMOTRON_NANO, GIGACHAT, GIGACHAT_MARKED, LFM2, LLAMA4_PYTHONIC,
        XLAM, HARMONY,
    )
}  # fmt: skip
