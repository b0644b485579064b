"""Registry: finds models by name in memory.

Holds an immutable snapshot of built-in cards, published cards, aliases and deprecations. `watch` replaces the snapshot
within a second of a change, and keeps the last one while the database is unavailable. A name that is not in the
snapshot is looked up in the database, so that calls find a model as soon as it is published. Without a database, only
built-in models exist.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from catalog.aliases import follow
from catalog.builtin import builtin_models
from catalog.card import ModelCard, decode_card
from catalog.deprecations import Deprecation, deprecated_card, deprecated_listed, read_deprecations
from catalog.errors import CardError
from catalog.listed import ListedModel, listed_models
from catalog.rows import read_aliases, read_cards, read_number
from catalog.search import AnyModel, SearchPage, SearchQuery, search_page
from storage.database import Database
from storage.errors import StoreUnavailable
from telemetry.clock import SYSTEM_CLOCK, Clock

POLL_INTERVAL_S = 1.0
LOOK_UP_INTERVAL_S = 0.02  # minimum interval between two reads for unknown names; concurrent calls share one read
LOOK_UP_TIMEOUT_S = 2.0

# Schemas that every model of a task supports.
_SCHEMAS = {"Text Generation": ("text_generation_legacy", "openai_chat", "text_generation_responses")}

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resolved:
    """The model of a name. `alias_of` is the card's own name if `requested_name` is an alias, else None."""

    card: ModelCard
    requested_name: str
    alias_of: str | None


@dataclass(frozen=True)
class _Snapshot:
    cards: Mapping[str, ModelCard] = field(default_factory=dict)
    resolved: Mapping[str, Resolved] = field(default_factory=dict)
    listed: Mapping[str, ListedModel] = field(default_factory=dict)
    number: int | None = None  # number of catalog changes; None before the first read


