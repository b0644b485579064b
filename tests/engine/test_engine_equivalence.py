"""The engine over real weights (stories260K, float32) generates the published reference tokens for any batching,
chunking, preemption and caching.
"""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from bench import figures
from engine.config import EngineConfig
from engine.inputs import StepInputs
from engine.processes.zygote import Zygote
from engine.protocol.output_format import Constraint
from engine.protocol.sampling import Sampling
from engine.ranks.output import SequenceOutput
from engine.ranks.replica import Replica
from engine.runner import Runner
from engine.scheduling.sequence import SequenceRequest
from tests.engine.driver import NAMESPACE, OTHER_NAMESPACE, Driver
from tests.processes import are_at_rest, is_running
from tests.waiting import wait_until

BLOCKS_OF_ALL = 16 * 10  # what sixteen sequences of up to 150 tokens need at once
GREEDY = {"max_tokens": 64, "temperature": 0.0, "ignore_eos": True}


@dataclass(frozen=True)
class Case:
    prompt: list[int]
    greedy: list[int]


@pytest.fixture(scope="module")
def model_dir(test_data: Path) -> Path:
    return test_data / "models" / "stories260K"


@pytest.fixture(scope="module")
def cases(model_dir: Path) -> list[Case]:
    found = json.loads((model_dir / "reference.json").read_text())["cases"]
    return [Case(case["prompt_ids"], case["greedy_ids"]) for case in found]


def config_of(model_dir: Path, **settings: object) -> EngineConfig:
    values = {"dtype": "float32", "num_blocks": BLOCKS_OF_ALL, "num_threads": 1, "max_sequences": 16} | settings
    return EngineConfig(model_dir=model_dir, **values)  # type: ignore[arg-type]


@pytest.fixture
def new_driver(model_dir: Path) -> Iterator[object]:
    """Return a factory of drivers over a runner whose KV is poisoned, so that reading unwritten KV shows."""

    def make(*, num_blocks: int = BLOCKS_OF_ALL, **settings: object) -> Driver:
        runner = Runner(config_of(model_dir, num_blocks=num_blocks))
        with torch.inference_mode():
            runner.poison_kv()
        return Driver(runner, model_dir=model_dir, **settings)

    return make


def check_answers(driver: Driver, cases: list[Case], ids: list[int]) -> None:
    for case, sequence_id in zip(cases, ids, strict=True):
        assert driver.tokens[sequence_id] == case.greedy
        assert driver.finishes[sequence_id] == "length"


@pytest.mark.parametrize("max_step_tokens", [1, 3, 16, 17, 512])
@pytest.mark.parametrize("is_cached", [True, False])
def test_chunk_size_and_prefix_cache_change_no_token_of_a_sequence_alone(
    new_driver, cases: list[Case], max_step_tokens: int, is_cached: bool
):
    driver = new_driver(max_step_tokens=max_step_tokens, is_prefix_cache_enabled=is_cached)
    for case in [*cases[-3:], cases[-1]]:  # the last one warm
        sequence_id = driver.add(case.prompt, **GREEDY)
        driver.run()
        check_answers(driver, [case], [sequence_id])


@pytest.mark.parametrize("max_step_tokens", [3, 17, 512])
def test_batching_changes_no_token(new_driver, cases: list[Case], max_step_tokens: int):
    sixteen = (cases * 16)[:16]
    driver = new_driver(max_step_tokens=max_step_tokens)
    ids = [driver.add(case.prompt, tenant=number % 3, **GREEDY) for number, case in enumerate(sixteen)]
    driver.run()
    check_answers(driver, sixteen, ids)
    figure = "16 of 16 sequences in one batch equal to their output alone, with steps of 3, 17 and 512 tokens"
    figures.record("P23", figure, f"pytest {Path(__file__).name}")


@pytest.mark.parametrize("is_cached", [True, False])
def test_choices_of_one_prompt_generate_the_same_greedy_tokens(new_driver, cases: list[Case], is_cached: bool):
    driver = new_driver(is_prefix_cache_enabled=is_cached, num_blocks=60)
    wanted: list[Case] = []
    ids: list[int] = []
    for case in cases[:3]:
        ids += [driver.add(case.prompt, **GREEDY) for _ in range(3)]
        wanted += [case] * 3
    driver.run()
    check_answers(driver, wanted, ids)


