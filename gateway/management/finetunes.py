"""`A/ai/finetunes`: create one, bring its two files, list an account's own and the public ones, take one away."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.requests import Request
from starlette.responses import Response

from catalog import finetunes, listed_finetunes
from catalog.card import parse_model_id
from catalog.errors import FinetuneError
from catalog.finetunes import Finetune, Note
from gateway import envelope
from gateway.errors import Reason, Refusal
from gateway.http import json_body, multipart
from gateway.management.objects import principal_of
from gateway.services import Services
from tenants.audit import audit_log as audit

_MAX_CREATE_BYTES = 64 * 1024
_FORM_OVERHEAD_BYTES = 256 * 1024
_DEFAULT_LIMIT = 100
_MAX_LIMIT = 1000


async def create(services: Services, request: Request) -> Response:
    """A finetune without files."""
    body = json_body.parse(await _short_body(services, request))
    text = {field: _text(body, field) for field in ("model", "name", "description")}
    for field in ("model", "name"):
        if not text[field]:
            raise Refusal(Reason.INPUT_INVALID, f"required properties at '/' are '{field}'")
    account_id = request.path_params["account_id"]
    model = services.echo_tenant.tuned_model(account_id, text["model"]) or await _base_model(services, text["model"])
    try:
        made = await finetunes.create(
            services.finetunes.database,
            account_id,
            name=text["name"],
            model=model,
            description=text["description"],
            is_public=_flag(body, "public"),
            limits=services.finetunes.limits,
            note=_note(services, request, "finetune.create"),
            clock=services.clock,
        )
    except FinetuneError as error:
        raise Refusal(Reason.INPUT_INVALID, str(error)) from None
    services.finetunes.forget(account_id, made.finetune_id)
    return _answer(_row(made))


async def list_own(services: Services, request: Request) -> Response:
    """Flat, as the clients read it."""
    found = await finetunes.list_of(services.finetunes.database, request.path_params["account_id"])
    return _answer([_row(each) for each in found])


async def list_public(services: Services, request: Request) -> Response:
    """Those that everyone may use, and then listed ones whose files are not here; a column that there is not does not
    order."""
    query = request.query_params
    found = await listed_finetunes.list_public(
        services.finetunes.database,
        limit=min(_count(query.get("limit"), "limit") or _DEFAULT_LIMIT, _MAX_LIMIT),
        offset=_count(query.get("offset"), "offset"),
        order_by=query.get("orderBy", ""),
    )
    return _answer([_row(each) for each in found])


async def get(services: Services, request: Request) -> Response:
    """One of the account's own."""
    own = request.path_params
    found = await finetunes.find_own(services.finetunes.database, own["account_id"], own["finetune_id"])
    if found is None:
        raise Refusal(Reason.FINETUNE_UNKNOWN)
    return _answer(_row(found))


async def delete(services: Services, request: Request) -> Response:
    """Take one of the account's own away: no call here finds it any more, and elsewhere none after two seconds."""
    own, note = request.path_params, _note(services, request, "finetune.delete")
    store = services.finetunes.database
    if not await finetunes.remove(store, own["account_id"], own["finetune_id"], note=note):
        raise Refusal(Reason.FINETUNE_UNKNOWN)
    services.finetunes.forget(own["account_id"], own["finetune_id"])
    return _answer({"id": own["finetune_id"]})


async def upload(services: Services, request: Request) -> Response:
    """One of the two files, as a form of `file_name` and `file`. It holds a place as a call does, so that a drain waits
    for it."""
    with services.admission.enter(request.path_params["account_id"]) as place:
        job = asyncio.create_task(_upload(services, request))

        def stop() -> None:
            job.cancel()

        place.stop = stop
        try:
            await asyncio.wait({job})
        finally:
            job.cancel()
        if job.cancelled():
            raise Refusal(Reason.ABORTED)
        return job.result()


async def _upload(services: Services, request: Request) -> Response:
    store, own = services.finetunes, request.path_params
    finetune = await finetunes.find_own(store.database, own["account_id"], own["finetune_id"])
    if finetune is None:
        raise Refusal(Reason.FINETUNE_UNKNOWN)
    max_bytes = store.limits.max_bytes + _FORM_OVERHEAD_BYTES
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_bytes:
        raise Refusal(Reason.BODY_TOO_LARGE, str(store.limits.max_bytes))
    if store.uploads.locked():
        raise Refusal(Reason.OUT_OF_CAPACITY)
    async with store.uploads:
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="hearth-upload-"))
        try:
            await _take_file(services, request, finetune, folder, max_bytes)
        except FinetuneError as error:
            raise Refusal(Reason.INPUT_INVALID, f"'/file' cannot be taken: {error}") from None
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    return _answer(None)


