"""One TLS context for all httpx clients without an own one.

Creating a context reads every certificate authority, which takes about 20 ms, and the tests create thousands of clients
that only use plain HTTP.
"""

from __future__ import annotations

import os
import ssl
from typing import Any

from httpx._transports import default

_make = default.create_ssl_context  # type: ignore[attr-defined]
_kept: dict[tuple[Any, ...], ssl.SSLContext] = {}


def _shared(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
    if verify is not True or cert is not None:
        return _make(verify=verify, cert=cert, trust_env=trust_env)
    key = (trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
    if key not in _kept:
        _kept[key] = _make(trust_env=trust_env)
    return _kept[key]


def share_tls_contexts() -> None:
    default.create_ssl_context = _shared  # type: ignore[attr-defined]
