"""catalog/pricing.py: exact prices, rounded half up once."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.builtin import builtin_models
from catalog.card import Prices
from catalog.pricing import micro_neurons_for, price_in_micro_neurons, usd, usd_per_million

TOKENS = st.integers(0, 10**9)


def test_million_tokens_cost_the_listed_neurons() -> None:
    prices = Prices(Decimal(2457), Decimal(18252), Decimal(100))
    assert price_in_micro_neurons(prices, prompt_tokens=1_000_000) == 2457 * 1_000_000
    assert price_in_micro_neurons(prices, prompt_tokens=0, completion_tokens=1_000_000) == 18252 * 1_000_000
    assert price_in_micro_neurons(prices, prompt_tokens=1_000_000, cached_tokens=1_000_000) == 100 * 1_000_000


def test_cached_tokens_cost_the_input_price_by_default() -> None:
    prices = Prices(Decimal(3))
    assert price_in_micro_neurons(prices, prompt_tokens=10, cached_tokens=4) == 30


def test_sum_is_rounded_half_up_once() -> None:
    prices = Prices(Decimal("0.5"), Decimal("0.25"))
    assert price_in_micro_neurons(prices, prompt_tokens=1) == 1
    assert price_in_micro_neurons(prices, prompt_tokens=2) == 1
    assert price_in_micro_neurons(prices, prompt_tokens=3) == 2
    assert price_in_micro_neurons(prices, prompt_tokens=1, completion_tokens=1) == 1


@given(TOKENS, TOKENS, st.integers(0, 10**6), st.integers(0, 10**6))
def test_integer_prices_give_exact_sums(prompt: int, completion: int, input_price: int, output_price: int) -> None:
    prices = Prices(Decimal(input_price), Decimal(output_price))
    cost = price_in_micro_neurons(prices, prompt_tokens=prompt, completion_tokens=completion)
    assert cost == prompt * input_price + completion * output_price


def test_neurons_are_converted_to_dollars() -> None:
    assert usd_per_million(Decimal(2457)) == 0.027027
    assert usd_per_million(Decimal(0)) == 0.0


def test_other_tasks_are_priced_by_step_second_and_tile() -> None:
    prices = Prices(step=Decimal("4.5"), audio_second=Decimal("0.7"), image_tile=Decimal(2))
    assert price_in_micro_neurons(prices, num_steps=20) == 90_000_000
    assert price_in_micro_neurons(prices, audio_ms=1500) == 1_050_000
    assert price_in_micro_neurons(prices, num_image_tiles=3) == 6_000_000
    assert price_in_micro_neurons(prices, num_steps=1, audio_ms=1, num_image_tiles=1) == 6_500_700


def test_batch_calls_are_discounted() -> None:
    prices = Prices(Decimal(3), Decimal(5), batch_discount=Decimal("0.5"))
    assert price_in_micro_neurons(prices, prompt_tokens=10, completion_tokens=2) == 40
    assert price_in_micro_neurons(prices, prompt_tokens=10, completion_tokens=2, is_batch=True) == 20
    for discount in ("-0.1", "1.1", "NaN"):
        with pytest.raises((ValueError, InvalidOperation)):
            Prices(batch_discount=Decimal(discount))


@given(st.integers(0, 10**12))
def test_conversion_from_dollars_rounds_up(micro_usd: int) -> None:
    bought = micro_neurons_for(micro_usd)
    assert usd(bought) == pytest.approx(micro_usd / 1e6, abs=1e-6)
    assert micro_neurons_for(11_000) == 1_000_000_000


def test_built_in_models_have_prices() -> None:
    assert builtin_models()
    for model in builtin_models().values():
        assert price_in_micro_neurons(model.card.prices, prompt_tokens=1) > 0
