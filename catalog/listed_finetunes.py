"""Listed fine-tunes: well-known public adapters that are listed even if their files are not published here.

An operator who has an adapter's files publishes them under the same name (`hearth finetune publish`); the published
fine-tune then replaces the listed one.
"""

from __future__ import annotations

from datetime import UTC, datetime

from catalog import finetunes
from catalog.card import id_of
from catalog.finetunes import PLATFORM, Finetune
from storage.database import Database

_LISTED_ON = datetime(2026, 11, 22, tzinfo=UTC)
_MISTRAL = "@cf/mistral/mistral-7b-instruct-v0.1"

# Name -> base model, description, hub repository with the files.
_KNOWN = {
    "cf-public-cnn-summarization": (_MISTRAL, "Summaries of articles.", "predibase/cnn"),
    "cf-public-jigsaw-classification": (_MISTRAL, "Classification of toxic comments.", "predibase/jigsaw"),
    "cf-public-magicoder": (_MISTRAL, "Code from instructions.", "predibase/magicoder"),
}


def listed_finetunes() -> list[Finetune]:
    """Return all listed fine-tunes. They have no files; calls that use one get an error that says so."""
    return [
        Finetune(
            id_of("finetune", name), PLATFORM, name, model,
            f"{description} Its files are in {hub} and are not published here.",
            True, _LISTED_ON, _LISTED_ON, None, None, None, None,
        )
        for name, (model, description, hub) in _KNOWN.items()
    ]  # fmt: skip


async def list_public(
    database: Database, *, limit: int, offset: int, order_by: str = "", needs_approval: bool = False
) -> list[Finetune]:
    """Return a page of public fine-tunes, followed by listed ones that are not published here."""
    page = await finetunes.list_public(
        database, limit=limit, offset=offset, order_by=order_by, needs_approval=needs_approval
    )
    if len(page) >= limit:
        return page
    num_public, published = await finetunes.count_public(database, _KNOWN, needs_approval=needs_approval)
    unpublished = [finetune for finetune in listed_finetunes() if finetune.name not in published]
    first = max(0, offset - num_public)
    return page + unpublished[first : first + limit - len(page)]


def find_listed(reference: str) -> Finetune | None:
    """Return a listed fine-tune by id or name, or None."""
    return next((each for each in listed_finetunes() if reference in (each.finetune_id, each.name)), None)
