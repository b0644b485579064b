"""Steps on a device: state that stays there, one upload per step, captured graphs, and results that arrive later.

The block tables and the last token of every slot stay on the device. A step uploads one buffer (`step_buckets.py`)
and replays a graph for its bucket. The graph ends with the sampler, which stores the tokens where the next step reads
them, so that step can be launched before the host knows them. A bucket is captured when it is used for the second time;
until then, and for steps that fit into no bucket, the same work is queued operator by operator.

Letters: T tokens, K rows of logits, V vocabulary, S slots.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
import torch

from engine.arrays import Ints, Longs, ceil_div
from engine.devices.device import Device, Event, Graph
from engine.inputs import ImageRows, StepInputs, StepOutput
from engine.kernels.launch import DevicePlan, write_plans
from engine.kernels.mutual_attention import with_mutual_attention
from engine.launched_step import FinishedOutput, PendingOutput
from engine.sampling.device import Sampler
from engine.sampling.packed import NUM_COLUMNS, pack
from engine.step_buckets import Bucket, Buckets

logger = logging.getLogger(__name__)

_NUM_BUFFERS = 3  # number of steps whose upload or result may be in progress
_NO_ROWS: Ints = np.empty(0, np.int32)
_NO_UPDATES: tuple[Longs, Ints] = (np.empty(0, np.int64), _NO_ROWS)


@dataclass(frozen=True, eq=False)
class DeviceStep(DevicePlan):
    """The inputs of one forward pass, all on the device. See `engine.models.decoder.ModelStep`."""

    token_ids: torch.Tensor  # int64 [T]
    positions: torch.Tensor  # int64 [T]
    logit_rows: torch.Tensor  # int64 [K]
    needs_every_logit: bool  # the shape does not tell: a bucket can have as many rows of logits as tokens
    images: ImageRows | None = None
    axis_positions: torch.Tensor | None = None  # int64 [3, T]


@dataclass(frozen=True)
class StepLimits:
    """The largest step, and the size of the state: `num_slots` sequences of `max_blocks` blocks each. `chunk_tokens` is
    the number of tokens of an entry of the chunk plan."""

    max_tokens: int
    num_slots: int
    max_blocks: int
    chunk_tokens: int


class _Variant(NamedTuple):
    """The work that one graph captures: a bucket and its sampling. If `samples` is False, the host samples."""

    bucket: Bucket
    samples: bool
    has_top_k: bool
    has_top_p: bool


class _Results(NamedTuple):
    logits: torch.Tensor  # [K, V]
    tokens: torch.Tensor | None  # int32 [2, K]: tokens, and flags of rows that are not finite


class _Captured(NamedTuple):
    graph: Graph
    results: _Results


@dataclass(eq=False)
class _HostBuffers:
    """Pinned memory of one step in flight."""

    upload: torch.Tensor  # int32
    tokens: torch.Tensor  # int32, two for each row
    uploaded: Event
    started: Event
    finished: Event
    is_used: bool = False

    def wait(self) -> float:
        """Wait for the step and return its microseconds on the device."""
        self.finished.wait()
        return self.finished.us_since(self.started)


@dataclass(frozen=True, eq=False)
class _SampledLater:
    """See `engine.launched_step.PendingOutput`."""

    buffers: _HostBuffers
    num_rows: int  # number of rows of the step
    num_padded: int  # number of rows of its bucket

    def wait(self) -> StepOutput:
        device_us = self.buffers.wait()
        token_ids, flags = self.buffers.tokens.numpy()[: 2 * self.num_padded].reshape(2, -1)[:, : self.num_rows].copy()
        is_failed = flags > 0
        return StepOutput(token_ids, is_failed if is_failed.any() else None, device_us=device_us)


class DeviceSteps:
    """Launches the steps of one model.

    `forward` returns logits [K, V] of a step, with the step's inputs if it has images or adapters; `sample_now` returns
    the output of a step that needs values on the host.
    """

    def __init__(
        self,
        device: Device,
        forward: Callable[[DeviceStep, StepInputs | None], torch.Tensor],
        sampler: Sampler,
        sample_now: Callable[[torch.Tensor, StepInputs], StepOutput],
        limits: StepLimits,
        *,
        has_graphs: bool,
    ) -> None:
        self.num_steps: Counter[str] = Counter()  # "graph", "eager", and "failed" captures
        self._device, self._forward, self._sampler, self._sample_now = device, forward, sampler, sample_now
        self._limits, self._has_graphs = limits, has_graphs
        self._buckets = Buckets(limits.max_tokens, limits.num_slots, limits.chunk_tokens)
        self._num_entries = limits.num_slots * limits.max_blocks
        self._buffer = self._zeros(self._buckets.largest())
        self._tables = self._zeros(self._num_entries + 1)  # the last entry receives the padding of updates
        self._last_tokens = self._zeros(limits.num_slots)
        self._graphs: dict[_Variant, _Captured | None] = {}  # None: the capture failed
        self._was_run: set[_Variant] = set()
        self._ring = cycle([self._new_buffers() for _ in range(_NUM_BUFFERS)])

    def launch(self, inputs: StepInputs) -> PendingOutput:
        """Queue a step. Returns without waiting for it, unless its sampling needs values on the host."""
        buffers = next(self._ring)
        if buffers.is_used:
            buffers.uploaded.wait()  # the memory is rewritten only after its last copy has ended
        buffers.is_used = True
        bucket, is_listed = self._bucket_for(inputs)
        sampling = inputs.sampling
        variant = _Variant(
            bucket,
            samples=inputs.prompt_logprobs is None and not sampling.needs_host,
            has_top_k=bool(sampling.top_k.any()),
            has_top_p=bool((sampling.top_p < 1).any()),
        )
        host = self._fill(bucket, inputs, buffers)
        buffers.started.record()
        self._buffer[: len(host)].copy_(host, non_blocking=True)
        buffers.uploaded.record()
        results = self._run_or_replay(variant, inputs, is_listed=is_listed)
        if results.tokens is None:
            return self._sampled_now(results.logits, inputs, buffers)
        buffers.tokens[: results.tokens.numel()].copy_(results.tokens.flatten(), non_blocking=True)
        buffers.finished.record()
        return _SampledLater(buffers, sampling.num_rows, bucket.num_rows)

    def capture_first(self) -> None:
        """Capture the most frequent buckets with steps of padding. To be called before the first launch."""
        for bucket in self._buckets.first() if self._has_graphs else ():
            host = torch.zeros(bucket.num_ints, dtype=torch.int32)
            self._fill_padding(bucket.views(host.numpy()))
            self._buffer[: len(host)].copy_(host)
            variant = _Variant(bucket, samples=True, has_top_k=False, has_top_p=False)
            self._run(variant)
            self._capture(variant)

    # ── the host's part ──

    def _bucket_for(self, inputs: StepInputs) -> tuple[Bucket, bool]:
        """Return the bucket of a step, and False if it is the step's own shape."""
        chunk_tokens = np.diff(_attention_rows(inputs)[1])[inputs.num_decode_rows :]
        num_chunks = int(ceil_div(chunk_tokens, self._limits.chunk_tokens).sum())
        own = Bucket(inputs.num_tokens, len(inputs.logit_rows), inputs.num_decode_rows, num_chunks)
        is_plain = inputs.images is None and inputs.adapters is None and inputs.axis_positions is None
        bucket = self._buckets.find(own) if is_plain else None
        return (own, False) if bucket is None else (bucket, True)

    def _fill(self, bucket: Bucket, inputs: StepInputs, buffers: _HostBuffers) -> torch.Tensor:
        """Write a step to a buffer on the host. Return the part that is uploaded."""
        if bucket.num_ints > len(buffers.upload):  # a step of its own shape
            self._grow(buffers, bucket.num_ints)
        host = buffers.upload[: bucket.num_ints]
        views = bucket.views(host.numpy())
        slots = inputs.slots
        assert slots is not None, "steps on a device belong to a slot table"
        self._fill_padding(views)
        num_tokens, num_rows = inputs.num_tokens, len(inputs.logit_rows)
        token_slots = np.repeat(slots, np.diff(inputs.query_starts)) if num_tokens > inputs.num_rows else slots
        logit_rows = inputs.logit_rows.numpy()
        views["token_ids"][:num_tokens] = inputs.token_ids.numpy()
        views["positions"][:num_tokens] = inputs.positions.numpy()
        views["slot_mapping"][:num_tokens] = inputs.slot_mapping.numpy()
        views["token_slots"][:num_tokens] = token_slots
        views["logit_rows"][:num_rows] = logit_rows
        if inputs.sampling.num_rows == num_rows:
            views["row_slots"][:num_rows] = token_slots[logit_rows]
            pack(inputs.sampling, views["sampling"].view(np.float32).reshape(NUM_COLUMNS, -1))
        chunk_plan, decode_plan = views["chunk_plan"].reshape(-1, 4), views["decode_plan"].reshape(-1, 3)
        write_plans(
            chunk_plan, decode_plan, *_attention_rows(inputs), inputs.num_decode_rows, self._limits.chunk_tokens
        )
        entries, blocks = inputs.block_updates or _NO_UPDATES
        num_updates = min(len(entries), len(views["update_entries"]))
        views["update_entries"][:num_updates] = entries[:num_updates]
        views["update_blocks"][:num_updates] = blocks[:num_updates]
        if len(entries) > num_updates:  # many prompts at once
            on = self._device.torch_device
            indices, values = torch.from_numpy(entries[num_updates:]), torch.from_numpy(blocks[num_updates:])
            self._tables.index_copy_(0, indices.to(on), values.to(on))
        return host

    def _fill_padding(self, views: dict[str, Ints]) -> None:
        """Write a step without rows. The plans are padded when they are written."""
        for name in ("token_ids", "positions", "token_slots", "logit_rows", "sampling", "update_blocks"):
            views[name][:] = 0
        views["slot_mapping"][:] = -1
        views["row_slots"][:] = -1
        views["update_entries"][:] = self._num_entries

    def _sampled_now(self, logits: torch.Tensor, inputs: StepInputs, buffers: _HostBuffers) -> PendingOutput:
        """Sample with values on the host, and remember the tokens for the next step."""
        output = self._sample_now(logits[: len(inputs.logit_rows)].float(), inputs)
        buffers.finished.record()
        rows = inputs.logit_rows.numpy()
        if inputs.prompt_logprobs is not None:
            rows = rows[inputs.prompt_logprobs.sampled]
        assert inputs.slots is not None
        slots = np.repeat(inputs.slots, np.diff(inputs.query_starts))[rows].astype(np.int64)
        on = self._device.torch_device
        self._last_tokens.index_copy_(0, torch.from_numpy(slots).to(on), torch.from_numpy(output.token_ids).to(on))
        return FinishedOutput(replace(output, device_us=buffers.wait()))

    # ── the device's part ──

    def _run_or_replay(self, variant: _Variant, inputs: StepInputs, *, is_listed: bool) -> _Results:
        """Run the forward pass and the sampler on the uploaded buffer."""
        captured = None
        if is_listed and self._has_graphs:
            if variant in self._was_run and variant not in self._graphs:
                self._capture(variant)  # the run before has loaded every kernel
            captured = self._graphs.get(variant)
        if captured is not None:
            self.num_steps["graph"] += 1
            captured.graph.replay()
            return captured.results
        self.num_steps["eager"] += 1
        if is_listed:
            self._was_run.add(variant)
        return self._run(variant, None if is_listed else inputs)

    def _capture(self, variant: _Variant) -> None:
        """Capture a bucket. If that fails, the bucket runs eagerly from now on."""
        try:
            self._graphs[variant] = _Captured(*self._device.capture(lambda: self._run(variant)))
        except RuntimeError as error:
            self.num_steps["failed"] += 1
            self._graphs[variant] = None
            logger.warning("graph was not captured", extra={"bucket": str(variant), "error": str(error)[:500]})

    def _run(self, variant: _Variant, inputs: StepInputs | None = None) -> _Results:
        """Queue the forward pass and the sampler of the step in the buffer. This is what graphs capture; `inputs` are
        given for a step of its own shape."""
        bucket, limits = variant.bucket, self._limits
        ints = {name: self._buffer[part] for name, part in bucket.fields.items()}
        self._tables.index_copy_(0, ints["update_entries"].long(), ints["update_blocks"])
        sampled = self._last_tokens.index_select(0, ints["token_slots"])
        step = DeviceStep(
            chunk_plan=ints["chunk_plan"].view(-1, 4),
            decode_plan=ints["decode_plan"].view(-1, 3),
            block_tables=self._tables[: self._num_entries].view(limits.num_slots, limits.max_blocks),
            slot_mapping=ints["slot_mapping"].long(),
            token_ids=torch.where(ints["token_ids"] < 0, sampled, ints["token_ids"]).long(),
            positions=ints["positions"].long(),
            logit_rows=ints["logit_rows"].long(),
            needs_every_logit=bucket.is_decode,
            **({} if inputs is None else self._images_of(inputs)),
        )
        logits = self._forward(step, inputs)
        if not variant.samples:
            return _Results(logits, None)
        columns = ints["sampling"].view(torch.float32).view(NUM_COLUMNS, bucket.num_rows)
        tokens = self._sampler(
            logits,
            columns,
            ints["row_slots"],
            self._last_tokens,
            has_top_k=variant.has_top_k,
            has_top_p=variant.has_top_p,
        )
        return _Results(logits, tokens)

    def _images_of(self, inputs: StepInputs) -> dict[str, Any]:
        """Return the fields of a step that images have. The plan already has the rows of images."""
        axes, images = inputs.axis_positions, inputs.images
        return {
            "images": None if images is None else replace(images, mutual=None),
            "axis_positions": None if axes is None else axes.to(self._device.torch_device),
        }

    def _zeros(self, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.int32, device=self._device.torch_device)

    def _new_buffers(self) -> _HostBuffers:
        device, most_rows = self._device, max(self._limits.num_slots, self._limits.max_tokens) + 64
        upload, tokens = device.pinned(len(self._buffer)), device.pinned(2 * most_rows)
        return _HostBuffers(upload, tokens, device.event(), device.event(), device.event())

    def _grow(self, buffers: _HostBuffers, num_ints: int) -> None:
        """Enlarge the buffers for a step that is larger than every bucket. Graphs that read the old device buffer are
        dropped, and captured again later."""
        buffers.upload = self._device.pinned(num_ints)
        if num_ints > len(self._buffer):
            self._graphs.clear()
            self._buffer = self._zeros(num_ints)


def _attention_rows(inputs: StepInputs) -> tuple[Ints, Ints, Ints]:
    """Return slots, query starts and context lengths of the rows as attention sees them."""
    assert inputs.slots is not None, "steps on a device belong to a slot table"
    if inputs.images is None or inputs.images.mutual is None:
        return inputs.slots, inputs.query_starts, inputs.context_lens
    seen = with_mutual_attention(inputs, inputs.images.mutual)
    return inputs.slots[seen.rows], seen.query_starts, seen.context_lens
