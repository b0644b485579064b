"""The engine over a fake runner that detects wrong KV reads."""

from __future__ import annotations

import math

import numpy as np
import pytest

from engine.protocol.sampling import Sampling
from engine.scheduling.scheduler import MAX_PREEMPTIONS
from engine.scheduling.sequence import SequenceRequest
from tests.engine.driver import NAMESPACE, OTHER_NAMESPACE, Driver
from tests.fakes.runner import END_TOKEN, FakeRunner, expected_tokens


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(1, 900, length).tolist()


# ── endings ──


def test_sequence_ends_with_length_at_max_tokens():
    driver = Driver()
    sequence_id = driver.add(prompt_of(20), max_tokens=7, ignore_eos=True)
    driver.run()
    assert driver.tokens[sequence_id] == expected_tokens(prompt_of(20), 7, ignore_end=True)
    assert driver.finishes[sequence_id] == "length"


def first_prompt_that_draws(token_id: int, after: int) -> list[int]:
    """Return a prompt whose completion has `token_id` first at index `after`."""
    for seed in range(20_000):
        prompt = prompt_of(5, seed)
        drawn = expected_tokens(prompt, after + 1, ignore_end=True)
        if drawn.index(token_id) == after if token_id in drawn else False:
            return prompt
    raise AssertionError("none found")


def test_end_token_stops_the_sequence_and_is_its_last_token():
    prompt = first_prompt_that_draws(END_TOKEN, after=3)
    driver = Driver()
    stopped, ignoring = driver.add(prompt, max_tokens=30), driver.add(prompt, max_tokens=30, ignore_eos=True)
    driver.run()
    assert driver.finishes[stopped] == "stop"
    assert driver.tokens[stopped] == expected_tokens(prompt, 30)
    assert len(driver.tokens[stopped]) == 4
    assert (driver.finishes[ignoring], len(driver.tokens[ignoring])) == ("length", 30)


def test_stop_token_ids_apply_with_ignore_eos():
    drawn = expected_tokens(prompt_of(9), 12, ignore_end=True)
    stops = (5_000, 5_001, 5_002, drawn[4])
    driver = Driver()
    stopped = driver.add(prompt_of(9), max_tokens=12, ignore_eos=True, stop_token_ids=stops)
    other = driver.add(prompt_of(9), max_tokens=12, ignore_eos=True)
    driver.run()
    assert driver.tokens[stopped] == drawn[: drawn.index(drawn[4]) + 1]
    assert driver.finishes[stopped] == "stop"
    assert driver.tokens[other] == drawn


def test_max_model_len_limits_prompt_and_completion_together():
    driver = Driver(FakeRunner(num_blocks=64, max_model_len=50))
    sequence_id = driver.add(prompt_of(40), max_tokens=1000, ignore_eos=True)
    driver.run()
    assert len(driver.tokens[sequence_id]) == 10
    assert driver.finishes[sequence_id] == "length"


def test_context_is_limited_to_the_kv_pool_so_that_every_sequence_can_run():
    driver = Driver(FakeRunner(num_blocks=4, max_model_len=512))
    assert driver.engine.info.max_model_len == 64
    fits, too_long = driver.add(prompt_of(63), max_tokens=100), driver.add(prompt_of(64), max_tokens=1)
    driver.run()
    assert (driver.finishes[fits], len(driver.tokens[fits])) == ("length", 1)
    assert driver.finishes[too_long] == "context_too_long"


