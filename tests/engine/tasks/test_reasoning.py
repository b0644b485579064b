"""Reasoning: separated from the content, counted, and excluded from output formats."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.protocol.events import Event, Finished, Token
from engine.protocol.messages import ChatMessage
from engine.protocol.output_format import Constraint
from engine.protocol.sampling import Sampling
from engine.protocol.tasks.text_generation import TextGeneration
from engine.ranks.output import TokenIdLogprob
from engine.tasks.text_generation import TextGenerator
from engine.tasks.work import Work
from engine.text.tokenizer import Tokenizer
from tests.fakes.checker import FakeChecker
from tests.fakes.scripted_replica import ScriptedReplica

SPARK = Path(__file__).parents[3] / "catalog/builtin/spark"
END_ID = 2


class Thinker:
    """The built-in model's tokenizer with another model's chat template, over a scripted replica."""

    def __init__(self, folder: Path, template: str) -> None:
        shutil.copy(SPARK / "tokenizer.json", folder)
        config = json.loads((SPARK / "tokenizer_config.json").read_text()) | {"chat_template": template}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        self.replica = ScriptedReplica(vocab_size=4096, max_model_len=2048)
        self.tokenizer = Tokenizer(folder)
        self.generator = TextGenerator(self.replica, self.tokenizer, FakeChecker())  # type: ignore[arg-type]
        self.heard: list[Event] = []

    async def start(self, *messages: ChatMessage, **task: Any) -> None:
        request = {"messages": messages or (ChatMessage("user", "Hi"),), "separates_reasoning": True}
        await self.generator.start(Work(TextGeneration(**(request | task)), b"n" * 32, 7), self.heard.append)

    def say(self, text: str) -> int:
        token_ids = self.tokenizer.encode(text, parse_special=True)
        for token_id in token_ids:
            self.replica.say(token_id, logprobs=[TokenIdLogprob(-1.0)])
        self.replica.say(END_ID, finish="stop")
        return len(token_ids)

    def text(self, *, is_reasoning: bool) -> str:
        return "".join(e.text for e in self.heard if isinstance(e, Token) and e.is_reasoning == is_reasoning)

    @property
    def finished(self) -> Finished:
        assert isinstance(self.heard[-1], Finished)
        return self.heard[-1]

    @property
    def prompt(self) -> str:
        return self.tokenizer.decode(self.replica.requests[-1].prompt.tolist())


@pytest.fixture
def thinker(tmp_path: Path, test_data: Path) -> Thinker:
    return Thinker(tmp_path, (test_data / "templates/Qwen-Qwen3-0.6B.jinja").read_text())


async def test_reasoning_is_separated_and_counted(thinker: Thinker) -> None:
    await thinker.start(sampling=Sampling(logprobs=0, stop=("two",)))
    thinker.say("<think>\nOne, two.\n</think>\n\nThree.")
    assert (thinker.text(is_reasoning=True), thinker.text(is_reasoning=False)) == ("One, two.", "Three.")
    usage = thinker.finished.usage
    assert 5 < usage.reasoning_tokens < usage.completion_tokens
    logprobs = [entry.text for event in thinker.heard if isinstance(event, Token) for entry in event.logprobs]
    assert "".join(logprobs).strip() == "Three."


async def test_reasoning_is_text_unless_separation_is_requested(thinker: Thinker) -> None:
    await thinker.start(separates_reasoning=False)
    thinker.say("<think>\nOne\n</think>\n\nTwo.")
    assert thinker.text(is_reasoning=False) == "<think>\nOne\n</think>\n\nTwo."
    assert thinker.finished.usage.reasoning_tokens == 0


async def test_output_format_applies_after_the_reasoning(thinker: Thinker) -> None:
    for separates_reasoning in (True, False):
        thinker.heard.clear()
        await thinker.start(constraint=Constraint("json_object"), separates_reasoning=separates_reasoning)
        held = thinker.replica.requests[-1].constraint
        assert held is not None
        assert held.text.startswith("start: reasoning? body")
        thinker.say('<think>\n{}?\n</think>\n\n{"a": 1}')
        assert thinker.text(is_reasoning=False) == '{"a": 1}'


async def test_reasoning_options_reach_the_template_and_end_reasoning(thinker: Thinker) -> None:
    schema = Constraint("json_object")
    await thinker.start(template_kwargs={"enable_thinking": False}, constraint=schema)
    assert thinker.prompt.endswith("<think>\n\n</think>\n\n")
    assert thinker.replica.requests[-1].constraint == schema
    thinker.say("Hi")
    assert thinker.text(is_reasoning=False) == "Hi"


async def test_earlier_reasoning_is_rendered_by_the_template(thinker: Thinker) -> None:
    await thinker.start(ChatMessage("user", "Q"), ChatMessage("assistant", "A", reasoning="Because."))
    assert "<think>\nBecause.\n</think>\n\nA" in thinker.prompt


async def test_output_begins_as_reasoning_if_the_prompt_opens_it(tmp_path: Path, test_data: Path) -> None:
    template = (test_data / "templates/GLM-4.7-Flash.jinja").read_text()
    thinker = Thinker(tmp_path, template)
    await thinker.start(ChatMessage("user", "What does </think> do?"))
    thinker.say("Hm.</think>It ends.")
    assert (thinker.text(is_reasoning=True), thinker.text(is_reasoning=False)) == ("Hm.", "It ends.")
    thinker.heard.clear()
    await thinker.start(ChatMessage("user", "Hi"))
    num_tokens = thinker.say("Never done")
    assert (thinker.text(is_reasoning=True), thinker.text(is_reasoning=False)) == ("Never done", "")
    assert thinker.finished.usage.reasoning_tokens >= num_tokens


async def test_harmony_output_uses_channels_with_and_without_tools(tmp_path: Path, test_data: Path) -> None:
    thinker = Thinker(tmp_path, (test_data / "templates/openai-gpt-oss-120b.jinja").read_text())
    for separates_reasoning in (True, False):
        thinker.heard.clear()
        await thinker.start(separates_reasoning=separates_reasoning, template_kwargs={"reasoning_effort": "high"})
        assert "Reasoning: high" in thinker.prompt
        thinker.say("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Four.")
        assert (thinker.text(is_reasoning=True), thinker.text(is_reasoning=False)) == ("Hm.", "Four.")
