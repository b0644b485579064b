"""Members of an account and invitations, as the official Cloudflare client sees them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from typing import Any

import cloudflare
import httpx
import pytest
from cloudflare import Cloudflare

from storage.database import Database
from tenants import users
from tests.gateway.process import PEPPER
from tests.gateway.site import Running

# The client marks its list of roles as deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def owner(running: Running) -> Iterator[Cloudflare]:
    """A client with the key of a user who administers the shared account."""
    headers = running.headers("global key")
    with Cloudflare(
        base_url=running.gateway.base_url, api_email=headers["X-Auth-Email"], api_key=headers["X-Auth-Key"]
    ) as client:
        yield client


@pytest.fixture
def account_id(owner: Cloudflare) -> str:
    """A new account of this user."""
    account = owner.accounts.create(name="Lab", type="standard")
    assert account is not None
    return account.id


def role_ids(owner: Cloudflare, account_id: str) -> dict[str, str]:
    return {role.name: role.id for role in owner.accounts.roles.list(account_id=account_id)}


def new_user(running: Running) -> dict[str, str]:
    """Create a user without memberships; return the headers of the user's key."""

    async def create() -> dict[str, str]:
        database = Database.connect(running.site.database_url)
        made = await users.create(database, PEPPER, f"{secrets.token_hex(8)}@example.com")
        await database.close()
        return {"X-Auth-Email": made.user.email, "X-Auth-Key": made.global_key}

    return asyncio.run(create())


def client_of(running: Running, headers: dict[str, str]) -> Cloudflare:
    return Cloudflare(
        base_url=running.gateway.base_url, api_email=headers["X-Auth-Email"], api_key=headers["X-Auth-Key"]
    )


def test_roles_have_names_and_permissions(owner: Cloudflare, account_id: str):
    roles = {role.name: role for role in owner.accounts.roles.list(account_id=account_id)}
    assert set(roles) == {"Administrator", "Workers AI Developer", "Administrator Read Only"}
    read_only = roles["Administrator Read Only"]
    found = owner.accounts.roles.get(read_only.id, account_id=account_id)
    assert found == read_only
    assert found.permissions.organization is not None
    assert (found.permissions.organization.read, found.permissions.organization.write) == (True, False)


def test_invited_user_accepts_and_becomes_a_member(running: Running, owner: Cloudflare, account_id: str):
    headers = new_user(running)
    viewer = role_ids(owner, account_id)["Administrator Read Only"]
    email = headers["X-Auth-Email"]
    invited = owner.accounts.members.create(account_id=account_id, email=email.upper(), roles=[viewer])
    assert invited is not None
    assert (invited.status, invited.email, invited.user.email) == ("pending", email, email)
    assert [role.id for role in invited.roles] == [viewer]
    assert httpx.get(f"{running.gateway.base_url}/accounts/{account_id}", headers=headers).status_code == 403

    guest = client_of(running, headers)
    assert list(guest.memberships.list()) == []
    [pending] = guest.memberships.list(status="pending")
    assert (pending.id, pending.account.id) == (invited.id, account_id)
    guest.memberships.update(pending.id, status="accepted")
    [membership] = guest.memberships.list()
    assert (membership.id, membership.status) == (invited.id, "accepted")
    assert httpx.get(f"{running.gateway.base_url}/accounts/{account_id}", headers=headers).status_code == 200

    member = owner.accounts.members.get(invited.id, account_id=account_id)
    assert (member.status, member.user.id) == ("accepted", guest.user.get().id)
    with pytest.raises(cloudflare.BadRequestError, match="is a member or is invited already"):
        owner.accounts.members.create(account_id=account_id, email=email, roles=[viewer])


def test_invitation_waits_for_a_user_who_is_created_later(running: Running, owner: Cloudflare, account_id: str):
    viewer = role_ids(owner, account_id)["Administrator Read Only"]
    email = f"{secrets.token_hex(8)}@example.com"
    invited = owner.accounts.members.create(account_id=account_id, email=email, roles=[viewer])
    assert invited.user.id is None

    async def create() -> dict[str, str]:
        database = Database.connect(running.site.database_url)
        made = await users.create(database, PEPPER, email)
        await database.close()
        return {"X-Auth-Email": email, "X-Auth-Key": made.global_key}

    guest = client_of(running, asyncio.run(create()))
    guest.memberships.update(invited.id, status="rejected")
    assert list(guest.memberships.list(status="pending")) == []
    with pytest.raises(cloudflare.NotFoundError):
        owner.accounts.members.get(invited.id, account_id=account_id)


def test_invitation_for_another_person_cannot_be_accepted(running: Running, owner: Cloudflare, account_id: str):
    viewer = role_ids(owner, account_id)["Administrator Read Only"]
    email = f"{secrets.token_hex(8)}@example.com"
    invited = owner.accounts.members.create(account_id=account_id, email=email, roles=[viewer])
    stranger = client_of(running, new_user(running))
    with pytest.raises(cloudflare.NotFoundError):
        stranger.memberships.update(invited.id, status="accepted")
    assert owner.accounts.members.get(invited.id, account_id=account_id).status == "pending"


