"""Listed finetunes: public adapters that are known here whether or not their files are, as listed models are.

Who has an adapter's files publishes them under its name (`hearth finetune publish`), and that finetune then stands for
it.
"""

from __future__ import annotations

from datetime import UTC, datetime

from catalog import finetunes
from catalog.card import id_of
from catalog.finetunes import PLATFORM, Finetune
from storage.database import Database

_LISTED_ON = datetime(2026, 11, 22, tzinfo=UTC)
_MISTRAL = "@cf/mistral/mistral-7b-instruct-v0.1"

# Name -> the model that it was made for, what it is for, the hub's repository with its files.
_KNOWN = {
    "cf-public-cnn-summarization": (_MISTRAL, "Summaries of articles.", "predibase/cnn"),
    "cf-public-jigsaw-classification": (_MISTRAL, "Whether a comment is toxic, and in what way.", "predibase/jigsaw"),
    "cf-public-magicoder": (_MISTRAL, "Code from instructions.", "predibase/magicoder"),
}


def listed_finetunes() -> list[Finetune]:
    """By name. None has its files: a call that names one is told so."""
    return [
        Finetune(
            id_of("finetune", name),
            PLATFORM,
            name,
            model,
            f"{description} Its files are those of {hub}; they are not here.",
            True,
            _LISTED_ON,
            _LISTED_ON,
            None,
            None,
            None,
            None,
        )
        for name, (model, description, hub) in _KNOWN.items()
    ]


async def list_public(database: Database, *, limit: int, offset: int, order_by: str = "") -> list[Finetune]:
    """Those of `catalog.finetunes.list_public`, then the listed ones that have no files here."""
    page = await finetunes.list_public(database, limit=limit, offset=offset, order_by=order_by)
    if len(page) >= limit:
        return page
    number, taken = await finetunes.count_public(database, _KNOWN)
    rest = [each for each in listed_finetunes() if each.name not in taken]
    first = max(0, offset - number)
    return page + rest[first : first + limit - len(page)]


def find_listed(reference: str) -> Finetune | None:
    """One of them by its id or its name."""
    return next((each for each in listed_finetunes() if reference in (each.finetune_id, each.name)), None)
