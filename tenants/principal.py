"""Who is calling, as proven; or why nobody is. Both are values: they travel, they are never edited."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

TokenKind = Literal["user", "account"]

RefusalReason = Literal[
    "malformed",  # not the text of any credential
    "unknown",  # well-formed, and not one of ours
    "expired",
    "revoked",
    "disabled",
]


@dataclass(frozen=True, slots=True)
class Principal:
    """The holder of an API token. A blocked account's tokens still prove who is calling; they open nothing."""

    account_id: str
    api_token_id: str
    scopes: frozenset[str]
    expires_at: datetime | None = None
    is_account_blocked: bool = False
    kind: TokenKind = "user"


@dataclass(frozen=True, slots=True)
class Refused:
    """No principal. What is known of the API token is filled in only when its whole secret was right."""

    reason: RefusalReason
    api_token_id: str | None = None
    account_id: str | None = None
    kind: TokenKind | None = None
    expires_at: datetime | None = None
