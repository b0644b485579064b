"""Compare the Triton sampler with the CPU's for all kinds of rows: run with TRITON_INTERPRET=1.

Prints as JSON: rows whose token differs although no rounding could decide it, the tokens of one row in several batches,
the χ² figure of many draws, and whether random numbers and tokens of slots are right. Splits are small, so that rows
have several, and few logits are stored, so that some rows are searched as a whole. Runs in a process of its own,
because Triton reads the variable when it is imported.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from engine.inputs import LogitBias, SamplingInputs, TokenHistory
from engine.kernels import triton_penalties, triton_pick, triton_sampler
from engine.kernels.triton_penalties import adjust
from engine.kernels.triton_sampler import sample_columns
from engine.sampler import sample
from engine.sampling import device, plain_draw
from engine.sampling.packed import NUM_COLUMNS, pack
from tests.engine.test_sampler import VOCAB, Allowing, expected_probabilities, inputs_of

PARAMETERS = {
    "temperature": (0.0, 0.6, 1.5), "top_k": (0, 5, 90), "top_p": (1.0, 0.9), "min_p": (0.0, 0.05),
}  # fmt: skip
NUM_DRAWS = 300


def sample_rows(logits: torch.Tensor, inputs: SamplingInputs) -> Any:
    return device.sample_rows(logits, inputs, sample_columns, adjust)


def packed(inputs: SamplingInputs) -> torch.Tensor:
    columns = np.zeros((NUM_COLUMNS, inputs.num_rows), np.float32)
    pack(inputs, columns)
    return torch.from_numpy(columns)


@triton.jit  # type: ignore[untyped-decorator]
def _store_uniforms(columns, num_columns, out):  # type: ignore[no-untyped-def]
    tl.store(out + tl.program_id(0), triton_pick.uniform(columns, num_columns, tl.program_id(0)))


def are_uniforms_equal() -> bool:
    """Return True if the random numbers of the kernel and of plain torch are equal bit for bit."""
    seeds = [0, 1, 2**63, 2**64 - 1, *np.random.default_rng(0).integers(0, 2**64, 200, np.uint64).tolist()]
    columns = packed(inputs_of([{"seeds": seed, "positions": seed % 200_003} for seed in seeds]))
    found = torch.empty(len(seeds))
    _store_uniforms[(len(seeds),)](columns.view(torch.int32), columns.stride(0), found)
    return torch.equal(found, plain_draw.uniform(columns))


def are_slots_right(logits: torch.Tensor) -> bool:
    """Return True if rows without a slot store nothing, and logits of bfloat16 give the tokens of their values."""
    narrow, columns = logits[:4].bfloat16(), packed(inputs_of([{"temperature": 0.7, "top_p": 0.8}] * 4))
    slots, last_tokens = torch.tensor([3, -1, 0, -1], dtype=torch.int32), torch.full((5,), -7, dtype=torch.int32)
    found = sample_columns(narrow, columns, slots, last_tokens, has_top_p=True)[0]
    wide = sample_columns(narrow.float(), columns, slots, has_top_p=True)[0]
    expected = [int(wide[2]), -7, -7, int(wide[0]), -7]
    return last_tokens.tolist() == expected and found[::2].tolist() == wide[::2].tolist()


def all_rows() -> list[dict[str, Any]]:
    return [
        dict(zip(PARAMETERS, values, strict=True)) | {"seeds": number, "positions": 3 * number}
        for number, values in enumerate(itertools.product(*PARAMETERS.values()))
        if number % 2 == number // 4 % 2  # half of all combinations: the interpreter is slow
    ]


def different(logits: torch.Tensor, inputs: SamplingInputs) -> list[int]:
    expected, found = sample(logits.clone(), inputs), sample_rows(logits.clone(), inputs)
    assert (expected.is_failed is None) == (found.is_failed is None)
    if expected.is_failed is not None and found.is_failed is not None:
        assert expected.is_failed.tolist() == found.is_failed.tolist()
    healthy = ~expected.is_failed if expected.is_failed is not None else np.full(len(logits), True)
    if expected.logprobs is not None:
        assert found.logprobs is not None
        same = (expected.token_ids == found.token_ids) & healthy
        np.testing.assert_allclose(found.logprobs[same], expected.logprobs[same], atol=1e-5)
        np.testing.assert_array_equal(found.top_ids, expected.top_ids)
    assert ((found.token_ids >= 0) & (found.token_ids < logits.shape[1])).all()
    return np.flatnonzero((expected.token_ids != found.token_ids) & healthy).tolist()


def chi_square() -> float:
    """Return Pearson's χ² of filtered draws, over its limit at one in a million."""
    logits = torch.randn(12, generator=torch.Generator().manual_seed(1)) * 2
    parameters: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95}
    rows = [parameters | {"seeds": 5, "positions": position} for position in range(NUM_DRAWS)]
    tokens = sample_rows(logits.repeat(NUM_DRAWS, 1), inputs_of(rows)).token_ids
    expected = expected_probabilities(logits, **parameters) * NUM_DRAWS
    counts = np.bincount(tokens, minlength=12)
    assert counts[expected == 0].sum() == 0
    cells = expected > 5
    figure = float(((counts - expected)[cells] ** 2 / expected[cells]).sum())
    return figure / 50  # the limit for 11 degrees of freedom is about 50


