"""Disable and enable API tokens that `hearth token create` made."""

from __future__ import annotations

from storage.database import Database
from tenants.change_context import CLI, ChangeContext
from tenants.credentials import api_tokens, user_tokens
from tenants.credentials.user_tokens import TokenOwner, TokenSpec


async def set_disabled(
    database: Database, account_id: str, api_token_id: str, is_disabled: bool, *, context: ChangeContext = CLI
) -> None:
    """Disable or enable a token. Raises Missing if the account has no such token or the token is revoked."""
    token = await api_tokens.find(database, account_id, api_token_id)
    assert token is not None
    spec = TokenSpec(token.name, token.policies, expires_at=token.expires_at, is_disabled=is_disabled)
    await user_tokens.replace(database, TokenOwner(token.kind, account_id), api_token_id, spec, context=context)
