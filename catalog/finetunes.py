"""Fine-tunes: LoRA adapters that accounts upload for a model. Rows are in the database, files in the object store.

A fine-tune is created without files. Each file is checked when it is uploaded, also against the other one. With both
files the fine-tune gets a manifest, whose digest identifies the adapter on nodes; a changed file makes a new adapter.
Public fine-tunes may be used by all accounts, by id or as `owner/name`, and changed only by their owner. If the
operator requires approval, only the approved revision of an account's fine-tune is public.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from catalog.base_model import BaseModel
from catalog.errors import FinetuneError
from catalog.manifest import FileEntry, Manifest, blob_key, hash_file, manifest_key
from catalog.tables import finetunes
from storage.database import Database
from storage.errors import Conflict, Missing
from storage.objects import Objects
from telemetry.clock import SYSTEM_CLOCK, Clock
from weight_files.adapter_files import (
    CONFIG_FILE,
    MAX_CONFIG_BYTES,
    WEIGHTS_FILE,
    AdapterError,
    AdapterSettings,
    check_family,
    check_shapes,
    parse_settings,
    read_changes,
)

FILES = (CONFIG_FILE, WEIGHTS_FILE)
RESERVED_PREFIX = "cf-public-"
PLATFORM = ""
"""The account id of the operator's fine-tunes."""
MAX_DESCRIPTION = 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_MAX_PUBLIC = 1000
_MAX_PLATFORM_BYTES = 4 << 30  # limit for an operator's adapter

_IS_PUBLIC = and_(finetunes.c.is_public, finetunes.c.revision.is_not(None))
_IS_APPROVED = or_(finetunes.c.account_id == PLATFORM, finetunes.c.revision == finetunes.c.approved_revision)


@dataclass(frozen=True)
class Limits:
    """Limits of the fine-tunes of an account."""

    max_rank: int = 32
    max_bytes: int = 300 * 1024 * 1024
    max_per_account: int = 100
    needs_approval: bool = False  # for use by all accounts


@dataclass(frozen=True)
class Finetune:
    """One fine-tune. `revision` is the digest of its manifest, None until both files are uploaded."""

    finetune_id: str
    account_id: str
    name: str
    model: str
    description: str
    is_public: bool
    created_at: datetime
    modified_at: datetime
    config_sha256: str | None
    weights_sha256: str | None
    weights_bytes: int | None
    revision: str | None
    approved_revision: str | None = None

    @property
    def is_approved(self) -> bool:
        """True if an operator has approved the present files for use by all accounts."""
        return self.revision is not None and self.revision == self.approved_revision

    def is_usable_by_all(self, needs_approval: bool) -> bool:
        """Return True if accounts other than the owner may use the fine-tune."""
        is_approved = self.is_approved or self.account_id == PLATFORM or not needs_approval
        return self.is_public and self.revision is not None and is_approved

    @property
    def missing_files(self) -> list[str]:
        """Names of the files that are not uploaded yet."""
        digests = (self.config_sha256, self.weights_sha256)
        return [name for name, sha256 in zip(FILES, digests, strict=True) if sha256 is None]

    @property
    def manifest_name(self) -> str:
        """The name under which nodes load the adapter. Model names never start with `finetune/`."""
        return f"finetune/{self.finetune_id}"


Note = Callable[[AsyncConnection, Finetune], Awaitable[None]]
"""Appends an audit entry in the transaction that changes a fine-tune."""


