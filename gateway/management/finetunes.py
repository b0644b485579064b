"""`A/ai/finetunes`: create and delete finetunes, upload their two files, and list own and public finetunes."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.datastructures import FormData, UploadFile
from starlette.responses import Response

from catalog import finetunes, listed_finetunes
from catalog.card import parse_model_id
from catalog.errors import FinetuneError
from catalog.finetunes import Finetune, Note
from gateway.admission import hold_share
from gateway.errors import Reason, Refusal
from gateway.http import multipart
from gateway.management.endpoint import (
    Count,
    ManagementRequest,
    existing,
    invalid,
    respond,
    takes_body,
    takes_query,
    waits_itself,
)
from gateway.openapi.operation import describe
from gateway.services import Services
from tenants.audit import audit_log

_FORM_OVERHEAD_BYTES = 256 * 1024  # bytes that a form may add to its file
_MAX_LIMIT = 1000

Text = Annotated[str, Meta(min_length=1)]
File = Annotated[str, Meta(extra_json_schema={"contentMediaType": "application/octet-stream"})]


class FinetuneBody(Struct, frozen=True):
    """The body that creates a finetune. Some clients send booleans as strings."""

    model: Text
    name: Text
    description: str | None = None
    public: bool | Literal["true", "false"] | None = None


class FinetuneFileForm(Struct, frozen=True):
    """The form that uploads one file of a finetune."""

    file_name: Annotated[str, Meta(extra_json_schema={"enum": list(finetunes.FILES)})]
    file: File


class PublicQuery(Struct, frozen=True):
    """Query parameters of the list of public finetunes. An unknown column in `orderBy` is ignored."""

    limit: Count = 100
    offset: Count = 0
    orderBy: str = ""  # noqa: N815 - the name in the API


class FinetuneReport(Struct, frozen=True, kw_only=True):
    """A finetune. `owner` is its account; null for the operator's finetunes."""

    id: str
    model: str
    name: str
    description: str
    public: bool
    owner: str | None
    approved: bool
    created_at: str
    modified_at: str


class DeletedFinetune(Struct, frozen=True):
    """The id of a deleted finetune."""

    id: str


@describe(result=FinetuneReport)
@takes_body(FinetuneBody, is_ai=True)
async def create(services: Services, request: ManagementRequest, body: FinetuneBody) -> Response:
    """Create a finetune, without files."""
    account_id = request.account_id
    model = await _base_model(services, body.model)
    try:
        created = await finetunes.create(
            services.finetunes.database,
            account_id,
            name=body.name,
            model=model,
            description=body.description or "",
            is_public=body.public in (True, "true"),
            limits=services.finetunes.limits,
            note=_audit_note(services, request, "finetune.create"),
            clock=services.clock,
        )
    except FinetuneError as error:
        raise Refusal(Reason.INPUT_INVALID, str(error)) from None
    services.finetunes.forget(account_id, created.finetune_id)
    return respond(_render(created))


@describe(result=list[FinetuneReport])
async def list_own(services: Services, request: ManagementRequest) -> Response:
    """List the account's finetunes. The list is not paged, as the official clients expect."""
    found = await finetunes.list_of(services.finetunes.database, request.account_id)
    return respond([_render(each) for each in found])


@describe(result=list[FinetuneReport])
@takes_query(PublicQuery)
async def list_public(services: Services, _request: ManagementRequest, query: PublicQuery) -> Response:
    """List the public finetunes, followed by those of Cloudflare's catalog whose files are not here."""
    found = await listed_finetunes.list_public(
        services.finetunes.database,
        limit=min(query.limit or PublicQuery().limit, _MAX_LIMIT),
        offset=query.offset,
        order_by=query.orderBy,
        needs_approval=services.finetunes.limits.needs_approval,
    )
    return respond([_render(each) for each in found])


@describe(result=list[FinetuneReport])
async def list_all(services: Services, _request: ManagementRequest) -> Response:
    """List the finetunes of all accounts, oldest first."""
    return respond([_render(each) for each in await finetunes.list_all(services.finetunes.database)])


@describe(result=FinetuneReport)
async def approve(services: Services, request: ManagementRequest) -> Response:
    """Approve the present files of a public finetune for use by all accounts. Replacing a file ends the approval."""
    return await _set_approval(services, request, is_approved=True)


@describe(result=FinetuneReport)
async def withdraw_approval(services: Services, request: ManagementRequest) -> Response:
    """Withdraw the approval of a finetune. Other accounts can use it for at most two more seconds."""
    return await _set_approval(services, request, is_approved=False)


async def _set_approval(services: Services, request: ManagementRequest, *, is_approved: bool) -> Response:
    note = _audit_note(services, request, "finetune.approve" if is_approved else "finetune.withdraw_approval")
    finetune_id = request.path_params["finetune_id"]
    try:
        changed = await finetunes.approve(services.finetunes.database, finetune_id, is_approved=is_approved, note=note)
    except FinetuneError as error:
        raise invalid(str(error)) from None
    services.finetunes.forget(existing(changed).account_id, finetune_id)
    return respond(_render(existing(changed)))


@describe(result=FinetuneReport)
async def get(services: Services, request: ManagementRequest) -> Response:
    """Get a finetune of the account."""
    return respond(_render(await _find(services, request)))


