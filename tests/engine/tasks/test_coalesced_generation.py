"""With token coalescing, a call has fewer events and the same output, usage and end, and nothing is sent too late."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.protocol.events import ChoiceEnded, Event, Failed, Finished, Started, Token, ToolCallDelta, Usage
from engine.protocol.outcome import Outcome
from engine.protocol.sampling import Sampling
from engine.protocol.tasks.text_generation import TextGeneration
from engine.protocol.tools import Tool
from engine.ranks.output import TokenIdLogprob
from engine.report import Finish
from engine.tasks.text_generation import TextGenerator
from engine.tasks.token_coalescer import TokenCoalescer
from engine.tasks.work import Run, Work
from engine.text.tokenizer import Tokenizer
from tests.fakes.checker import FakeChecker
from tests.fakes.scripted_replica import ScriptedReplica
from tests.fakes.virtual_loop import run_virtually

SPARK = Path(__file__).parents[3] / "catalog/builtin/spark"
WAIT_S = 0.025
TEXT = "The river runs past an old stone mill \u2603 where seven lamps burn all night and nobody asks who lit them."
CALL = '<tool_call>\n{"name": "say", "arguments": {"text": "a river"}}\n</tool_call>'
TOKENIZER = Tokenizer(SPARK)


@pytest.fixture(autouse=True)
def _without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run functions for threads at once, because a virtual clock does not wait for threads."""

    async def run(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    monkeypatch.setattr(asyncio, "to_thread", run)


class Stage:
    """A text generator over a scripted replica, on a virtual clock."""

    def __init__(self, wait_s: float) -> None:
        self.replica = ScriptedReplica(vocab_size=4096, max_model_len=2048)
        self.generator = TextGenerator(
            self.replica,  # type: ignore[arg-type]
            TOKENIZER,
            FakeChecker(),
            coalescer=TokenCoalescer(wait_s),
        )
        self.heard: list[Event] = []
        self.heard_ms: list[float] = []
        self.run: Run

    async def start(self, **task: Any) -> None:
        given = {"prompt": "Once upon a time", **task}
        self.run = await self.generator.start(Work(TextGeneration(**given), b"n" * 32, 7), self._hear)

    def _hear(self, event: Event) -> None:
        self.heard.append(event)
        self.heard_ms.append(round(asyncio.get_running_loop().time() * 1000, 3))

    async def say(self, text: str, gap_s: float | Callable[[], float], finish: Finish = "length", at: int = -1) -> None:
        """Send the tokens of `text`, one per step, with gaps between steps; the last with `finish`."""
        token_ids = TOKENIZER.encode(text, parse_special=True)
        for number, token_id in enumerate(token_ids):
            is_last = number + 1 == len(token_ids)
            logprob = TokenIdLogprob(-float(number), ((token_id, -float(number)), (5, -9.0)))
            self.replica.say(
                token_id, finish=finish if is_last else None, logprobs=[logprob] * self.has_logprobs, at=at
            )
            await asyncio.sleep(gap_s if isinstance(gap_s, float) else gap_s())

    @property
    def has_logprobs(self) -> bool:
        return self.replica.requests[-1].sampling.logprobs is not None

    @property
    def pieces(self) -> list[Token | ToolCallDelta]:
        return [event for event in self.heard if isinstance(event, Token | ToolCallDelta)]

    @property
    def outcome(self) -> Outcome:
        outcome = Outcome()
        for event in self.heard:
            outcome.add(event)
        return outcome

    @property
    def usage(self) -> Usage:
        """The usage at the end, without times."""
        end = self.heard[-1]
        assert isinstance(end, Finished | Failed)
        return msgspec.structs.replace(end.usage, queue_us=0, prefill_us=0, decode_us=0)


def staged(act: Callable[[Stage], Awaitable[None]], wait_s: float = WAIT_S) -> Stage:
    """Run `act`, and wait a second for everything that is sent late."""

    async def play() -> Stage:
        stage = Stage(wait_s)
        await act(stage)
        await asyncio.sleep(1.0)
        return stage

    return run_virtually(play())


TASKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "logprobs": {"sampling": Sampling(logprobs=2)},
    "echo": {"echoes_prompt": True},
    "stop string that ends the text": {"sampling": Sampling(stop=("seven lamps",))},
    "stop string that does not occur": {"sampling": Sampling(stop=("all night long",), logprobs=0)},
    "tool call": {"tools": (Tool(name="say"),)},
}


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("seed", range(3))
def test_output_and_usage_are_those_without_coalescing(name: str, seed: int) -> None:
    text = f"{TEXT}{CALL}" if name == "tool call" else TEXT

    async def act(stage: Stage) -> None:
        choose = random.Random(seed)
        await stage.start(**TASKS[name])
        await stage.say(text, lambda: choose.choice((0.0, choose.expovariate(1 / 0.012))))

    at_once, held = staged(act, 0.0), staged(act)
    assert len(held.pieces) < 0.7 * len(at_once.pieces)
    first, second = at_once.outcome, held.outcome
    assert (second.text, second.logprobs, second.started) == (first.text, first.logprobs, first.started)
    calls = [[(call.name, call.arguments) for call in outcome.tool_calls] for outcome in (first, second)]
    assert calls[0] == calls[1]
    assert bool(calls[0]) == (name == "tool call")
    assert held.usage == at_once.usage
    assert isinstance(held.heard[-1], Finished)
    assert held.heard[-1].reason == at_once.heard[-1].reason  # type: ignore[union-attr]
    assert held.heard[-1].stop == ("seven lamps" if name == "stop string that ends the text" else None)
    assert sum(e.num_tokens for e in held.pieces) == sum(e.num_tokens for e in at_once.pieces)
    # the first output and the end are not later
    assert held.heard_ms[held.heard.index(held.pieces[0])] == at_once.heard_ms[at_once.heard.index(at_once.pieces[0])]
    assert held.heard_ms[-1] == at_once.heard_ms[-1]


