"""The runner owns the device: weights, KV pool and the one forward pass of a step.

Takes index arrays, gives token ids. Knows neither sequences nor why a step looks as it does; nothing here blocks on
anything but arithmetic.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from engine.adapters.cache import AdapterCache
from engine.arrays import Ints
from engine.checkpoints import weights
from engine.checkpoints.placement import Placed
from engine.config import EngineConfig
from engine.devices.assignment import CPU, device_of, free_memory_bytes, take
from engine.inputs import StepInputs, StepOutput, warming_step
from engine.kernels.cpu import CpuKernels
from engine.kernels.cpu_linear import fastest_dtype
from engine.kernels.device import DeviceKernels
from engine.kernels.interface import Kernels, KvPool
from engine.kernels.native.operators import find_native_kernels
from engine.kernels.upload import Upload
from engine.layers.shard import WHOLE, Shard
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.packed_weights import has_packed, keep_packed, memory_bytes
from engine.models.registry import read_config
from engine.sampler import sample, sample_from_device, score

_LIBRARY_BYTES = 256 << 20  # of cuBLAS and NCCL, roughly
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Runner:
    """One model on one device.

    Raises UnsupportedModel or WeightsError while it loads, ValueError for settings that cannot work, MemoryError where
    weights or KV do not fit in what is free; a runner that exists is ready. `layout_tag` names how KV is stored: blocks
    of runners with equal tags and weights are alike.

    One of several ranks has its `shard` of the model, and each runs every step. The leader's `announce` tells the
    others of it; their logits are nothing.
    """

    def __init__(
        self,
        config: EngineConfig,
        kernels: Kernels | None = None,
        shard: Shard = WHOLE,
        announce: Callable[[StepInputs], None] | None = None,
        announce_wipe: Callable[[Ints], None] | None = None,
    ) -> None:
        device = device_of(config.device, shard.rank, shard.size)
        take(device)
        torch.set_num_threads(max(config.num_threads // shard.size, 1))
        self._device = device
        self._announce = announce
        self._announce_wipe = announce_wipe
        self.model_config = read_config(config.model_dir)
        checkpoint = weights.open_checkpoint(config.model_dir).without(self.model_config.ignored)
        kernels = kernels or _kernels_for(device)
        empty = self._check(checkpoint)
        self.dtype = _choose_dtype(config.dtype, checkpoint, self.model_config, shard, kernels, device)
        weight_bytes = memory_bytes(empty, checkpoint, kernels, self.dtype) // shard.size
        free_bytes = free_memory_bytes(device) - weight_bytes
        if free_bytes < 0:
            raise MemoryError(f"in {self.dtype}, the weights take {_gib(-free_bytes)} more than are free")
        with Placed(checkpoint.usual_place):
            self._model = Decoder(self.model_config, self.dtype, device, shard)
        self.block_size = config.block_size
        self.num_blocks = self._num_blocks(config, shard, free_bytes)
        self.max_model_len = self._max_model_len(config.max_model_len)
        self.vocab_size = self.model_config.vocab_size
        self.eos_token_ids = self.model_config.eos_token_ids
        self.has_cheap_multi_token_rows = kernels.has_cheap_multi_token_rows
        self.layout_tag = f"{str(self.dtype).removeprefix('torch.')}-tp{shard.size}-block{self.block_size}"
        if self.model_config.has_long_rope(self.max_model_len):
            self.layout_tag += "-long"
        self.num_forward_tokens = 0
        self.num_steps = 0
        self._load(checkpoint, kernels, is_whole=shard.is_whole)
        with torch.inference_mode():
            self._model.bind(kernels, self.max_model_len)
            self._pool = self._allocate_pool()
            self._attention = self._model.attention(kernels, self._pool)
        _give_memory_back()
        self._upload = None if device == CPU else Upload(device)
        self._sample = sample if device == CPU else sample_from_device
        self.adapters: AdapterCache | None = None  # not on a GPU: their tables are the host's memory
        if device == CPU:
            budget_bytes = config.adapter_memory_bytes // shard.size
            self.adapters = AdapterCache(self._model, self.dtype, budget_bytes, kernels)

    @torch.inference_mode()
    def run(self, inputs: StepInputs) -> StepOutput:
        """One forward pass over `inputs.num_tokens` tokens, and one token for each row that samples."""
        logits = self._logits(inputs)  # float32 [K, V]
        self.num_forward_tokens += inputs.num_tokens
        self.num_steps += 1
        if inputs.scored is None:
            return self._sample(logits, inputs.sampling)
        scores = score(logits, inputs.scored)
        sampled = logits[torch.from_numpy(inputs.scored.sampled).to(logits.device)]
        return replace(self._sample(sampled, inputs.sampling), scores=scores)

    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """The logits themselves, float32 [K, V]: what parity is measured on, and all that ranks behind a leader do."""
        with torch.inference_mode():
            return self._logits(inputs)

    def _logits(self, inputs: StepInputs) -> torch.Tensor:
        if self._announce is not None:
            self._announce(inputs)
        if self._upload is not None:
            inputs = self._uploaded(inputs, self._upload)
        adapted = None
        if inputs.adapters is not None:
            assert self.adapters is not None, "no row has an adapter where there are none"
            adapted = self.adapters.begin(inputs.adapters, inputs.query_starts)
        return self._model.forward(inputs, self._attention, adapted)

    @torch.inference_mode()
    def warm(self) -> None:
        """On a device, one decode and one prefill step of nobody's, in block 0: kernels are compiled, libraries start,
        and ranks that cannot talk fail, before anybody waits for an answer. For the leader, once every rank listens."""
        if self._upload is not None:
            for num_tokens in (1, min(2, self.max_model_len)):
                step = warming_step(num_tokens)
                self._sample(self._logits(step), step.sampling)

    @torch.inference_mode()
    def wipe(self, block_ids: Ints) -> None:
        """Overwrite blocks with zeros, on every rank, and whatever attention copied from the pool, whosever it is."""
        if self._announce_wipe is not None:
            self._announce_wipe(block_ids)
        slots = self._pool.data.unflatten(1, (self.num_blocks, self.block_size))  # [L, N, block size, ·]
        slots.index_fill_(1, torch.from_numpy(block_ids).long().to(slots.device), 0)
        self._attention.wipe()

    @torch.inference_mode()
    def poison_kv(self, block_ids: Sequence[int] | None = None) -> None:
        """Fill blocks (by default all) with NaN: whoever reads KV that its sequence did not write will show it."""
        slots = self._pool.data.unflatten(1, (self.num_blocks, self.block_size))  # [L, N, block size, ·]
        slots[:, slice(None) if block_ids is None else list(block_ids)] = float("nan")

    @staticmethod
    def _uploaded(inputs: StepInputs, upload: Upload) -> StepInputs:
        """The step with what indexes device tensors on the device, by one copy that nobody waits for."""
        longs = (inputs.token_ids, inputs.positions, inputs.slot_mapping, inputs.logit_rows)
        moved = upload.move([each.numpy() for each in longs])
        return replace(inputs, token_ids=moved[0], positions=moved[1], slot_mapping=moved[2], logit_rows=moved[3])

    def _check(self, checkpoint: weights.Checkpoint) -> Decoder:
        """Compare config and headers before memory is taken; the model without any."""
        empty = Decoder(self.model_config, torch.float32, torch.device("meta"))
        weights.check(checkpoint, empty.destinations(checkpoint.entries))
        return empty

    def _load(self, checkpoint: weights.Checkpoint, kernels: Kernels, *, is_whole: bool) -> None:
        """Fill the model's parameters. Nothing else keeps them: as each is bound, what it was loaded into goes. Not in
        inference mode, which would not reach the threads that read."""
        packed = keep_packed(self._model, checkpoint, kernels)
        weights.load(checkpoint, {**self._model.destinations(checkpoint.entries), **packed}, is_whole=is_whole)

    def _num_blocks(self, config: EngineConfig, shard: Shard, free_bytes: int) -> int:
        """Blocks of the KV pool: those asked for, or as many as its memory holds, if they fit in what is free beside
        the weights. Raises ValueError, MemoryError."""
        slot_bytes = self._slot_elements() * self.dtype.itemsize
        num_blocks = config.num_blocks or config.kv_memory_bytes // shard.size // (slot_bytes * max(self.block_size, 1))
        if self.block_size < 1 or num_blocks < 1:
            raise ValueError(f"kv_memory_bytes={config.kv_memory_bytes} does not hold one block of {self.block_size}")
        if self._device != CPU:
            free_bytes -= self._step_bytes(config)
        pool_bytes = num_blocks * self.block_size * slot_bytes
        if pool_bytes > free_bytes:
            wanted, found = _gib(pool_bytes), _gib(free_bytes)
            raise MemoryError(f"kv_memory_bytes: the KV cache takes {wanted}; beside the weights {found} are free")
        return num_blocks

    def _slot_elements(self) -> int:
        return self.model_config.num_layers * self._model.attention_shape.kv_width

    def _step_bytes(self, config: EngineConfig) -> int:
        """What a full step may take on a device beside weights and KV: what a layer makes of its tokens, a few times
        the logits of all rows, and the workspaces of libraries."""
        *of_layer, head = self._model.linear_shapes()
        widths = sum(num_out for num_out, _ in of_layer) + 4 * head[1]
        logits = 4 * config.max_sequences * self.model_config.vocab_size
        return config.max_step_tokens * widths * 4 + 3 * logits + _LIBRARY_BYTES

    def _max_model_len(self, wanted: int) -> int:
        """The longest sequence: what was asked, else the model's context; never more than the pool holds."""
        longest = self.model_config.max_positions
        if wanted > longest:
            raise ValueError(f"max_model_len={wanted}: the model's context is {longest}")
        return min(wanted or longest, self.num_blocks * self.block_size)

    def _allocate_pool(self) -> KvPool:
        num_slots, width = self.num_blocks * self.block_size, self._model.attention_shape.kv_width
        shape = (self.model_config.num_layers, num_slots, width)  # [L, slots, ·]
        data = torch.empty(shape, dtype=self.dtype, device=self._device)
        return KvPool(data, self.block_size)


