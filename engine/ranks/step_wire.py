"""Messages from the leading rank to its followers: steps, blocks to wipe, and adapter updates.

Only the leader samples, so sampling parameters are not sent. A large batch takes ten to a hundred kilobytes and some
microseconds. A follower sleeps in the socket between messages. Both ends run the same version on one machine.
"""

from __future__ import annotations

import socket
from typing import Any

import msgspec
import numpy as np
import torch
from msgspec import Struct

from engine.adapters.updates import AdapterAdded, AdapterRemoved, AdapterUpdate
from engine.arrays import Floats, Ints, Longs, ceil_div
from engine.inputs import NO_SAMPLING, ImageRows, StepInputs
from engine.processes.frames import framed, receive_frame
from engine.ranks.wire import dtype_of, encode_array


class _Step(Struct, frozen=True, array_like=True, tag=True):
    """The fields of StepInputs that followers need."""

    token_ids: Longs
    positions: Longs
    slot_mapping: Longs
    logit_rows: Longs
    query_starts: Ints
    context_lens: Ints
    block_tables: Ints
    sequence_ids: Longs
    num_decode_rows: int
    adapters: Ints | None
    image_rows: Longs | None
    image_embeddings: Floats | None
    mutual_images: Ints | None
    axis_positions: Longs | None


class _Wipe(Struct, frozen=True, array_like=True, tag=True):
    block_ids: Ints


def _encode_value(value: object) -> tuple[Any, ...]:
    """Return a tensor as its type, shape and bytes, an array as its shape and bytes."""
    if isinstance(value, torch.Tensor):
        data = value.contiguous().view(torch.uint8).numpy().tobytes()
        return str(value.dtype).removeprefix("torch."), tuple(value.shape), data
    return encode_array(value)


def _decode_value(declared: Any, value: list[Any]) -> Any:
    *dtype, shape, data = value
    writable = bytearray(data)
    if declared is torch.Tensor:
        return torch.frombuffer(writable, dtype=getattr(torch, dtype[0])).view(shape)
    return np.frombuffer(writable, dtype_of(declared)).reshape(shape)


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_value)
_decoder: msgspec.msgpack.Decoder[_Step | _Wipe | AdapterAdded | AdapterRemoved] = msgspec.msgpack.Decoder(
    _Step | _Wipe | AdapterAdded | AdapterRemoved, dec_hook=_decode_value
)


def encode_step(step: StepInputs, block_size: int) -> bytes:
    """Return the step as one message."""
    num_blocks = ceil_div(int(step.context_lens.max()), block_size)  # unused columns of the block tables are left out
    message = _Step(
        step.token_ids.numpy(),
        step.positions.numpy(),
        step.slot_mapping.numpy(),
        step.logit_rows.numpy(),
        step.query_starts,
        step.context_lens,
        step.block_tables[:, :num_blocks],
        step.sequence_ids,
        step.num_decode_rows,
        step.adapters,
        None if step.images is None else step.images.rows,
        None if step.images is None else step.images.embeddings,
        None if step.images is None else step.images.mutual,
        None if step.axis_positions is None else step.axis_positions.numpy(),
    )
    return framed(_encoder.encode(message))


def encode_wipe(block_ids: Ints) -> bytes:
    """Return a message with blocks to wipe."""
    return framed(_encoder.encode(_Wipe(block_ids.astype(np.int32))))


def encode_adapter_update(update: AdapterUpdate) -> bytes:
    """Return a message with an added or removed adapter."""
    return framed(_encoder.encode(update))


def receive_step(channel: socket.socket) -> StepInputs | Ints | AdapterUpdate | None:
    """Wait for the next message: a step, blocks to wipe, or an adapter update. None if the leader closed the socket."""
    data = receive_frame(channel)
    if data is None:
        return None
    message = _decoder.decode(data)
    if isinstance(message, _Wipe):
        return message.block_ids
    if not isinstance(message, _Step):
        return message
    images = None
    if message.image_rows is not None and message.image_embeddings is not None:
        images = ImageRows(message.image_rows, message.image_embeddings, message.mutual_images)
    return StepInputs(
        token_ids=torch.from_numpy(message.token_ids),
        positions=torch.from_numpy(message.positions),
        slot_mapping=torch.from_numpy(message.slot_mapping),
        logit_rows=torch.from_numpy(message.logit_rows),
        query_starts=message.query_starts,
        context_lens=message.context_lens,
        block_tables=message.block_tables,
        sequence_ids=message.sequence_ids,
        num_decode_rows=message.num_decode_rows,
        sampling=NO_SAMPLING,
        adapters=message.adapters,
        images=images,
        axis_positions=None if message.axis_positions is None else torch.from_numpy(message.axis_positions),
    )
