"""The held-out split: one prompt in twenty, by a hash of its content. Knows no kind of dialogue."""

import hashlib
import json

from spark.generator.dialogue import Message

HELD_OUT_ONE_IN = 20


def is_held_out(prompt: list[Message]) -> bool:
    """Return True for one prompt in twenty, by content."""
    said = json.dumps([[message["role"], message["content"]] for message in prompt], ensure_ascii=False)
    return int.from_bytes(hashlib.sha256(said.encode()).digest()[:4], "big") % HELD_OUT_ONE_IN == 0
