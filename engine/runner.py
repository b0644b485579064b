"""Runner: one model on one device, with its weights, KV pool, forward pass and sampling.

Takes index arrays and returns token ids. Knows neither sequences nor scheduling, and waits for nothing but the device.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from engine.adapters.cache import AdapterCache
from engine.arrays import Ints, ceil_div
from engine.checkpoints import weights
from engine.checkpoints.alignment import AlignedAllocation
from engine.config import AUTO, DRAFT, FLOAT8_KV, KV_DTYPES, EngineConfig
from engine.device_steps import DeviceStep, DeviceSteps, StepLimits
from engine.devices import memory
from engine.devices.arena import Arena, FixedArena, SleepSizes
from engine.devices.assignment import CPU, device_of, free_memory_bytes, make_current
from engine.devices.cuda import CudaDevice
from engine.devices.cuda_memory import find_cuda_memory
from engine.devices.device import Device
from engine.devices.host_arena import HostArena
from engine.devices.reachable import find_tensors
from engine.devices.virtual_arena import VirtualArena
from engine.inputs import StepInputs, StepOutput, warmup_step
from engine.kernels.cpu import CpuKernels
from engine.kernels.cpu_linear import fastest_dtype
from engine.kernels.device import DeviceKernels
from engine.kernels.interface import FLOAT8, KvPool
from engine.kernels.kernel_cache import Compilations
from engine.kernels.launch import split_rule
from engine.kernels.native.chosen import find_native_kernels
from engine.kernels.paged_attention import PagedAttention
from engine.kernels.reference import Kernels
from engine.kernels.upload import Upload
from engine.launched_step import FinishedOutput, PendingOutput
from engine.layers.shard import WHOLE, Shard
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.packed_weights import has_packed, keep_packed, memory_bytes
from engine.models.registry import read_config
from engine.phases import Phases
from engine.sampler import find_sampler, sample, sample_on_device
from engine.sampling.logprobs import compute_prompt_logprobs

logger = logging.getLogger(__name__)

_LIBRARY_BYTES = 256 << 20  # approximate size of cuBLAS and NCCL
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Runner:
    """One loaded model, or one rank's `shard` of it.

    Every rank runs every step. The leading rank's `broadcast_step` and `broadcast_wipe` send it to the others, whose
    logits are empty. `layout_tag` identifies the KV format: blocks of runners with equal tags and weights are
    interchangeable.

    The constructor loads the model. Raises UnsupportedModel or WeightsError, ValueError for invalid settings,
    MemoryError if weights or KV do not fit in free memory.
    """

    def __init__(
        self,
        config: EngineConfig,
        kernels: Kernels | None = None,
        shard: Shard = WHOLE,
        broadcast_step: Callable[[StepInputs], None] | None = None,
        broadcast_wipe: Callable[[Ints], None] | None = None,
        steps_device: Device | None = None,
        arena: Arena | None = None,
    ) -> None:
        """`steps_device` receives the weights and runs steps that are launched ahead; by default a GPU does. Ranks that
        share a model run their steps synchronously. `arena` gets the memory of weights and KV; by default it depends on
        the device and on `config.sleeps`."""
        phases = Phases()
        device = device_of(config.device, shard.rank, shard.size)
        make_current(device)
        phases.end("context")
        self._compilations = Compilations() if device.type == "cuda" else None
        torch.set_num_threads(max(config.num_threads // shard.size, 1))
        self._device = device
        self._broadcast_step = broadcast_step
        self._broadcast_wipe = broadcast_wipe
        self.model_config = read_config(config.model_dir)
        checkpoint = weights.open_checkpoint(config.model_dir).without(self.model_config.ignored)
        kernels = kernels or _kernels_for(device, config.attention)
        empty = self._check(checkpoint)
        self.dtype = _choose_dtype(config.dtype, checkpoint, self.model_config, shard, kernels, device)
        self._kv_dtype = _choose_kv_dtype(config.kv_dtype, self.dtype, kernels, device)
        self.weight_bytes = memory_bytes(empty, checkpoint, kernels, self.dtype)
        needed_bytes, free_bytes = self.weight_bytes // shard.size, free_memory_bytes(device)
        memory.check_weights(needed_bytes, free_bytes, str(self.dtype), device)
        free_bytes -= needed_bytes
        phases.end("headers")
        self._arena = arena or _find_arena(config, device, shard, self.weight_bytes)
        self.can_sleep = self._arena.can_sleep
        with AlignedAllocation(checkpoint.common_alignment):
            self._model = Decoder(self.model_config, self.dtype, device, shard)
        self.block_size = config.block_size
        self.num_blocks = self._num_blocks(config, shard, free_bytes)
        self.kv_bytes = self.num_blocks * self.block_size * self._slot_bytes() * shard.size
        self.max_model_len = self._max_model_len(config.max_model_len)
        self.vocab_size = self.model_config.vocab_size
        self.eos_token_ids = self.model_config.eos_token_ids
        self.has_cheap_multi_token_rows = kernels.has_cheap_multi_token_rows
        self.num_forward_tokens = 0
        self.num_steps = 0
        phases.end("allocation")
        if steps_device is None and device != CPU:
            steps_device = CudaDevice(device)
        phases.seconds |= self._load(checkpoint, kernels, steps_device, is_whole=shard.is_whole)
        phases.skip()
        with torch.inference_mode():
            self._model.bind(kernels)
            phases.end("binding")
            self._model.make_position_tables(kernels, self.max_model_len)
            phases.end("rotary")
            self._arena.adopt(find_tensors(self._model, device))
            with self._arena.kv_memory():
                pool = self._allocate_pool(kernels)
            self._pool = self._with_scales(pool, checkpoint)
            self._attention = self._model.attention(kernels, self._pool)
        _trim_heap()
        name = str(self.dtype).removeprefix("torch.")
        if self._kv_dtype == FLOAT8:
            name += "+fp8_kv"
        self.layout_tag = f"{name}-tp{shard.size}-block{self.block_size}-{self._pool.layout}"
        if self.model_config.has_long_rope(self.max_model_len):
            self.layout_tag += "-long"
        self._upload = None if device == CPU else Upload(device)
        self._sample = sample if device == CPU else sample_on_device
        self.adapters = AdapterCache(self._model, self.dtype, config.adapter_memory_bytes // shard.size, kernels)
        self.can_run_ahead = steps_device is not None and shard.is_whole
        self._steps = None
        if steps_device is not None and self.can_run_ahead:
            self._steps = self._device_steps(steps_device, config)
        phases.end("allocation")
        self.load_phases = phases

    @torch.inference_mode()
    def launch(self, inputs: StepInputs) -> PendingOutput:
        """Run a step, or queue it on the device. `wait` returns its output."""
        if self._steps is None:
            return FinishedOutput(self.run(inputs))
        self.num_forward_tokens += inputs.num_tokens
        self.num_steps += 1
        return self._steps.launch(inputs)

    @torch.inference_mode()
    def run(self, inputs: StepInputs) -> StepOutput:
        """Run one forward pass and sample one token for each row that samples."""
        logits = self._logits(inputs)  # float32 [K, V]
        self.num_forward_tokens += inputs.num_tokens
        self.num_steps += 1
        return self._sampled(logits, inputs)

    def _sampled(self, logits: torch.Tensor, inputs: StepInputs) -> StepOutput:
        """Return the output of a step for its logits, float32 [L, V]."""
        wanted = inputs.prompt_logprobs
        if wanted is None:
            return self._sample(logits, inputs.sampling)
        prompt_logprobs = compute_prompt_logprobs(logits, wanted)
        sampled = logits[torch.from_numpy(wanted.sampled).to(logits.device)]
        return replace(self._sample(sampled, inputs.sampling), prompt_logprobs=prompt_logprobs)

    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """Return the logits, float32 [L, V]. Used by ranks behind a leader, draft models and parity tests."""
        with torch.inference_mode():
            return self._logits(inputs)

    def _logits(self, inputs: StepInputs) -> torch.Tensor:
        if self._broadcast_step is not None:
            self._broadcast_step(inputs)
        adapted = None
        if inputs.adapters is not None:
            adapted = self.adapters.begin(inputs.adapters, inputs.query_starts, inputs.logit_rows.numpy())
        if self._upload is not None:
            inputs = self._uploaded(inputs, self._upload)
        return self._model.forward(inputs, self._attention, adapted)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run one decode and one prefill step in block 0, if the device is a GPU.

        Compiles kernels and starts libraries before the first request, and fails if ranks cannot communicate. To be
        called on the leading rank once every rank is ready.
        """
        self.load_phases.skip()
        if self._steps is not None:
            self._steps.capture_first()
        elif self._upload is not None:
            for num_tokens in (1, min(2, self.max_model_len)):
                step = warmup_step(num_tokens)
                self._sample(self._logits(step), step.sampling)
        self.load_phases.end("capture")
        if self._compilations is not None and self._compilations.num_kernels:
            self.load_phases.seconds["compilation"] = self._compilations.seconds
            logger.info("kernels were compiled", extra={"num_kernels": self._compilations.num_kernels})

    @torch.inference_mode()
    def wipe(self, block_ids: Ints) -> None:
        """Overwrite blocks with zeros on every rank, and all copies that attention made of any block."""
        if self._broadcast_wipe is not None:
            self._broadcast_wipe(block_ids)
        self._pool.zero_blocks(block_ids)

    @torch.inference_mode()
    def sleep(self, snapshot: str) -> SleepSizes:
        """Give the memory of weights and KV cache back until `wake`. No step may be queued. See `Arena.sleep`."""
        return self._arena.sleep(snapshot)

    @torch.inference_mode()
    def wake(self) -> int:
        """Get the weights back at the same addresses; the KV cache is empty. See `Arena.wake`."""
        return self._arena.wake()

    @torch.inference_mode()
    def poison_kv(self, block_ids: Sequence[int] | None = None) -> None:
        """Fill blocks (by default all) with NaN, so that reading KV that was not written shows. For tests."""
        self._pool.poison(block_ids)

    @staticmethod
    def _uploaded(inputs: StepInputs, upload: Upload) -> StepInputs:
        """Return the step with its index tensors on the device, copied asynchronously in one piece."""
        longs = (inputs.token_ids, inputs.positions, inputs.slot_mapping, inputs.logit_rows)
        moved = upload.move([each.numpy() for each in longs])
        axes = inputs.axis_positions
        return replace(
            inputs,
            token_ids=moved[0],
            positions=moved[1],
            slot_mapping=moved[2],
            logit_rows=moved[3],
            axis_positions=None if axes is None else axes.to(moved[1].device),
        )

    def _check(self, checkpoint: weights.Checkpoint) -> Decoder:
        """Check the checkpoint's headers against the config before memory is allocated. Return the model on `meta`."""
        empty = Decoder(self.model_config, torch.float32, torch.device("meta"))
        weights.check(checkpoint, empty.destinations(checkpoint))
        return empty

    def _load(
        self, checkpoint: weights.Checkpoint, kernels: Kernels, device: Device | None, *, is_whole: bool
    ) -> dict[str, float]:
        """Load the model's parameters and return the seconds of each phase. Not in inference mode: that is
        thread-local, and threads read the files."""
        packed = keep_packed(self._model, checkpoint, kernels)
        destinations = {**self._model.destinations(checkpoint), **packed}
        return weights.load(checkpoint, destinations, is_whole=is_whole, device=device)

    def _num_blocks(self, config: EngineConfig, shard: Shard, free_bytes: int) -> int:
        """Return the size of the KV pool in blocks. Raises ValueError, or MemoryError if it does not fit in memory."""
        slot_bytes = self._slot_bytes()
        if self._device != CPU:
            free_bytes -= self._step_bytes(config) + config.adapter_memory_bytes // shard.size
        size = memory.PoolSize(
            config.kv_memory_bytes // shard.size, config.is_kv_auto, slot_bytes, self.block_size, config.max_sequences,
            config.max_model_len or self.model_config.max_positions,
        )  # fmt: skip
        num_blocks = config.num_blocks or memory.num_blocks(size, free_bytes, self._device)
        if self.block_size < 1 or num_blocks < 1:
            block = f"one block of {self.block_size} tokens"
            raise ValueError(f"kv_memory_bytes={config.kv_memory_bytes} is too small for {block}")
        memory.check_pool(num_blocks * self.block_size * slot_bytes, free_bytes, self._device)
        return num_blocks

    def _slot_bytes(self) -> int:
        """Return the KV memory of one token."""
        return self.model_config.num_layers * self._model.attention_shape.kv_width * self._kv_dtype.itemsize

    def _device_steps(self, device: Device, config: EngineConfig) -> DeviceSteps:
        attention = self._attention
        assert isinstance(attention, PagedAttention), "a device has paged attention"
        limits = StepLimits(
            config.max_step_tokens,
            config.max_sequences,
            ceil_div(self.max_model_len, self.block_size),
            attention.chunk_tokens,
        )
        sampler = find_sampler(device.torch_device)
        with torch.inference_mode():
            return DeviceSteps(device, self._forward, sampler, self._sampled, limits, has_graphs=config.has_graphs)

    def _forward(self, step: DeviceStep, inputs: StepInputs | None) -> torch.Tensor:
        """Return the logits of a step on the device, [K, V]."""
        adapted = None
        if inputs is not None and inputs.adapters is not None:
            adapted = self.adapters.begin(inputs.adapters, inputs.query_starts, inputs.logit_rows.numpy())
        return self._model.forward(step, self._attention, adapted, keeps_dtype=True)

    def _step_bytes(self, config: EngineConfig) -> int:
        """Estimate the GPU memory of a full step: activations of a layer, logits of all rows, partial results of
        attention, library workspaces. Graphs share it."""
        *of_layer, head = self._model.linear_shapes()
        widths = sum(num_out for num_out, _ in of_layer) + 4 * head[1]
        logits = 4 * config.max_sequences * self.model_config.vocab_size
        shape = self._model.attention_shape
        parts = config.max_sequences * split_rule(shape).max_parts * (shape.output_width + shape.num_heads)
        return config.max_step_tokens * widths * 4 + 3 * logits + 4 * parts + _LIBRARY_BYTES

    def _max_model_len(self, wanted: int) -> int:
        """Return the configured context or the model's, at most what the pool holds. Raises ValueError if too large."""
        longest = self.model_config.max_positions
        if wanted > longest:
            raise ValueError(f"max_model_len must be at most {longest}, the model's context (got {wanted})")
        return min(wanted or longest, self.num_blocks * self.block_size)

    def _allocate_pool(self, kernels: Kernels) -> KvPool:
        shape, num_layers = self._model.attention_shape, self.model_config.num_layers
        return kernels.allocate_pool(shape, num_layers, self.num_blocks, self.block_size, self._kv_dtype, self._device)

    def _with_scales(self, pool: KvPool, checkpoint: weights.Checkpoint) -> KvPool:
        """Return the pool with the scales of 8-bit floats, if that is its format."""
        if self._kv_dtype != FLOAT8:
            return pool
        return replace(pool, scales=self._model.kv_scales(checkpoint).to(self._device))


