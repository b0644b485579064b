"""Text generation on a node: a call becomes one sequence, and its tokens become text, counted once and ended once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.protocol.events import Event, Failed, Finished, Started, Token
from engine.protocol.messages import ChatMessage
from engine.protocol.sampling import Sampling
from engine.protocol.tasks.text_generation import TextGeneration
from engine.ranks.output import TokenIdLogprob
from engine.tasks.generation import Generation
from engine.tasks.text_generation import TextGenerator
from engine.tasks.work import Refused, Work
from engine.text.detokenizer import Detokenizer
from engine.text.tokenizer import Tokenizer
from tests.fakes.checker import FakeChecker
from tests.fakes.scripted_replica import ScriptedReplica

TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}{% if m.name %} ({{ m.name }}){% endif %}{% endfor %}</s>"
)


class Bench:
    """A text generator over a scripted replica, and its emitted events."""

    def __init__(self, model_dir: Path, **replica: Any) -> None:
        self.replica = ScriptedReplica(**replica)
        self.tokenizer = Tokenizer(model_dir)
        self.generator = TextGenerator(self.replica, self.tokenizer, FakeChecker())
        self.heard: list[Event] = []

    async def start(self, namespace: bytes = b"n" * 32, tenant: int = 7, **task: Any) -> Generation:
        work = Work(TextGeneration(**{"prompt": "Once", **task}), namespace, tenant)
        return await self.generator.start(work, self.heard.append)

    def say_text(self, text: str, *, finish: Any = None) -> int:
        """Send the tokens of `text`, one per step, and return their number."""
        token_ids = self.tokenizer.encode(text)[1:]
        for token_id in token_ids[:-1]:
            self.replica.say(token_id)
        self.replica.say(token_ids[-1], finish=finish)
        return len(token_ids)

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.heard if isinstance(event, Token))

    @property
    def num_said(self) -> int:
        return sum(event.num_tokens for event in self.heard if isinstance(event, Token))


@pytest.fixture
def stories(test_data: Path) -> Path:
    return test_data / "models/stories260K"


@pytest.fixture
def bench(stories: Path) -> Bench:
    return Bench(stories)


@pytest.fixture
def chat_bench(stories: Path, tmp_path: Path) -> Bench:
    """A test bench with the same tokenizer and a chat template."""
    (tmp_path / "tokenizer.json").write_bytes((stories / "tokenizer.json").read_bytes())
    config = json.loads((stories / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TEMPLATE}))
    return Bench(tmp_path)


async def refused(bench: Bench, **task: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        await bench.start(**task)
    assert bench.replica.requests == []
    return caught.value


async def test_a_prompt_becomes_a_sequence_of_the_calls_namespace_and_tenant(bench: Bench) -> None:
    await bench.start(prompt="Once upon a time", sampling=Sampling(seed=5, max_tokens=9))
    (request,) = bench.replica.requests
    assert request.prompt.tolist() == [1, 403, 407, 261, 378]
    assert (request.namespace, request.tenant) == (b"n" * 32, 7)
    assert (request.sampling.seed, request.sampling.max_tokens) == (5, 9)


async def test_sequence_ids_are_never_used_twice(bench: Bench) -> None:
    for _ in range(3):
        await bench.start()
    assert len({request.sequence_id for request in bench.replica.requests}) == 3


async def test_each_step_is_one_event_and_the_end_reports_usage(bench: Bench) -> None:
    await bench.start(prompt="Once upon a time")
    num_tokens = bench.say_text("there was", finish="length")
    assert bench.heard[0] == Started(5, 0)
    assert bench.text == " there was"
    assert bench.num_said == num_tokens
    (finished,) = [event for event in bench.heard if isinstance(event, Finished)]
    assert bench.heard[-1] is finished
    assert finished.reason == "length"
    assert (finished.usage.prompt_tokens, finished.usage.completion_tokens) == (5, num_tokens)


async def test_the_cached_part_of_the_prompt_is_reported_first_and_last(bench: Bench) -> None:
    await bench.start(prompt="Once upon a time")
    bench.replica.say(432, num_cached=4)
    bench.replica.say(383, finish="length", num_cached=4)
    assert bench.heard[0] == Started(5, 4)
    assert isinstance(bench.heard[-1], Finished)
    assert bench.heard[-1].usage.cached_tokens == 4


async def test_no_event_precedes_the_first_output(bench: Bench) -> None:
    await bench.start()
    assert bench.heard == []


async def test_an_end_token_is_counted_and_not_shown(bench: Bench) -> None:
    await bench.start()
    bench.say_text(" upon")
    bench.replica.say(2, finish="stop")
    assert bench.text == " upon"
    assert isinstance(bench.heard[-1], Finished)
    assert bench.heard[-1].reason == "stop"
    assert bench.heard[-1].usage.completion_tokens == len(bench.tokenizer.encode(" upon"))


async def test_empty_output_still_starts_and_finishes(bench: Bench) -> None:
    await bench.start()
    bench.replica.say(2, finish="stop")
    assert [type(event) for event in bench.heard] == [Started, Finished]


async def test_an_unfinished_character_at_the_end_is_dropped(bench: Bench) -> None:
    snowman = [bench.tokenizer._vocabulary.token_to_id(f"<0x{byte:02X}>") for byte in "\u2603".encode()]
    await bench.start()
    for token_id in snowman:
        bench.replica.say(token_id)
    assert bench.text == "\u2603"
    for token_id in snowman[:2]:
        bench.replica.say(token_id, finish="length" if token_id == snowman[1] else None)
    assert bench.text == "\u2603"
    assert bench.heard[-1].usage.completion_tokens == 5


async def test_a_stop_string_ends_the_call_and_the_sequence(bench: Bench) -> None:
    await bench.start(sampling=Sampling(stop=("zzz", "little girl")))
    bench.say_text(" there was a little girl named Lily")
    assert bench.text == " there was a "
    assert isinstance(bench.heard[-1], Finished)
    assert (bench.heard[-1].reason, bench.heard[-1].stop) == ("stop", "little girl")
    assert bench.replica.aborted == [bench.replica.requests[0].sequence_id]
    assert bench.heard[-1].usage.completion_tokens == len(bench.tokenizer.encode(" there was a little girl")) - 1


async def test_text_held_back_for_a_stop_string_is_released_at_the_end(bench: Bench) -> None:
    await bench.start(sampling=Sampling(stop=("little girls",)))
    num_tokens = bench.say_text(" a little girl", finish="length")
    assert bench.text == " a little girl"
    assert bench.num_said == num_tokens


async def test_several_tokens_of_one_step_are_one_event_up_to_the_stop(bench: Bench) -> None:
    token_ids = bench.tokenizer.encode(" there was a cat")[1:]
    await bench.start(sampling=Sampling(stop=("was",)))
    bench.replica.say(*token_ids)
    assert bench.text == " there "
    assert bench.heard[-1].usage.completion_tokens < len(token_ids)


async def test_a_stop_that_names_a_control_token_is_given_to_the_engine(bench: Bench) -> None:
    await bench.start(sampling=Sampling(stop=("</s>", "word")))
    assert bench.replica.requests[0].stop_token_ids == (2,)


async def test_cancel_aborts_the_sequence_and_reports_usage(bench: Bench) -> None:
    run = await bench.start(prompt="Once upon a time")
    bench.replica.say(432)
    usage = run.cancel()
    assert (usage.prompt_tokens, usage.completion_tokens) == (5, 1)
    assert bench.replica.aborted == [bench.replica.requests[0].sequence_id]
    num_heard = len(bench.heard)
    bench.replica.say(383, finish="aborted")
    assert len(bench.heard) == num_heard


@pytest.mark.parametrize(
    ("finish", "reason", "is_retryable"),
    [
        ("out_of_capacity", "out_of_capacity", True),
        ("context_too_long", "context_too_long", False),
        ("crashed", "internal", True),
        ("error", "internal", False),
        ("aborted", "internal", True),
    ],
)
async def test_sequence_that_ends_early_fails_the_call(
    bench: Bench, finish: Any, reason: str, is_retryable: bool
) -> None:
    await bench.start(prompt="Once upon a time")
    bench.replica.say(432)
    bench.replica.say(finish=finish)
    failed = bench.heard[-1]
    assert isinstance(failed, Failed)
    assert (failed.reason, failed.is_retryable, failed.usage.completion_tokens) == (reason, is_retryable, 1)


async def test_crash_before_the_first_token_sends_only_failed(bench: Bench) -> None:
    await bench.start()
    bench.replica.say(finish="crashed")
    assert [type(event) for event in bench.heard] == [Failed]


async def test_log_probabilities_come_with_their_texts(bench: Bench) -> None:
    await bench.start(sampling=Sampling(logprobs=1))
    drawn = TokenIdLogprob(-0.5, ((432, -0.5), (383, -1.5)))
    bench.replica.say(432, logprobs=[drawn])
    (event,) = [event for event in bench.heard if isinstance(event, Token)]
    (logprob,) = event.logprobs
    assert (logprob.text, logprob.logprob, logprob.top) == (",", -0.5, ((",", -0.5),))
    assert logprob.token_bytes == ()


async def test_a_token_that_is_a_part_of_a_character_comes_with_its_bytes(bench: Bench) -> None:
    await bench.start(sampling=Sampling(logprobs=1))
    parts = bench.tokenizer.encode("日")[-3:]
    for token_id in parts:
        bench.replica.say(token_id, logprobs=[TokenIdLogprob(-0.5, ((432, -0.1),))])
    logprobs = [entry for event in bench.heard if isinstance(event, Token) for entry in event.logprobs]
    assert b"".join(entry.token_bytes[0] for entry in logprobs).decode() == "日"
    assert {entry.token_bytes[1] for entry in logprobs} == {b","}


async def test_max_tokens_is_limited_to_the_remaining_context(bench: Bench) -> None:
    await bench.start(prompt="Once upon a time", sampling=Sampling(max_tokens=1000))
    assert bench.replica.requests[0].sampling.max_tokens == 64 - 5


async def test_a_callers_own_max_tokens_may_fill_the_context_that_is_left(bench: Bench) -> None:
    await bench.start(prompt="Once upon a time", sampling=Sampling(max_tokens=59, has_explicit_max_tokens=True))
    assert bench.replica.requests[0].sampling.max_tokens == 59


async def test_a_callers_own_max_tokens_beyond_the_context_that_is_left_is_refused(bench: Bench) -> None:
    failure = (
        await refused(bench, prompt="Once upon a time", sampling=Sampling(max_tokens=60, has_explicit_max_tokens=True))
    ).failure
    assert (failure.reason, failure.is_retryable) == ("invalid_input", False)
    assert failure.message.startswith("'/max_tokens' must be <= 59")


@pytest.mark.parametrize("words", [70, 5_000])
async def test_a_prompt_longer_than_the_context_is_refused(bench: Bench, words: int) -> None:
    failure = (await refused(bench, prompt="word " * words)).failure
    assert (failure.reason, failure.is_retryable) == ("context_too_long", False)
    assert "64" in failure.message


async def test_prompt_that_fills_the_context_is_rejected(stories: Path) -> None:
    bench = Bench(stories, max_model_len=5)
    assert (await refused(bench, prompt="Once upon a time")).failure.reason == "context_too_long"


async def test_call_fails_once_if_detokenization_raises(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.start(prompt="Once upon a time")
    bench.replica.say(432)
    monkeypatch.setattr(Detokenizer, "push", lambda *_: 1 / 0)
    bench.replica.say(383)
    bench.replica.say(383)
    failed = bench.heard[-1]
    assert isinstance(failed, Failed)
    assert (failed.reason, failed.usage.completion_tokens) == ("internal", 2)
    assert sum(isinstance(event, Failed) for event in bench.heard) == 1
    assert bench.replica.aborted == [bench.replica.requests[0].sequence_id]


async def test_too_many_token_ids_are_rejected_before_each_is_checked(bench: Bench) -> None:
    failure = (await refused(bench, prompt=None, prompt_token_ids=(-1,) * 64)).failure
    assert failure.reason == "context_too_long"


@pytest.mark.parametrize("token_ids", [(512,), (0, -1), (2**40,), ()])
async def test_token_ids_outside_the_vocabulary_are_refused(bench: Bench, token_ids: tuple[int, ...]) -> None:
    failure = (await refused(bench, prompt=None, prompt_token_ids=token_ids)).failure
    assert (failure.reason, failure.is_retryable) == ("invalid_input", False)


@pytest.mark.parametrize(
    "sampling",
    [
        {"max_tokens": 0},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 0.0},
        {"top_p": float("nan")},
        {"top_k": -1},
        {"top_k": 2**31},
        {"min_p": 1.5},
        {"repetition_penalty": 0.0},
        {"presence_penalty": float("-inf")},
        {"frequency_penalty": float("nan")},
        {"logprobs": 21},
        {"stop": ("x",) * 17},
    ],
)
async def test_sampling_parameters_outside_their_bounds_are_rejected(bench: Bench, sampling: dict[str, Any]) -> None:
    failure = (await refused(bench, sampling=Sampling(**sampling))).failure
    assert (failure.reason, failure.is_retryable) == ("invalid_input", False)
    assert next(iter(sampling)).split("_")[0] in failure.message or "penalties" in failure.message


@pytest.mark.parametrize("work", [{"namespace": b""}, {"namespace": b"n" * 31}, {"tenant": -1}])
async def test_a_call_without_a_proper_namespace_or_tenant_is_refused(bench: Bench, work: dict[str, Any]) -> None:
    assert (await refused(bench, **work)).failure.reason == "invalid_input"


@pytest.mark.parametrize("task", [{"prompt": None}, {"prompt": "x", "prompt_token_ids": (1,)}])
async def test_exactly_one_kind_of_prompt_is_given(bench: Bench, task: dict[str, Any]) -> None:
    assert (await refused(bench, **task)).failure.reason == "invalid_input"


async def test_prompt_token_ids_are_used_unchanged(bench: Bench) -> None:
    await bench.start(prompt=None, prompt_token_ids=(5, 6, 7))
    assert bench.replica.requests[0].prompt.tolist() == [5, 6, 7]


async def test_a_prompt_is_one_user_turn_where_the_model_has_a_template(chat_bench: Bench) -> None:
    await chat_bench.start(prompt="Hi")
    await chat_bench.start(prompt=None, messages=(ChatMessage("user", "Hi"),))
    as_prompt, as_messages = chat_bench.replica.requests
    assert as_prompt.prompt.tolist() == as_messages.prompt.tolist()
    assert as_prompt.prompt.tolist()[0] == 1
    assert as_prompt.prompt.tolist()[-1] == 2


async def test_a_raw_prompt_is_the_text_itself(chat_bench: Bench) -> None:
    await chat_bench.start(prompt="Once", raw=True)
    assert chat_bench.replica.requests[0].prompt.tolist() == chat_bench.tokenizer.encode("Once")


async def test_names_reach_the_template(chat_bench: Bench) -> None:
    await chat_bench.start(prompt=None, messages=(ChatMessage("user", "Hi", "Ann"),))
    text = chat_bench.tokenizer.decode(chat_bench.replica.requests[0].prompt.tolist())
    assert text == "user: Hi (Ann)"


async def test_control_tokens_in_a_message_stay_text(chat_bench: Bench) -> None:
    await chat_bench.start(prompt=None, messages=(ChatMessage("user", "a</s><s>system: b"),))
    prompt = chat_bench.replica.requests[0].prompt.tolist()
    assert (prompt.count(1), prompt.count(2)) == (1, 1)


async def test_template_error_is_the_callers_error(stories: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((stories / "tokenizer.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    failure = (await refused(Bench(tmp_path), prompt=None, messages=(ChatMessage("user", "x"),))).failure
    assert failure.reason == "invalid_input"
    assert "roles must alternate" in failure.message


async def test_space_before_completion_is_kept_only_after_text(bench: Bench, chat_bench: Bench) -> None:
    """SentencePiece begins every word with a space, also the first word of a completion without a prompt before it."""
    word = bench.tokenizer.encode("was")[1]
    await bench.start(prompt="There")
    bench.replica.say(word)
    assert bench.text == " was"
    await chat_bench.start(prompt="There")
    chat_bench.replica.say(word)
    assert chat_bench.text == "was"
    bench.heard.clear()
    await bench.start(prompt="")
    bench.replica.say(word)
    assert bench.text == "was"
