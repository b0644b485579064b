"""The tokenizer and the chat template: ChatML over byte-level BPE with 4,096 entries and single digits.

`train_tokenizer` uses only generated text and the word lists. `render` writes a conversation like the Jinja template,
cut into parts with a loss weight; a test compares both. Knows no model.
"""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from spark import words
from spark.generator.corpus import generate_training
from spark.generator.dialogue import Message, Source, render_assistant

VOCABULARY_SIZE = 4096
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TOOL_MARKS = ("<tool_call>", "</tool_call>")
RESERVED = tuple(f"<|reserved_{i}|>" for i in range(11))
END_OF_TEXT_ID, START_ID, END_ID = 0, 1, 2

TOOLS_BEFORE = "# Tools\n\nYou may call these functions:\n<tools>"
TOOLS_AFTER = (
    '\n</tools>\n\nTo call one, answer with\n<tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call>'
)
CHAT_TEMPLATE = (
    """\
{%- macro text_of(content) -%}
{%- if content is string %}{{ content }}{% elif content %}
{%- for part in content %}{% if part.text %}{{ part.text }}{% endif %}{% endfor %}
{%- endif -%}
{%- endmacro -%}
{%- if tools %}{{ '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{ text_of(messages[0].content) + '\\n\\n' }}{% endif %}
{{- TOOLS_BEFORE }}{% for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}{{ TOOLS_AFTER + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if not (loop.first and tools and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' + text_of(message.content) }}
{%- if message.tool_calls %}
{%- for tool_call in message.tool_calls %}
{%- set called = tool_call.function if tool_call.function else tool_call %}
{{- '\\n' if message.content or not loop.first else '' }}
{{- '<tool_call>\\n{"name": "' + called.name + '", "arguments": ' }}
{{- called.arguments if called.arguments is string else (called.arguments | tojson) }}{{ '}\\n</tool_call>' }}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
""".replace("TOOLS_BEFORE", repr(TOOLS_BEFORE))
    .replace("TOOLS_AFTER", repr(TOOLS_AFTER))
    .strip()
)


def render(
    messages: list[Message], tools: list[dict[str, Any]] | None = None, is_prompt: bool = False
) -> list[tuple[str, bool]]:
    """Return the conversation as (text, is written by the assistant) parts; joined, they are the chat template's
    output."""
    parts: list[tuple[str, bool]] = []
    first = str(messages[0]["content"]) if messages[0]["role"] == "system" else None
    if tools:
        listed = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
        before = f"{first}\n\n" if first is not None else ""
        parts.append((f"<|im_start|>system\n{before}{TOOLS_BEFORE}{listed}{TOOLS_AFTER}<|im_end|>\n", False))
        messages = messages[1:] if first is not None else messages
    for message in messages:
        if message["role"] == "assistant":
            parts += [
                ("<|im_start|>assistant\n", False),
                (render_assistant(message) + "<|im_end|>", True),
                ("\n", False),
            ]
        else:
            parts.append((f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n", False))
    if is_prompt:
        parts.append(("<|im_start|>assistant\n", False))
    return parts


def render_prompt(messages: list[Message], tools: list[dict[str, Any]] | None = None) -> str:
    """Return the prompt of a conversation."""
    return "".join(text for text, _ in render(messages, tools, is_prompt=True))


def generate_texts(seed: int) -> Iterator[str]:
    """Yield the tokenizer's training text: dialogues of every phase, and every word of the lists with and without a
    space."""
    for phase, count in (("copying", 10_000), ("mix", 25_000)):
        for dialogue in islice(generate_training(seed, phase), count):
            yield "".join(text for text, _ in render(dialogue.messages, dialogue.tools))
    spread = Source(f"tokenizer-{seed}")
    pools = words.LEXICON + words.COMMON + words.NAMES + words.CITIES + words.UNITS
    for _ in range(40):
        yield " " + " ".join(spread.sample(pools, len(pools)))
    for _ in range(200):
        values = spread.sample(words.VALUES, len(words.VALUES))
        yield '"' + '""'.join(values) + '" ' + " ".join(values)


def train_tokenizer(seed: int = 0) -> Tokenizer:
    """Train a tokenizer; the same seed gives the same tokenizer."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\d"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    added = [AddedToken(text, special=True, normalized=False) for text in SPECIAL + TOOL_MARKS + RESERVED]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=added,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(generate_texts(seed), trainer)
    return keep_tool_marks(tokenizer)


def keep_tool_marks(tokenizer: Tokenizer) -> Tokenizer:
    """Make the tool call tokens non-special: training marks added tokens as special, and tool calls must remain
    visible when special tokens are skipped."""
    written = json.loads(tokenizer.to_str())
    for token in written["added_tokens"]:
        token["special"] = token["content"] not in TOOL_MARKS
    return Tokenizer.from_str(json.dumps(written, ensure_ascii=False))


def build_config() -> dict[str, Any]:
    """Return tokenizer_config.json as transformers reads it."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "chat_template": CHAT_TEMPLATE,
    }
