"""The first account of a local platform, its administrator, and the API token and the sign-in link that `hearth up`
prints."""

from __future__ import annotations

from local_platform.data_dir import Secrets

READ_GROUPS = ("Account Settings Read", "API Tokens Read")
"""Permission groups beside Workers AI, so that `wrangler whoami` and clients' account pages work with the token."""

ADMINISTRATOR = "admin@localhost"
"""Email of the local administrator, a user whom `hearth up` creates."""


async def create_first_account(database_url: str, secrets: Secrets) -> Secrets:
    """Create the first account and its API token, and return the secrets with both.

    An account id that `secrets` already has is used again. Raises StoreUnavailable.
    """
    from storage.database import Database
    from tenants import accounts
    from tenants.credentials import api_tokens, scopes

    pepper = bytes.fromhex(secrets.keys["HEARTH_TOKEN_PEPPER"])
    groups = (*scopes.WORKERS_AI_GROUPS, *READ_GROUPS)
    database = Database.connect(database_url)
    try:
        account_id = secrets.account_id
        if not account_id or await accounts.find(database, account_id) is None:
            account_id = (await accounts.create(database, "default", account_id or None)).account_id
        created = await api_tokens.create(database, pepper, account_id, "hearth up", groups)
        return Secrets(secrets.keys, account_id, created.secret)
    finally:
        await database.close()


async def create_sign_in_link(database_url: str, secrets: Secrets, origin: str, email: str = ADMINISTRATOR) -> str:
    """Return a new one-time link to the dashboard at `origin`, or "" if this user may not sign in.

    A missing local administrator is created, as a member of the first account. Raises StoreUnavailable.
    """
    from storage.database import Database
    from tenants import operators, users

    pepper = bytes.fromhex(secrets.keys["HEARTH_TOKEN_PEPPER"])
    database = Database.connect(database_url)
    try:
        user = await operators.find_by_email(database, email)
        if user is None and email == ADMINISTRATOR:
            user_id = await operators.add(database, email, role="administrator", password_hash=None)
            if secrets.account_id:
                await users.join(database, user_id, secrets.account_id)
            user = await operators.find(database, user_id)
        if user is None or (user.platform_role is None and user.password_hash is None):
            return ""
        return link_url(origin, await operators.create_link(database, pepper, user.user_id))
    finally:
        await database.close()


def link_url(origin: str, token: str) -> str:
    """Return the URL of a sign-in link. The token is in the fragment, which browsers do not send to servers or log."""
    return f"{origin}/dashboard/link#{token}"
