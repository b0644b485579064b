"""`A/operation`: the settings of an account that only the platform's administrators change, and `A/ai/models/disabled`:
the models that the account may not run."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, structs
from starlette.responses import Response

from catalog.card import parse_model_id
from gateway.management.endpoint import ManagementRequest, change_errors, existing, respond, takes_body
from gateway.model_names import find_shown
from gateway.openapi.operation import describe
from gateway.services import Services
from tenants import account_operation, accounts
from tenants.account_operation import AccountOperation, Plan
from tenants.accounts import AccountStatus
from tenants.quota.limits import MAX_TEXT
from tenants.residency import MAX_NAMES, RegionRule, RetentionRule, make_rule


class RegionBody(Struct, frozen=True):
    """Countries (ISO 3166) and jurisdictions in which the account's calls may run."""

    countries: Annotated[list[str], Meta(max_length=MAX_NAMES)] = []
    jurisdictions: Annotated[list[str], Meta(max_length=MAX_NAMES)] = []


class AccountOperationBody(Struct, frozen=True):
    """The body that sets all of the operator's settings. `limits` are rate limit rules that replace the platform's;
    `region` null means anywhere."""

    status: AccountStatus
    plan: Plan
    limits: Annotated[str, Meta(max_length=MAX_TEXT)]
    retention: RetentionRule
    region: RegionBody | None


class AccountOperationResult(Struct, frozen=True):
    """The operator's settings of an account. `version` changes with every change; send it as `if-match`."""

    account_id: str
    status: AccountStatus
    plan: Plan
    limits: str
    retention: RetentionRule
    region: RegionBody | None
    version: str


class DisabledModel(Struct, frozen=True):
    """A model that an account may not run."""

    model: str


@describe(result=AccountOperationResult)
async def get(services: Services, request: ManagementRequest) -> Response:
    """Get the operator's settings of an account: status, plan, limits, retention and region."""
    return _respond(request, existing(await account_operation.find(services.database, request.account_id)))


@describe(result=AccountOperationResult)
@takes_body(AccountOperationBody)
async def update(services: Services, request: ManagementRequest, body: AccountOperationBody) -> Response:
    """Set the operator's settings of an account. With `if-match`, the change is refused if the settings have changed
    since they were read."""
    region: RegionRule | None = None
    if body.region is not None:
        with change_errors("region"):
            region = make_rule(body.region.countries, body.region.jurisdictions)
    wanted = AccountOperation(body.status, body.plan, body.limits.strip(), body.retention, region)
    with change_errors("limits"):
        changed = await account_operation.change(
            services.database,
            request.account_id,
            wanted,
            expected=request.expected_versions,
            context=request.change_context,
        )
    return _respond(request, changed)


@describe(result=list[DisabledModel])
async def list_disabled(services: Services, request: ManagementRequest) -> Response:
    """List the models that the account may not run."""
    found = await accounts.disabled_models(services.database, request.account_id)
    return respond([DisabledModel(model) for model in sorted(found)])


@describe(result=DisabledModel)
async def disable(services: Services, request: ManagementRequest) -> Response:
    """Disable a model or alias for an account. Its calls to this name are refused."""
    model = request.path_params["model"]
    await find_shown(services.registry, model)
    return await _set_disabled(services, request, parse_model_id(model), is_disabled=True)


@describe(result=DisabledModel)
async def enable(services: Services, request: ManagementRequest) -> Response:
    """Enable a model for an account again."""
    return await _set_disabled(services, request, parse_model_id(request.path_params["model"]), is_disabled=False)


async def _set_disabled(services: Services, request: ManagementRequest, model: str, *, is_disabled: bool) -> Response:
    with change_errors():
        await accounts.set_model_disabled(
            services.database, request.account_id, model, is_disabled, context=request.change_context
        )
    return respond(DisabledModel(model))


def _respond(request: ManagementRequest, found: AccountOperation) -> Response:
    rule = found.region
    region = None if rule is None else RegionBody(list(rule.countries), list(rule.jurisdictions))
    values = structs.asdict(found) | {"region": region, "version": found.version}
    return respond(AccountOperationResult(account_id=request.account_id, **values), version=found.version)
