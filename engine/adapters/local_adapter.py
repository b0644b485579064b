"""A LoRA adapter whose files are on this machine."""

from __future__ import annotations

from msgspec import Struct


class LocalAdapter(Struct, frozen=True):
    """`digest` identifies the content of both files. `folder` holds them and must not change while in use."""

    digest: str
    folder: str