def test_first_token_is_sent_at_once_after_an_echo() -> None:
    async def act(stage: Stage) -> None:
        await stage.start(echoes_prompt=True)
        await stage.say(" river runs past", 0.01)

    stage = staged(act)
    assert stage.heard_ms[:3] == [0, 0, 0]
    assert [type(event) for event in stage.heard[:3]] == [Started, Token, Token]


def test_first_whole_character_is_sent_at_once() -> None:
    async def act(stage: Stage) -> None:
        await stage.start()
        await stage.say("\u2603\u2603 river", 0.01)

    at_once, held = staged(act, 0.0), staged(act)
    assert at_once.heard_ms[1] > 0, "the character has several tokens"
    assert held.heard_ms[1] == at_once.heard_ms[1]


def test_a_slow_model_is_as_without_coalescing() -> None:
    async def act(stage: Stage) -> None:
        await stage.start()
        await stage.say(TEXT, 0.030)

    at_once, held = staged(act, 0.0), staged(act)
    assert held.heard[:-1] == at_once.heard[:-1]
    assert held.heard_ms == at_once.heard_ms


def test_each_choice_is_coalesced_and_ends_at_once() -> None:
    async def act(stage: Stage) -> None:
        await stage.start(num_choices=2)
        await asyncio.gather(stage.say(TEXT, 0.010, at=0), stage.say(TEXT[:30], 0.011, at=1))

    at_once, held = staged(act, 0.0), staged(act)
    assert [choice.text for choice in held.outcome.choices] == [choice.text for choice in at_once.outcome.choices]
    assert held.usage == at_once.usage
    assert len(held.pieces) < 0.7 * len(at_once.pieces)
    ends = [[(ms, e) for ms, e in zip(stage.heard_ms, stage.heard, strict=True) if isinstance(e, ChoiceEnded)]
            for stage in (held, at_once)]  # fmt: skip
    assert ends[0] == ends[1]
    for choice in (0, 1):
        assert (
            held.heard_ms[next(i for i, e in enumerate(held.heard) if isinstance(e, Token) and e.choice == choice)] == 0
        )


@pytest.mark.parametrize("finish", ["stop", "unclosed"])
def test_an_end_without_a_token_keeps_the_tokens_before_it(finish: Finish) -> None:
    async def act(stage: Stage) -> None:
        await stage.start()
        for token_id in TOKENIZER.encode(" river runs"):
            stage.replica.say(token_id)
        stage.replica.say(finish=finish)

    assert staged(act).outcome.text == staged(act, 0.0).outcome.text != ""


@pytest.mark.parametrize("finish", ["crashed", "error", "out_of_capacity"])
@pytest.mark.parametrize("name", ["plain", "stop string that does not occur"])
def test_a_failure_follows_the_tokens_before_it(finish: Finish, name: str) -> None:
    async def act(stage: Stage) -> None:
        await stage.start(**TASKS[name])
        for token_id in TOKENIZER.encode(" river runs"):
            stage.replica.say(token_id)
        stage.replica.say(finish=finish)

    at_once, held = staged(act, 0.0), staged(act)
    assert held.outcome.text == at_once.outcome.text == " river runs"
    assert isinstance(held.heard[-1], Failed)
    assert held.usage == at_once.usage
    assert held.heard_ms[-1] == 0


@pytest.mark.parametrize("num_choices", [1, 2])
@pytest.mark.parametrize("name", ["plain", "logprobs", "stop string that does not occur"])
def test_cancelled_call_sends_what_it_holds_and_counts_it(name: str, num_choices: int) -> None:
    usages: list[Usage] = []

    async def act(stage: Stage) -> None:
        await stage.start(num_choices=num_choices, **TASKS[name])
        for token_id in TOKENIZER.encode(" river runs past"):
            for at in range(num_choices):
                stage.replica.say(token_id, at=at)
        usages.append(msgspec.structs.replace(stage.run.cancel(), queue_us=0, prefill_us=0, decode_us=0))
        stage.replica.say(7)  # a step that was running

    at_once, held = staged(act, 0.0), staged(act)
    assert usages[0] == usages[1]
    for stage in (at_once, held):
        assert [choice.text for choice in stage.outcome.choices] == [" river runs past"] * num_choices
        assert not isinstance(stage.heard[-1], Finished | Failed)
        assert len(stage.replica.aborted) == num_choices
    assert held.heard_ms[-1] == 0


def test_a_held_token_that_cannot_be_converted_fails_the_call(caplog: pytest.LogCaptureFixture) -> None:
    async def act(stage: Stage) -> None:
        await stage.start()
        stage.replica.say(TOKENIZER.encode(" river")[0])
        stage.replica.say("not a token")  # type: ignore[arg-type]

    stage = staged(act)
    assert isinstance(stage.heard[-1], Failed)
    assert stage.heard[-1].reason == "internal"
    assert stage.heard_ms[-1] == 25
    assert stage.replica.aborted == [1]
    assert "could not be converted" in caplog.text
