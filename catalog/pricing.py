"""What a call costs: tokens and a card's prices -> integer micro-neurons. Pure.

A price in neurons per million tokens is the same number in micro-neurons per token, so whole prices give exact
results; a fractional sum is rounded half up, once, at the end.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

from catalog.card import Prices

_MICRO_NEURONS_PER_USD = Decimal(1_000_000) * 1000 / Decimal("0.011")


def price_in_micro_neurons(
    prices: Prices, *, prompt_tokens: int, cached_tokens: int = 0, completion_tokens: int = 0
) -> int:
    """Micro-neurons for one call. `cached_tokens` is the part of `prompt_tokens` that the prefix cache served."""
    assert 0 <= cached_tokens <= prompt_tokens
    assert completion_tokens >= 0
    cached_price = prices.input if prices.cached_input is None else prices.cached_input
    total = (
        (prompt_tokens - cached_tokens) * prices.input
        + cached_tokens * cached_price
        + completion_tokens * prices.output
    )
    return int(total.to_integral_value(ROUND_HALF_UP))


def usd_per_million(neurons_per_million: Decimal) -> float:
    """Dollars for a million tokens at this price, to a tenth of a thousandth of a cent: what the search route lists."""
    return float(round(neurons_per_million * 1_000_000 / _MICRO_NEURONS_PER_USD, 7))
