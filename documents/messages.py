"""What passes between a converter and the process that reads one file: one job one way, one outcome back."""

from __future__ import annotations

from msgspec import Struct

from documents.options import Options


class Job(Struct, frozen=True, array_like=True):
    """One file. `reader` names the module that reads it; times in seconds, sizes in bytes."""

    name: str
    reader: str
    data: bytes
    options: Options
    timeout_s: int
    memory_bytes: int
    max_text_bytes: int


class Outcome(Struct, frozen=True, array_like=True):
    """Its text and how many tokens that is about, or why there is none."""

    text: str = ""
    num_tokens: int = 0
    refusal: str = ""
