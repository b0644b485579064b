"""Messages from the leading rank to followers survive the encoding for any split of the bytes."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from engine.adapters.slot_pool import AdapterShape
from engine.adapters.updates import AdapterAdded, AdapterRemoved
from engine.input_builder import build_inputs
from engine.inputs import ImageRows, StepInputs
from engine.ranks.step_wire import encode_adapter_update, encode_step, encode_wipe, receive_step
from engine.scheduling.sequence import SlotTable
from engine.scheduling.step_budget import ScheduledStep
from tests.engine import one_thread  # noqa: F401

BLOCK_SIZE = 16
WHAT_IS_READ = ("token_ids", "positions", "slot_mapping", "logit_rows", "query_starts", "context_lens", "sequence_ids")


def a_step(num_tokens: tuple[int, ...], seed: int = 0) -> StepInputs:
    rng = np.random.default_rng(seed)
    table = SlotTable(len(num_tokens), 512, BLOCK_SIZE)
    table.token_ids[:] = rng.integers(0, 1 << 20, table.token_ids.shape)
    table.block_table[:] = rng.permutation(table.block_table.size).reshape(table.block_table.shape)
    table.sequence_id[:] = rng.integers(0, 1 << 40, len(num_tokens))
    table.num_computed[:] = rng.integers(0, 200, len(num_tokens))
    table.length[:] = table.num_computed + np.array(num_tokens) + rng.integers(0, 2, len(num_tokens))
    slots = np.arange(len(num_tokens), dtype=np.int32)
    return build_inputs(ScheduledStep(slots, np.array(num_tokens, np.int32)), table)


def through(*messages: bytes, num_bytes: int = 1 << 20) -> list[Any]:
    """Return what is received of messages sent `num_bytes` at a time, until the sender closes."""
    ours, theirs = socket.socketpair()
    data = b"".join(messages)

    def send() -> None:
        for first in range(0, len(data), num_bytes):
            ours.sendall(data[first : first + num_bytes])
        ours.close()

    sender = threading.Thread(target=send)
    sender.start()
    received = []
    with theirs:
        while (step := receive_step(theirs)) is not None:
            received.append(step)
    sender.join()
    return [*received, None]


def assert_same(received: StepInputs | None, sent: StepInputs) -> None:
    assert received is not None
    for name in WHAT_IS_READ:
        assert torch.equal(torch.as_tensor(getattr(received, name)), torch.as_tensor(getattr(sent, name))), name
    width = received.block_tables.shape[1]
    assert width == -(-int(sent.context_lens.max()) // BLOCK_SIZE)
    assert np.array_equal(received.block_tables, sent.block_tables[:, :width])
    assert received.num_decode_rows == sent.num_decode_rows
    assert received.sampling.num_rows == 0


@pytest.mark.parametrize("num_bytes", [1, 7, 1 << 20])
def test_steps_survive_the_encoding_in_order(num_bytes: int) -> None:
    steps = [a_step(tokens, seed) for seed, tokens in enumerate(((1,), (1, 1, 1), (1, 17), (5, 3), (1,) * 40))]
    received = through(*(encode_step(step, BLOCK_SIZE) for step in steps), num_bytes=num_bytes)
    assert len(received) == len(steps) + 1
    for one, other in zip(received, steps, strict=False):
        assert_same(one, other)


def test_images_and_their_positions_survive_the_encoding() -> None:
    embeddings = np.random.default_rng(0).random((3, 8)).astype(np.float32)
    images = ImageRows(np.array([2, 3, 4]), embeddings, np.array([[2, 5]], np.int32))
    sent = replace(a_step((1, 17)), images=images, axis_positions=torch.arange(54).view(3, 18))
    received, _ = through(encode_step(sent, BLOCK_SIZE))
    assert torch.equal(received.axis_positions, sent.axis_positions)
    for name in ("rows", "embeddings", "mutual"):
        assert np.array_equal(getattr(received.images, name), getattr(images, name)), name


def test_wipe_message_survives_the_encoding() -> None:
    step = a_step((1, 2))
    wiped, received, _ = through(encode_wipe(np.array([3, 9], np.int32)), encode_step(step, BLOCK_SIZE))
    assert isinstance(wiped, np.ndarray)
    assert wiped.tolist() == [3, 9]
    assert_same(received, step)


def test_incomplete_message_counts_as_a_closed_socket() -> None:
    message = encode_step(a_step((1, 17)), BLOCK_SIZE)
    for length in (0, 5, 60, len(message) - 1):
        assert through(message[:length]) == [None]


@pytest.mark.parametrize("num_bytes", [7, 1 << 20])
def test_adapter_updates_survive_the_encoding(num_bytes: int) -> None:
    step = replace(a_step((1, 5)), adapters=np.array([0, 7], np.int32))
    matrices = {
        "layers.0.mlp.up_proj": (torch.randn(3, 5).bfloat16(), torch.randn(4, 3).bfloat16()),
        "layers.0.mlp.down_proj": (torch.randn(3, 4).bfloat16(), torch.randn(5, 3).bfloat16()),
    }
    arrival = AdapterAdded(7, AdapterShape(8, tuple(sorted(matrices))), 3, matrices)
    messages = encode_adapter_update(arrival), encode_step(step, BLOCK_SIZE), encode_adapter_update(AdapterRemoved(7))
    come, heard, gone, end = through(*messages, num_bytes=num_bytes)
    assert isinstance(come, AdapterAdded)
    assert (come.handle, come.shape, come.num_slots) == (7, arrival.shape, 3)
    assert list(come.matrices) == list(matrices)
    assert all(torch.equal(a, b) for name in matrices for a, b in zip(come.matrices[name], matrices[name], strict=True))
    assert_same(heard, step)
    assert heard is not None
    assert heard.adapters is not None
    assert heard.adapters.tolist() == [0, 7]
    assert (gone, end) == (AdapterRemoved(7), None)