@describe(result=DeletedFinetune)
async def delete(services: Services, request: ManagementRequest) -> Response:
    """Delete a finetune of the account. Other gateways stop serving it within two seconds."""
    ids, note = request.path_params, _audit_note(services, request, "finetune.delete")
    if not await finetunes.remove(services.finetunes.database, ids["account_id"], ids["finetune_id"], note=note):
        raise Refusal(Reason.FINETUNE_UNKNOWN)
    services.finetunes.forget(ids["account_id"], ids["finetune_id"])
    return respond(DeletedFinetune(ids["finetune_id"]))


@waits_itself
@describe(body=FinetuneFileForm, body_media_type="multipart/form-data")
async def upload(services: Services, request: ManagementRequest) -> Response:
    """Upload one of the two files of a finetune, as a form of `file_name` and `file`. A draining gateway waits for
    running uploads."""
    with services.admission.enter(request.account_id) as slot:
        job = asyncio.create_task(_upload(services, request))
        slot.stop = job.cancel
        try:
            await asyncio.wait({job})
        finally:
            job.cancel()
        if job.cancelled():
            raise Refusal(Reason.ABORTED)
        return job.result()


async def _upload(services: Services, request: ManagementRequest) -> Response:
    store = services.finetunes
    finetune = await _find(services, request)
    max_bytes = store.limits.max_bytes + _FORM_OVERHEAD_BYTES
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > max_bytes:
        raise Refusal(Reason.BODY_TOO_LARGE, str(store.limits.max_bytes))
    with hold_share(store.uploads, request.account_id):
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="hearth-upload-"))
        try:
            await _store_file(services, request, finetune, folder, max_bytes)
        except FinetuneError as error:
            raise Refusal(Reason.INPUT_INVALID, f"'/file' is not accepted: {error}") from None
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    return respond(None)


async def _store_file(
    services: Services, request: ManagementRequest, finetune: Finetune, folder: Path, max_bytes: int
) -> None:
    """Read the form into `folder`, then check and store its file. Raises Refusal and FinetuneError."""
    store = services.finetunes
    async with multipart.read_form(
        multipart.body_chunks(request.receive),
        request.headers.get("content-type", ""),
        max_bytes=max_bytes,
        timeout_s=services.settings.body_timeout_s,
        min_bytes_per_s=services.settings.body_min_bytes_per_s,
    ) as form:
        file_name, upload = _file_in(form)
        path = folder / file_name
        await asyncio.to_thread(_copy, upload, path)
    async with store.checks.slot(request.account_id):
        await finetunes.put_file(
            store.database,
            store.objects,
            finetune,
            file_name,
            path,
            base=await store.base(finetune),
            limits=store.limits,
            note=_audit_note(services, request, "finetune.upload", file_name),
            clock=services.clock,
        )
    store.forget(finetune.account_id, finetune.finetune_id)


async def _find(services: Services, request: ManagementRequest) -> Finetune:
    ids = request.path_params
    found = await finetunes.find_own(services.finetunes.database, ids["account_id"], ids["finetune_id"])
    if found is None:
        raise Refusal(Reason.FINETUNE_UNKNOWN)
    return found


async def _base_model(services: Services, model_id: str) -> str:
    """Return the name of a model that supports LoRA. Raises Refusal and InvalidModelId."""
    name = parse_model_id(model_id)
    resolved = await services.registry.look_up(name)
    if resolved is None:
        raise Refusal(Reason.MODEL_UNKNOWN, name)
    if "lora" not in resolved.card.capabilities:
        raise Refusal(Reason.LORA_UNSUPPORTED)
    return name


def _audit_note(services: Services, request: ManagementRequest, action: str, detail: str = "") -> Note:
    """Return a function that writes the audit entry in the transaction of the change."""
    actor = request.principal.api_token_id

    async def note(connection: AsyncConnection, changed: Finetune) -> None:
        ids = {"account_id": changed.account_id, "subject_id": changed.finetune_id}
        await audit_log.append(connection, at=services.clock.now(), actor=actor, action=action, detail=detail, **ids)

    return note


def _file_in(form: FormData) -> tuple[str, UploadFile]:
    """Return the file and the name under which it is stored. Raises Refusal."""
    file_name, upload = form.get("file_name"), form.get("file")
    if not isinstance(file_name, str):
        raise Refusal(Reason.INPUT_INVALID, "required properties at '/' are 'file_name'")
    if not isinstance(upload, UploadFile):
        raise Refusal(Reason.INPUT_INVALID, "required properties at '/' are 'file'")
    try:
        finetunes.check_file_name(file_name)
    except FinetuneError as error:
        raise Refusal(Reason.INPUT_INVALID, str(error)) from None
    return file_name, upload


def _copy(upload: UploadFile, path: Path) -> None:
    with path.open("xb") as file:
        shutil.copyfileobj(upload.file, file, 1 << 20)


def _render(finetune: Finetune) -> FinetuneReport:
    return FinetuneReport(
        id=finetune.finetune_id,
        model=finetune.model,
        name=finetune.name,
        description=finetune.description,
        public=finetune.is_public,
        owner=finetune.account_id or None,
        approved=finetune.is_approved or finetune.account_id == finetunes.PLATFORM,
        created_at=finetune.created_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        modified_at=finetune.modified_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    )
