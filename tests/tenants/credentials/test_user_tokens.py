"""user_tokens.py, users.py and accounts.py on both databases, and how verifiers follow each change."""

from __future__ import annotations

from datetime import timedelta

import pytest

from storage.database import Database
from storage.errors import Conflict, Missing
from tenants import accounts, users
from tenants.accounts import AccountSettings
from tenants.audit import audit_log as audit
from tenants.change_context import ChangeContext
from tenants.credentials import user_tokens
from tenants.credentials.conditions import AddressCondition
from tenants.credentials.policies import Policy
from tenants.credentials.principal import Principal, Refused, TokenKind
from tenants.credentials.scopes import ALL_SCOPES
from tenants.credentials.token_verifier import TokenVerifier
from tenants.credentials.user_tokens import TokenOwner, TokenSpec, TooManyTokens
from tests.tenants.conftest import PEPPER
from tests.tenants.hand_clock import HandClock

READ, WRITE = "a92d2450e05d4e7bb7d0a64968f83d11", "bacc64e0f6c34fc0883a1223f938a104"
OPS = ChangeContext("ops")
EVERYWHERE = "com.cloudflare.api.account.*"


def spec(*policies: Policy, name: str = "ci") -> TokenSpec:
    return TokenSpec(name, policies or (Policy("p", "allow", (READ,), (EVERYWHERE,)),))


async def principal_of(verifier: TokenVerifier, secret: str) -> Principal:
    verdict = await verifier.verify(secret)
    assert isinstance(verdict, Principal), verdict
    return verdict


@pytest.fixture
def verifier(database: Database, clock: HandClock) -> TokenVerifier:
    return TokenVerifier(database, PEPPER, clock)


@pytest.mark.parametrize("kind", ["user", "account"])
async def test_token_survives_a_restart_until_it_is_deleted(
    database: Database, database_url: str, account_id: str, kind: TokenKind
) -> None:
    holder = TokenOwner(kind, account_id)
    condition = AddressCondition(("10.0.0.0/8",), ("10.1.0.0/16",))
    wanted = TokenSpec("ci", (Policy("p", "allow", (READ,), (EVERYWHERE,)),), condition)
    made = await user_tokens.create(database, PEPPER, holder, wanted, context=OPS)
    other = TokenOwner(kind, (await accounts.create(database, "Bob")).account_id)

    later = Database.connect(database_url)
    assert (await user_tokens.page(later, holder, page=1, per_page=5)).tokens == [made.token]
    assert (await user_tokens.page(later, holder, page=2, per_page=5)).tokens == []
    assert (await user_tokens.page(later, other, page=1, per_page=5)).total_count == 0
    assert await user_tokens.find(later, holder, made.token.api_token_id) == made.token
    assert made.token.condition == condition
    assert await user_tokens.find(later, other, made.token.api_token_id) is None
    with pytest.raises(Missing):
        await user_tokens.delete(later, other, made.token.api_token_id, context=OPS)
    await user_tokens.delete(later, holder, made.token.api_token_id, context=OPS)
    assert await user_tokens.find(later, holder, made.token.api_token_id) is None
    await later.close()
    acts = [entry.action for entry in await audit.list_recent(database, account_id)]
    assert acts[:2] == ["api_token.revoke", "api_token.create"]


async def test_verifier_sees_every_change_of_a_token(
    database: Database, account_id: str, verifier: TokenVerifier, clock: HandClock
) -> None:
    holder = TokenOwner("account", account_id)
    await verifier.poll()
    made = await user_tokens.create(database, PEPPER, holder, spec(), context=OPS)
    id_ = made.token.api_token_id
    assert (await principal_of(verifier, made.secret)).scopes == {"ai:run"}

    wider = spec(Policy("p", "allow", (WRITE,), (EVERYWHERE,)), Policy("q", "deny", (READ,), (EVERYWHERE,)))
    await user_tokens.replace(database, holder, id_, wider, context=OPS)
    assert (await principal_of(verifier, made.secret)).scopes == {"ai:run"}  # cached until the next poll
    await verifier.poll()
    assert (await principal_of(verifier, made.secret)).scopes == {"ai:write"}

    rolled = await user_tokens.roll(database, PEPPER, holder, id_, context=OPS)
    await verifier.poll()
    assert await verifier.verify(made.secret) == Refused("unknown")
    assert (await principal_of(verifier, rolled)).scopes == {"ai:write"}

    await user_tokens.delete(database, holder, id_, context=OPS)
    await verifier.poll()
    verdict = await verifier.verify(rolled)
    assert isinstance(verdict, Refused)
    assert verdict.reason == "revoked"


async def test_start_and_expiry_follow_the_clock_for_cached_tokens(
    database: Database, account_id: str, verifier: TokenVerifier, clock: HandClock
) -> None:
    starts_at, ends_at = clock.now() + timedelta(seconds=5), clock.now() + timedelta(seconds=10)
    wanted = TokenSpec("ci", spec().policies, not_before=starts_at, expires_at=ends_at)
    made = await user_tokens.create(
        database, PEPPER, TokenOwner("user", account_id), wanted, context=ChangeContext("ops", clock)
    )
    results = []
    for _ in range(3):
        verdict = await verifier.verify(made.secret)
        results.append(verdict.reason if isinstance(verdict, Refused) else "good")
        clock.pass_time(5)
    assert results == ["not_yet", "good", "expired"]


