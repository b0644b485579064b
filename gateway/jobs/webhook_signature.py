"""Signatures of webhooks in the format of Standard Webhooks: over message id, timestamp and body. Pure.

Receivers verify with the secret of a key, which is shown once. A message has one signature for each active key; any
valid signature suffices.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Sequence

from gateway.http.exchange import Headers

PREFIX = "whsec_"


def secret_text(secret: bytes) -> str:
    """Return the secret in the form that receivers' libraries expect."""
    return PREFIX + base64.b64encode(secret).decode()


def signature_headers(message_id: str, at_s: int, body: bytes, secrets: Sequence[bytes]) -> Headers:
    """Return the headers of a delivery at `at_s` (Unix seconds); without secrets there is no signature."""
    headers: Headers = [(b"webhook-id", message_id.encode()), (b"webhook-timestamp", b"%d" % at_s)]
    if secrets:
        signed = b"%b.%d.%b" % (message_id.encode(), at_s, body)
        signatures = [b"v1," + base64.b64encode(hmac.digest(secret, signed, "sha256")) for secret in secrets]
        headers.append((b"webhook-signature", b" ".join(signatures)))
    return headers
