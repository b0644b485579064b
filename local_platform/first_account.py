"""The first account of a local platform and the API token that `hearth up` prints."""

from __future__ import annotations

from local_platform.data_dir import Secrets

READ_GROUPS = ("Account Settings Read", "API Tokens Read")
"""Permission groups beside Workers AI, so that `wrangler whoami` and clients' account pages work with the token."""


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
