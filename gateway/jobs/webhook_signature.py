"""Signatures of webhooks, as Standard Webhooks has them: over the message's id, the time of the try and the body. Pure.

Receivers verify with the text of a key's secret, which is shown once. A message may have several signatures, one for
each key that signs now; any one of them will do.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Sequence

from gateway.http.exchange import Headers

PREFIX = "whsec_"


def secret_text(secret: bytes) -> str:
    """As it is shown, and as receivers' libraries take it."""
    return PREFIX + base64.b64encode(secret).decode()


def headers_of(message_id: str, at_s: int, body: bytes, secrets: Sequence[bytes]) -> Headers:
    """What goes with a try at `at_s` (Unix seconds) to deliver a message; no signature where there is no secret."""
    headers: Headers = [(b"webhook-id", message_id.encode()), (b"webhook-timestamp", b"%d" % at_s)]
    if secrets:
        signed = b"%b.%d.%b" % (message_id.encode(), at_s, body)
        signatures = [b"v1," + base64.b64encode(hmac.digest(secret, signed, "sha256")) for secret in secrets]
        headers.append((b"webhook-signature", b" ".join(signatures)))
    return headers
