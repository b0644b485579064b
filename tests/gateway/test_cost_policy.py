"""The cheapest correct node of a call, and its cost on a trace compared with a choice that knows everything."""

from __future__ import annotations

import csv
import gzip
import io
import os
from pathlib import Path

import pytest

from gateway.cost_policy import CompletionLengths, Need, Option, TokenPrice, choose, parse_pop_prices

ROOT = Path(__file__).parent.parent.parent
EDGE, REGIONAL, FOREIGN = TokenPrice(0.30, 0.30), TokenPrice(0.15, 0.60), TokenPrice(0.05, 1.20)
TARGET_S = 1.0
SPEEDS = (4_000.0, 12_000.0, 60_000.0)  # tokens per second of the three places
ROUND_TRIPS_S = (0.002, 0.030, 0.080)


def need(**fields: float) -> Need:
    return Need(**{"prompt_tokens": 1000, "completion_tokens": 100, "first_token_target_s": 1.0, **fields})


def order(options: list[Option], of: Need) -> list[int]:
    return [choice.number for choice in choose(options, of).ranked]


def test_cheapest_of_the_nodes_in_time_is_first():
    options = [Option(price=EDGE), Option(price=REGIONAL), Option(price=FOREIGN)]
    assert order(options, need(prompt_tokens=10_000, completion_tokens=10))[0] == 2
    assert order(options, need(prompt_tokens=10, completion_tokens=1000))[0] == 0


def test_late_nodes_follow_in_the_order_of_their_prediction():
    options = [Option(price=FOREIGN, predicted_s=9), Option(price=FOREIGN, predicted_s=5), Option(price=EDGE)]
    assert order(options, need()) == [2, 1, 0]


def test_equal_costs_keep_the_order_of_placement():
    assert order([Option(predicted_s=0.3), Option(predicted_s=0.1), Option(predicted_s=0.2)], need()) == [0, 1, 2]


def test_node_without_room_for_the_model_is_removed_with_the_reason():
    options = [Option(is_loaded=False, memory_bytes=10), Option(is_loaded=True, memory_bytes=10), Option()]
    found = choose(options, need(model_bytes=20))
    assert [choice.number for choice in found.ranked] == [1, 2]
    assert found.removed == {0: "the model needs 20 bytes, and the node has 10"}


def test_every_choice_has_its_cost_and_reason():
    (choice,) = choose([Option(price=EDGE)], need()).ranked
    assert choice.usd == pytest.approx(1100 * 0.30 / 1e6)
    assert "first token within 1 s" in choice.reason


@pytest.mark.parametrize("text", ["lis", "lis=1", "=1/2", "lis=a/b", "lis=-1/2", "lis=nan/1"])
def test_malformed_prices_are_rejected(text: str):
    with pytest.raises(ValueError, match="must be a PoP and two prices"):
        parse_pop_prices(text)


def test_prices_of_pops_are_parsed():
    assert parse_pop_prices("lis=0.1/0.4, fra=0/0") == {"lis": TokenPrice(0.1, 0.4), "fra": TokenPrice()}


class Places:
    """An edge node, a regional node and a foreign engine, each with a queue of tokens that drains over time."""

    def __init__(self) -> None:
        self.queues = [0.0, 0.0, 0.0]
        self.now_s = self.usd = 0.0
        self.num_late = 0

    def advance(self, now_s: float) -> None:
        elapsed_s, self.now_s = now_s - self.now_s, now_s
        self.queues = [max(0.0, queue - elapsed_s * speed) for queue, speed in zip(self.queues, SPEEDS, strict=True)]

    def run(self, prompt_tokens: int, expected_tokens: float, completion_tokens: int) -> None:
        """Run one call where `choose` says, expecting a completion of `expected_tokens`."""
        options = [
            Option(price=price, predicted_s=round_trip_s + (queue + prompt_tokens) / speed)
            for price, queue, speed, round_trip_s in zip(
                (EDGE, REGIONAL, FOREIGN), self.queues, SPEEDS, ROUND_TRIPS_S, strict=True
            )
        ]
        wanted = need(prompt_tokens=prompt_tokens, completion_tokens=expected_tokens, first_token_target_s=TARGET_S)
        number = choose(options, wanted).ranked[0].number
        self.num_late += options[number].predicted_s > TARGET_S
        self.usd += options[number].price.of_call(prompt_tokens, completion_tokens)
        self.queues[number] += prompt_tokens + completion_tokens


def trace(name: str) -> list[tuple[float, int, int]]:
    """Return (seconds, prompt tokens, completion tokens) of the calls of a trace."""
    folder = Path(os.environ.get("HEARTH_TEST_DATA", ROOT.parent / "shared" / "data"))
    file = folder / "traces" / f"{name}.csv.gz"
    if not file.exists():
        pytest.skip("no test data: set HEARTH_TEST_DATA")
    rows = list(csv.DictReader(io.StringIO(gzip.decompress(file.read_bytes()).decode())))
    seconds = [
        sum(int(h) * f for h, f in zip(row["TIMESTAMP"][11:19].split(":"), (3600, 60, 1), strict=True)) for row in rows
    ]
    return [
        (float(s - seconds[0]), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
        for s, row in zip(seconds, rows, strict=True)
    ]


@pytest.mark.parametrize("name", ["azure_2023_conv", "azure_2023_code"])
def test_cost_on_a_trace_is_at_most_five_percent_above_that_of_an_oracle(name: str):
    """The oracle knows the length of every completion; the policy expects the mean of the completions before."""
    policy, oracle, lengths = Places(), Places(), CompletionLengths()
    for now_s, prompt_tokens, completion_tokens in trace(name):
        for places in (policy, oracle):
            places.advance(now_s)
        policy.run(prompt_tokens, lengths.expected("m", prompt_tokens, 1000), completion_tokens)
        oracle.run(prompt_tokens, completion_tokens, completion_tokens)
        lengths.record("m", prompt_tokens, completion_tokens)
    print(f"{name}: policy ${policy.usd:.4f}, oracle ${oracle.usd:.4f}, ratio {policy.usd / oracle.usd:.4f}")  # noqa: T201
    assert policy.usd <= 1.05 * oracle.usd
    assert policy.num_late <= oracle.num_late * 1.05 + 5
