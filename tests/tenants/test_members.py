"""Members and invitations on both databases."""

from __future__ import annotations

import pytest

from storage.database import Database
from storage.errors import Conflict, Missing
from tenants import accounts, members, users
from tenants.members import MAX_INVITATIONS
from tenants.versions import VersionChanged

PEPPER = b"p" * 32


async def test_member_id_stays_the_same_when_the_invitation_is_accepted(database: Database):
    account = await accounts.create(database, "Shop")
    invited = await members.invite(database, account.account_id, "Cy@Example.com", "viewer")
    user = (await users.create(database, PEPPER, "cy@example.com")).user
    [invitation] = await members.invitations_of(database, "CY@example.com")
    assert (invitation.account_id, invitation.role) == (account.account_id, "viewer")
    await members.accept(database, user, account.account_id)
    [member] = await members.list_all(database, account.account_id)
    assert (member.member_id, member.is_pending, member.user) == (invited.member_id, False, user)
    assert await users.roles_of(database, user.user_id) == {account.account_id: "viewer"}
    with pytest.raises(Missing):
        await members.accept(database, user, account.account_id)


async def test_membership_given_by_the_operator_ends_the_invitation(database: Database):
    account = await accounts.create(database, "Shop")
    user = (await users.create(database, PEPPER, "cy@example.com")).user
    await members.invite(database, account.account_id, user.email, "viewer")
    await users.join(database, user.user_id, account.account_id, role="developer")
    [member] = await members.list_all(database, account.account_id)
    assert (member.role, member.is_pending) == ("developer", False)


async def test_invitation_to_a_deleted_account_disappears(database: Database):
    account = await accounts.create(database, "Shop")
    user = (await users.create(database, PEPPER, "cy@example.com")).user
    await members.invite(database, account.account_id, user.email, "viewer")
    await accounts.delete(database, account.account_id)
    assert await members.invitations_of(database, user.email) == []
    with pytest.raises(Missing):
        await members.accept(database, user, account.account_id)
    with pytest.raises(Missing):
        await members.invite(database, account.account_id, "dee@example.com", "viewer")


async def test_person_is_invited_only_once(database: Database):
    account = await accounts.create(database, "Shop")
    await members.invite(database, account.account_id, "cy@example.com", "viewer")
    with pytest.raises(Conflict):
        await members.invite(database, account.account_id, "CY@example.com", "developer")


async def test_invitations_are_limited(database: Database, monkeypatch: pytest.MonkeyPatch):
    assert MAX_INVITATIONS == 1000
    monkeypatch.setattr(members, "MAX_INVITATIONS", 2)
    account = await accounts.create(database, "Shop")
    for name in ("a", "b"):
        await members.invite(database, account.account_id, f"{name}@example.com", "viewer")
    with pytest.raises(members.TooManyInvitations):
        await members.invite(database, account.account_id, "c@example.com", "viewer")


async def test_role_is_not_changed_from_an_outdated_version(database: Database):
    account = await accounts.create(database, "Shop")
    user = (await users.create(database, PEPPER, "cy@example.com", (account.account_id,))).user
    [read] = await members.list_all(database, account.account_id)
    expected = frozenset({read.version})
    await members.set_role(database, read, "viewer", expected=expected)
    with pytest.raises(VersionChanged):  # as in a second request that read the member before the change
        await members.set_role(database, read, "developer", expected=expected)
    assert await users.roles_of(database, user.user_id) == {account.account_id: "viewer"}
