"""The loop over keys and values that the attention kernels share, in Triton.

Does not import `annotations` from `__future__`, because Triton evaluates those of its kernels.

Letters: M rows of a program (tokens × heads), N keys of a tile, D head size (or latent size), E other numbers of a
latent key, V value size.
"""

import triton
import triton.language as tl


@triton.jit
def scan(
    query, rest, peak, total, mixed, kv, table, position, lowest, begin, last, scale, cap, kv_block,
    kv_plane: tl.constexpr, kv_token: tl.constexpr, block_size: tl.constexpr, head_dim: tl.constexpr,
    rest_dim: tl.constexpr, value_dim: tl.constexpr, num_n: tl.constexpr, num_d: tl.constexpr, num_e: tl.constexpr,
    num_v: tl.constexpr, has_softcap: tl.constexpr, is_causal: tl.constexpr, is_bounded: tl.constexpr,
):  # fmt: skip
    """Add the keys of positions [begin, last) to a softmax: `peak` and `total` [M], `mixed` [M, V]. Scores are
    logarithms to base 2. If E > 0, values are the first numbers of keys, and `rest` [M, E] are the queries of the other
    numbers. Keys after `position` are hidden if `is_causal`, those before `lowest` if `is_bounded`. The caller
    multiplies `scale` and the result by the scales of 8-bit floats."""
    d = tl.arange(0, num_d)
    v = tl.arange(0, num_v)
    for tile in range(begin, last, num_n):
        key_position = tile + tl.arange(0, num_n)
        is_key = key_position < last
        block_id = tl.load(table + key_position // block_size, mask=is_key, other=0)
        key_at = kv + block_id.to(tl.int64) * kv_block + key_position % block_size * kv_token
        keys = tl.load(key_at[:, None] + d[None, :], mask=is_key[:, None] & (d < head_dim)[None, :], other=0.0)
        keys = keys.to(query.dtype)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee")  # [M, N]
        if num_e > 0:
            e = tl.arange(0, num_e)
            is_rest = is_key[:, None] & (e < rest_dim)[None, :]
            others = tl.load((key_at + head_dim)[:, None] + e[None, :], mask=is_rest, other=0.0)
            scores += tl.dot(rest, tl.trans(others.to(query.dtype)), input_precision="ieee")
        scores *= scale
        if has_softcap:
            scores = cap * (2.0 * tl.sigmoid(2.0 * scores) - 1.0)  # tanh, which Triton does not provide
        is_seen = is_key[None, :]
        if is_causal:
            is_seen = is_seen & (key_position[None, :] <= position[:, None])
        if is_bounded:
            is_seen = is_seen & (key_position[None, :] >= lowest)
        scores = tl.where(is_seen, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # no visible key yet
        shrunk = tl.exp2(peak - base)
        weights = tl.exp2(scores - base[:, None])  # [M, N]
        total = total * shrunk + tl.sum(weights, 1)
        if num_e > 0:
            values = keys
        else:
            is_value = is_key[:, None] & (v < value_dim)[None, :]
            values = tl.load((key_at + kv_plane)[:, None] + v[None, :], mask=is_value, other=0.0).to(query.dtype)
        mixed = mixed * shrunk[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        peak = higher
    return peak, total, mixed
