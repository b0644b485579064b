"""The name of a full block: a keyed hash of its tokens and of every token before it.

The key is derived from the caller's namespace and from everything the KV values depend on beside the tokens, so two
namespaces, or two versions of a model, can never name the same block: sharing between them is not refused, it cannot
be expressed. 16-byte BLAKE2b down the chain.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

DIGEST_BYTES = 16

ROOT = bytes(DIGEST_BYTES)  # what a first block has for a parent
_NO_ADAPTER = b"none"


class PrefixHasher:
    """Names the blocks of one namespace. `namespace` is 1 to 64 secret bytes; `revision` and `layout_tag` say which
    weights and which KV format (data type, tensor-parallel layout), `adapter` which adapter, by its digest."""

    def __init__(self, namespace: bytes, revision: str, layout_tag: str, block_size: int, adapter: str = "") -> None:
        root = hashlib.blake2b(key=namespace, digest_size=32, person=b"hearth-prefix-1")
        for part in (revision.encode(), layout_tag.encode(), adapter.encode() or _NO_ADAPTER, str(block_size).encode()):
            root.update(len(part).to_bytes(4, "little") + part)
        self._keyed = hashlib.blake2b(key=root.digest(), digest_size=DIGEST_BYTES)
        self._block_size = block_size

    def name(self, parent: bytes, tokens: bytes) -> bytes:
        """The name of the block with these tokens (int32 as bytes) after the block named `parent`, or ROOT."""
        keyed = self._keyed.copy()
        keyed.update(parent + tokens)
        return keyed.digest()

    def extend(self, names: list[bytes], token_ids: NDArray[np.int32]) -> None:
        """Append to `names`, those of a sequence's first blocks, the names of the full blocks in `token_ids`, which
        are the tokens after them."""
        step = self._block_size * token_ids.itemsize
        data = token_ids.tobytes()
        for end in range(step, len(data) + 1, step):
            names.append(self.name(names[-1] if names else ROOT, data[end - step : end]))
