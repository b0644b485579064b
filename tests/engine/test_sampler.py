"""The sampler: requested distribution, batch independence, isolated failures."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.inputs import LogitBias, SamplingInputs, TokenHistory
from engine.kernels.native.library import find_library
from engine.sampler import sample
from engine.sampling import plain_draw
from engine.sampling.device import sample_rows
from engine.sampling.draw import _likeliest
from engine.sampling.history import adjust, upload
from engine.sampling.packed import NUM_COLUMNS, pack
from engine.sampling.plain_draw import sample_columns
from engine.sampling.random_numbers import uniform
from tests.engine import one_thread  # noqa: F401

VOCAB = 300

OFF: dict[str, Any] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "seeds": 0,
    "positions": 0,
    "num_logprobs": -1,
}
TYPES = {"top_k": np.int32, "num_logprobs": np.int32, "seeds": np.uint64, "positions": np.int64}


def inputs_of(rows: list[dict[str, Any]], histories: tuple[TokenHistory, ...] = ()) -> SamplingInputs:
    columns = {
        name: np.array([row.get(name, default) for row in rows], dtype=TYPES.get(name, np.float32))
        for name, default in OFF.items()
    }
    return SamplingInputs(**columns, histories=histories)


def draw_many(logits: torch.Tensor, num_draws: int, **parameters: Any) -> np.ndarray:
    """Return token counts [V] over `num_draws` rows that differ only in position."""
    rows = [parameters | {"seeds": 5, "positions": position} for position in range(num_draws)]
    tokens = sample(logits.expand(num_draws, -1).clone(), inputs_of(rows)).token_ids
    return np.bincount(tokens, minlength=logits.shape[-1])


def expected_probabilities(logits: torch.Tensor, **parameters: Any) -> np.ndarray:
    """Reference implementation over the sorted vocabulary in float64."""
    settings = OFF | parameters
    probabilities = torch.softmax(logits.double() / settings["temperature"], -1).numpy()
    order = np.argsort(-probabilities, kind="stable")
    ranked = probabilities[order]
    if settings["top_k"]:
        ranked[settings["top_k"] :] = 0
    ranked /= ranked.sum()
    ranked[np.cumsum(ranked) - ranked >= settings["top_p"]] = 0
    ranked[ranked < settings["min_p"] * ranked[0]] = 0
    filtered = np.zeros_like(probabilities)
    filtered[order] = ranked / ranked.sum()
    return filtered


def assert_distributed(counts: np.ndarray, expected: np.ndarray) -> None:
    """Check Pearson's chi-square over cells with at least 5 expected draws, and that no forbidden token is drawn."""
    assert counts[expected == 0].sum() == 0
    expected_counts = expected * counts.sum()
    is_large = expected_counts >= 5
    cells = np.append(expected_counts[is_large], expected_counts[~is_large].sum())
    found = np.append(counts[is_large], counts[~is_large].sum())
    cells, found = cells[cells > 0], found[cells > 0]
    statistic = float(((found - cells) ** 2 / cells).sum())
    freedom = len(cells) - 1
    assert statistic <= freedom + 5 * np.sqrt(2 * max(freedom, 1)), (statistic, freedom)


def logits_of(spread: float, vocab: int = VOCAB, seed: int = 0) -> torch.Tensor:
    return torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * spread