def test_preemption_changes_no_token(new_driver, cases: list[Case]):
    sixteen = (cases * 16)[:16]
    demand = sum(math.ceil((len(case.prompt) + 63) / 16) for case in sixteen)
    for is_cached in (True, False):
        driver = new_driver(num_blocks=demand // 4, is_prefix_cache_enabled=is_cached)
        ids = [
            driver.add(case.prompt, namespace=bytes([number + 1]) * 32, **GREEDY) for number, case in enumerate(sixteen)
        ]
        driver.run()
        check_answers(driver, sixteen, ids)
        num_preemptions = driver.engine.status().num_preemptions
        assert num_preemptions > 0
        figure = f"16 sequences in a quarter of their KV memory: {num_preemptions} preemptions, 0 errors, output equal"
        figures.record("P16", figure, f"pytest {Path(__file__).name}")


def test_preempted_sequence_reports_each_prompt_logprob_once(new_driver, cases: list[Case]):
    scored = {"max_tokens": 40, "temperature": 0.0, "logprobs": 2, "wants_prompt_logprobs": True, "ignore_eos": True}
    alone = new_driver(num_blocks=60)
    expected = alone.add(cases[5].prompt, **scored)
    alone.run()
    driver = new_driver(num_blocks=14, max_step_tokens=17)
    ids = [driver.add(cases[5].prompt, namespace=bytes([number + 1]) * 32, **scored) for number in range(8)]
    other = driver.add(cases[5].prompt, namespace=b"\1" * 32, **GREEDY)
    driver.run()
    assert driver.engine.status().num_preemptions > 0
    for sequence_id in ids:
        found, tops = zip(*driver.prompt_logprobs[sequence_id], strict=True)
        assert found == pytest.approx([each[0] for each in alone.prompt_logprobs[expected]], abs=1e-4)
        assert list(tops) == [each[1] for each in alone.prompt_logprobs[expected]]
        assert driver.tokens[sequence_id] == alone.tokens[expected]
    assert not driver.prompt_logprobs[other]
    assert not driver.engine.table.num_prompt_logprobs


def test_seeded_draws_do_not_depend_on_batch_mates_or_interruptions(new_driver, cases: list[Case]):
    sampled = {"max_tokens": 40, "temperature": 0.9, "top_p": 0.95, "seed": 11, "ignore_eos": True}
    penalised = sampled | {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2, "seed": 12}
    alone = []
    for sampling in (sampled, penalised):
        driver = new_driver()
        sequence_id = driver.add(cases[1].prompt, **sampling)
        driver.run()
        alone.append(driver.tokens[sequence_id])
    crowded = new_driver(num_blocks=20, max_step_tokens=17)
    ids = [crowded.add(cases[1].prompt, **sampling) for sampling in (sampled, penalised)]
    for number, case in enumerate((cases * 8)[:8]):
        crowded.add(case.prompt, max_tokens=64, temperature=1.0, namespace=bytes([number + 1]) * 32, ignore_eos=True)
    crowded.run()
    assert [crowded.tokens[each] for each in ids] == alone
    assert crowded.engine.status().num_preemptions > 0


def test_hostile_parameters_of_batch_mates_change_no_token_and_break_nothing(new_driver, cases: list[Case]):
    hostile = [
        {"top_k": 2**31 - 1, "temperature": 1e30},
        {"top_p": 0.0, "temperature": 1e-30},
        {"top_p": -1.0, "min_p": 5.0},
        {"min_p": 1.0, "temperature": 2e9},
        {"repetition_penalty": 1e9},
        {"repetition_penalty": 1e-30},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": -3.0, "presence_penalty": 2e9},
        {"frequency_penalty": -2e9, "logprobs": 20},
        {"presence_penalty": 1e9, "temperature": 0.0, "logprobs": 0},
    ]
    driver = new_driver(max_step_tokens=48)
    good = [driver.add(case.prompt, **GREEDY) for case in cases]
    bad = [driver.add(cases[2].prompt, **({"max_tokens": 30, "seed": 5} | each)) for each in hostile]
    driver.run()
    check_answers(driver, cases, good)
    assert {driver.finishes[each] for each in bad} <= {"stop", "length", "error"}


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_min_tokens_delays_end_tokens_of_its_own_sequence_only(new_driver, cases: list[Case], temperature: float):
    prompt, greedy = cases[1].prompt, cases[1].greedy
    ends = (greedy[3], 511, 2**31 - 1)  # one that comes soon; the last is in no vocabulary
    driver = new_driver(num_blocks=20, max_step_tokens=17)
    held = driver.add(prompt, max_tokens=40, min_tokens=20, temperature=temperature, seed=3, stop_token_ids=ends)
    free = driver.add(prompt, max_tokens=40, temperature=0.0, ignore_eos=True, stop_token_ids=ends)
    whole = driver.add(prompt, max_tokens=40, min_tokens=40, temperature=temperature, stop_token_ids=(greedy[0],))
    driver.run()
    assert not {*ends, *driver.engine.info.eos_token_ids} & set(driver.tokens[held][:20])
    assert 20 < len(driver.tokens[held]) <= 40
    assert driver.tokens[held][:3] == greedy[:3] or temperature
    assert driver.tokens[free] == greedy[: greedy.index(ends[0]) + 1]
    assert (len(driver.tokens[whole]), driver.finishes[whole]) == (40, "length")
    assert greedy[0] not in driver.tokens[whole][:-1]
    assert not driver.engine.table.min_lengths


class NumbersGone:
    """A model whose logits are not finite for some sequences, as after an overflow."""

    def __init__(self, runner: Runner) -> None:
        self._model = runner._model
        self.broken: dict[int, float] = {}  # sequence id -> what its logits become

    def forward(self, inputs: StepInputs, attention: object, adapted: object) -> torch.Tensor:
        logits = self._model.forward(inputs, attention, adapted)  # [K, V]
        rows = np.searchsorted(inputs.query_starts, inputs.logit_rows.numpy(), side="right") - 1
        for row, sequence_id in enumerate(inputs.sequence_ids[rows].tolist()):
            if sequence_id in self.broken:
                logits[row] = self.broken[sequence_id]
        return logits


HOSTILE_REQUESTS = {
    "not a number": {"temperature": math.nan},
    "endless penalty": {"repetition_penalty": math.inf},
    "negative limit": {"max_tokens": -1},
    "no such top": {"logprobs": 10**6},
    "seed beyond 64 bits": {"seed": -(2**200), "temperature": 5.0},
    "id beyond the vocabulary": {"prompt": [512]},
    "huge id": {"prompt": [2**31 - 1]},
    "negative id": {"prompt": [-1]},
    "nothing": {"prompt": []},
    "longer than the context": {"prompt": [3] * 600},
    "long namespace": {"namespace": b"x" * 65},
    "thousand stops": {"stop_token_ids": tuple(range(1000))},
    "negative stop": {"stop_token_ids": (-5,)},
    "broken constraint": {"constraint": Constraint("regex", "(")},
    "constraint that matches nothing": {"constraint": Constraint("json_schema", '{"enum": []}')},
    "constraint that is no grammar": {"constraint": Constraint("grammar", "\x00" * 1000)},
    "all tokens at once": {"top_k": 2**31 - 1, "temperature": 1e30, "logprobs": 20},
    "fights itself": {"repetition_penalty": 1e-30, "presence_penalty": -1e30, "frequency_penalty": 1e30},
}


@pytest.mark.parametrize("max_step_tokens", [17, 512])
def test_invalid_and_failing_sequences_change_no_token_of_others(new_driver, cases: list[Case], max_step_tokens: int):
    """Invalid requests, non-finite logits, duplicate ids and many aborts change nothing for the other sequences."""
    driver = new_driver(max_step_tokens=max_step_tokens, max_waiting=200)
    model = driver.runner._model = NumbersGone(driver.runner)
    good = [driver.add(case.prompt, **GREEDY) for case in cases]
    hostile = list(HOSTILE_REQUESTS.values())
    bad: list[int] = []
    for number in range(70):
        change = {"prompt": cases[0].prompt, "max_tokens": 9, "tenant": 2} | hostile[number % len(hostile)]
        bad.append(driver.add(change.pop("prompt"), **change))
        broken = driver.add(cases[1].prompt, tenant=3, max_tokens=20)
        model.broken[broken] = (math.nan, math.inf, -math.inf)[number % 3]
        for storm in [driver.add([5, number % 500], tenant=4, max_tokens=50) for _ in range(4)][: number % 5]:
            driver.abort(storm)
        if good[0] not in driver.finishes:
            driver.engine.add(SequenceRequest(good[0], np.array([1], np.int32), Sampling(), NAMESPACE, 1))
            driver.engine.sequences.ended.pop()  # the refusal of the duplicate id would look like its owner's end
        driver.step()
    driver.run()
    check_answers(driver, cases, good)
    assert all(driver.finishes[each] == "error" for each in model.broken if driver.finishes[each] != "out_of_capacity")
    refused = {driver.finishes[each] for each in bad}
    assert (
        {"error", "context_too_long"} <= refused <= {"error", "context_too_long", "stop", "length", "out_of_capacity"}
    )
    assert driver.engine.blocks.num_in_use == 0


def test_cached_prompt_computes_fewer_than_32_tokens_but_not_for_another_tenant(new_driver):
    driver = new_driver()
    prompt = np.random.default_rng(0).integers(3, 512, 400).tolist()
    responses = []
    for namespace, at_most in ((NAMESPACE, 400), (NAMESPACE, 31), (OTHER_NAMESPACE, 400)):
        before = driver.runner.num_forward_tokens
        sequence_id = driver.add(prompt, namespace=namespace, max_tokens=1, temperature=0.0)
        driver.run()
        responses.append(driver.tokens[sequence_id])
        computed = driver.runner.num_forward_tokens - before
        assert computed + driver.num_cached[sequence_id] == 400
        assert computed <= at_most
        assert (driver.num_cached[sequence_id] > 0) == (at_most < 400)
    assert responses[0] == responses[1] == responses[2]


def test_aborted_sequence_computes_no_more_tokens(new_driver, cases: list[Case]):
    driver = new_driver(max_step_tokens=64)
    sequence_id = driver.add(np.random.default_rng(0).integers(3, 512, 400).tolist(), **GREEDY)
    driver.step()
    driver.abort(sequence_id)
    before = driver.runner.num_forward_tokens
    driver.run()
    assert driver.runner.num_forward_tokens == before
    assert driver.engine.blocks.num_in_use == 0


# ── as processes ──


class Said:
    """A sink that stores its outputs."""

    def __init__(self) -> None:
        self.outputs: list[SequenceOutput] = []

    def __call__(self, output: SequenceOutput) -> None:
        self.outputs.append(output)

    @property
    def finish(self) -> str | None:
        return self.outputs[-1].finish if self.outputs else None

    @property
    def token_ids(self) -> list[int]:
        return [token_id for output in self.outputs for token_id in output.token_ids]


async def test_rank_process_serves_aborts_sleeps_and_its_death_is_reported(model_dir: Path, cases: list[Case], caplog):
    zygote = Zygote()
    exits: list[str] = []

    def ask(replica: Replica, sequence_id: int, case: Case, **change: object) -> Said:
        said = Said()
        prompt = np.array(case.prompt, dtype=np.int32)
        replica.add(SequenceRequest(sequence_id, prompt, Sampling(**(GREEDY | change)), NAMESPACE, 1), said)
        return said

    try:
        replica = await Replica.start(zygote, config_of(model_dir), "revision", exits.append)
        assert replica.info.layout_tag.startswith("float32")
        responses = [ask(replica, number, case) for number, case in enumerate(cases)]
        await wait_until(lambda: all(said.finish for said in responses))
        assert [said.token_ids for said in responses] == [case.greedy for case in cases]

        for number in range(100, 105):  # once in a while all is said before this test wakes up
            cancelled = ask(replica, number, cases[0], max_tokens=500)
            await wait_until(lambda: cancelled.outputs)  # noqa: B023
            replica.abort(number)
            await wait_until(lambda: cancelled.finish)  # noqa: B023
            if cancelled.finish == "aborted":
                break
        assert cancelled.finish == "aborted"
        num_computed = replica.status().num_computed_tokens
        await wait_until(lambda: are_at_rest(replica.pid))
        assert replica.status().num_computed_tokens == num_computed

        os.kill(replica.pid, signal.SIGSTOP)
        killed = ask(replica, 110, cases[0], max_tokens=500)
        os.kill(replica.pid, signal.SIGKILL)
        await wait_until(lambda: killed.finish == "crashed")
        await wait_until(lambda: exits == ["the rank process was killed by signal 9"])
        assert not is_running(replica.pid)
        await replica.close()

        again = await Replica.start(zygote, config_of(model_dir), "revision", exits.append)
        said = ask(again, 1, cases[1])
        await wait_until(lambda: said.finish)
        assert said.token_ids == cases[1].greedy
        await again.close()
    finally:
        await zygote.close()
