"""Several choices for one prompt: one call, pieces numbered by choice, prompt tokens counted once, one end."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from engine.protocol.events import ChoiceEnded, Failed, Finished, Started, Token, Usage
from engine.protocol.sampling import Sampling
from engine.tasks.choices import of_choice
from tests.engine.tasks.test_text_generation import Bench, refused


@pytest.fixture
def bench(test_data: Path) -> Bench:
    return Bench(test_data / "models/stories260K")


def test_only_a_seed_makes_choices_differ_on_purpose() -> None:
    assert of_choice(Sampling(), 3) == Sampling()
    assert of_choice(Sampling(seed=5), 0) == Sampling(seed=5)
    assert of_choice(Sampling(seed=2**63 - 1), 1) == Sampling(seed=0)


async def test_each_choice_is_a_sequence_with_the_same_prompt_and_its_own_seed(bench: Bench) -> None:
    await bench.start(prompt="Once upon a time", num_choices=3, sampling=Sampling(seed=5))
    first, *others = bench.replica.requests
    assert first.sampling.seed == 5
    assert [each.sampling.seed for each in others] == [6, 7]
    assert all(each.namespace == first.namespace for each in others)  # choices share the prompt's blocks
    assert all(each.prompt.tolist() == first.prompt.tolist() for each in others)
    assert len({each.sequence_id for each in bench.replica.requests}) == 3


def without_times(usage: Usage) -> Usage:
    return structs.replace(usage, queue_us=0, prefill_us=0, decode_us=0)


async def test_pieces_have_their_choice_and_usage_counts_the_prompt_once(bench: Bench) -> None:
    await bench.start(prompt="Once upon a time", num_choices=2)
    bench.replica.say(432, at=0, num_cached=2)
    bench.replica.say(383, at=1, num_cached=4)
    bench.replica.say(383, at=0, finish="length")
    bench.replica.say(2, at=1, finish="stop")
    assert bench.heard[0] == Started(5, 2)
    assert [event.choice for event in bench.heard if isinstance(event, Token) and event.text] == [0, 1, 0]
    assert [event for event in bench.heard if isinstance(event, ChoiceEnded)] == [
        ChoiceEnded(0, "length"),
        ChoiceEnded(1, "stop"),
    ]
    end = bench.heard[-1]
    assert isinstance(end, Finished)
    assert end.reason == "length"
    assert without_times(end.usage) == Usage(prompt_tokens=5, cached_tokens=2, completion_tokens=4)
    assert end.usage.queue_us > 0
    assert end.usage.decode_us > 0


async def test_failure_of_one_choice_ends_all_choices_with_their_usage(bench: Bench) -> None:
    await bench.start(prompt="Once upon a time", num_choices=3)
    bench.replica.say(432, at=0)
    bench.replica.say(383, at=1)
    bench.replica.say(finish="crashed", at=2)
    bench.replica.say(finish="crashed", at=0)
    (failed,) = [event for event in bench.heard if isinstance(event, Failed)]
    assert bench.heard[-1] is failed
    assert (failed.is_retryable, failed.num_crashes, failed.usage.completion_tokens) == (True, 1, 2)
    assert bench.replica.aborted == [request.sequence_id for request in bench.replica.requests[:2]]


async def test_cancelling_ends_every_choice(bench: Bench) -> None:
    run = await bench.start(prompt="Once upon a time", num_choices=2)
    bench.replica.say(432, at=0)
    assert without_times(run.cancel()) == Usage(prompt_tokens=5, completion_tokens=1)
    bench.replica.say(432, at=1)
    assert len(bench.heard) == 2
    assert len(bench.replica.aborted) == 2


async def test_invalid_numbers_of_choices_and_biases_are_rejected(bench: Bench) -> None:
    assert "n " in str(await refused(bench, num_choices=0))
    assert "n " in str(await refused(bench, num_choices=129))
    wrong = await refused(bench, sampling=Sampling(logit_bias=((512, 1.0),)))
    assert str(wrong) == "'/logit_bias' must contain token ids from 0 to 511"
    wrong = await refused(bench, sampling=Sampling(stop_token_ids=(511, 512)))
    assert str(wrong) == "'/stop_token_ids' must contain token ids from 0 to 511"
    assert "logit_bias" in str(await refused(bench, sampling=Sampling(logit_bias=((5, float("inf")),))))
