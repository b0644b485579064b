"""Speculative decoding changes the number of steps and nothing else.

Tested over the fake runner, whose tokens show what was read, and over a Markov chain sampled by the real sampler.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from engine.arrays import Ints
from engine.inputs import StepInputs
from engine.launched_step import FinishedOutput
from engine.protocol.sampling import Sampling
from engine.sampler import sample
from engine.speculation.speculator import DraftRequest
from tests.engine.driver import Driver
from tests.engine.test_loop import first_prompt_that_draws, prompt_of
from tests.fakes.drafter import Oracle
from tests.fakes.runner import END_TOKEN, FakeRunner, expected_tokens


def test_speculation_takes_fewer_steps_for_the_same_tokens() -> None:
    driver = Driver(drafter=Oracle())
    sequence_id = driver.add(prompt_of(20), max_tokens=100, ignore_eos=True)
    driver.run()
    assert driver.tokens[sequence_id] == expected_tokens(prompt_of(20), 100, ignore_end=True)
    assert driver.finishes[sequence_id] == "length"
    status = driver.engine.status()
    assert 0 < status.num_accepted < status.num_drafted
    assert driver.engine.scheduler.num_steps + status.num_accepted == 100
    assert driver.engine.scheduler.num_steps < 60


@pytest.mark.parametrize("num_blocks", [64, 9])
@pytest.mark.parametrize("is_cached", [True, False])
def test_two_sequences_and_a_full_pool_change_no_token(num_blocks: int, is_cached: bool) -> None:
    driver = Driver(num_blocks=num_blocks, drafter=Oracle(), is_prefix_cache_enabled=is_cached)
    ids = [driver.add(prompt_of(30, seed), max_tokens=70, ignore_eos=True) for seed in range(2)]
    driver.run()
    for seed, sequence_id in enumerate(ids):
        assert driver.tokens[sequence_id] == expected_tokens(prompt_of(30, seed), 70, ignore_end=True)
    assert driver.engine.status().num_accepted > 0
    assert driver.engine.blocks.num_in_use == 0


def test_blocks_with_accepted_drafts_are_reused_correctly() -> None:
    driver = Driver(drafter=Oracle(), max_step_tokens=64)
    first = driver.add(prompt_of(20), max_tokens=60, ignore_eos=True)
    driver.run()
    prompt = prompt_of(20) + driver.tokens[first]
    second = driver.add(prompt, max_tokens=20, ignore_eos=True)
    driver.run()
    assert driver.num_cached[second] == 64
    assert driver.tokens[second] == expected_tokens(prompt, 20, ignore_end=True)


@pytest.mark.parametrize("after", range(1, 8))
def test_end_token_among_drafts_ends_the_sequence(after: int) -> None:
    prompt = first_prompt_that_draws(END_TOKEN, after)
    driver = Driver(drafter=Oracle((15,)))
    sequence_id = driver.add(prompt, max_tokens=30)
    driver.run()
    assert driver.tokens[sequence_id] == expected_tokens(prompt, 30)
    assert driver.finishes[sequence_id] == "stop"


def test_max_tokens_holds_with_drafts() -> None:
    driver = Driver(FakeRunner(num_blocks=64, max_model_len=64), drafter=Oracle((15,)))
    lengths = [*range(1, 12), 44]
    for max_tokens in lengths:
        sequence_id = driver.add(prompt_of(20, max_tokens), max_tokens=max_tokens, ignore_eos=True)
        driver.run()
        assert driver.tokens[sequence_id] == expected_tokens(prompt_of(20, max_tokens), max_tokens, ignore_end=True)
        assert driver.finishes[sequence_id] == "length"


def test_many_rows_get_no_drafts() -> None:
    driver = Driver(drafter=Oracle(), max_sequences=16)
    ids = [driver.add(prompt_of(20, seed), max_tokens=30, ignore_eos=True) for seed in range(3)]
    while len(driver.engine.scheduler.running) == 3 or not driver.tokens[ids[0]]:
        driver.step()
        assert driver.engine.status().num_drafted == 0
    driver.run()
    assert all(
        driver.tokens[each] == expected_tokens(prompt_of(20, seed), 30, ignore_end=True)
        for seed, each in enumerate(ids)
    )


def test_draft_tokens_beyond_the_vocabulary_are_dropped() -> None:
    class Stranger:
        def propose(self, requests: Sequence[DraftRequest]) -> list[Ints]:
            return [np.array([5, 997, -1, 4], dtype=np.int32)[: each.max_tokens] for each in requests]

    driver = Driver(drafter=Stranger())
    sequence_id = driver.add(prompt_of(20), max_tokens=30, ignore_eos=True)
    driver.run()
    assert driver.tokens[sequence_id] == expected_tokens(prompt_of(20), 30, ignore_end=True)


def test_logprobs_stay_aligned_with_accepted_tokens() -> None:
    driver = Driver(drafter=Oracle((3,)))
    driver.add(prompt_of(20), max_tokens=30, ignore_eos=True, logprobs=2)
    while driver.engine.has_work:
        report = driver.step()
        assert report.logprobs is not None
        np.testing.assert_array_equal(report.logprobs, -report.token_ids.astype(np.float32))
        assert report.top_ids is not None
        np.testing.assert_array_equal(report.top_ids[:, 0], report.token_ids)


def test_failed_row_with_drafts_ends_its_sequence_with_the_tokens_before() -> None:
    driver = Driver(drafter=Oracle((15,)))
    sound = driver.add(prompt_of(20), max_tokens=30, ignore_eos=True)
    broken = driver.add(prompt_of(20, 1), max_tokens=30, ignore_eos=True)
    driver.step()
    driver.step()
    driver.runner.failing_ids.add(broken)
    driver.run()
    assert driver.finishes[broken] == "error"
    wanted = expected_tokens(prompt_of(20, 1), 30, ignore_end=True)
    assert driver.tokens[broken] == wanted[: len(driver.tokens[broken])]
    assert driver.tokens[sound] == expected_tokens(prompt_of(20), 30, ignore_end=True)


# ── what is drawn ──

CHAIN = torch.tensor(
    [[2.0, 1.0, 0.0, -1.0, 0.5], [0.0, 3.0, 1.0, 1.0, -2.0], [1.0, 1.0, 1.0, 1.0, 1.0], [-1.0, 0.0, 2.5, 0.0, 1.0],
     [0.3, -0.7, 1.1, 2.0, 0.0]]
)  # fmt: skip


class ChainRunner:
    """A runner over a Markov chain, with the real sampler."""

    num_blocks, block_size, max_model_len, vocab_size = 64, 16, 128, len(CHAIN)
    eos_token_ids: tuple[int, ...] = ()
    layout_tag = "chain"
    can_sleep = False
    weight_bytes = kv_bytes = 0
    has_cheap_multi_token_rows = True
    can_run_ahead = False

    def launch(self, inputs: StepInputs) -> FinishedOutput:
        return FinishedOutput(sample(CHAIN[inputs.token_ids[inputs.logit_rows]].clone(), inputs.sampling))


class Likely:
    """Drafter that is right more often than not, like a draft model."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Ints]:
        found = []
        for each in requests:
            guess = [int(each.token_ids[-1])]
            while len(guess) <= each.max_tokens:
                guess.append(int(CHAIN[guess[-1]].roll(int(len(guess) % 3 == 0)).argmax()))
            found.append(np.array(guess[1:], dtype=np.int32))
        return found


