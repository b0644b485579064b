"""Messages from the leading rank to its followers: steps, blocks to wipe, and adapter updates, as raw bytes.

Only the leader samples, so sampling parameters are not sent. A large batch takes ten to a hundred kilobytes and some
microseconds. A follower sleeps in the socket between messages. Both ends run the same version on one machine.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Sequence

import msgspec
import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray

from engine.adapters.slot_pool import AdapterShape
from engine.adapters.updates import AdapterAdded, AdapterRemoved, AdapterUpdate
from engine.arrays import Ints, Longs, ceil_div
from engine.inputs import NO_SAMPLING, StepInputs
from engine.processes.frames import receive_exactly

# Header: bytes of data, T, L, R, blocks of the longest row, decode rows, has adapters.
_NUM_SIZES = 7
HEADER_BYTES = 8 * _NUM_SIZES
_WIPE, _ADAPTER_ADDED, _ADAPTER_REMOVED = -1, -2, -3  # in place of T
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_LENGTH_BYTES = 8


def encode_step(step: StepInputs, block_size: int) -> bytes:
    """Return the step as one message."""
    num_blocks = ceil_div(int(step.context_lens.max()), block_size)  # unused columns of the block tables are left out
    longs = (step.token_ids, step.positions, step.slot_mapping, step.logit_rows)
    arrays: list[NDArray[np.generic]] = [each.numpy() for each in longs]
    arrays += [step.sequence_ids, step.query_starts, step.context_lens, step.block_tables[:, :num_blocks]]
    if step.adapters is not None:
        arrays.append(step.adapters)
    sizes = [len(step.token_ids), len(step.logit_rows), step.num_rows, num_blocks, step.num_decode_rows]
    sizes.append(step.adapters is not None)
    data = b"".join([each.tobytes() for each in arrays])
    return np.array([len(data), *sizes], np.int64).tobytes() + data


def encode_wipe(block_ids: Ints) -> bytes:
    """Return a message with blocks to wipe."""
    return _encode(_WIPE, block_ids.astype(np.int32).tobytes())


class _AdapterHeader(Struct, frozen=True, array_like=True):
    """An added adapter without its values. `modules` are (name, rank, inputs, outputs)."""

    handle: int
    rank: int
    num_slots: int
    dtype: str
    modules: list[tuple[str, int, int, int]]


def encode_adapter_update(update: AdapterUpdate) -> bytes:
    """Return a message with an added or removed adapter."""
    if isinstance(update, AdapterRemoved):
        return _encode(_ADAPTER_REMOVED, b"", update.handle)
    pairs = list(update.matrices.items())
    modules = [(name, *a.shape, len(b)) for name, (a, b) in pairs]
    dtype = str(pairs[0][1][0].dtype).removeprefix("torch.")
    header = msgspec.msgpack.encode(_AdapterHeader(update.handle, update.shape.rank, update.num_slots, dtype, modules))
    values = [each.contiguous().view(torch.uint8).numpy().data for _, pair in pairs for each in pair]
    return _encode(_ADAPTER_ADDED, b"".join([len(header).to_bytes(_LENGTH_BYTES, "little"), header, *values]))


def _encode(kind: int, data: bytes, value: int = 0) -> bytes:
    return np.array([len(data), kind, value, *[0] * (_NUM_SIZES - 3)], np.int64).tobytes() + data


def _decode_adapter(data: bytearray) -> AdapterAdded:
    offset = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    header = msgspec.msgpack.decode(data[_LENGTH_BYTES:offset], type=_AdapterHeader)
    dtype, matrices = _DTYPES[header.dtype], {}
    for name, rank, num_in, num_out in header.modules:
        pair = []
        for shape in ((rank, num_in), (num_out, rank)):
            num_bytes = math.prod(shape) * dtype.itemsize
            values = torch.frombuffer(data, dtype=torch.uint8, count=num_bytes, offset=offset)
            pair.append(values.clone().view(dtype).view(shape))  # a copy, because `offset` may be unaligned
            offset += num_bytes
        matrices[name] = (pair[0], pair[1])
    shape_of_all = AdapterShape(header.rank, tuple(sorted(matrices)))
    return AdapterAdded(header.handle, shape_of_all, header.num_slots, matrices)


def receive_step(channel: socket.socket) -> StepInputs | Ints | AdapterUpdate | None:
    """Wait for the next message: a step, blocks to wipe, or an adapter update. None if the leader closed the socket."""
    header = receive_exactly(channel, HEADER_BYTES)
    if header is None:
        return None
    num_bytes, *sizes = np.frombuffer(header, np.int64).tolist()
    data = receive_exactly(channel, num_bytes)
    if data is None:
        return None
    kind, value = sizes[:2]
    if kind == _WIPE:
        return np.frombuffer(data, np.int32)
    if kind == _ADAPTER_ADDED:
        return _decode_adapter(data)
    if kind == _ADAPTER_REMOVED:
        return AdapterRemoved(value)
    return _decode_step(data, sizes)


def _decode_step(data: bytearray, sizes: list[int]) -> StepInputs:
    num_tokens, num_logits, num_rows, num_blocks, num_decode_rows, has_adapters = sizes
    longs = (num_tokens, num_tokens, num_tokens, num_logits, num_rows)
    token_ids, positions, slot_mapping, logit_rows, sequence_ids = _split(data, 0, longs)
    ints = (num_rows + 1, num_rows, num_rows * num_blocks)
    query_starts, context_lens, block_tables, adapters = _split32(data, 8 * sum(longs), ints)
    return StepInputs(
        token_ids=torch.from_numpy(token_ids),
        positions=torch.from_numpy(positions),
        slot_mapping=torch.from_numpy(slot_mapping),
        logit_rows=torch.from_numpy(logit_rows),
        query_starts=query_starts,
        context_lens=context_lens,
        block_tables=block_tables.reshape(num_rows, num_blocks),
        sequence_ids=sequence_ids,
        num_decode_rows=num_decode_rows,
        sampling=NO_SAMPLING,
        adapters=adapters if has_adapters else None,
    )


def _split(data: bytearray, offset: int, counts: Sequence[int]) -> list[Longs]:
    """Return successive int64 arrays over the memory of `data`."""
    ends = np.cumsum(counts).tolist()
    return np.split(np.frombuffer(data, np.int64, ends[-1], offset), ends[:-1])


def _split32(data: bytearray, offset: int, counts: Sequence[int]) -> list[Ints]:
    """Return successive int32 arrays over the memory of `data`, and one with the rest."""
    return np.split(np.frombuffer(data, np.int32, -1, offset), np.cumsum(counts).tolist())
