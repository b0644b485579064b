"""Members of an account: users with a membership, and invited people who have not accepted yet.

People are invited by email address. An invitation stays open until the user with this address accepts or rejects it;
the user may be created after the invitation. Accepting replaces the invitation by a membership.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.database import Database
from storage.errors import Conflict, Missing
from tenants import users as tenant_users
from tenants.change_context import CLI, ChangeContext
from tenants.credentials.roles import Role, parse_role
from tenants.tables import accounts, invitations, memberships, users
from tenants.users import User, checked_email, membership_id
from tenants.versions import VersionChanged, check_version, version_of

MAX_INVITATIONS = 1000  # per account
_USER = [users.c[name] for name in ("user_id", "email", "name", "created_at", "profile")]


class TooManyInvitations(Conflict):
    """The account has the maximum number of invitations."""


@dataclass(frozen=True)
class Member:
    """A member, or an invited person if `user` is None or `is_pending`."""

    account_id: str
    email: str
    role: Role
    created_at: datetime
    is_pending: bool
    user: User | None

    @property
    def member_id(self) -> str:
        """The id in the API, which stays the same when the invitation is accepted."""
        return membership_id(self.email, self.account_id)

    @property
    def version(self) -> str:
        return version_of(self.role, self.is_pending)


@dataclass(frozen=True)
class Invitation:
    """An invitation of a user to an account."""

    account_id: str
    role: Role
    created_at: datetime


async def list_all(database: Database, account_id: str) -> list[Member]:
    """Return the members and invited people of an account, oldest first. Raises StoreUnavailable."""
    member, invited = memberships.c, invitations.c
    members = select(*_USER, member.role, member.created_at.label("joined_at"))
    members = members.join(memberships, member.user_id == users.c.user_id).where(member.account_id == account_id)
    pending = select(invited.email.label("invited"), invited.role, invited.created_at.label("joined_at"), *_USER)
    pending = pending.join_from(invitations, users, users.c.email == invited.email, isouter=True)
    async with database.connection() as connection:
        rows = (await connection.execute(members)).mappings().all()
        waiting = (await connection.execute(pending.where(invited.account_id == account_id))).mappings().all()
    found = [
        Member(account_id, row["email"], parse_role(row["role"]), row["joined_at"], False, tenant_users.user_of(row))
        for row in rows
    ]
    for row in waiting:
        user = None if row["user_id"] is None else tenant_users.user_of(row)
        found.append(Member(account_id, row["invited"], parse_role(row["role"]), row["joined_at"], True, user))
    return sorted(found, key=lambda each: (each.created_at, each.email))


async def find(database: Database, account_id: str, member_id: str) -> Member | None:
    """Return a member or invited person by the API's id. Raises StoreUnavailable."""
    return next((each for each in await list_all(database, account_id) if each.member_id == member_id), None)


async def invite(
    database: Database, account_id: str, email: str, role: Role, *, context: ChangeContext = CLI
) -> Member:
    """Invite a person to an account.

    Raises ValueError for an invalid address, Missing for an unknown account, Conflict if the person is a member or
    invited already, TooManyInvitations.
    """
    email = checked_email(email)
    async with database.transaction() as connection:
        # The lock on the account's row makes concurrent invitations wait, so the number below stays right.
        account = update(accounts).where(accounts.c.account_id == account_id, accounts.c.deleted_at.is_(None))
        if (await connection.execute(account.values(status=accounts.c.status))).rowcount == 0:
            raise Missing(f"account {account_id}")
        num = select(func.count()).select_from(invitations).where(invitations.c.account_id == account_id)
        if (await connection.execute(num)).scalar_one() >= MAX_INVITATIONS:
            raise TooManyInvitations(f"an account has at most {MAX_INVITATIONS} invitations")
        member = select(users.c.user_id).join(memberships).where(memberships.c.account_id == account_id)
        if (await connection.execute(member.where(users.c.email == email))).first() is not None:
            raise Conflict(f"{email} is a member of the account")
        row = {"account_id": account_id, "email": email, "role": role, "created_at": context.clock.now()}
        await connection.execute(insert(invitations).values(**row))
        await context.record(connection, "membership.invite", account_id, membership_id(email, account_id), role)
    found = await find(database, account_id, membership_id(email, account_id))
    assert found is not None
    return found


async def set_role(
    database: Database,
    member: Member,
    role: Role,
    *,
    expected: frozenset[str] | None = None,
    context: ChangeContext = CLI,
) -> None:
    """Change the role of a member or of an invitation. Raises Missing, VersionChanged."""
    check_version(member.version, expected)
    if not member.is_pending:
        assert member.user is not None
        known = None if expected is None else member.role
        ids = member.user.user_id, member.account_id
        try:
            await tenant_users.set_role(database, *ids, role, known_role=known, context=context)
        except Missing:
            if expected is None:
                raise
            raise VersionChanged("the membership has changed meanwhile") from None
        return
    async with database.transaction() as connection:
        this = update(invitations).where(_is_invitation(member.account_id, member.email))
        if (await connection.execute(this.values(role=role))).rowcount == 0:
            raise Missing(f"invitation of {member.email}")
        await context.record(connection, "membership.role", member.account_id, member.member_id, role)


async def remove(database: Database, member: Member, *, context: ChangeContext = CLI) -> None:
    """End a membership, or withdraw an invitation. Raises Missing."""
    if not member.is_pending:
        assert member.user is not None
        await tenant_users.leave(database, member.user.user_id, member.account_id, context=context)
        return
    async with database.transaction() as connection:
        await _take(connection, member.account_id, member.email)
        await context.record(connection, "membership.uninvite", member.account_id, member.member_id)


async def invitations_of(database: Database, email: str) -> list[Invitation]:
    """Return the invitations for an address to accounts that exist, oldest first. Raises StoreUnavailable."""
    invited = invitations.c
    query = select(invited.account_id, invited.role, invited.created_at).join(accounts)
    query = query.where(invited.email == email.lower(), accounts.c.deleted_at.is_(None))
    async with database.connection() as connection:
        rows = await connection.execute(query.order_by(invited.created_at, invited.account_id))
        return [Invitation(row.account_id, parse_role(row.role), row.created_at) for row in rows]


async def accept(database: Database, user: User, account_id: str, *, context: ChangeContext = CLI) -> None:
    """Make the invited user a member, with the role of the invitation. Raises Missing."""
    async with database.transaction() as connection:
        role = await _take(connection, account_id, user.email)
        await tenant_users.join_within(connection, user.user_id, account_id, role, context)
    await context.notify(user.user_id)


async def reject(database: Database, user: User, account_id: str, *, context: ChangeContext = CLI) -> None:
    """Delete the invitation of a user. Raises Missing."""
    async with database.transaction() as connection:
        await _take(connection, account_id, user.email)
        await context.record(connection, "membership.reject", account_id, user.user_id)


async def _take(connection: AsyncConnection, account_id: str, email: str) -> Role:
    """Delete an invitation and return its role. Raises Missing."""
    gone = delete(invitations).where(_is_invitation(account_id, email)).returning(invitations.c.role)
    role = (await connection.execute(gone)).scalar_one_or_none()
    if role is None:
        raise Missing(f"invitation of {email}")
    return parse_role(role)


def _is_invitation(account_id: str, email: str) -> ColumnElement[bool]:
    return (invitations.c.account_id == account_id) & (invitations.c.email == email)