async def test_user_token_gives_access_to_the_user_s_current_accounts(
    database: Database, account_id: str, verifier: TokenVerifier
) -> None:
    user_id = (await users.create(database, PEPPER, "ada@example.com", (account_id,))).user.user_id
    made = await user_tokens.create(database, PEPPER, TokenOwner("user", account_id, user_id), spec(), context=OPS)
    await verifier.poll()
    assert set((await principal_of(verifier, made.secret)).accounts()) == {account_id}

    second = (await accounts.create(database, "Bob")).account_id
    await users.join(database, user_id, second)
    await verifier.poll()
    principal = await principal_of(verifier, made.secret)
    there = principal.on(second)
    assert there is not None
    assert (there.account_id, there.scopes, there.is_account_blocked) == (second, frozenset({"ai:run"}), False)

    await accounts.set_blocked(database, second, True)
    await verifier.poll()
    there = (await principal_of(verifier, made.secret)).on(second)
    assert there is not None
    assert there.is_account_blocked

    await users.leave(database, user_id, second)
    await verifier.poll()
    assert (await principal_of(verifier, made.secret)).on(second) is None
    with pytest.raises(Missing):
        await users.leave(database, user_id, second)


async def test_global_key_gives_access_to_its_user_s_accounts_only(
    database: Database, account_id: str, verifier: TokenVerifier
) -> None:
    made = await users.create(database, PEPPER, "Ada@example.com", (account_id,))
    await verifier.poll()
    principal = await verifier.verify_global_key("ADA@example.com", made.global_key)
    assert isinstance(principal, Principal)
    assert {id_: grant.scopes for id_, grant in principal.accounts().items()} == {account_id: ALL_SCOPES}
    assert made.global_key not in repr(made)
    for email, key in (("ada@example.com", made.global_key[:-1]), ("bob@example.com", made.global_key), ("", "x")):
        assert await verifier.verify_global_key(email, key) == Refused("unknown")
    assert await verifier.verify(made.global_key) == Refused("unknown")

    again = await users.roll_global_key(database, PEPPER, made.user.user_id)
    await verifier.poll()
    assert await verifier.verify_global_key("ada@example.com", made.global_key) == Refused("unknown")
    assert isinstance(await verifier.verify_global_key("ada@example.com", again), Principal)
    with pytest.raises(Conflict):
        await users.create(database, PEPPER, "ada@example.com")


async def test_deleting_an_account_revokes_its_tokens_and_keeps_its_records(
    database: Database, account_id: str, verifier: TokenVerifier
) -> None:
    secrets = [
        (await user_tokens.create(database, PEPPER, TokenOwner(kind, account_id), spec(), context=OPS)).secret
        for kind in ("user", "account")
    ]
    await verifier.poll()
    for secret in secrets:
        await principal_of(verifier, secret)
    changed = await accounts.change(database, account_id, "Ada 2", AccountSettings(True, "a@b.c"), context=OPS)
    assert await accounts.find(database, account_id) == changed
    await accounts.delete(database, account_id, context=OPS)
    await verifier.poll()
    assert [type(await verifier.verify(secret)) for secret in secrets] == [Refused, Refused]
    assert await accounts.find(database, account_id) is None
    assert await accounts.list_all(database) == []
    for act in (accounts.delete(database, account_id, context=OPS), accounts.set_blocked(database, account_id, False)):
        with pytest.raises(Missing):
            await act
    acts = [entry.action for entry in await audit.list_recent(database, account_id)]
    assert acts[:2] == ["account.delete", "account.update"]


async def test_number_of_tokens_per_owner_is_limited(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    account_id = (await accounts.create(sqlite_database, "Ada")).account_id
    monkeypatch.setitem(user_tokens.MAX_TOKENS, "user", 2)
    holder = TokenOwner("user", account_id)
    made = [await user_tokens.create(sqlite_database, PEPPER, holder, spec(), context=OPS) for _ in range(2)]
    with pytest.raises(TooManyTokens, match="at most 2 API tokens"):
        await user_tokens.create(sqlite_database, PEPPER, holder, spec(), context=OPS)
    await user_tokens.delete(sqlite_database, holder, made[0].token.api_token_id, context=OPS)
    await user_tokens.create(sqlite_database, PEPPER, holder, spec(), context=OPS)
    await user_tokens.create(sqlite_database, PEPPER, TokenOwner("account", account_id), spec(), context=OPS)


@pytest.mark.parametrize(
    ("within", "not_within", "admitted", "kept_out"),
    [
        (["192.0.2.0/24"], [], ["192.0.2.1", "::ffff:192.0.2.1"], ["192.0.3.1", "::1", "nonsense", None]),
        ([], ["192.0.2.0/24", "2001:db8::/32"], ["192.0.3.1", "::1"], ["192.0.2.9", "2001:db8::7", None]),
        (["10.0.0.0/8"], ["10.1.0.0/16"], ["10.0.0.1"], ["10.1.0.1", "11.0.0.1"]),
        (["203.0.113.7"], [], ["203.0.113.7"], ["203.0.113.8"]),
        ([], [], ["10.0.0.1", None, "nonsense"], []),
    ],
)
def test_address_condition_admits_or_rejects_an_address(
    within: list[str], not_within: list[str], admitted: list[str | None], kept_out: list[str | None]
) -> None:
    condition = AddressCondition(tuple(within), tuple(not_within))
    assert [address for address in admitted + kept_out if condition.admits(address)] == admitted
