"""Models that an account may not run, set by the operator.

They are stored with the account and are part of each cached decision about a credential, so a call is checked without
a database access.
"""

from __future__ import annotations

import msgspec

MAX_DISABLED_MODELS = 1000  # per account


def decode_models(text: str | None) -> frozenset[str]:
    """Return the models in a database column."""
    return frozenset() if text is None else msgspec.json.decode(text, type=frozenset[str])


def encode_models(models: frozenset[str]) -> str | None:
    """Return the models as a database column. `decode_models` is the inverse."""
    return msgspec.json.encode(sorted(models)).decode() if models else None
