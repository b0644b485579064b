"""CostRanking: puts the nodes of a placement in the order of the cost policy, where nodes have prices.

Foreign engines have the prices of their registration, and nodes those of their PoP (0 by default, because they are paid
for already). Without foreign engines and prices, placements stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from catalog.card import ModelCard
from gateway.cost_policy import FREE, CompletionLengths, Need, Option, TokenPrice, choose
from gateway.foreign.engine_link import EngineLink
from gateway.nodes.candidate import Candidate
from gateway.nodes.snapshot import Nodes
from gateway.placement import Placement, Removal
from tenants.usage.usage_entries import UsageEntry


class CostRanking:
    """Knows the prices of nodes, and the usual length of completions."""

    def __init__(self, nodes: Nodes, pop_prices: Mapping[str, TokenPrice], first_token_target_s: float) -> None:
        self._nodes = nodes
        self._pop_prices = pop_prices
        self._target_s = first_token_target_s
        self._lengths = CompletionLengths()

    def record(self, entry: UsageEntry) -> None:
        """Note the length of a completion that has ended."""
        if self._has_prices:
            self._lengths.record(entry.model, entry.prompt_tokens, entry.completion_tokens)

    @property
    def _has_prices(self) -> bool:
        return bool(self._pop_prices) or self._nodes.has_engines

    def apply(self, found: Placement, card: ModelCard, prompt_tokens: int, max_tokens: int) -> Placement:
        """Return the placement of a call in the order of costs, with its explanation."""
        if not found.nodes or not self._has_prices:
            return found
        need = Need(
            prompt_tokens=prompt_tokens,
            completion_tokens=self._lengths.expected(card.name, prompt_tokens, max_tokens),
            first_token_target_s=self._target_s,
            model_bytes=sum(file.size_bytes for file in card.files),
        )
        pairs = zip(found.nodes, found.predicted_s, strict=True)
        choices = choose([self._option(node, predicted_s, card) for node, predicted_s in pairs], need)
        removed = dict(found.removed)
        if choices.removed:
            others = [Removal(found.nodes[number].node_id, reason) for number, reason in choices.removed.items()]
            removed["model"] = [*removed.get("model", ()), *others]
        numbers = [choice.number for choice in choices.ranked]
        return structs.replace(
            found,
            nodes=[found.nodes[number] for number in numbers],
            predicted_s=[found.predicted_s[number] for number in numbers],
            demotions=[found.demotions[number] for number in numbers],
            costs=[choice.reason for choice in choices.ranked],
            removed=removed,
        )

    def _option(self, node: Candidate, predicted_s: float, card: ModelCard) -> Option:
        known = None if node.is_hot else self._nodes.find(node.node_id)
        return Option(
            price=self._price_of(node, card),
            predicted_s=predicted_s,
            is_loaded=node.is_hot,
            memory_bytes=0 if known is None else known.status.budget_bytes,
        )

    def _price_of(self, node: Candidate, card: ModelCard) -> TokenPrice:
        if isinstance(node.link, EngineLink):
            model = node.link.spec.models[card.name]
            return TokenPrice(float(model.input_usd), float(model.output_usd))
        return self._pop_prices.get(node.pop, FREE)