DISTRIBUTIONS: dict[str, tuple[float, dict[str, Any]]] = {
    "plain, peaked": (4.0, {}),
    "plain, flat: draws fall beyond the candidates": (0.5, {}),
    "cooler": (2.0, {"temperature": 0.6}),
    "hotter": (2.0, {"temperature": 3.0}),
    "top-k": (1.0, {"top_k": 7}),
    "top-k of one": (1.0, {"top_k": 1}),
    "top-k beyond the candidates": (1.0, {"top_k": 100}),
    "top-k beyond the vocabulary": (1.0, {"top_k": 10_000}),
    "top-p, peaked": (3.0, {"top_p": 0.8}),
    "top-p, flat: the nucleus is wider than the candidates": (0.3, {"top_p": 0.9}),
    "top-p tiny": (1.0, {"top_p": 1e-6}),
    "min-p": (2.0, {"min_p": 0.1}),
    "min-p, flat": (0.3, {"min_p": 0.2}),
    "top-k and top-p": (1.0, {"top_k": 40, "top_p": 0.7}),
    "top-k and top-p, wide": (0.5, {"top_k": 200, "top_p": 0.9}),
    "all of them": (1.0, {"temperature": 1.3, "top_k": 50, "top_p": 0.9, "min_p": 0.05}),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_sampling_follows_the_requested_distribution(name: str) -> None:
    spread, parameters = DISTRIBUTIONS[name]
    logits = logits_of(spread)
    assert_distributed(draw_many(logits, 8_000, **parameters), expected_probabilities(logits, **parameters))


@pytest.mark.parametrize(
    "parameters", [{}, {"top_k": 1500, "temperature": 2.0}, {"top_k": 500}, {"top_p": 0.95, "min_p": 0.001}]
)
def test_sampling_follows_the_requested_distribution_over_a_large_vocabulary(parameters: dict[str, Any]) -> None:
    logits = logits_of(1.0, vocab=5_000)
    assert_distributed(draw_many(logits, 4_000, **parameters), expected_probabilities(logits, **parameters))


def test_likeliest_tokens_of_a_large_vocabulary_are_found_in_few_spans() -> None:
    weights = torch.rand(3, 40_001, generator=torch.Generator().manual_seed(0))
    weights[1, 128:192] += 1  # all in one span
    expected, expected_ids = weights.topk(64)
    found, found_ids = _likeliest(weights, 64)
    assert torch.equal(found, expected)
    assert torch.equal(found_ids, expected_ids)


def test_greedy_sampling_takes_the_most_likely_token() -> None:
    logits = torch.stack([logits_of(1.0, seed=seed) for seed in range(4)])
    expected = logits.argmax(-1).tolist()
    rows = [{"temperature": 0.0, "top_k": 5, "top_p": 0.5, "positions": row} for row in range(4)]
    assert sample(logits, inputs_of(rows)).token_ids.tolist() == expected
    assert sample(logits, inputs_of([{"temperature": 1e-9}] * 4)).token_ids.tolist() == expected


PARAMETERS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        "top_k": st.sampled_from([0, 1, 20, 64, 65, 200, 2000]),
        "top_p": st.sampled_from([1.0, 0.95, 0.3]),
        "min_p": st.sampled_from([0.0, 0.02, 0.5]),
        "seeds": st.integers(0, 2**64 - 1),
        "positions": st.integers(0, 10_000),
        "num_logprobs": st.sampled_from([-1, 0, 3]),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
    }
)


@given(rows=st.lists(PARAMETERS, min_size=2, max_size=6), spread=st.sampled_from([0.3, 3.0]), coarse=st.booleans())
def test_row_samples_the_same_token_alone_and_in_any_batch(rows: list[dict[str, Any]], spread: float, coarse: bool):
    """Tokens are equal bit for bit, even where rounding makes many logits equal."""
    logits = torch.stack([logits_of(spread, seed=index) for index in range(len(rows))])
    if coarse:
        logits = logits.bfloat16().float()
    seen = np.arange(0, VOCAB, 7, dtype=np.int32)

    def history(row: int, parameters: dict[str, Any]) -> tuple[TokenHistory, ...]:
        return (TokenHistory(row, seen, 10),) if parameters["repetition_penalty"] != 1 else ()

    histories = tuple(item for index, row in enumerate(rows) for item in history(index, row))
    together = sample(logits.clone(), inputs_of(rows, histories))
    for index, row in enumerate(rows):
        alone = sample(logits[index : index + 1].clone(), inputs_of([row], history(0, row)))
        assert alone.token_ids[0] == together.token_ids[index]
        if row["num_logprobs"] >= 0:
            assert alone.logprobs[0] == together.logprobs[index]


