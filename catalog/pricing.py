"""Prices of calls in integer micro-neurons, and conversion between neurons and US dollars.

Neurons per million tokens equal micro-neurons per token, so integer prices give exact results. Fractional sums are
rounded half up once, at the end. All neurons have the same price in dollars.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_HALF_UP, Decimal

from catalog.card import Prices

USD_PER_1000_NEURONS = Decimal("0.011")
_MICRO_NEURONS_PER_USD = Decimal(1_000_000) * 1000 / USD_PER_1000_NEURONS
_MICRO = Decimal(1_000_000)


def price_in_micro_neurons(
    prices: Prices,
    *,
    prompt_tokens: int = 0,
    cached_tokens: int = 0,
    completion_tokens: int = 0,
    num_steps: int = 0,
    audio_ms: int = 0,
    num_image_tiles: int = 0,
    num_characters: int = 0,
    is_batch: bool = False,
) -> int:
    """Return the price of one call. `cached_tokens` is the part of `prompt_tokens` that came from the prefix cache."""
    assert 0 <= cached_tokens <= prompt_tokens
    assert min(completion_tokens, num_steps, audio_ms, num_image_tiles, num_characters) >= 0
    cached_price = prices.input if prices.cached_input is None else prices.cached_input
    total = (
        (prompt_tokens - cached_tokens) * prices.input
        + cached_tokens * cached_price
        + completion_tokens * prices.output
    )
    if num_steps or audio_ms or num_image_tiles or num_characters:
        total += _MICRO * (num_steps * prices.step + num_image_tiles * prices.image_tile)
        total += 1000 * (audio_ms * prices.audio_second + num_characters * prices.thousand_characters)
    if is_batch:
        total *= 1 - prices.batch_discount
    return int(total.to_integral_value(ROUND_HALF_UP))


def usd(micro_neurons: int) -> float:
    """Return the price of micro-neurons in dollars, rounded to a billionth: short calls cost under a millionth."""
    return float(round(Decimal(micro_neurons) / _MICRO_NEURONS_PER_USD, 9))


def micro_neurons_for(micro_usd: int) -> int:
    """Return the micro-neurons that cost this many micro-dollars, rounded up."""
    return int((Decimal(micro_usd) / _MICRO * _MICRO_NEURONS_PER_USD).to_integral_value(ROUND_CEILING))


def usd_per_million(neurons_per_million: Decimal) -> float:
    """Return dollars per million tokens, rounded to seven decimals, for the search route."""
    return float(round(neurons_per_million * 1_000_000 / _MICRO_NEURONS_PER_USD, 7))


def neurons_per_million(usd_per_million_tokens: Decimal) -> Decimal:
    """Return the neurons per million tokens that cost this many dollars, rounded to a thousandth."""
    return round(usd_per_million_tokens * _MICRO_NEURONS_PER_USD / _MICRO, 3)
