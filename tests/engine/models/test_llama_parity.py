"""Tokens equal transformers for any chunks, batch and pool size, and with a real model.

Logits and tokens of every family, one sequence at a time, are in `test_family_parity.py`.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.kernels.cpu import CpuKernels
from engine.models.decoder import Decoder
from engine.runner import Runner
from tests.engine.driver import Driver
from tests.engine.made_checkpoints import runner_of, save_random

PROMPT_LEN = 45
NUM_GREEDY = 64


class Model:
    """One random checkpoint: the results of transformers, and a runner over the same files."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.folder = folder
        model = save_random(kind, folder)
        self.prompt = np.random.default_rng(7).integers(0, 199, PROMPT_LEN).tolist()
        with torch.no_grad():
            ids = torch.tensor([self.prompt])
            mask = torch.ones_like(ids)
            whole = model.generate(ids, attention_mask=mask, max_new_tokens=NUM_GREEDY, do_sample=False, pad_token_id=0)
        self.greedy = whole[0, PROMPT_LEN:].tolist()
        self._model = model
        self.runner = runner_of(folder)

    def logprobs(self, ids: list[int]) -> torch.Tensor:
        """Return float32 [T, V]."""
        with torch.no_grad():
            return torch.log_softmax(self._model(torch.tensor([ids])).logits[0].float(), -1)


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cache(lambda kind: Model(kind, tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize("kind", ["tied, with biases", "mistral"])
@pytest.mark.parametrize("chunk", [1, 3, 16, 17])
def test_greedy_tokens_do_not_depend_on_chunks(kind: str, chunk: int, model_of: Any) -> None:
    model = model_of(kind)
    driver = Driver(model.runner, max_step_tokens=chunk, is_prefix_cache_enabled=False)
    sequence_id = driver.add(model.prompt, max_tokens=NUM_GREEDY, temperature=0.0, ignore_eos=True)
    driver.run()
    assert driver.tokens[sequence_id] == model.greedy


@pytest.mark.parametrize("budget", [3, 16, 512])
def test_prompt_log_probabilities_equal_transformers(budget: int, model_of: Any) -> None:
    """Every position is reported once, in order, with half of the prompt in the prefix cache and beside other
    sequences.
    """
    model = model_of("mistral")
    ids = [*model.prompt, *model.greedy]
    driver = Driver(runner_of(model.folder, num_blocks=64), max_step_tokens=budget)
    driver.add(model.prompt, max_tokens=1, temperature=0.0)
    driver.run()
    wanted = {"max_tokens": 2, "temperature": 1.0, "logprobs": 3, "wants_prompt_logprobs": True, "ignore_eos": True}
    scored = [driver.add(ids, **wanted), driver.add(ids[:50], **wanted), driver.add(ids[:1], **wanted)]
    for length in (9, 30, 41):
        driver.add(ids[:length], max_tokens=8, temperature=1.0, ignore_eos=True)
    driver.run()
    expected = model.logprobs(ids)  # [T, V]
    for sequence_id, length in zip(scored, (len(ids), 50, 1), strict=True):
        found = driver.prompt_logprobs[sequence_id]
        assert len(found) == length - 1
        for place, (logprob, tops) in enumerate(found):
            assert logprob == pytest.approx(expected[place, ids[place + 1]].item(), abs=1e-4)
            assert expected[place, tops].tolist() == pytest.approx(expected[place].topk(3).values.tolist(), abs=1e-4)


@pytest.mark.parametrize("kind", ["llama 3 with scaled positions", "mistral"])
@pytest.mark.parametrize("budget", [16, 33, 512])
def test_greedy_tokens_do_not_depend_on_fifteen_other_sequences(kind: str, budget: int, model_of: Any) -> None:
    """Other sequences start and end at different lengths, and the step budget divides the prompt differently."""
    model = model_of(kind)
    driver = Driver(runner_of(model.folder, num_blocks=256), max_step_tokens=budget)
    rng = np.random.default_rng(budget)
    for index in range(15):
        others = rng.integers(0, 199, int(rng.integers(1, 40))).tolist()
        driver.add(others, max_tokens=int(rng.integers(1, 90)), temperature=float(index % 2), ignore_eos=True)
        if index == 7:
            sequence_id = driver.add(model.prompt, max_tokens=NUM_GREEDY, temperature=0.0, ignore_eos=True)
    driver.run()
    assert driver.tokens[sequence_id] == model.greedy


def test_greedy_tokens_do_not_depend_on_preemption(model_of: Any) -> None:
    model = model_of("llama 2")
    driver = Driver(runner_of(model.folder, num_blocks=6 * 7 // 4), is_prefix_cache_enabled=False)
    sequence_ids = [
        driver.add(model.prompt, max_tokens=NUM_GREEDY, temperature=0.0, ignore_eos=True, tenant=index)
        for index in range(6)
    ]
    driver.run()
    assert all(driver.tokens[sequence_id] == model.greedy for sequence_id in sequence_ids)
    assert driver.engine.scheduler.num_preemptions > 0


def test_cached_prefix_does_not_change_tokens(model_of: Any) -> None:
    model = model_of("mistral")
    driver = Driver(model.runner)
    for num_prompt_computed in (PROMPT_LEN, PROMPT_LEN % 16):
        before = model.runner.num_forward_tokens
        sequence_id = driver.add(model.prompt, max_tokens=NUM_GREEDY, temperature=0.0, ignore_eos=True)
        driver.run()
        assert driver.tokens[sequence_id] == model.greedy
        assert model.runner.num_forward_tokens - before == num_prompt_computed + NUM_GREEDY - 1
    assert driver.num_cached[sequence_id] == PROMPT_LEN - PROMPT_LEN % 16


def test_cancelled_sequence_is_not_computed_again(model_of: Any) -> None:
    model = model_of("llama 2")
    driver = Driver(model.runner)
    cancelled = driver.add(model.prompt, max_tokens=NUM_GREEDY, temperature=0.0, ignore_eos=True)
    other = driver.add(model.prompt[::-1], max_tokens=NUM_GREEDY, temperature=0.0, ignore_eos=True)
    for _ in range(6):
        driver.step()
    driver.abort(cancelled)
    before, to_come = model.runner.num_forward_tokens, NUM_GREEDY - len(driver.tokens[other])
    driver.run()
    assert driver.finishes == {cancelled: "aborted", other: "length"}
    assert model.runner.num_forward_tokens - before == to_come


class OperatorCount(TorchDispatchMode):
    """Counts the calls of torch operators."""

    num_calls = 0

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num_calls += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("kind", "num_calls"), [("llama 2", 119), ("mistral", 119)])
def test_number_of_operator_calls_of_a_decode_step_is_bounded(
    kind: str, num_calls: int, model_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """31 calls for each of three layers and 19 others. On a CPU, small steps cost as much as their operator calls."""
    runner = runner_of(model_of(kind).folder)  # not shared: other tests may leave rows that have to grow in this step
    driver, count = Driver(runner), OperatorCount()
    driver.add([1] * 20, max_tokens=9, temperature=0.0, ignore_eos=True)
    for _ in range(3):
        driver.step()
    forward = Decoder.forward

    def counted(*arguments: Any) -> torch.Tensor:
        with count:
            return forward(*arguments)

    monkeypatch.setattr(Decoder, "forward", counted)
    driver.step()
    assert 0 < count.num_calls <= num_calls


@pytest.mark.parametrize(("dtype", "num_calls"), [("float32", 260), ("bfloat16", 268)])
def test_number_of_python_calls_of_a_decode_step_is_bounded(
    dtype: str, num_calls: int, model_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Constants are chosen in `bind`; code that chooses them again in every layer exceeds this bound."""
    runner = runner_of(model_of("llama 2").folder, CpuKernels(), dtype=dtype)
    driver, events = Driver(runner), []
    driver.add([1] * 20, max_tokens=9, temperature=0.0, ignore_eos=True)
    for _ in range(3):
        driver.step()
    forward = Decoder.forward

    def counted(*arguments: Any) -> torch.Tensor:
        sys.setprofile(lambda _frame, event, _argument: events.append(event))
        try:
            return forward(*arguments)
        finally:
            sys.setprofile(None)

    monkeypatch.setattr(Decoder, "forward", counted)
    driver.step()
    assert 60 < sum(event in ("call", "c_call") for event in events) <= num_calls


# ── a real model ──


@pytest.fixture(scope="module")
def stories(test_data: Path) -> tuple[Runner, list[dict[str, Any]]]:
    folder = test_data / "models" / "stories260K"
    cases = json.loads((folder / "reference.json").read_text())["cases"]
    return runner_of(folder, num_blocks=256), cases


@pytest.mark.parametrize("is_together", [False, True])
def test_stories_model_gives_the_reference_tokens(stories: Any, is_together: bool) -> None:
    runner, cases = stories
    driver = Driver(runner, is_prefix_cache_enabled=False)
    sequence_ids = []
    for case in cases:
        sequence_ids.append(driver.add(case["prompt_ids"], max_tokens=64, temperature=0.0, ignore_eos=True))
        if not is_together:
            driver.run()
    driver.run()
    assert [driver.tokens[sequence_id] for sequence_id in sequence_ids] == [case["greedy_ids"] for case in cases]


def test_stories_model_gives_the_reference_log_probabilities(stories: Any) -> None:
    runner, cases = stories
    driver = Driver(runner)
    for case in cases:
        driver.add(case["prompt_ids"], max_tokens=64, temperature=0.0, ignore_eos=True, logprobs=5)
        for expected in case["steps"]:
            report = driver.step()
            assert report.token_ids[0] == expected["token"]
            expected_ids, expected_logprobs = zip(*expected["top5"], strict=True)
            assert report.top_ids[0].tolist() == list(expected_ids)
            np.testing.assert_allclose(report.top_logprobs[0], expected_logprobs, atol=1e-4)
            np.testing.assert_allclose(report.logprobs[0], expected_logprobs[0], atol=1e-4)