def test_sampling_depends_on_seed_and_position_only() -> None:
    logits = logits_of(0.1).expand(50, -1)

    def run(seed: int, first: int) -> list[int]:
        rows = [{"seeds": seed, "positions": first + index} for index in range(50)]
        return sample(logits.clone(), inputs_of(rows)).token_ids.tolist()

    assert run(1, 0) == run(1, 0)
    assert run(1, 0)[1:] == run(1, 1)[:-1]
    assert len({tuple(run(seed, 0)) for seed in range(20)}) == 20


def test_random_numbers_are_uniform_over_positions_and_seeds() -> None:
    many = np.arange(20_000)
    for numbers in (
        uniform(np.full(20_000, 42, np.uint64), many),
        uniform(many.astype(np.uint64), np.full(20_000, 17)),
        uniform(many.astype(np.uint64), many),
    ):
        assert numbers.min() >= 0
        assert numbers.max() < 1
        assert_distributed(np.histogram(numbers, 50, (0, 1))[0], np.full(50, 1 / 50))
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


# ── penalties ──


def penalised(logits: list[float], seen: list[int], num_prompt: int, **penalties: float) -> list[float]:
    row = torch.tensor([logits])
    history = TokenHistory(0, np.array(seen, np.int32), num_prompt)
    sample(row, inputs_of([penalties | {"temperature": 0.0}], (history,)))
    return row[0].tolist()


def test_repetition_penalty_covers_prompt_and_completion() -> None:
    found = penalised([2.0, -2.0, 1.0, 4.0], seen=[0, 1, 1, 3], num_prompt=2, repetition_penalty=2.0)
    assert found == [1.0, -4.0, 1.0, 2.0]


def test_presence_and_frequency_penalties_cover_the_completion_only() -> None:
    seen = [0, 1, 2, 2, 3]  # 0 and 1 are the prompt
    assert penalised([0.0] * 5, seen, 2, presence_penalty=0.5) == [0, 0, -0.5, -0.5, 0]
    assert penalised([0.0] * 5, seen, 2, frequency_penalty=0.25) == [0, 0, -0.5, -0.25, 0]
    assert penalised([0.0] * 5, seen, 5, presence_penalty=1.0, frequency_penalty=1.0) == [0.0] * 5


def test_logit_bias_is_added_to_its_own_row_before_sampling() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.5, -1.0]])
    bias = LogitBias(1, np.array([3, 1], np.int32), np.array([4.0, -100.0], np.float32))
    rows = [{"temperature": 0.0, "num_logprobs": 0}] * 3
    output = sample(logits.repeat(3, 1), dataclasses.replace(inputs_of(rows), biases=(bias,)))
    assert output.token_ids.tolist() == [1, 3, 1]
    assert output.logprobs is not None
    assert output.logprobs[1] == pytest.approx(float(torch.log_softmax(logits, -1)[0, 3]))  # the model's own
    drawing = [{"seeds": 5, "positions": position} for position in range(4000)]
    biases = tuple(dataclasses.replace(bias, row=row) for row in range(4000))
    tokens = sample(logits.repeat(4000, 1), dataclasses.replace(inputs_of(drawing), biases=biases)).token_ids
    changed = logits + torch.tensor([0.0, -100.0, 0.0, 4.0])
    assert_distributed(np.bincount(tokens, minlength=4), expected_probabilities(changed[0]))


def test_penalties_change_no_other_row() -> None:
    logits = torch.tensor([[1.0, 0.9], [1.0, 0.9]])
    history = TokenHistory(1, np.array([0], np.int32), 0)
    rows = [{"temperature": 0.0}, {"temperature": 0.0, "presence_penalty": 1.0}]
    assert sample(logits, inputs_of(rows, (history,))).token_ids.tolist() == [0, 1]


# ── log-probabilities and failures ──