async def create(
    database: Database,
    account_id: str,
    *,
    name: str,
    model: str,
    description: str = "",
    is_public: bool = False,
    limits: Limits = Limits(),
    may_be_reserved: bool = False,
    note: Note | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Finetune:
    """Create a fine-tune without files. Raises FinetuneError naming the field."""
    if not _NAME.fullmatch(name) or _UUID.fullmatch(name) or ".." in name:
        raise FinetuneError("'/name' must be 1 to 128 of A-Z a-z 0-9 . _ - and not a UUID")
    if name.lower().startswith(RESERVED_PREFIX) and not may_be_reserved:
        raise FinetuneError(f"'/name' must not begin with '{RESERVED_PREFIX}'")
    if len(description) > MAX_DESCRIPTION:
        raise FinetuneError(f"'/description' must have <= {MAX_DESCRIPTION} characters")
    if "\0" in description:
        raise FinetuneError("'/description' must not have a null character")
    now = clock.now()
    finetune = Finetune(
        str(uuid.uuid4()), account_id, name, model, description, is_public, now, now, None, None, None, None
    )
    try:
        async with database.transaction() as connection:
            count = select(func.count()).select_from(finetunes).where(finetunes.c.account_id == account_id)
            if (await connection.execute(count)).scalar_one() >= limits.max_per_account:
                raise FinetuneError(f"an account may have at most {limits.max_per_account} fine-tunes")
            await connection.execute(insert(finetunes).values(vars(finetune)))
            if note is not None:
                await note(connection, finetune)
    except Conflict:
        raise FinetuneError("'/name' is already used by another fine-tune of this account") from None
    return finetune


async def list_of(database: Database, account_id: str) -> list[Finetune]:
    """Return an account's fine-tunes, oldest first."""
    query = select(finetunes).where(finetunes.c.account_id == account_id)
    return await _read(database, query.order_by(finetunes.c.created_at, finetunes.c.finetune_id))


async def list_public(
    database: Database, *, limit: int, offset: int, order_by: str = "", needs_approval: bool = False
) -> list[Finetune]:
    """Return complete public fine-tunes, oldest first or sorted by name, model or modification time. With
    `needs_approval`, only those that an operator has approved or published."""
    column = finetunes.c[order_by if order_by in ("name", "model", "modified_at") else "created_at"]
    query = select(finetunes).where(_usable_by_all(needs_approval)).order_by(column, finetunes.c.finetune_id)
    return await _read(database, query.limit(min(limit, _MAX_PUBLIC)).offset(offset))


async def list_all(database: Database) -> list[Finetune]:
    """Return the fine-tunes of all accounts, oldest first."""
    return await _read(database, select(finetunes).order_by(finetunes.c.created_at, finetunes.c.finetune_id))


async def count_of_model(database: Database, model: str) -> int:
    """Return the number of fine-tunes of a model, of all accounts. Raises StoreUnavailable."""
    query = select(func.count()).select_from(finetunes).where(finetunes.c.model == model)
    async with database.connection() as connection:
        return int((await connection.execute(query)).scalar_one())


async def count_public(
    database: Database, names: Collection[str], *, needs_approval: bool = False
) -> tuple[int, set[str]]:
    """Return the number of fine-tunes that `list_public` returns, and those of `names` that are the operator's."""
    ours = select(finetunes.c.name).where(_IS_PUBLIC, finetunes.c.account_id == PLATFORM, finetunes.c.name.in_(names))
    every = select(func.count()).select_from(finetunes).where(_usable_by_all(needs_approval))
    async with database.connection() as connection:
        number = (await connection.execute(every)).scalar_one()
        return number, {row.name for row in await connection.execute(ours)}


async def find_own(database: Database, account_id: str, finetune_id: str) -> Finetune | None:
    """Return an account's fine-tune by id, or None."""
    query = select(finetunes).where(finetunes.c.account_id == account_id, finetunes.c.finetune_id == finetune_id)
    return next(iter(await _read(database, query)), None)


async def find_usable(
    database: Database, account_id: str, reference: str, *, needs_approval: bool = False
) -> Finetune | None:
    """Return the fine-tune that an account may use under a reference, or None.

    A bare name means the account's own fine-tune or else the operator's. Public fine-tunes of other accounts need their
    id or `owner/name`, so that nobody can take a name over. Incomplete ones are visible only to their owner.
    """
    owner, _, name = reference.rpartition("/")
    is_named = and_(finetunes.c.name == name, finetunes.c.account_id.in_([owner] if owner else [account_id, PLATFORM]))
    found = await _read(database, select(finetunes).where(or_(finetunes.c.finetune_id == reference, is_named)))
    usable = [each for each in found if each.account_id == account_id or each.is_usable_by_all(needs_approval)]
    return min(usable, key=lambda each: each.account_id != account_id, default=None)


async def approve(
    database: Database, finetune_id: str, *, is_approved: bool = True, note: Note | None = None
) -> Finetune | None:
    """Approve the present files of a public fine-tune for use by all accounts, or withdraw the approval; None if there
    is no such fine-tune. Raises FinetuneError if the fine-tune is not public or incomplete."""
    is_this = finetunes.c.finetune_id == finetune_id
    async with database.transaction() as connection:
        row = (await connection.execute(select(finetunes).where(is_this).with_for_update())).one_or_none()
        if row is None:
            return None
        if is_approved and not (row.is_public and row.revision is not None):
            raise FinetuneError("only a public fine-tune with both files can be approved")
        approved_revision = row.revision if is_approved else None
        await connection.execute(update(finetunes).where(is_this).values(approved_revision=approved_revision))
        finetune = replace(_finetune(row), approved_revision=approved_revision)
        if note is not None:
            await note(connection, finetune)
    return finetune


def check_file_name(file_name: str) -> None:
    """Raise FinetuneError if a fine-tune has no such file."""
    if file_name not in FILES:
        hint = ": pickle files are not supported (save_pretrained writes safetensors by default)"
        is_pickled = file_name.endswith((".bin", ".pt", ".pth"))
        raise FinetuneError(f"'/file_name' must be one of {', '.join(FILES)}{hint if is_pickled else ''}")


async def put_file(
    database: Database,
    objects: Objects,
    finetune: Finetune,
    file_name: str,
    path: Path,
    *,
    base: BaseModel | None = None,
    limits: Limits = Limits(),
    note: Note | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Finetune:
    """Check and store one file of a fine-tune, read from `path`. With `base`, the file must fit this base model.

    Raises FinetuneError and StoreError.
    """
    check_file_name(file_name)
    size_bytes = (await asyncio.to_thread(path.stat)).st_size
    if size_bytes > limits.max_bytes:
        raise FinetuneError(f"{file_name} must have at most {limits.max_bytes} bytes (got {size_bytes})")
    try:
        if file_name == CONFIG_FILE:
            await _check_config(objects, finetune, path, base, limits)
        else:
            config = None if finetune.config_sha256 is None else await _config(objects, finetune.config_sha256, limits)
            changes = await asyncio.to_thread(read_changes, path, config, limits.max_rank)
            if base is not None:
                check_shapes(changes, base.targets)
    except AdapterError as error:
        raise FinetuneError(str(error)) from None
    sha256 = await asyncio.to_thread(hash_file, path)
    await objects.put_file(blob_key(sha256), path, sha256=sha256)
    if file_name == CONFIG_FILE:
        columns: dict[str, Any] = {"config_sha256": sha256, "config_bytes": size_bytes}
    else:
        columns = {"weights_sha256": sha256, "weights_bytes": size_bytes}
    async with database.transaction() as connection:
        if note is not None:
            await note(connection, finetune)
        return await _set_file(connection, objects, finetune, columns, clock.now())


async def publish(
    database: Database,
    objects: Objects,
    folder: Path,
    *,
    name: str,
    model: str,
    description: str = "",
    max_rank: int,
    base: BaseModel | None = None,
    note: Note | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Finetune:
    """Publish an operator's fine-tune for all accounts from a folder with both files.

    Raises FinetuneError, StoreError.
    """
    limits = Limits(max_rank, _MAX_PLATFORM_BYTES, _MAX_PUBLIC)
    finetune = await create(
        database, PLATFORM, name=name, model=model, description=description, is_public=True, limits=limits,
        may_be_reserved=True, clock=clock,
    )  # fmt: skip
    try:
        put = partial(put_file, database, objects, base=base, limits=limits, clock=clock)
        finetune = await put(finetune, CONFIG_FILE, folder / CONFIG_FILE)
        return await put(finetune, WEIGHTS_FILE, folder / WEIGHTS_FILE, note=note)
    except BaseException:
        await remove(database, PLATFORM, finetune.finetune_id)
        raise


async def remove(database: Database, account_id: str, finetune_id: str, *, note: Note | None = None) -> bool:
    """Delete a fine-tune; return False if it does not exist. Its files stay in the object store."""
    where = (finetunes.c.account_id == account_id, finetunes.c.finetune_id == finetune_id)
    async with database.transaction() as connection:
        row = (await connection.execute(finetunes.delete().where(*where).returning(*finetunes.c))).one_or_none()
        if row is not None and note is not None:
            await note(connection, _finetune(row))
        return row is not None


async def _set_file(
    connection: AsyncConnection, objects: Objects, finetune: Finetune, columns: dict[str, Any], now: datetime
) -> Finetune:
    """Store a file's columns, and the manifest once both files exist.

    One transaction, so that of two concurrent uploads the second sees the first.
    """
    is_this = finetunes.c.finetune_id == finetune.finetune_id
    done = await connection.execute(update(finetunes).where(is_this).values(modified_at=now, **columns))
    if not done.rowcount:
        raise FinetuneError("the fine-tune was deleted during the upload")
    row = (await connection.execute(select(finetunes).where(is_this))).one()
    changed = _finetune(row)
    if changed.config_sha256 is None or changed.weights_sha256 is None or changed.weights_bytes is None:
        return changed
    files = (
        FileEntry(CONFIG_FILE, row.config_bytes, changed.config_sha256),
        FileEntry(WEIGHTS_FILE, changed.weights_bytes, changed.weights_sha256),
    )
    manifest = Manifest(
        name=changed.manifest_name, task="lora", architecture=changed.model, context_window=0, files=files
    )
    await objects.put_bytes(manifest_key(manifest.revision), manifest.encode())
    await connection.execute(update(finetunes).where(is_this).values(revision=manifest.revision))
    return _finetune((await connection.execute(select(finetunes).where(is_this))).one())


async def _check_config(
    objects: Objects, finetune: Finetune, path: Path, base: BaseModel | None, limits: Limits
) -> None:
    """Check the configuration, also against weights that are already stored. Raises AdapterError."""
    settings = _settings(await asyncio.to_thread(_read_config, path), limits)
    if base is not None:
        check_family(settings, base.architecture)
    if finetune.weights_sha256 is None:
        return
    weights = path.with_name(path.name + ".weights")
    try:
        await objects.download(blob_key(finetune.weights_sha256), weights, sha256=finetune.weights_sha256)
        await asyncio.to_thread(read_changes, weights, settings, limits.max_rank)
    except Missing:
        return  # checked when the weights are uploaded again
    finally:
        weights.unlink(missing_ok=True)


def _read_config(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_CONFIG_BYTES + 1)


async def _config(objects: Objects, sha256: str, limits: Limits) -> AdapterSettings:
    return _settings(await objects.get_bytes(blob_key(sha256)), limits)


def _settings(text: bytes, limits: Limits) -> AdapterSettings:
    """Raises AdapterError."""
    settings = parse_settings(text, limits.max_rank)
    if not settings.model_type:
        raise AdapterError(f"{CONFIG_FILE}: 'model_type' is missing: the base model's family, such as llama or mistral")
    return settings


def _usable_by_all(needs_approval: bool) -> ColumnElement[bool]:
    return and_(_IS_PUBLIC, _IS_APPROVED) if needs_approval else _IS_PUBLIC


async def _read(database: Database, query: Select[Any]) -> list[Finetune]:
    async with database.connection() as connection:
        return [_finetune(row) for row in await connection.execute(query)]


def _finetune(row: Row[Any]) -> Finetune:
    return Finetune(**{name: getattr(row, name) for name in Finetune.__dataclass_fields__})