class Registry:
    """Finds models by name. With `database` None, only built-in models exist."""

    def __init__(
        self,
        database: Database | None,
        *,
        builtin_cards: Collection[ModelCard] | None = None,
        listed: Mapping[str, ListedModel] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        cards = [model.card for model in builtin_models().values()] if builtin_cards is None else builtin_cards
        self._database = database
        self._listed = (listed_models() if builtin_cards is None else {}) if listed is None else listed
        self._clock = clock
        self._builtin = {card.name: card for card in cards}
        self._snapshot = _snapshot(self._builtin, {}, {}, None, self._listed)
        self._is_unavailable = False  # state of the database at the last poll of `watch`
        self._reading = asyncio.Lock()
        self._num_reads = self._last_read = 0  # reads started, and the number of the last successful one
        self._read_s = float("-inf")

    def find(self, name: str) -> Resolved | None:
        """Return the model of a parsed model id, following aliases; None if there is none."""
        return self._snapshot.resolved.get(name)

    async def look_up(self, name: str) -> Resolved | None:
        """Like `find`, but read the database if the snapshot does not have the name.

        Returns None if the database is unavailable or does not respond within LOOK_UP_TIMEOUT_S.
        """
        if name not in self._snapshot.resolved and self._database is not None and not self._is_unavailable:
            with contextlib.suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(LOOK_UP_TIMEOUT_S):
                    await self._read_after(self._num_reads)
        return self.find(name)

    async def _read_after(self, number: int) -> None:
        """Read the database, unless a read that started after read `number` has finished.

        Waiting callers share a read.
        """
        async with self._reading:
            if self._last_read <= number:
                await asyncio.sleep(self._read_s + LOOK_UP_INTERVAL_S - self._clock.monotonic_s())
                await self._read()

    def find_listed(self, name: str) -> ListedModel | None:
        """Return the listed model of a name that has no card, or None."""
        return None if name in self._snapshot.resolved else self._snapshot.listed.get(name)

    def aliases_of(self, name: str) -> list[str]:
        """Return the aliases that lead to a model, sorted."""
        return sorted(alias for alias, found in self._snapshot.resolved.items() if found.alias_of == name)

    def is_retired(self, model: AnyModel) -> bool:
        """Return True if the model is retired today."""
        return model.planned_deprecation_date is not None and model.is_retired(self._clock.now().date())

    def everything(self) -> list[AnyModel]:
        """Return all cards and the listed models without a card, sorted by name."""
        found: dict[str, AnyModel] = {**self._snapshot.listed, **self._snapshot.cards}
        return [model for _, model in sorted(found.items())]

    def all(self) -> list[ModelCard]:
        """Return all cards sorted by name, without aliases."""
        return [card for _, card in sorted(self._snapshot.cards.items())]

    def matching(self, text: str = "", task: str = "") -> list[Resolved]:
        """Return models and aliases of a task whose name or description contains `text`, sorted by name."""
        words = text.lower()
        return [
            found
            for name, found in sorted(self._snapshot.resolved.items())
            if task in ("", found.card.task) and (words in name.lower() or words in found.card.description.lower())
        ]

    def search(self, query: SearchQuery) -> SearchPage:
        """Return one page of the search route."""
        return search_page(self.everything(), query, self._clock.now().date())

    async def refresh(self) -> bool:
        """Update the snapshot; return True if it has changed. Raises StoreUnavailable and then keeps the snapshot."""
        async with self._reading:
            return await self._read()

    async def _read(self) -> bool:
        """Read the database. Callers hold the lock: an older read must not overwrite the result of a newer one."""
        if self._database is None:
            return False
        self._num_reads += 1
        self._read_s = self._clock.monotonic_s()
        async with self._database.connection() as connection:
            number = await read_number(connection)
            if is_new := number != self._snapshot.number:
                texts = await read_cards(connection)
                aliases = await read_aliases(connection)
                deprecations = await read_deprecations(connection)
        if is_new:
            # Built-in cards come last, so that no row can replace them.
            cards = {**_decoded(texts), **self._builtin}
            self._snapshot = _snapshot(cards, aliases, deprecations, number, self._listed)
        self._last_read = self._num_reads
        return is_new

    async def watch(self) -> None:
        """Refresh the snapshot every POLL_INTERVAL_S, until cancelled."""
        while True:
            try:
                await self.refresh()
                self._is_unavailable = False
            except StoreUnavailable as error:
                if not self._is_unavailable:
                    _log.warning("catalog unavailable, using the last snapshot: %s", error)
                self._is_unavailable = True
            await asyncio.sleep(POLL_INTERVAL_S)


def _decoded(texts: Mapping[str, str]) -> dict[str, ModelCard]:
    """Return the cards of all readable rows. An unreadable row is logged and skipped."""
    cards = {}
    for name, text in texts.items():
        try:
            cards[name] = decode_card(text)
        except CardError as error:
            _log.error("unreadable card of %s is skipped: %s", name, error)
    return cards


def _snapshot(
    cards: Mapping[str, ModelCard],
    aliases: Mapping[str, str],
    deprecations: Mapping[str, Deprecation],
    number: int | None,
    listed: Mapping[str, ListedModel],
) -> _Snapshot:
    cards = {name: deprecated_card(card, deprecations.get(name)) for name, card in cards.items()}
    listed = {name: deprecated_listed(model, deprecations.get(name)) for name, model in listed.items()}
    resolved = {name: Resolved(card, name, None) for name, card in cards.items()}
    for alias in aliases:
        end = follow(aliases, alias)
        if alias not in resolved and end is not None and end in cards:
            resolved[alias] = Resolved(_with_listed_schema(cards[end], listed.get(alias)), alias, end)
    return _Snapshot(cards, resolved, listed, number)


def _with_listed_schema(card: ModelCard, listed: ListedModel | None) -> ModelCard:
    """Return the card with the schema of the public model whose name is the alias: callers expect that schema."""
    if listed is None or listed.task != card.task or listed.schema not in _SCHEMAS.get(listed.task, ()):
        return card
    return msgspec.structs.replace(card, schema=listed.schema, native_shape=listed.native_shape)
