"""A step as its leader tells it to the other ranks: the facts that a forward pass needs, as raw bytes over a socket.
And what comes in a step's place: blocks to wipe, adapters that come and go.

Sampling is the leader's alone, so nothing of it travels. Ten to a hundred kilobytes for a large batch, some
microseconds; a rank with nothing to do sleeps in the socket. Both ends are one version of us on one machine.
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

# Bytes in all, T, K, R, blocks of the longest row, decode rows, whether there are guesses, and adapters.
_NUM_SIZES = 8
HEADER_BYTES = 8 * _NUM_SIZES
_IS_WIPE, _IS_ARRIVAL, _IS_DEPARTURE = -1, -2, -3  # as T
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_FRAME_BYTES = 8


def encode_step(step: StepInputs, block_size: int) -> bytes:
    """The step as one message."""
    num_blocks = ceil_div(int(step.context_lens.max()), block_size)  # what no row reaches is left out
    longs = (step.token_ids, step.positions, step.slot_mapping, step.logit_rows)
    arrays: list[NDArray[np.generic]] = [each.numpy() for each in longs]
    arrays += [step.sequence_ids, step.query_starts, step.context_lens, step.block_tables[:, :num_blocks]]
    if step.adapters is not None:
        arrays.append(step.adapters)
    sizes = [len(step.token_ids), len(step.logit_rows), step.num_rows, num_blocks, step.num_decode_rows]
    sizes += [step.has_drafts, step.adapters is not None]
    data = b"".join([each.tobytes() for each in arrays])
    return np.array([len(data), *sizes], np.int64).tobytes() + data


def encode_wipe(block_ids: Ints) -> bytes:
    """Blocks to wipe, as a message in a step's place."""
    data = block_ids.astype(np.int32).tobytes()
    return np.array([len(data), _IS_WIPE, *[0] * (_NUM_SIZES - 2)], np.int64).tobytes() + data


class _ArrivalFacts(Struct, frozen=True, array_like=True):
    """Of an adapter, all but its numbers: of each module its name, the rank, inputs and outputs."""

    handle: int
    rank: int
    num_slots: int
    dtype: str
    modules: list[tuple[str, int, int, int]]


def encode_adapter_update(news: AdapterUpdate) -> bytes:
    """An adapter that comes or goes, as a message in a step's place."""
    if isinstance(news, AdapterRemoved):
        return np.array([0, _IS_DEPARTURE, news.handle, *[0] * (_NUM_SIZES - 3)], np.int64).tobytes()
    pairs = list(news.matrices.items())
    modules = [(name, *a.shape, len(b)) for name, (a, b) in pairs]
    dtype = str(pairs[0][1][0].dtype).removeprefix("torch.")
    facts = msgspec.msgpack.encode(_ArrivalFacts(news.handle, news.kind.rank, news.num_slots, dtype, modules))
    numbers = [each.contiguous().view(torch.uint8).numpy().data for _, pair in pairs for each in pair]
    data = b"".join([len(facts).to_bytes(_FRAME_BYTES, "little"), facts, *numbers])
    return np.array([len(data), _IS_ARRIVAL, *[0] * (_NUM_SIZES - 2)], np.int64).tobytes() + data


def _decode_arrival(data: bytearray) -> AdapterAdded:
    at = _FRAME_BYTES + int.from_bytes(data[:_FRAME_BYTES], "little")
    facts = msgspec.msgpack.decode(data[_FRAME_BYTES:at], type=_ArrivalFacts)
    dtype, matrices = _DTYPES[facts.dtype], {}
    for name, rank, num_in, num_out in facts.modules:
        pair = []
        for shape in ((rank, num_in), (num_out, rank)):
            pair.append(torch.frombuffer(data, dtype=torch.uint8, count=math.prod(shape) * dtype.itemsize, offset=at))
            pair[-1] = pair[-1].clone().view(dtype).view(shape)  # where numbers of any size may lie
            at += math.prod(shape) * dtype.itemsize
        matrices[name] = (pair[0], pair[1])
    kind = AdapterShape(facts.rank, tuple(sorted(matrices)))
    return AdapterAdded(facts.handle, kind, facts.num_slots, matrices)


def receive_step(channel: socket.socket) -> StepInputs | Ints | AdapterUpdate | None:
    """The next step, waited for, or blocks to wipe, or an adapter's coming or going; None once the leader is gone."""
    header = receive_exactly(channel, HEADER_BYTES)
    if header is None:
        return None
    num_bytes, *sizes = np.frombuffer(header, np.int64).tolist()
    num_tokens, num_sampled, num_rows, num_blocks, num_decode_rows, has_drafts, has_adapters = sizes
    data = receive_exactly(channel, num_bytes)
    if data is None:
        return None
    if num_tokens == _IS_WIPE:
        return np.frombuffer(data, np.int32)
    if num_tokens == _IS_ARRIVAL:
        return _decode_arrival(data)
    if num_tokens == _IS_DEPARTURE:
        return AdapterRemoved(num_sampled)
    longs = (num_tokens, num_tokens, num_tokens, num_sampled, num_rows)
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
        has_drafts=bool(has_drafts),
    )


def _split(data: bytearray, offset: int, counts: Sequence[int]) -> list[Longs]:
    """int64 arrays over the memory of `data`, one after the other."""
    ends = np.cumsum(counts).tolist()
    return np.split(np.frombuffer(data, np.int64, ends[-1], offset), ends[:-1])


def _split32(data: bytearray, offset: int, counts: Sequence[int]) -> list[Ints]:
    """int32 arrays, the last of which is all that is left."""
    return np.split(np.frombuffer(data, np.int32, -1, offset), np.cumsum(counts).tolist())
