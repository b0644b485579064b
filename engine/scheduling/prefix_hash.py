"""Block hashes: a keyed hash of a full block's tokens and of every token before them.

The key is derived from the namespace and from everything that KV depends on besides tokens, so two namespaces or two
versions of a model never produce the same hash. 16-byte BLAKE2b, chained from block to block.
"""

from __future__ import annotations

import hashlib

from engine.arrays import Ints

DIGEST_BYTES = 16
ROOT = bytes(DIGEST_BYTES)  # parent hash of a sequence's first block
_NO_ADAPTER = b"none"

ImageSpan = tuple[int, int, bytes]  # first token, token after the last, and digest of the image


class PrefixHasher:
    """Hashes the blocks of one namespace.

    `namespace` is 1 to 64 secret bytes. `revision` identifies the weights, `layout_tag` the KV format (data type,
    tensor parallelism, positions), `adapter` is the adapter's digest or empty, `images` are the images of the prompt.
    """

    def __init__(
        self,
        namespace: bytes,
        revision: str,
        layout_tag: str,
        block_size: int,
        adapter: str = "",
        images: tuple[ImageSpan, ...] = (),
    ) -> None:
        root = hashlib.blake2b(key=namespace, digest_size=32, person=b"hearth-prefix-1")
        for part in (revision.encode(), layout_tag.encode(), adapter.encode() or _NO_ADAPTER, str(block_size).encode()):
            root.update(len(part).to_bytes(4, "little") + part)
        self._keyed = hashlib.blake2b(key=root.digest(), digest_size=DIGEST_BYTES)
        self._block_size = block_size
        self._images = images

    def hash_block(self, parent: bytes, tokens: bytes, index: int) -> bytes:
        """Return the hash of block number `index` with these tokens (int32 as bytes), after the block with hash
        `parent`. Tokens of an image are equal for all images, so the image's digest counts as well."""
        keyed = self._keyed.copy()
        keyed.update(parent + tokens)
        if self._images:
            first, last = index * self._block_size, (index + 1) * self._block_size
            for start, end, digest in self._images:
                if start < last and end > first:
                    keyed.update(digest + start.to_bytes(4, "little"))
        return keyed.digest()

    def extend(self, hashes: list[bytes], token_ids: Ints) -> None:
        """Append the hashes of the full blocks in `token_ids`, the tokens that follow the blocks in `hashes`."""
        step = self._block_size * token_ids.itemsize
        data = token_ids.tobytes()
        for end in range(step, len(data) + 1, step):
            hashes.append(self.hash_block(hashes[-1] if hashes else ROOT, data[end - step : end], len(hashes)))