def test_logprobs_are_of_the_distribution_before_temperature_and_penalties() -> None:
    logits = torch.stack([logits_of(2.0, seed=seed) for seed in range(3)])
    raw = torch.log_softmax(logits.double(), -1)
    rows = [
        {"temperature": 0.3, "num_logprobs": 2, "repetition_penalty": 3.0},
        {"num_logprobs": -1},
        {"temperature": 0.0, "num_logprobs": 0},
    ]
    history = TokenHistory(0, np.arange(100, dtype=np.int32), 0)
    output = sample(logits.clone(), inputs_of(rows, (history,)))
    for row in (0, 2):
        assert output.logprobs[row] == pytest.approx(float(raw[row, output.token_ids[row]]), abs=1e-5)
    assert np.isnan(output.logprobs[1])
    values, ids = raw[0].topk(2)
    assert output.top_ids.tolist() == [ids.tolist(), [-1, -1], [-1, -1]]
    np.testing.assert_allclose(output.top_logprobs[0], values.numpy(), atol=1e-5)
    assert sample(logits, inputs_of([{}] * 3)).logprobs is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_row_is_marked_and_changes_no_other_row(bad: float) -> None:
    logits = torch.stack([logits_of(1.0, seed=seed) for seed in range(3)])
    rows = [{"temperature": 1.0, "seeds": 3}, {"temperature": 1.0}, {"temperature": 0.0}]
    healthy = sample(logits.clone(), inputs_of(rows))
    assert healthy.is_failed is None
    logits[1, 17] = bad
    output = sample(logits, inputs_of(rows))
    assert output.is_failed.tolist() == [False, True, False]
    assert output.token_ids[[0, 2]].tolist() == healthy.token_ids[[0, 2]].tolist()


def test_no_rows_return_no_tokens() -> None:
    assert len(sample(torch.empty(0, VOCAB), inputs_of([])).token_ids) == 0


@pytest.mark.parametrize("parameters", [{"top_p": 0.0}, {"top_p": -1.0, "min_p": 5.0}, {"min_p": 2.0, "top_k": 3}])
@pytest.mark.parametrize("vocab_size", [VOCAB, 40_000])
def test_filters_always_keep_the_most_likely_token(parameters: dict[str, float], vocab_size: int) -> None:
    logits = torch.randn(2, vocab_size, generator=torch.Generator().manual_seed(1))
    expected = logits.argmax(-1).tolist()
    assert sample(logits, inputs_of([parameters, parameters])).token_ids.tolist() == expected


