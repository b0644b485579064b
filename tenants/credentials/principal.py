"""The authenticated caller (Principal), or why authentication failed (Refused). Both are immutable values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from tenants.credentials.conditions import AddressCondition
from tenants.residency import ANYWHERE, Residency

TokenKind = Literal["user", "account"]

RefusalReason = Literal[
    "malformed",  # not the text of any credential
    "unknown",  # well-formed, but not issued by this platform
    "expired",
    "revoked",
    "disabled",
    "not_yet",  # before its start time
]


@dataclass(frozen=True, slots=True)
class AccountTerms:
    """Plan, limits and disabled models of an account, which apply to its calls."""

    plan: str = "paid"
    limits: str = ""
    disabled_models: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Grant:
    """The permissions of a principal on one account other than its own."""

    scopes: frozenset[str]
    is_account_blocked: bool
    account: AccountTerms = AccountTerms()
    residency: Residency = ANYWHERE


@dataclass(frozen=True, slots=True)
class Principal:
    """The holder of an API token, a global key or a browser session. Tokens of a blocked account authenticate but give
    no access.

    `account_id`, `scopes` and `is_account_blocked` describe the credential's own account, `elsewhere` other accounts.
    `user_scopes` apply to objects of the user; `user_id` is "" if the account acts as its own user. `account` and
    `limits` are the limits of calls, `residency` says where calls may run. `condition` names the networks from which
    the credential may be used; the gateway checks it, because it knows the caller's address.
    """

    account_id: str
    api_token_id: str
    scopes: frozenset[str]
    expires_at: datetime | None = None
    is_account_blocked: bool = False
    kind: TokenKind = "user"
    user_id: str = ""
    not_before: datetime | None = None
    condition: AddressCondition | None = None
    user_scopes: frozenset[str] = frozenset()
    elsewhere: Mapping[str, Grant] = field(default_factory=dict, hash=False)
    acts_as_user: bool = False  # a global key or a session of the user: may do all that the user may do
    account: AccountTerms = AccountTerms()
    limits: str = ""  # rate limits of the credential itself
    models: frozenset[str] | None = None  # models that the credential may run; None for all
    residency: Residency = ANYWHERE
    is_operator: bool = False  # `scopes` apply to every account, in addition to those of `elsewhere`

    @property
    def holder_id(self) -> str:
        """The user id, or the account id if the account acts as its own user."""
        return self.user_id or self.account_id

    @property
    def party(self) -> str:
        """The id under which fair shares of resources are counted: a user has one share for all accounts."""
        return self.holder_id or self.api_token_id

    @property
    def plan(self) -> str:
        """The account's plan."""
        return self.account.plan

    def accounts(self) -> dict[str, Grant]:
        """Return the principal's grants by account id."""
        own = Grant(self.scopes, self.is_account_blocked, self.account, self.residency)
        return ({self.account_id: own} if self.account_id else {}) | dict(self.elsewhere)

    def on(self, account_id: str) -> Principal | None:
        """Return this principal as a principal of that account, or None if it has no access."""
        if account_id == self.account_id:
            return self
        grant = self.elsewhere.get(account_id)
        if self.is_operator and (grant is None or grant.is_account_blocked):
            return replace(self, account_id=account_id)
        if grant is None:
            return None
        return replace(
            self,
            account_id=account_id,
            scopes=grant.scopes | self.scopes if self.is_operator else grant.scopes,
            is_account_blocked=grant.is_account_blocked,
            account=grant.account,
            residency=grant.residency,
        )


@dataclass(frozen=True, slots=True)
class Refused:
    """Failed authentication. Details of the API token are filled in only if the whole secret was correct."""

    reason: RefusalReason
    api_token_id: str | None = None
    account_id: str | None = None
    kind: TokenKind | None = None
    expires_at: datetime | None = None
    not_before: datetime | None = None
    condition: AddressCondition | None = None
