"""What a call costs: what it consumed and a card's prices -> integer micro-neurons. Pure.

A price in neurons per million tokens is the same number in micro-neurons per token, so whole prices give exact
results; a fractional sum is rounded half up, once, at the end. Dollars are neurons at one price for all.
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
    is_batch: bool = False,
) -> int:
    """Micro-neurons for one call. `cached_tokens` is the part of `prompt_tokens` that the prefix cache served."""
    assert 0 <= cached_tokens <= prompt_tokens
    assert min(completion_tokens, num_steps, audio_ms, num_image_tiles) >= 0
    cached_price = prices.input if prices.cached_input is None else prices.cached_input
    total = (
        (prompt_tokens - cached_tokens) * prices.input
        + cached_tokens * cached_price
        + completion_tokens * prices.output
    )
    if num_steps or audio_ms or num_image_tiles:
        total += _MICRO * (num_steps * prices.step + num_image_tiles * prices.image_tile)
        total += 1000 * audio_ms * prices.audio_second
    if is_batch:
        total *= 1 - prices.batch_discount
    return int(total.to_integral_value(ROUND_HALF_UP))


def usd(micro_neurons: int) -> float:
    """Dollars for so much, to a millionth."""
    return float(round(Decimal(micro_neurons) / _MICRO_NEURONS_PER_USD, 6))


def micro_neurons_for(micro_usd: int) -> int:
    """What so many millionths of a dollar buy, rounded up."""
    return int((Decimal(micro_usd) / _MICRO * _MICRO_NEURONS_PER_USD).to_integral_value(ROUND_CEILING))


def usd_per_million(neurons_per_million: Decimal) -> float:
    """Dollars for a million tokens at this price, to a tenth of a thousandth of a cent: what the search route lists."""
    return float(round(neurons_per_million * 1_000_000 / _MICRO_NEURONS_PER_USD, 7))