@pytest.mark.parametrize(
    "change",
    [
        {"max_tokens": 0},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": -0.1},
        {"top_p": math.nan},
        {"repetition_penalty": math.inf},
        {"top_k": -1},
        {"top_k": 2**40},
        {"logprobs": -1},
        {"logprobs": 1000},
        {"stop_token_ids": (-1,)},
        {"min_tokens": -1},
        {"min_tokens": 6},
        {"logit_bias": ((997, 1.0),)},
        {"logit_bias": ((1, math.nan),)},
        {"logit_bias": tuple((token_id % 900, 1.0) for token_id in range(1025))},
        {"stop_token_ids": tuple(range(100))},
        {"namespace": b""},
        {"namespace": b"x" * 65},
        {"prompt": []},
        {"prompt": [-1]},
        {"prompt": [997]},
    ],
)
def test_invalid_request_ends_with_an_error_and_does_not_affect_others(change: dict):
    driver = Driver()
    good = driver.add(prompt_of(20), max_tokens=5, ignore_eos=True)
    change = {"max_tokens": 5, "prompt": prompt_of(5)} | change
    bad = driver.add(change.pop("prompt"), **change)
    driver.run()
    assert driver.finishes == {bad: "error", good: "length"}
    assert driver.tokens[good] == expected_tokens(prompt_of(20), 5, ignore_end=True)


def test_duplicate_sequence_id_is_rejected_and_the_first_sequence_continues():
    driver = Driver()
    request = SequenceRequest(1, np.array(prompt_of(20), np.int32), Sampling(max_tokens=5), NAMESPACE, 1)
    assert driver.add(prompt_of(20), max_tokens=5) == 1
    driver.engine.add(request)
    report = driver.engine.step()
    assert sorted(report.finishes.tolist()) == [0, 6]


def test_seed_may_be_any_integer():
    driver = Driver()
    for seed in (None, 0, -1, 2**63, 2**64 + 5):
        driver.add(prompt_of(3), max_tokens=2, seed=seed)
    driver.step()
    driver.run()
    assert len(driver.finishes) == 5


def test_row_with_non_finite_logits_ends_only_its_own_sequence():
    driver = Driver()
    good, bad = (driver.add(prompt_of(20, seed), max_tokens=9, ignore_eos=True) for seed in (1, 2))
    driver.step()
    driver.runner.failing_ids.add(bad)
    driver.run()
    assert driver.finishes == {bad: "error", good: "length"}
    assert len(driver.tokens[bad]) == 1


def test_blocks_of_a_failed_sequence_are_not_found_in_the_prefix_cache():
    """A failed sequence's KV may be broken: cached, it would fail every request with the same prefix."""
    driver = Driver()
    prompt = prompt_of(40)
    bad = driver.add(prompt, max_tokens=2)
    driver.runner.failing_ids.add(bad)
    driver.run()
    again = driver.add(prompt, max_tokens=2)
    driver.run()
    assert driver.finishes[bad] == "error"
    assert (driver.num_cached[again], driver.tokens[again]) == (0, expected_tokens(prompt, 2))


def test_max_waiting_zero_still_uses_free_slots():
    driver = Driver(max_sequences=2, max_waiting=0)
    ids = [driver.add(prompt_of(10, seed), max_tokens=2) for seed in range(3)]
    driver.run()
    assert [driver.finishes[each] == "out_of_capacity" for each in ids] == [False, False, True]


def test_logprobs_are_reported_only_for_rows_that_want_them():
    driver = Driver()
    asking, silent = driver.add(prompt_of(4), logprobs=2), driver.add(prompt_of(5))
    report = driver.step()
    rows = {int(sequence_id): row for row, sequence_id in enumerate(report.sequence_ids)}
    token_id = driver.tokens[asking][0]
    assert report.logprobs[rows[asking]] == -token_id
    assert report.top_ids[rows[asking]].tolist() == [token_id, token_id + 1]
    assert math.isnan(report.logprobs[rows[silent]])
    assert report.top_ids[rows[silent]].tolist() == [-1, -1]


def test_logprobs_stay_aligned_when_other_sequences_end_in_the_same_report():
    driver = Driver()
    asking, leaving = driver.add(prompt_of(4), logprobs=1), driver.add(prompt_of(5))
    driver.abort(leaving)
    report = driver.step()
    assert report.sequence_ids.tolist() == [asking, leaving]
    assert math.isnan(report.logprobs[1])
    assert report.top_ids.shape == (2, 1)


# ── equal output, however the work is cut ──


