"""A step as its leader tells it to the other ranks: the facts that a forward pass needs, as raw bytes over a socket.

Sampling is the leader's alone, so nothing of it travels. Ten to a hundred kilobytes for a large batch, some
microseconds; a rank with nothing to do sleeps in the socket. Both ends are one version of us on one machine.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from engine.inputs import NO_SAMPLING, Ints, Longs, StepInputs

_NUM_SIZES = 8  # bytes in all, T, K, R, blocks of the longest row, decode rows, block copies, whether there are guesses
HEADER_BYTES = 8 * _NUM_SIZES
_IS_WIPE = -1  # as T


def encode_step(step: StepInputs, block_size: int) -> bytes:
    """The step as one message."""
    num_blocks = -(-int(step.context_lens.max()) // block_size)  # what no row reaches is left out
    longs = (step.token_ids, step.positions, step.slot_mapping, step.logit_rows)
    arrays: list[NDArray[np.generic]] = [each.numpy() for each in longs]
    arrays += [step.sequence_ids, step.query_starts, step.context_lens, step.block_tables[:, :num_blocks]]
    copies = step.block_copies
    if copies is not None:
        arrays.append(copies)
    num_copies = 0 if copies is None else len(copies)
    sizes = [len(step.token_ids), len(step.logit_rows), step.num_rows, num_blocks, step.num_decode_rows, num_copies]
    sizes.append(step.is_guessed)
    data = b"".join([each.tobytes() for each in arrays])
    return np.array([len(data), *sizes], np.int64).tobytes() + data


def encode_wipe(block_ids: Ints) -> bytes:
    """Blocks to wipe, as a message in a step's place."""
    data = block_ids.astype(np.int32).tobytes()
    return np.array([len(data), _IS_WIPE, *[0] * (_NUM_SIZES - 2)], np.int64).tobytes() + data


def receive_step(channel: socket.socket) -> StepInputs | Ints | None:
    """The next step, waited for, or blocks to wipe; None once the leader is gone."""
    header = receive_exactly(channel, HEADER_BYTES)
    if header is None:
        return None
    num_bytes, *sizes = np.frombuffer(header, np.int64).tolist()
    num_tokens, num_sampled, num_rows, num_blocks, num_decode_rows, num_copies, is_guessed = sizes
    data = receive_exactly(channel, num_bytes)
    if data is None:
        return None
    if num_tokens == _IS_WIPE:
        return np.frombuffer(data, np.int32)
    longs = (num_tokens, num_tokens, num_tokens, num_sampled, num_rows)
    token_ids, positions, slot_mapping, logit_rows, sequence_ids = _split(data, 0, longs)
    ints = (num_rows + 1, num_rows, num_rows * num_blocks)
    query_starts, context_lens, block_tables, copies = _split32(data, 8 * sum(longs), ints)
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
        is_guessed=bool(is_guessed),
        block_copies=copies.reshape(num_copies, 2) if num_copies else None,
    )


def _split(data: bytearray, offset: int, counts: Sequence[int]) -> list[Longs]:
    """int64 arrays over the memory of `data`, one after the other."""
    ends = np.cumsum(counts).tolist()
    return np.split(np.frombuffer(data, np.int64, ends[-1], offset), ends[:-1])


def _split32(data: bytearray, offset: int, counts: Sequence[int]) -> list[Ints]:
    """int32 arrays, the last of which is all that is left."""
    return np.split(np.frombuffer(data, np.int32, -1, offset), np.cumsum(counts).tolist())


def receive_exactly(channel: socket.socket, num_bytes: int) -> bytearray | None:
    """Exactly so many bytes; None if the other end closes before."""
    data = bytearray(num_bytes)
    rest = memoryview(data)
    while rest:
        try:
            count = channel.recv_into(rest)
        except ConnectionResetError:
            return None
        if not count:
            return None
        rest = rest[count:]
    return data