def settle_dtype(config: EngineConfig, shard: Shard) -> EngineConfig:
    """Return `config` with dtype "auto" resolved, so that all ranks use the same type. Raises as Runner does."""
    if config.dtype != "auto":
        return config
    model_config, device = read_config(config.model_dir), device_of(config.device, shard.rank, shard.size)
    checkpoint = weights.open_checkpoint(config.model_dir).without(model_config.ignored)
    dtype = _choose_dtype("auto", checkpoint, model_config, shard, _kernels_for(device, config.attention), device)
    return replace(config, dtype=str(dtype).removeprefix("torch."))


def _trim_heap() -> None:
    """Return the memory that loading has freed to the operating system."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _find_arena(config: EngineConfig, device: torch.device, shard: Shard, weight_bytes: int) -> Arena:
    """Return the memory of a model. Only a whole model can sleep: ranks would have to wake together or not at all, and
    a draft model has memory of its own."""
    if not (config.sleeps and shard.is_whole) or config.speculation.startswith(DRAFT):
        return FixedArena()
    if device == CPU:
        return HostArena(weight_bytes)
    memory = find_cuda_memory(device)
    return FixedArena() if memory is None else VirtualArena(memory)


def _kernels_for(device: torch.device, attention: str) -> Kernels:
    if device != CPU:
        return DeviceKernels(attention)
    return find_native_kernels() or CpuKernels()


def _choose_kv_dtype(wanted: str, dtype: torch.dtype, kernels: Kernels, device: torch.device) -> torch.dtype:
    """Return the type of keys and values in a model of `dtype`."""
    if wanted not in KV_DTYPES:
        raise ValueError(f"kv_dtype must be {' or '.join(KV_DTYPES)} (got {wanted!r})")
    fault = kernels.float8_fault() if wanted == FLOAT8_KV else ""
    if wanted == FLOAT8_KV and dtype == torch.float32 and device != CPU:
        fault = "a GPU needs a model in bfloat16 (this one computes in float32)"
    if fault:
        raise ValueError(f"HEARTH_NODE_KV_DTYPE (--kv-dtype) {wanted}: {fault}; use {AUTO}")
    return FLOAT8 if wanted == FLOAT8_KV else dtype


def _choose_dtype(
    wanted: str,
    checkpoint: weights.Checkpoint,
    config: ModelConfig,
    shard: Shard,
    kernels: Kernels,
    device: torch.device,
) -> torch.dtype:
    """Resolve dtype "auto" to the fastest type that keeps the checkpoint's accuracy, and log the reason.

    bfloat16 if weights can stay packed or on a GPU, float32 for float32 checkpoints, otherwise the faster of the two.
    """
    if wanted in _DTYPES:
        return _DTYPES[wanted]
    if wanted != "auto":
        raise ValueError(f"dtype must be auto, float32 or bfloat16 (got {wanted!r})")
    empty = Decoder(config, torch.float32, torch.device("meta"), shard)
    if has_packed(empty, checkpoint, kernels, torch.bfloat16):
        dtype, reason = torch.bfloat16, "quantized weights stay packed"
    elif checkpoint.dtype == torch.float32:
        dtype, reason = torch.float32, "the checkpoint is float32"
    elif device != CPU:
        dtype, reason = torch.bfloat16, "fastest on a GPU"
    else:
        dtype, reason = fastest_dtype(kernels.linear, empty.linear_shapes()), "fastest in a trial on this CPU"
    logger.info("dtype chosen", extra={"dtype": str(dtype).removeprefix("torch."), "reason": reason})
    return dtype
