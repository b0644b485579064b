"""Limits of members by role, of tokens by their models, and of accounts by their terms."""

from __future__ import annotations

import pytest

from storage.database import Database
from storage.errors import Missing
from tenants import accounts, users
from tenants.credentials import user_tokens
from tenants.credentials.policies import Policy
from tenants.credentials.principal import AccountTerms, Principal
from tenants.credentials.roles import ROLES, bounded, parse_role
from tenants.credentials.scopes import ALL_SCOPES, GROUPS
from tenants.credentials.token_verifier import TokenVerifier
from tenants.credentials.user_tokens import TokenOwner, TokenSpec
from tests.tenants.conftest import PEPPER

READING = frozenset(scope for scope in ALL_SCOPES if scope.endswith(":read"))


def test_role_limits_scopes_and_adds_none():
    assert bounded(ALL_SCOPES, "administrator") == ALL_SCOPES
    assert bounded(ALL_SCOPES, "viewer") == READING
    assert bounded(ALL_SCOPES, "developer") == READING | {"ai:run", "ai:write", "api_token:write"}
    for role in ROLES:
        assert bounded(frozenset(), role) == frozenset()
        assert bounded(frozenset({"ai:run"}), role) <= {"ai:run"}
    with pytest.raises(ValueError, match="administrator, developer, viewer"):
        parse_role("owner")


def spec(account_id: str, **fields: object) -> TokenSpec:
    everything = tuple(group.group_id for group in GROUPS)
    policy = Policy("p", "allow", everything, (f"com.cloudflare.api.account.{account_id}",))
    return TokenSpec("t", (policy,), **fields)  # type: ignore[arg-type]


async def verified(database: Database, secret: str) -> Principal:
    found = await TokenVerifier(database, PEPPER).verify(secret)
    assert isinstance(found, Principal)
    return found


async def test_every_credential_of_a_member_is_limited_by_the_role(database: Database, account_id: str):
    other = (await accounts.create(database, "Bea")).account_id
    created = await users.create(database, PEPPER, "ada@example.com", (account_id,))
    user_id = created.user.user_id
    await users.join(database, user_id, other, role="viewer")
    holder = TokenOwner("user", account_id, user_id)
    secret = (await user_tokens.create(database, PEPPER, holder, spec(other))).secret
    verifier = TokenVerifier(database, PEPPER)
    key = await verifier.verify_global_key("ada@example.com", created.global_key)
    assert isinstance(key, Principal)
    assert (key.elsewhere[account_id].scopes, key.elsewhere[other].scopes) == (ALL_SCOPES, READING)
    token = await verified(database, secret)
    assert token.on(other) is not None
    assert token.elsewhere[other].scopes == READING
    await users.set_role(database, user_id, other, "developer")
    assert "ai:run" in (await verified(database, secret)).elsewhere[other].scopes
    assert await users.roles_of(database, user_id) == {account_id: "administrator", other: "developer"}
    with pytest.raises(Missing):
        await users.set_role(database, user_id, "0" * 32, "viewer")


async def test_verifier_sees_a_changed_role_and_changed_terms(database: Database, account_id: str):
    created = await users.create(database, PEPPER, "ada@example.com", (account_id,))
    verifier = TokenVerifier(database, PEPPER)
    await verifier.poll()

    async def now() -> tuple[bool, AccountTerms]:
        await verifier.poll()
        found = await verifier.verify_global_key("ada@example.com", created.global_key)
        assert isinstance(found, Principal)
        return "ai:run" in found.elsewhere[account_id].scopes, found.elsewhere[account_id].account

    assert await now() == (True, AccountTerms("paid", ""))
    await users.set_role(database, created.user.user_id, account_id, "viewer")
    await accounts.set_terms(database, account_id, plan="free", limits="account=5/60")
    assert await now() == (False, AccountTerms("free", "account=5/60"))
    await accounts.set_terms(database, account_id, limits="")
    assert await now() == (False, AccountTerms("free", ""))
    with pytest.raises(ValueError, match="free, paid, enterprise"):
        await accounts.set_terms(database, account_id, plan="gold")
    with pytest.raises(ValueError, match="must be contract"):
        await accounts.set_terms(database, account_id, limits="account")
    with pytest.raises(Missing):
        await accounts.set_terms(database, "0" * 32, plan="free")


async def test_token_has_its_models_and_limits(database: Database, account_id: str):
    holder = TokenOwner("account", account_id)
    models = ("@cf/x/y", "@cf/x/z")
    created = await user_tokens.create(database, PEPPER, holder, spec(account_id, models=models, limits="token=3/60"))
    assert (created.token.models, created.token.limits) == (models, "token=3/60")
    found = await verified(database, created.secret)
    assert (found.models, found.limits) == (frozenset(models), "token=3/60")
    await user_tokens.replace(database, holder, created.token.api_token_id, spec(account_id))
    found = await verified(database, created.secret)
    assert (found.models, found.limits) == (None, "")