@pytest.mark.parametrize("max_step_tokens", [1, 3, 16, 17, 512])
@pytest.mark.parametrize("is_cached", [True, False])
def test_output_is_the_same_for_any_chunk_size_with_and_without_the_prefix_cache(max_step_tokens, is_cached):
    driver = Driver(max_step_tokens=max_step_tokens, is_prefix_cache_enabled=is_cached)
    prompts = [prompt_of(40) + prompt_of(length, length) for length in (1, 7, 8, 9, 33)]
    ids = [driver.add(prompt, max_tokens=12) for prompt in prompts]
    driver.run()
    assert [driver.tokens[each] for each in ids] == [expected_tokens(prompt, 12) for prompt in prompts]
    assert (driver.engine.blocks.num_cached > 0) == is_cached


def test_small_kv_pool_preempts_but_changes_no_token():
    prompts = [prompt_of(40, seed) for seed in range(16)]
    driver = Driver(num_blocks=16 * 6 // 4)  # each needs 6 blocks in the end
    ids = [driver.add(prompt, max_tokens=50, ignore_eos=True) for prompt in prompts]
    most = 0
    while driver.engine.has_work:
        driver.step()
        most = max([most, *(each.num_preemptions for each in driver.engine.sequences)])
    assert [driver.tokens[each] for each in ids] == [expected_tokens(prompt, 50, ignore_end=True) for prompt in prompts]
    assert set(driver.finishes.values()) == {"length"}
    assert driver.engine.status().num_preemptions > 0
    assert most <= MAX_PREEMPTIONS


# ── the prefix cache ──


def test_cached_prompt_computes_fewer_than_two_blocks():
    for length in (320, 321, 335):
        driver = Driver()
        prompt = prompt_of(length)
        driver.add(prompt, max_tokens=1)
        driver.run()
        before = driver.runner.num_forward_tokens
        warm = driver.add(prompt, max_tokens=1)
        driver.run()
        assert 1 <= driver.runner.num_forward_tokens - before < 32
        assert driver.num_cached[warm] == (length - 1) // 16 * 16


def test_second_turn_finds_prompt_and_completion_of_the_first_in_the_cache():
    driver = Driver()
    prompt = prompt_of(50)
    first = driver.add(prompt, max_tokens=60, ignore_eos=True)
    driver.run()
    second = driver.add(prompt + driver.tokens[first] + prompt_of(10, 1), max_tokens=1)
    driver.run()
    assert driver.num_cached[second] == (50 + 60 - 1) // 16 * 16  # the last token drawn was never computed


def test_only_equal_namespaces_share_blocks():
    driver = Driver()
    prompt = prompt_of(100)
    first = driver.add(prompt, max_tokens=1)
    driver.run()
    same, other = driver.add(prompt, max_tokens=1), driver.add(prompt, max_tokens=1, namespace=OTHER_NAMESPACE)
    driver.run()
    assert (driver.num_cached[first], driver.num_cached[same], driver.num_cached[other]) == (0, 96, 0)
    assert driver.runner.forward_tokens_of[other] == 100


def test_equal_prompts_of_two_namespaces_are_computed_separately():
    driver = Driver()
    prompt = prompt_of(100)
    ids = [driver.add(prompt, max_tokens=3, namespace=each) for each in (NAMESPACE, OTHER_NAMESPACE)]
    driver.step()
    assert driver.engine.status().num_running == 2
    driver.run()
    assert [driver.num_cached[each] for each in ids] == [0, 0]
    assert driver.tokens[ids[0]] == driver.tokens[ids[1]] == expected_tokens(prompt, 3)


def test_equal_prompts_arriving_together_are_computed_once():
    driver = Driver(num_blocks=64)
    prompt = prompt_of(200)
    ids = [driver.add(prompt, max_tokens=4) for _ in range(8)]
    driver.run()
    assert driver.runner.num_forward_tokens <= 200 + 8 * (4 + 16)
    assert all(driver.tokens[each] == expected_tokens(prompt, 4) for each in ids)


def test_sequence_waiting_for_a_prefix_computes_it_when_the_other_is_aborted():
    driver = Driver(max_step_tokens=16)
    prompt = prompt_of(100)
    owner, heir = driver.add(prompt, max_tokens=4), driver.add(prompt, max_tokens=4)
    driver.step()
    driver.step()
    assert driver.engine.status().num_running == 1
    driver.abort(owner)
    driver.run()
    assert driver.tokens[heir] == expected_tokens(prompt, 4)
    assert driver.num_cached[heir] == 32


def test_shared_prefix_allows_eight_times_the_sequences():
    shared = prompt_of(2000)

    def most_at_once(is_cached: bool) -> int:
        runner = FakeRunner(num_blocks=520, max_model_len=2100)
        driver = Driver(runner, max_sequences=256, max_step_tokens=2048, is_prefix_cache_enabled=is_cached)
        for number in range(150):
            driver.add(shared + prompt_of(8, number), max_tokens=8, ignore_eos=True)
        driver.run()
        return runner.largest_batch

    assert most_at_once(True) >= 8 * most_at_once(False) > 0


def test_disabled_prefix_cache_keeps_no_blocks():
    driver = Driver(is_prefix_cache_enabled=False)
    driver.add(prompt_of(100), max_tokens=20)
    driver.run()
    assert driver.engine.blocks.num_free == driver.engine.blocks.num_blocks


# ── leaving ──


def test_aborted_sequence_is_in_no_further_step_and_its_blocks_are_free():
    driver = Driver(max_step_tokens=16)
    in_prefill, decoding = driver.add(prompt_of(100), max_tokens=50), driver.add([3], max_tokens=50, tenant=2)
    driver.step()
    held = driver.engine.blocks.num_in_use
    before = dict(driver.runner.forward_tokens_of)
    driver.abort(in_prefill)
    assert driver.engine.blocks.num_in_use < held
    driver.step()
    assert driver.runner.forward_tokens_of[in_prefill] == before[in_prefill]
    assert driver.finishes == {in_prefill: "aborted"}
    driver.run()
    assert driver.tokens[decoding] == expected_tokens([3], 50)


def test_abort_works_in_every_state_and_is_idempotent():
    driver = Driver(num_blocks=12, max_sequences=4)
    ids = [driver.add(prompt_of(60, seed), max_tokens=100, ignore_eos=True) for seed in range(8)]
    while not driver.engine.scheduler.preempted:
        driver.step()
    preempted = next(iter(driver.engine.scheduler.preempted))
    waiting, running = ids[-1], int(driver.engine.table.sequence_id[driver.engine.scheduler.running[0]])
    for each in (preempted, waiting, running, running, 12345):
        driver.abort(each)
    driver.step()
    assert {driver.finishes[each] for each in (preempted, waiting, running)} == {"aborted"}
    driver.run()
    assert len(driver.finishes) == 8


def test_abort_is_reported_by_a_step_without_rows():
    driver = Driver()
    sequence_id = driver.add(prompt_of(10))
    driver.abort(sequence_id)
    assert driver.engine.has_work
    driver.step()
    assert not driver.engine.has_work
    assert driver.runner.num_forward_tokens == 0


def test_full_queue_rejects_with_out_of_capacity():
    driver = Driver(max_sequences=2, max_waiting=1)
    ids = [driver.add(prompt_of(10, seed), max_tokens=2) for seed in range(5)]
    driver.run()
    assert [driver.finishes[each] == "out_of_capacity" for each in ids] == [False, False, False, True, True]


def test_status_returns_to_zero_and_queued_tokens_match_the_open_sequences():
    driver = Driver(num_blocks=16)
    for seed in range(6):
        driver.add(prompt_of(50, seed), max_tokens=30, ignore_eos=True)
    assert driver.engine.status().queued_tokens == 6 * 80
    last = 6 * 80
    while driver.engine.has_work:
        driver.step()
        status = driver.engine.status()
        assert status.num_free_blocks + status.num_cached_blocks <= status.num_blocks
        last = status.queued_tokens
    status = driver.engine.status()
    assert last == 0
    assert (status.num_running, status.num_waiting) == (0, 0)
    assert status.num_computed_tokens == driver.runner.num_forward_tokens