def settle_dtype(config: EngineConfig, shard: Shard) -> EngineConfig:
    """`config` with its precision decided, so that every rank has the same. Raises as Runner does."""
    if config.dtype != "auto":
        return config
    model_config, device = read_config(config.model_dir), device_of(config.device, shard.rank, shard.size)
    checkpoint = weights.open_checkpoint(config.model_dir).without(model_config.ignored)
    dtype = _choose_dtype("auto", checkpoint, model_config, shard, _kernels_for(device), device)
    return replace(config, dtype=str(dtype).removeprefix("torch."))


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.1f} GiB"


def _give_memory_back() -> None:
    """What loading has freed, to the system: the allocator would keep it for a next time that does not come."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _kernels_for(device: torch.device) -> Kernels:
    if device != CPU:
        return DeviceKernels()
    return find_native_kernels() or CpuKernels()


def _choose_dtype(
    wanted: str,
    checkpoint: weights.Checkpoint,
    config: ModelConfig,
    shard: Shard,
    kernels: Kernels,
    device: torch.device,
) -> torch.dtype:
    """ "auto" takes bfloat16 where weights can stay packed, keeps float32 checkpoints exact and gives 16-bit ones
    whichever of the two is fast on this machine."""
    if wanted in _DTYPES:
        return _DTYPES[wanted]
    if wanted != "auto":
        raise ValueError(f"dtype={wanted!r}: expected auto, float32 or bfloat16")
    empty = Decoder(config, torch.float32, torch.device("meta"), shard)
    if has_packed(empty, checkpoint, kernels, torch.bfloat16):
        return torch.bfloat16
    if checkpoint.dtype == torch.float32:
        return torch.float32
    if device != CPU:
        return torch.bfloat16
    return fastest_dtype(empty.linear_shapes())
