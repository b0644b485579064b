"""A LoRA adapter as a rank is told of it: what its bytes are, and where they lie on this machine."""

from __future__ import annotations

from msgspec import Struct


class LocalAdapter(Struct, frozen=True):
    """`digest` stands for both files of the adapter: equal digests are equal adapters. `folder` holds them and must not
    change while a sequence uses it."""

    digest: str
    folder: str
