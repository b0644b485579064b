"""Sign-in of users with a password or a one-time link. Every sign-in opens a new session and has an audit entry."""

from __future__ import annotations

import logging

from gateway.errors import Reason, Refusal
from gateway.management.browser_sessions import BrowserSessions
from gateway.management.session_cookies import Headers, is_insecure
from storage.database import Database
from storage.ephemeral import Ephemeral
from telemetry.clock import Clock
from tenants import operators
from tenants.change_context import ChangeContext
from tenants.credentials.passwords import PasswordVerifier, TooManyWaiting
from tenants.credentials.sign_in_attempts import SignInAttempts
from tenants.credentials.web_sessions import SessionOwner
from tenants.operators import Operator

log = logging.getLogger(__name__)


class UserSignIn:
    """Opens sessions of users. `pepper` is the key of the stored hashes of links."""

    def __init__(
        self, sessions: BrowserSessions, database: Database, ephemeral: Ephemeral, clock: Clock, pepper: bytes
    ) -> None:
        self._sessions, self._database, self._clock, self._pepper = sessions, database, clock, pepper
        self._attempts = SignInAttempts(ephemeral, clock)
        self._passwords = PasswordVerifier()

    async def with_password(self, headers: Headers, email: str, password: str, address: str | None) -> str:
        """Return the `set-cookie` header of a new session.

        The response and its time are the same for an unknown email as for a wrong password. Raises Refusal and
        StoreUnavailable.
        """
        self._check_page(headers)
        wait_s = await self._attempts.count(email, address)
        if wait_s:
            raise Refusal(Reason.SIGN_IN_LIMITED, retry_after_s=wait_s)
        user = await operators.find_by_email(self._database, email)
        try:
            is_correct = await self._passwords.is_correct(password, None if user is None else user.password_hash)
        except TooManyWaiting:
            raise Refusal(Reason.SIGN_IN_LIMITED) from None
        if user is None or not is_correct:
            log.warning("sign-in failed", extra={"reason": "the email or the password is wrong"})
            raise Refusal(Reason.SIGN_IN_FAILED, "the email or the password is wrong")
        await self._attempts.forget(email, address)
        return await self._open(headers, user, "password")

    async def with_link(self, headers: Headers, token: str) -> str:
        """Return the `set-cookie` header of a new session. Raises Refusal and StoreUnavailable."""
        self._check_page(headers)
        user = await operators.use_link(self._database, self._pepper, token, clock=self._clock)
        if user is None:
            log.warning("sign-in failed", extra={"reason": "the link is not valid"})
            raise Refusal(
                Reason.SIGN_IN_FAILED, "this link was used already or has expired; `hearth dashboard` prints a new one"
            )
        return await self._open(headers, user, "link")

    def _check_page(self, headers: Headers) -> None:
        """Raise Refusal unless a page of this platform, loaded in a secure way, sent the request."""
        if is_insecure(headers):
            raise Refusal(
                Reason.SIGN_IN_FAILED,
                "sessions need https:// or, on the machine of the platform, http://127.0.0.1",
            )
        self._sessions.check_is_own_page(headers)

    async def _open(self, headers: Headers, user: Operator, method: str) -> str:
        context = ChangeContext(user.user_id, self._clock)
        async with self._database.transaction() as connection:
            await context.record(connection, "operator.sign_in", "", user.user_id, method)
        owner = SessionOwner(user_id=user.user_id, generation=user.session_generation)
        return await self._sessions.open(headers, owner)
