"""Choose the cheapest correct node for a call: among nodes in the gateway's own PoP (edge), nodes in other PoPs
(regional) and foreign engines. Pure functions; residency, reachability and readiness are the filters of `placement.py`.

1. A node on which the model cannot fit is removed.
2. Nodes that are predicted to send the first token within the target come first, the cheapest one first.
3. The others follow, the fastest one first.

Equal costs keep the order of placement, so nodes of one price still share load by affinity. The length of a completion
is not known before the call: it is estimated from earlier completions for prompts of that size.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from telemetry.bounded_cache import BoundedCache

_MEAN_SHARE = 0.02  # weight of the newest completion in the mean length
_ANY_SIZE = -1
_MAX_MEANS = 16384


class TokenPrice(Struct, frozen=True):
    """Dollars per million tokens."""

    input_usd: float = 0.0
    output_usd: float = 0.0

    def of_call(self, prompt_tokens: float, completion_tokens: float) -> float:
        """Return the dollars of a call."""
        return (prompt_tokens * self.input_usd + completion_tokens * self.output_usd) / 1e6


FREE = TokenPrice()


class Need(Struct, frozen=True, kw_only=True):
    """A call: its expected tokens, the seconds within which the first token should come, and the size of the model."""

    prompt_tokens: float
    completion_tokens: float
    first_token_target_s: float
    model_bytes: int = 0


class Option(Struct, frozen=True, kw_only=True):
    """A node for a call. `predicted_s` are the predicted seconds to the first token. `memory_bytes` is the memory for
    models, 0 if unknown."""

    price: TokenPrice = FREE
    predicted_s: float = 0.0
    is_loaded: bool = True
    memory_bytes: int = 0


class Choice(Struct, frozen=True):
    """One option in the order of preference: its number, its dollars, and the reason of its rank."""

    number: int
    usd: float
    reason: str


class Choices(Struct, frozen=True):
    """The options, best first, and the reasons of those that were removed, by number."""

    ranked: list[Choice]
    removed: dict[int, str]


def choose(options: Sequence[Option], need: Need) -> Choices:
    """Return the options in the order of preference."""
    removed = {
        number: f"the model needs {need.model_bytes} bytes, and the node has {option.memory_bytes}"
        for number, option in enumerate(options)
        if not option.is_loaded and 0 < option.memory_bytes < need.model_bytes
    }
    rows = [
        (option.price.of_call(need.prompt_tokens, need.completion_tokens), option.predicted_s, number)
        for number, option in enumerate(options)
        if number not in removed
    ]
    in_time = sorted((row for row in rows if row[1] <= need.first_token_target_s), key=lambda row: (row[0], row[2]))
    late = sorted((row for row in rows if row[1] > need.first_token_target_s), key=lambda row: (row[1], row[2]))
    target = f"within {need.first_token_target_s:g} s"
    ranked = [Choice(number, usd, f"about ${usd:.6f}; first token {target}") for usd, _, number in in_time]
    ranked += [Choice(number, usd, f"about ${usd:.6f}; first token not {target}") for usd, _, number in late]
    return Choices(ranked, removed)


class CompletionLengths:
    """Mean completion tokens by model and by size of the prompt (in powers of two), weighted towards recent calls."""

    def __init__(self) -> None:
        self._means: BoundedCache[tuple[str, int], float] = BoundedCache(_MAX_MEANS)

    def record(self, model: str, prompt_tokens: int, completion_tokens: int) -> None:
        """Note a completion that has ended."""
        for size in (int(prompt_tokens).bit_length(), _ANY_SIZE):
            mean = self._means.get((model, size))
            new = completion_tokens if mean is None else mean + _MEAN_SHARE * (completion_tokens - mean)
            self._means.put((model, size), float(new))

    def expected(self, model: str, prompt_tokens: int, max_tokens: int) -> float:
        """Return the expected completion tokens of a call with this prompt and limit."""
        mean = self._means.get((model, int(prompt_tokens).bit_length()))
        if mean is None:
            mean = self._means.get((model, _ANY_SIZE))
        return float(max_tokens) if mean is None else min(mean, float(max_tokens))


def parse_pop_prices(text: str) -> dict[str, TokenPrice]:
    """Return the prices of PoPs in a text such as `lis=0.10/0.40,fra=0.05/0.20`. Raises ValueError."""
    prices = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        pop, separator, amounts = part.partition("=")
        first, slash, second = amounts.partition("/")
        try:
            price = TokenPrice(float(first), float(second))
        except ValueError:
            separator = ""
            price = FREE
        if (
            not pop
            or not separator
            or not slash
            or not all(0 <= usd < 1e6 for usd in (price.input_usd, price.output_usd))
        ):
            raise ValueError(f"{part!r} must be a PoP and two prices, as in lis=0.10/0.40")
        prices[pop] = price
    return prices
