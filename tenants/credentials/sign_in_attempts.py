"""Limits of attempts to sign in with a password: for each client address, and for each email.

The limit of an email is higher, and attempts above the limit of their address do not count for it. Otherwise anyone who
knows an email could keep its owner from signing in with a few requests.
"""

from __future__ import annotations

import hashlib
import ipaddress

from storage.ephemeral import Ephemeral
from telemetry.clock import Clock

MAX_ATTEMPTS = 5  # attempts of one client address per window
MAX_ATTEMPTS_FOR_EMAIL = 50  # attempts for one email from all addresses per window
WINDOW_S = 300


class SignInAttempts:
    """Counts attempts in windows of WINDOW_S seconds, in Redis, so that all gateways share the counts."""

    def __init__(self, ephemeral: Ephemeral, clock: Clock) -> None:
        self._ephemeral, self._clock = ephemeral, clock

    async def count(self, email: str, address: str | None) -> int:
        """Count an attempt. Return 0 if it is allowed, else the seconds until the next window. Raises
        StoreUnavailable."""
        of_email, of_address = self._keys(email, address)
        for key, most in ((of_address, MAX_ATTEMPTS), (of_email, MAX_ATTEMPTS_FOR_EMAIL)):
            if (await self._ephemeral.add({key: 1}, WINDOW_S))[key] > most:
                return WINDOW_S - int(self._clock.now().timestamp()) % WINDOW_S
        return 0

    async def forget(self, email: str, address: str | None) -> None:
        """Take back the counts of a successful attempt: all for the email, one for the address. Raises
        StoreUnavailable."""
        of_email, of_address = self._keys(email, address)
        await self._ephemeral.delete(of_email)
        await self._ephemeral.add({of_address: -1}, WINDOW_S)

    def _keys(self, email: str, address: str | None) -> tuple[str, str]:
        window = int(self._clock.now().timestamp()) // WINDOW_S
        hashed = (
            hashlib.sha256(f"{kind}: {text}".encode("utf-8", "replace")).hexdigest()
            for kind, text in (("email", email.lower()), ("address", _network(address)))
        )
        of_email, of_address = (f"sign-in-attempts:{window}:{text}" for text in hashed)
        return of_email, of_address


def _network(address: str | None) -> str:
    """Return the address, or its /64 network for IPv6, whose users choose the rest themselves."""
    try:
        parsed = ipaddress.ip_address(address or "")
    except ValueError:
        return address or ""
    return str(parsed if parsed.version == 4 else ipaddress.ip_network((parsed, 64), strict=False))