@pytest.mark.parametrize("vocab_size", [40, 300, 20_000])
@pytest.mark.parametrize("parameters", [{"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.9}])
def test_filters_treat_equal_logits_alike_and_draw_in_the_order_of_ids(parameters: dict[str, Any], vocab_size: int):
    likely = [5, 11, 17, 38]
    logits = torch.full((vocab_size,), -20.0)
    logits[likely] = 2.0
    counts = draw_many(logits, 400, temperature=1.0, **parameters)
    assert np.flatnonzero(counts).tolist() == likely
    rows = [{"seeds": 5, "positions": position} | parameters for position in range(50)]
    tokens = sample(logits.expand(50, -1).clone(), inputs_of(rows)).token_ids
    numbers = uniform(np.full(50, 5, np.uint64), np.arange(50))
    assert tokens.tolist() == [likely[int(number * 4)] for number in numbers]


# ── constrained rows ──


class Allowing:
    """Constrained rows that may sample `allowed`; with `is_closed` under a mask from the start. Records the accepted
    tokens."""

    def __init__(
        self, rows: list[int], allowed: list[set[int]], instead: int | None = None, *, is_closed: bool = False
    ) -> None:
        self.heard: list[int] = []
        self.refused: list[int] = []
        self._allowed = dict(zip(rows, allowed, strict=True))
        self._instead = instead
        self._is_closed = is_closed

    def initial_masks(self, is_filtered: np.ndarray) -> tuple[list[int], np.ndarray]:
        rows = [row for row in self._allowed if is_filtered[row] or self._is_closed]
        return rows, self._masks(rows)

    def accept(self, token_ids: np.ndarray, is_failed: np.ndarray) -> list[int]:
        drawn = token_ids.tolist()
        self.refused = [row for row in self._allowed if drawn[row] not in self._allowed[row] and not is_failed[row]]
        if not self.refused:
            self.accept_resampled(token_ids, is_failed)
        return self.refused

    def rejected_masks(self) -> np.ndarray:
        return self._masks(self.refused)

    def accept_resampled(self, token_ids: np.ndarray, is_failed: np.ndarray) -> None:
        self.heard = token_ids.tolist()
        if self._instead is not None:
            token_ids[list(self._allowed)] = self._instead

    def _masks(self, rows: list[int]) -> np.ndarray:
        padded = -(-VOCAB // 32) * 32
        bits = np.zeros((len(rows), padded), dtype=np.bool_)
        for place, row in enumerate(rows):
            bits[place, list(self._allowed[row])] = True
        return np.packbits(bits, axis=1, bitorder="little")


FILTERS: list[dict[str, Any]] = [{}, {"temperature": 0.0}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.3}, {"top_k": 90}]


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("filters", FILTERS)
def test_constrained_rows_sample_allowed_tokens_and_others_are_unchanged(filters: dict[str, Any], is_closed: bool):
    logits = torch.randn(40, VOCAB, generator=torch.Generator().manual_seed(3)) * 4
    rows = [filters | {"seeds": 9, "positions": position} for position in range(40)]
    allowed = {7, 100, 101, 299}
    free = sample(logits.clone(), inputs_of(rows)).token_ids
    held = Allowing(list(range(0, 40, 2)), [allowed] * 20, is_closed=is_closed)
    tokens = sample(logits.clone(), dataclasses.replace(inputs_of(rows), constrained=held)).token_ids
    assert set(tokens[::2].tolist()) <= allowed
    assert np.array_equal(tokens[1::2], free[1::2])
    assert held.heard == tokens.tolist()


@pytest.mark.parametrize("filters", [{}, {"temperature": 0.7}, {"top_p": 0.9, "min_p": 0.01}, {"top_k": 3}])
@pytest.mark.parametrize("is_closed", [False, True])
def test_constrained_sampling_follows_the_distribution_over_allowed_tokens(filters: dict[str, Any], is_closed: bool):
    """Chi-square test for rows sampled under the mask at once, and for rows that sample again."""
    num_rows, allowed = 6_000, [2, 3, 5, 250, 280]
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(8)) * 1.5
    logits[0, allowed] += 4  # about half of the draws are allowed
    rows = [filters | {"seeds": seed} for seed in range(num_rows)]
    held = Allowing(list(range(num_rows)), [set(allowed)] * num_rows, is_closed=is_closed)
    inputs = dataclasses.replace(inputs_of(rows), constrained=held)
    drawn = sample(logits.repeat(num_rows, 1), inputs).token_ids
    counts = np.array([np.count_nonzero(drawn == token_id) for token_id in allowed])
    weights = torch.softmax(logits[0, allowed].double() / filters.get("temperature", 1.0), 0).numpy()
    if filters.get("top_k") or filters.get("top_p"):
        weights[counts == 0] = 0  # what filters leave of these five
        assert 2 <= np.count_nonzero(weights) < 5
    expected = weights[weights > 0] / weights.sum() * num_rows
    freedom = len(expected) - 1
    assert counts.sum() == num_rows
    assert ((counts[weights > 0] - expected) ** 2 / expected).sum() < freedom + 5 * np.sqrt(2 * freedom)
    assert bool(held.refused) == (not is_closed and len(filters) < 1 + ("temperature" in filters))


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_second_draw_is_the_same_for_few_tokens_and_the_whole_vocabulary(
    temperature: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("engine.sampling.constraints.find_library", lambda: None)
    logits = torch.randn(300, VOCAB, generator=torch.Generator().manual_seed(5)) * 2
    drawn = []
    for most_chosen in (8192, 0):
        monkeypatch.setattr("engine.sampling.constraints._MAX_ALLOWED", most_chosen)
        drawn.append(drawn_again(logits, [{2, 3, 77, 150, 299}] * 300, temperature))
    assert np.array_equal(*drawn)


@pytest.mark.skipif(find_library() is None, reason="no kernels were compiled")
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_second_draw_is_the_same_with_compiled_kernels(temperature: float, monkeypatch: pytest.MonkeyPatch):
    """One allowed token, few, and all but one; with a bias on the most likely token and an odd vocabulary size."""
    for vocab_size in (VOCAB, VOCAB - 3):
        logits = torch.randn(300, vocab_size, generator=torch.Generator().manual_seed(6)) * 3
        biases = tuple(LogitBias(row, np.array([5, 77]), np.full(2, -np.inf, np.float32)) for row in range(0, 300, 9))
        allowed = [{5}, {2, 3, 77, 150, 290}, set(range(1, vocab_size)), {0, 7, 8, vocab_size - 1}] * 75
        natively = drawn_again(logits, allowed, temperature, biases)
        with monkeypatch.context() as patch:
            patch.setattr("engine.sampling.constraints.find_library", lambda: None)
            assert np.array_equal(natively, drawn_again(logits, allowed, temperature, biases))


def drawn_again(
    logits: torch.Tensor, allowed: list[set[int]], temperature: float, biases: tuple[LogitBias, ...] = ()
) -> np.ndarray:
    """Return the tokens sampled for rows [K, V] whose most likely tokens are not allowed."""
    seeds = np.random.default_rng(1).integers(0, 2**63, len(allowed)).tolist()
    rows = [{"temperature": temperature, "seeds": seed, "positions": place} for place, seed in enumerate(seeds)]
    held = Allowing(list(range(len(allowed))), allowed)
    inputs = dataclasses.replace(inputs_of(rows), constrained=held, biases=biases)
    tokens = sample(logits.clone(), inputs).token_ids
    assert held.refused
    return tokens


def test_penalties_and_filters_apply_to_allowed_tokens_only():
    logits = torch.zeros(1, VOCAB)
    logits[0, :5] = torch.tensor([9.0, 4.0, 3.0, 2.0, 8.0])
    history = (TokenHistory(0, np.array([1, 1], np.int32), 0),)
    for parameters, expected in [({"top_k": 1}, 1), ({"top_k": 1, "presence_penalty": 2.0}, 2)]:
        inputs = inputs_of([parameters], history)
        held = Allowing([0], [{1, 2, 3}])
        assert sample(logits.clone(), dataclasses.replace(inputs, constrained=held)).token_ids.tolist() == [expected]


def test_logprobs_of_a_constrained_row_are_the_models_for_the_final_token():
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(1))
    inputs = inputs_of([{"num_logprobs": 2, "temperature": 0.0}] * 2)
    held = Allowing([1], [{5, 6}], instead=6)
    output = sample(logits.clone(), dataclasses.replace(inputs, constrained=held))
    expected = torch.log_softmax(logits, -1).numpy()
    assert output.token_ids[1] == 6
    assert output.logprobs is not None
    assert output.top_ids is not None
    assert output.logprobs[1] == pytest.approx(expected[1, 6])
    assert output.top_ids[1, 0] == expected[1].argmax()


def test_non_finite_constrained_row_fails_alone():
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(1))
    logits[0, 3] = float("nan")
    held = Allowing([0, 1], [{5}, {6}])
    output = sample(logits, dataclasses.replace(inputs_of([{}, {}]), constrained=held))
    assert output.is_failed is not None
    assert output.is_failed.tolist() == [True, False]
    assert output.token_ids[1] == 6


@pytest.mark.parametrize("top_k", [0, 5])
@pytest.mark.parametrize("top_p", [1.0, 0.8])
@pytest.mark.parametrize("min_p", [0.0, 0.05])
def test_plain_device_draw_equals_the_cpu_sampler(top_k: int, top_p: float, min_p: float) -> None:
    logits = torch.randn(64, VOCAB, generator=torch.Generator().manual_seed(3)) * 3
    logits[5, 7] = float("nan")
    rows = [
        {"temperature": 0.0 if row % 5 == 0 else 0.8, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seeds": row}
        for row in range(64)
    ]
    inputs = inputs_of(rows)
    expected = sample(logits.clone(), inputs)
    found = sample_rows(logits.clone(), inputs, sample_columns, adjust)
    assert found.is_failed is not None
    assert found.is_failed.tolist() == [row == 5 for row in range(64)]
    is_healthy = ~found.is_failed
    assert found.token_ids[is_healthy].tolist() == expected.token_ids[is_healthy].tolist()


def test_plain_device_draw_remembers_the_tokens_of_rows_with_a_slot() -> None:
    logits, slots = torch.eye(4)[:3], torch.tensor([2, -1, 0], dtype=torch.int32)
    last_tokens = torch.full((3,), 9, dtype=torch.int32)
    sample_columns(logits, torch.zeros(NUM_COLUMNS, 3), slots, last_tokens)
    assert last_tokens.tolist() == [2, 9, 0]


def test_plain_device_draw_uses_the_random_numbers_of_seed_and_position() -> None:
    rng = np.random.default_rng(0)
    rows = [
        {"seeds": seed, "positions": position}
        for seed, position in zip(
            [0, 1, 2**63, 2**64 - 1, *rng.integers(0, 2**64, 500, np.uint64).tolist()],
            [0, 2**31 - 1, 7, 131_072, *rng.integers(0, 200_000, 500).tolist()],
            strict=True,
        )
    ]
    inputs = inputs_of(rows)
    columns = np.zeros((NUM_COLUMNS, len(rows)), np.float32)
    pack(inputs, columns)
    expected = np.minimum(uniform(inputs.seeds, inputs.positions).astype(np.float32), np.float32(1 - 2.0**-24))
    assert plain_draw.uniform(torch.from_numpy(columns)).numpy().tobytes() == expected.tobytes()


def test_plain_device_adjustments_equal_the_cpu_samplers() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(4)) * 3
    penalties = {"repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": -0.3}
    histories = (
        TokenHistory(4, np.array([3, 3, 7, 8, 8, 8], np.int32), 2),
        TokenHistory(1, np.array([9], np.int32), 1),
        TokenHistory(2, np.array([], np.int32), 0),
    )
    biases = tuple(
        LogitBias(row, np.array([3, 7], np.int32), np.array([value, -1.0], np.float32))
        for row, value in ((0, 2.0), (4, 5.0), (4, -7.0))
    )
    inputs = dataclasses.replace(inputs_of([{"temperature": 0.0} | penalties] * 6, histories), biases=biases)
    expected, found = logits.clone(), logits.clone()
    sample(expected, inputs)
    adjust(found, *upload(inputs, torch.device("cpu")))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert not torch.equal(found[4], logits[4])


@pytest.mark.parametrize(
    "parameters", [{"temperature": 0.7}, {"temperature": 1.2, "top_p": 0.9}, {"top_k": 6, "top_p": 0.8, "min_p": 0.02}]
)
def test_plain_device_draw_follows_the_requested_distribution(parameters: dict[str, Any]) -> None:
    logits, num_draws = logits_of(1.5, vocab=40), 100_000
    inputs = inputs_of([parameters | {"seeds": 5}] * num_draws)
    inputs = dataclasses.replace(inputs, positions=np.arange(num_draws))
    tokens = sample_rows(logits.repeat(num_draws, 1), inputs, sample_columns, adjust).token_ids
    assert_distributed(np.bincount(tokens, minlength=40), expected_probabilities(logits, **parameters))
