"""Messages between a converter and its worker: one job, one outcome."""

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
    """The text of a file and its estimated number of tokens, or the reason why there is no text."""

    text: str = ""
    num_tokens: int = 0
    refusal: str = ""