def drawn(num_sequences: int, drafter: Likely | None, **sampling: object) -> list[list[int]]:
    driver = Driver(ChainRunner(), drafter=drafter)
    responses = []
    for seed in range(0, num_sequences, 2):
        ids = [driver.add([0, 4], seed=seed + each, ignore_eos=True, **sampling) for each in range(2)]
        driver.run()
        responses += [driver.tokens[each] for each in ids]
    if drafter is not None:
        assert driver.engine.status().num_accepted > num_sequences // 4
    return responses


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.8, "min_p": 0.05},
        {"temperature": 1.2, "top_k": 3, "repetition_penalty": 1.4, "frequency_penalty": 0.5},
        {"temperature": 1.0, "logit_bias": ((2, 1.5), (1, -2.0))},
    ],
)
def test_seeded_tokens_are_the_same_with_and_without_drafts(sampling: dict[str, object]) -> None:
    assert drawn(24, Likely(), max_tokens=24, **sampling) == drawn(24, None, max_tokens=24, **sampling)


def test_tokens_sampled_at_drafts_follow_the_models_distribution() -> None:
    """Chi-square test of token pairs, sampled with drafts, against the chain's probabilities."""
    pairs = np.zeros((len(CHAIN), len(CHAIN)))
    for tokens in drawn(60, Likely(), max_tokens=100, temperature=1.0):
        np.add.at(pairs, ([4, *tokens[:-1]], tokens), 1)
    expected = torch.softmax(CHAIN, -1).numpy() * pairs.sum(1, keepdims=True)
    statistic = float(((pairs - expected) ** 2 / expected).sum())
    freedom = len(CHAIN) * (len(CHAIN) - 1)
    assert expected.min() > 5
    assert abs(statistic - freedom) < 5 * np.sqrt(2 * freedom)


def test_unseeded_sampling_is_random_with_drafts() -> None:
    driver = Driver(ChainRunner(), drafter=Likely())
    ids = [driver.add([0, 4], max_tokens=20, temperature=1.0, ignore_eos=True) for _ in range(2)]
    driver.run()
    assert driver.tokens[ids[0]] != driver.tokens[ids[1]]
    assert Sampling().seed is None