async def _take_file(services: Services, request: Request, finetune: Finetune, folder: Path, max_bytes: int) -> None:
    """Read the form into `folder`, and keep its file. Raises Refusal, and FinetuneError."""
    store = services.finetunes
    form = await multipart.read_form(
        multipart.body_chunks(request.receive),
        request.headers.get("content-type", ""),
        folder,
        max_bytes=max_bytes,
        stall_timeout_s=services.settings.body_timeout_s,
    )
    file_name, path = _file_in(form)
    if services.echo_tenant.ignores_file(finetune.account_id, file_name):
        return
    try:
        finetunes.check_file_name(file_name)
    except FinetuneError as error:
        raise Refusal(Reason.INPUT_INVALID, str(error)) from None
    path = await asyncio.to_thread(path.rename, folder / file_name)
    note = _note(services, request, "finetune.upload", file_name)
    await finetunes.put_file(
        store.database,
        store.objects,
        finetune,
        file_name,
        path,
        base=await store.base(finetune),
        limits=store.limits,
        note=note,
        clock=services.clock,
    )
    store.forget(finetune.account_id, finetune.finetune_id)


async def _base_model(services: Services, text: str) -> str:
    """The name of a model that can be tuned. Raises Refusal, and InvalidModelId."""
    name = parse_model_id(text)
    resolved = await services.registry.look_up(name)
    if resolved is None:
        raise Refusal(Reason.MODEL_UNKNOWN, name)
    if "lora" not in resolved.card.capabilities:
        raise Refusal(Reason.LORA_UNSUPPORTED)
    return name


def _note(services: Services, request: Request, action: str, detail: str = "") -> Note:
    """The entry of the audit that goes with a change."""
    who = principal_of(request).api_token_id

    async def note(connection: AsyncConnection, changed: Finetune) -> None:
        ids = {"account_id": changed.account_id, "subject_id": changed.finetune_id}
        await audit.append(connection, at=services.clock.now(), who=who, action=action, detail=detail, **ids)

    return note


def _file_in(form: multipart.Form) -> tuple[str, Path]:
    """Raises Refusal."""
    file_name, path = form.texts.get("file_name"), form.files.get("file")
    missing = [name for name, value in (("file_name", file_name), ("file", path)) if value is None]
    if file_name is None or path is None:
        raise Refusal(Reason.INPUT_INVALID, f"required properties at '/' are '{missing[0]}'")
    return file_name, path


async def _short_body(services: Services, request: Request) -> bytes:
    """A body of JSON. Raises Refusal, and ClientLeft."""
    body = bytearray()
    try:
        async with asyncio.timeout(services.settings.body_timeout_s):
            async for chunk in multipart.body_chunks(request.receive):
                body += chunk
                if len(body) > _MAX_CREATE_BYTES:
                    raise Refusal(Reason.BODY_TOO_LARGE, str(_MAX_CREATE_BYTES))
    except TimeoutError:
        raise Refusal(Reason.BODY_SLOW) from None
    return bytes(body)


def _text(body: dict[str, Any], field: str) -> str:
    value = body.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Refusal(Reason.INPUT_INVALID, f"Type mismatch of '/{field}', expected 'string'")
    return value


def _flag(body: dict[str, Any], field: str) -> bool:
    value = body.get(field)
    known = {None: False, False: False, True: True, "true": True, "false": False}
    if not isinstance(value, str | bool | None) or value not in known:
        raise Refusal(Reason.INPUT_INVALID, f"Type mismatch of '/{field}', expected 'boolean'")
    return known[value]


def _count(text: str | None, name: str) -> int:
    """Clients write whole numbers as 1 or 1.0."""
    digits = (text or "0").removesuffix(".0")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 9):
        raise Refusal(Reason.QUERY_INVALID, f"the query parameter '{name}' must be a whole number")
    return int(digits)


def _row(finetune: Finetune) -> dict[str, Any]:
    return {
        "id": finetune.finetune_id,
        "model": finetune.model,
        "name": finetune.name,
        "description": finetune.description,
        "public": finetune.is_public,
        "created_at": finetune.created_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "modified_at": finetune.modified_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }


def _answer(result: Any) -> Response:
    return Response(envelope.success(result), media_type="application/json")