def main() -> None:
    np.seterr(all="ignore")  # the interpreter computes both sides of conditions
    triton_sampler._SPLIT, triton_sampler._ROOM, triton_sampler._ENOUGH = 128, 16, 4
    triton_pick._TILE = tl.constexpr(256)
    triton_penalties._ROWS_AT_ONCE = 4  # several groups of rows
    generator = torch.Generator().manual_seed(0)
    rows = all_rows()
    logits = torch.randn(len(rows), VOCAB, generator=generator) * 3
    plain = inputs_of(rows)
    found = {"plain": different(logits, plain)}
    coarse = (logits / 2).round() * 2  # many equal logits
    found["ties"] = different(coarse, plain)
    found["equal logits"] = different(torch.ones(len(rows), VOCAB), plain)
    found["flat"] = different(logits / 20, plain)
    # Weights of 1 and 0 only, and a scale on which multiples of the temperature are not exact in float32.
    found["huge"] = different(logits[:4] * 1e30, inputs_of(rows[6:10]))
    far = 2e6 + (logits[:4] * 4).round() / 4
    found["far from 0"] = different(far, inputs_of([row | {"temperature": 0.25} for row in rows[:4]]))
    bad = logits.clone()
    bad[1, 7], bad[2, 9], bad[3, 11] = float("nan"), float("inf"), float("-inf")
    found["not finite"] = different(bad, plain)
    histories = tuple(TokenHistory(row, np.array([5, 9, 5, 40], np.int32), 1) for row in range(0, len(rows), 2))
    penalties = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.7, "num_logprobs": 3}
    inputs = inputs_of([row | (penalties if number % 2 == 0 else {}) for number, row in enumerate(rows)], histories)
    bias = LogitBias(1, np.array([3, 250], np.int32), np.array([5.0, -100.0], np.float32))
    found["penalties, bias, log-probabilities"] = different(logits, dataclasses.replace(inputs, biases=(bias,)))
    for is_closed in (False, True):
        allowed = [{7, 100, 299}] * (len(rows) // 2)
        outputs = []
        for sampler in (sample, sample_rows):
            held = Allowing(list(range(0, len(rows), 2)), allowed, is_closed=is_closed)
            outputs.append(sampler(logits.clone(), dataclasses.replace(plain, constrained=held)).token_ids)
        found[f"constrained, {is_closed}"] = np.flatnonzero(outputs[0] != outputs[1]).tolist()
    triton_sampler._SPLIT, triton_sampler._ROOM, triton_sampler._ENOUGH = 1024, 128, 32
    large = torch.randn(3, 5000, generator=generator) * 3
    few = inputs_of([{"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.8}, {"temperature": 1.0, "top_k": 2000}])
    found["large vocabulary"] = different(large, few)
    alone = [
        int(sample_rows(logits[row : row + 1].clone(), inputs_of(rows[row : row + 1])).token_ids[0])
        for row in range(0, len(rows), 5)
    ]
    together = sample_rows(logits.clone(), plain).token_ids[::5].tolist()
    results = {"different": found, "alone": alone, "together": together, "chi_square": chi_square()}
    results["right"] = [are_uniforms_equal(), are_slots_right(logits)]
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
