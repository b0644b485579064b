"""Registry: which models there are, as a memory read.

Holds one immutable snapshot of the built-in cards, the published cards and the aliases; `watch` replaces it within a
second of a change, and keeps the last one while the database is away. A name that is not in it is looked up in the
database before it is unknown, so that a model answers from the moment it is published. Works without a database for
what is built in.
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
from catalog.errors import CardError
from catalog.listed import ListedModel, listed_models
from catalog.rows import read_aliases, read_cards, read_number
from catalog.search import MAX_PER_PAGE, SearchPage, SearchQuery, Shown, search_page
from storage.database import Database
from storage.errors import StoreUnavailable
from telemetry.clock import SYSTEM_CLOCK, Clock

POLL_INTERVAL_S = 1.0
LOOK_UP_INTERVAL_S = 0.02  # between two reads for names that are not there: many calls with them share one
LOOK_UP_TIMEOUT_S = 2.0

# The shapes that any model of a task can be asked and answer in.
_SHAPES = {"Text Generation": ("text_generation_legacy", "openai_chat", "text_generation_responses")}

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resolved:
    """What a name leads to. `alias_of` is the card's own name when `requested_name` is an alias of it, else None."""

    card: ModelCard
    requested_name: str
    alias_of: str | None


@dataclass(frozen=True)
class _Snapshot:
    cards: Mapping[str, ModelCard] = field(default_factory=dict)
    resolved: Mapping[str, Resolved] = field(default_factory=dict)
    number: int | None = None  # of the catalog's changes; None before the database was ever read


class Registry:
    """Finds models by name. `database` None serves the built-in models alone."""

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
        self._snapshot = _snapshot(self._builtin, {}, None, self._listed)
        self._is_away = False  # the database, when `watch` last looked
        self._reading = asyncio.Lock()
        self._num_reads = self._last_read = 0  # begun; and which of them was the last to end well
        self._read_s = float("-inf")

    def find(self, name: str) -> Resolved | None:
        """The model that answers to `name` (a parsed model id), through aliases; None when there is none."""
        return self._snapshot.resolved.get(name)

    async def look_up(self, name: str) -> Resolved | None:
        """`find`, and what the database has by now where that finds nothing. A database that is away, or silent for
        LOOK_UP_TIMEOUT_S, has nothing."""
        if name not in self._snapshot.resolved and self._database is not None and not self._is_away:
            with contextlib.suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(LOOK_UP_TIMEOUT_S):
                    await self._read_after(self._num_reads)
        return self.find(name)

    async def _read_after(self, number: int) -> None:
        """Read, unless a read that began after that one has ended: those that wait for one share the next."""
        async with self._reading:
            if self._last_read <= number:
                await asyncio.sleep(self._read_s + LOOK_UP_INTERVAL_S - self._clock.monotonic_s())
                await self._read()

    def find_listed(self, name: str) -> ListedModel | None:
        """The listed model of this name, which nothing answers to."""
        return None if name in self._snapshot.resolved else self._listed.get(name)

    def is_retired(self, model: Shown) -> bool:
        """Whether it is over as of today."""
        return model.planned_deprecation_date is not None and model.is_retired(self._clock.now().date())

    def everything(self) -> list[Shown]:
        """Every model's card, and every listed model that no card stands for, by name."""
        found: dict[str, Shown] = {**self._listed, **self._snapshot.cards}
        return [model for _, model in sorted(found.items())]

    def all(self) -> list[ModelCard]:
        """Every model's card, by name; aliases are not among them."""
        return [card for _, card in sorted(self._snapshot.cards.items())]

    def search(
        self,
        *,
        search: str = "",
        task: str = "",
        author: str = "",
        source: int | None = None,
        hide_experimental: bool = False,
        include_deprecated: bool = False,
        page: int = 1,
        per_page: int = MAX_PER_PAGE,
    ) -> SearchPage:
        """One page of what the search route lists; the parameters are those of `SearchQuery`."""
        query = SearchQuery(search, task, author, source, hide_experimental, include_deprecated, page, per_page)
        return search_page(self.everything(), query, self._clock.now().date())

    async def refresh(self) -> bool:
        """Read what has changed; whether anything had. Raises StoreUnavailable, the snapshot then stays as it is."""
        async with self._reading:
            return await self._read()

    async def _read(self) -> bool:
        """One read at a time: an older one that ended later would take back what a newer one brought."""
        if self._database is None:
            return False
        self._num_reads += 1
        self._read_s = self._clock.monotonic_s()
        async with self._database.connection() as connection:
            number = await read_number(connection)
            if is_new := number != self._snapshot.number:
                texts = await read_cards(connection)
                aliases = await read_aliases(connection)
        if is_new:
            # Built-in names come last and win: no row can take their place.
            self._snapshot = _snapshot({**_decoded(texts), **self._builtin}, aliases, number, self._listed)
        self._last_read = self._num_reads
        return is_new

    async def watch(self) -> None:
        """Refresh every POLL_INTERVAL_S, until cancelled."""
        while True:
            try:
                await self.refresh()
                self._is_away = False
            except StoreUnavailable as error:
                if not self._is_away:
                    _log.warning("the catalog cannot be read, the last snapshot stays: %s", error)
                self._is_away = True
            await asyncio.sleep(POLL_INTERVAL_S)


def _decoded(texts: Mapping[str, str]) -> dict[str, ModelCard]:
    """The cards of the rows that this version can read; a row that it cannot is one model less, not an outage."""
    cards = {}
    for name, text in texts.items():
        try:
            cards[name] = decode_card(text)
        except CardError as error:
            _log.error("the row of %s is left out: %s", name, error)
    return cards


def _snapshot(
    cards: Mapping[str, ModelCard],
    aliases: Mapping[str, str],
    number: int | None,
    listed: Mapping[str, ListedModel],
) -> _Snapshot:
    resolved = {name: Resolved(card, name, None) for name, card in cards.items()}
    for alias in aliases:
        end = follow(aliases, alias)
        if alias not in resolved and end is not None and end in cards:
            resolved[alias] = Resolved(_shaped_as(cards[end], listed.get(alias)), alias, end)
    return _Snapshot(cards, resolved, number)


def _shaped_as(card: ModelCard, asked: ListedModel | None) -> ModelCard:
    """The card that answers to the name of a public model: it takes and gives what that model does, since that is what
    the callers of the name were written for."""
    if asked is None or asked.task != card.task or asked.schema not in _SHAPES.get(asked.task, ()):
        return card
    return msgspec.structs.replace(card, schema=asked.schema, native_shape=asked.native_shape)