def test_role_of_a_member_changes_what_the_member_may_do(running: Running, owner: Cloudflare, account_id: str):
    headers, roles = new_user(running), role_ids(owner, account_id)
    invited = owner.accounts.members.create(
        account_id=account_id, email=headers["X-Auth-Email"], roles=[roles["Administrator Read Only"]]
    )
    client_of(running, headers).memberships.update(invited.id, status="accepted")
    url = f"{running.gateway.base_url}/accounts/{account_id}"
    change = {"name": "Renamed", "type": "standard"}
    assert httpx.put(url, headers=headers, json=change).status_code == 403
    administrator = owner.accounts.roles.get(roles["Administrator"], account_id=account_id)
    role: Any = {"id": administrator.id, "name": "", "description": "", "permissions": {}}
    updated = owner.accounts.members.update(invited.id, account_id=account_id, roles=[role])
    assert [role.name for role in updated.roles] == ["Administrator"]
    assert httpx.put(url, headers=headers, json=change).status_code == 200
    assert owner.accounts.members.delete(invited.id, account_id=account_id).id == invited.id
    assert httpx.get(url, headers=headers).status_code == 403


def test_change_of_an_outdated_role_is_refused(running: Running, owner: Cloudflare, account_id: str):
    headers, roles = new_user(running), role_ids(owner, account_id)
    viewer, developer = roles["Administrator Read Only"], roles["Workers AI Developer"]
    invited = owner.accounts.members.create(account_id=account_id, email=headers["X-Auth-Email"], roles=[viewer])
    url, key = f"{running.gateway.base_url}/accounts/{account_id}/members/{invited.id}", running.headers("global key")
    for is_member in (False, True):
        read = httpx.get(url, headers=key)
        etag = read.headers["etag"]
        assert etag.strip('"') == read.json()["result"]["version"]
        first, second = (developer, viewer) if not is_member else (viewer, developer)
        assert httpx.put(url, headers=key | {"if-match": etag}, json={"roles": [first]}).status_code == 200
        stale = httpx.put(url, headers=key | {"if-match": etag}, json={"roles": [second]})
        assert (stale.status_code, stale.json()["errors"][0]["code"]) == (412, 11004)
        if not is_member:
            client_of(running, headers).memberships.update(invited.id, status="accepted")


def test_members_are_listed_in_pages_and_by_status(owner: Cloudflare, account_id: str):
    viewer = role_ids(owner, account_id)["Administrator Read Only"]
    emails = [f"guest{number}-{secrets.token_hex(4)}@example.com" for number in range(3)]
    for email in emails:
        owner.accounts.members.create(account_id=account_id, email=email, roles=[viewer])
    everybody = list(owner.accounts.members.list(account_id=account_id, per_page=2))
    assert [member.email for member in everybody] == ["ada@example.com", *emails]
    pending = list(owner.accounts.members.list(account_id=account_id, status="pending", direction="desc"))
    assert [member.email for member in pending] == emails[::-1]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"email": "nobody", "roles": ["x"]}, "roles must be a list with the id of one role"),
        ({"email": "nobody"}, "roles must be a list with the id of one role"),
        ({"email": "nobody", "policies": [{"access": "allow"}]}, "policies are not supported"),
        ({"roles": ["x"]}, "email is required"),
    ],
)
def test_invalid_invitation_is_refused_by_name(running: Running, account_id: str, body: dict, says: str):
    url = f"{running.gateway.base_url}/accounts/{account_id}/members"
    refused = httpx.post(url, headers=running.headers("global key"), json=body)
    assert refused.status_code == 400
    assert says in refused.json()["errors"][0]["message"]


def test_invalid_address_is_refused(owner: Cloudflare, account_id: str):
    viewer = role_ids(owner, account_id)["Administrator Read Only"]
    with pytest.raises(cloudflare.BadRequestError, match="email must have the form"):
        owner.accounts.members.create(account_id=account_id, email="no address", roles=[viewer])


def test_only_administrators_of_the_platform_add_members_directly(running: Running, owner: Cloudflare, account_id: str):
    email, viewer = new_user(running)["X-Auth-Email"], role_ids(owner, account_id)["Administrator Read Only"]
    with pytest.raises(cloudflare.BadRequestError, match="only administrators of the platform"):
        owner.accounts.members.create(account_id=account_id, email=email, roles=[viewer], status="accepted")
    body = {"email": email, "roles": [viewer], "status": "accepted"}
    with running.signed_in("administrator") as browser:
        added = browser.post(f"/accounts/{account_id}/members", json=body)
        assert added.json()["result"]["status"] == "accepted"
        unknown = browser.post(f"/accounts/{account_id}/members", json=body | {"email": "new@example.com"})
        assert "must be the address of a user" in unknown.json()["errors"][0]["message"]


def test_invited_user_accepts_in_the_browser(running: Running, owner: Cloudflare, account_id: str):
    viewer = role_ids(owner, account_id)["Administrator Read Only"]
    with running.signed_in(None) as browser:
        email = browser.get("/user").json()["result"]["email"]
        owner.accounts.members.create(account_id=account_id, email=email, roles=[viewer])
        [pending] = browser.get("/memberships", params={"status": "pending"}).json()["result"]
        browser.put(f"/memberships/{pending['id']}", json={"status": "accepted"}).raise_for_status()
        assert browser.get(f"/accounts/{account_id}").json()["result"]["name"] == "Lab"
