"""engine/checkpoints/uploads.py on the fake device: weights equal those of a load on the host, whatever is stored."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoints import uploads, weights
from engine.checkpoints.quantized import PackedSlot
from engine.checkpoints.shard_slice import ShardDestination, ShardSlice
from engine.checkpoints.weights import LoadCancelled, Progress, WeightsError
from engine.devices.fake import FakeDevice, FakeEvent
from engine.devices.upload_ring import UploadRing
from engine.layers.shard import Shard
from engine.models.decoder import Decoder
from engine.models.registry import read_config
from tests.engine import one_thread  # noqa: F401
from tests.engine.made_checkpoints import save_random

SLOT_BYTES = 4096


@pytest.fixture(autouse=True)
def small_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ring is smaller than most tensors of these tests."""
    monkeypatch.setattr(
        uploads, "UploadRing", lambda device, total: UploadRing(device, total, slot_bytes=SLOT_BYTES, num_slots=3)
    )


def values(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def save(folder: Path, tensors: dict[str, torch.Tensor]) -> weights.Checkpoint:
    save_file(tensors, folder / "model.safetensors")
    return weights.open_checkpoint(folder)


def loaded(checkpoint: weights.Checkpoint, rooms: dict[str, Any], device: FakeDevice | None) -> dict[str, Any]:
    weights.load(checkpoint, rooms, is_whole=False, device=device)
    assert device is None or device.num_pinned_bytes == 0
    return rooms


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e5m2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_tensors_equal_those_of_a_load_on_the_host(stored: torch.dtype, dtype: torch.dtype, tmp_path: Path) -> None:
    """Contiguous, fused, transposed and scalar destinations, of the stored type and of others."""
    tensors = {"a": values(300, 50, dtype=stored), "b": values(7, dtype=stored), "c": values(3, 90, 40, dtype=stored),
               "d": torch.tensor(2.5).to(stored), "e": torch.empty(0, 4).to(stored)}  # fmt: skip
    checkpoint = save(tmp_path, tensors)

    def rooms() -> dict[str, torch.Tensor]:
        fused = torch.zeros(310, 60, dtype=dtype)
        turned = torch.zeros(3, 40, 90, dtype=dtype).transpose(1, 2)
        shapes: dict[str, tuple[int, ...]] = {"b": (7,), "d": (), "e": (0, 4)}
        plain = {name: torch.zeros(shape, dtype=dtype) for name, shape in shapes.items()}
        return {"a": fused[:300, 3:53], "c": turned, **plain}

    expected, found = loaded(checkpoint, rooms(), None), loaded(checkpoint, rooms(), FakeDevice())
    assert all(torch.equal(found[name], expected[name]) for name in tensors)
    assert torch.equal(found["a"], tensors["a"].to(dtype))


def test_shards_of_outputs_and_inputs_equal_those_of_a_load_on_the_host(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, {"w": values(64, 600)})
    for cut in (ShardSlice(0, ((8, 24), (40, 48)), 64), ShardSlice(1, ((300, 600),), 600)):
        shape = (24, 600) if cut.dim == 0 else (64, 300)
        rooms = [ShardDestination(torch.zeros(shape, dtype=torch.bfloat16), cut) for _ in range(2)]
        for room, device in zip(rooms, (None, FakeDevice()), strict=True):
            loaded(checkpoint, {"w": room}, device)
        assert torch.equal(rooms[0].tensor, rooms[1].tensor)
        assert rooms[0].tensor.any()


def checksum(folder: Path, shard: Shard, device: FakeDevice | None) -> str:
    """Load a model and return the checksum of its weights."""
    checkpoint = weights.open_checkpoint(folder)
    model = Decoder(read_config(folder), torch.bfloat16, torch.device("cpu"), shard)
    weights.load(checkpoint, model.destinations(checkpoint), is_whole=shard.is_whole, device=device)
    digest = hashlib.sha256()
    for destination in model.destinations(checkpoint).values():
        tensor = destination.tensor if isinstance(destination, ShardDestination) else destination
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("kind", ["llama 2", "tied, with biases", "mixtral", "gpt-oss"])
def test_weights_of_a_family_and_of_its_shards_have_the_checksum_of_a_load_on_the_host(
    kind: str, tmp_path: Path
) -> None:
    save_random(kind, tmp_path)
    whole = checksum(tmp_path, Shard(), None)
    for shard in (Shard(), Shard(0, 2), Shard(1, 2)):
        assert checksum(tmp_path, shard, FakeDevice()) == checksum(tmp_path, shard, None)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    files = {name: f"model-{number % 3}.safetensors" for number, name in enumerate(tensors)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in tensors if files[name] == file}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    assert checksum(tmp_path, Shard(), FakeDevice()) == whole


def quantized_tensors(method: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    generator, (num_out, num_in, group) = torch.Generator().manual_seed(0), (64, 256, 32)
    words = torch.randint(-(1 << 31), 1 << 31, (num_in // 8, num_out), dtype=torch.int32, generator=generator)
    if method == "gptq":
        zeros = torch.full((num_in // group, num_out // 8), 0x77777777, dtype=torch.int32)
        scales = torch.full((num_in // group, num_out), 0.01).half()
        tensors = {"w.qweight": words, "w.qzeros": zeros, "w.scales": scales}
        return tensors, {"quant_method": "gptq", "bits": 4, "group_size": group}
    if method == "int8":
        levels = torch.randint(-128, 128, (num_out, num_in), dtype=torch.int8, generator=generator)
        weights_config = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
        groups = {"g": {"targets": ["Linear"], "weights": weights_config}}
        config = {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": groups}
        return {"w.weight": levels, "w.weight_scale": torch.full((num_out, 1), 0.01).bfloat16()}, config
    stored = torch.randn(num_out, num_in, generator=generator).to(torch.float8_e4m3fn)
    return {"w.weight": stored, "w.weight_scale_inv": torch.full((num_out, 1), 0.01)}, {"quant_method": "fp8"}


@pytest.mark.parametrize("method", ["gptq", "int8", "fp8"])
def test_packed_and_expanded_matrices_equal_those_of_a_load_on_the_host(method: str, tmp_path: Path) -> None:
    tensors, config = quantized_tensors(method)
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
    checkpoint = save(tmp_path, tensors)
    packed = [PackedSlot((64, 256)), PackedSlot((64, 256))]
    expanded = [torch.zeros(64, 256, dtype=torch.bfloat16) for _ in range(2)]
    for slot, room, device in zip(packed, expanded, (None, FakeDevice()), strict=True):
        loaded(checkpoint, {"w.weight": slot}, device)
        loaded(checkpoint, {"w.weight": room}, device)
    for name in ("packed", "scales", "zeros", "offsets"):
        host, on_device = (getattr(slot.matrix, name) for slot in packed)
        assert host is on_device is None or torch.equal(host, on_device)
    assert torch.equal(*expanded)
    assert expanded[0].any()


def damage_with(value: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        bad = values(900, 20)
        bad[899, 19] = value
        save_file({"good": values(900, 20), "bad": bad}, folder / "model.safetensors")

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_with(float("nan")), "model.safetensors: bad holds NaN or infinity"),
        (damage_with(-float("inf")), "model.safetensors: bad holds NaN or infinity"),
        (lambda folder: os.truncate(folder / "model.safetensors", 50_000), "model.safetensors ends inside good"),
    ],
)
def test_nan_and_truncated_file_give_the_errors_of_a_load_on_the_host(
    damage: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    tensors = {"good": values(900, 20), "bad": values(900, 20)}
    checkpoint = save(tmp_path, tensors)
    damage(tmp_path)
    for device in (None, FakeDevice()):
        with pytest.raises(WeightsError) as raised:
            weights.load(checkpoint, {name: torch.zeros_like(room) for name, room in tensors.items()}, device=device)
        assert str(raised.value) == message
        assert device is None or device.num_pinned_bytes == 0


def test_nan_of_eight_bit_floats_is_found_on_the_device(tmp_path: Path) -> None:
    for dtype, bits in ((torch.float8_e4m3fn, 0xFF), (torch.float8_e5m2, 0x7C)):
        stored = torch.full((5000,), 3, dtype=torch.uint8)
        stored[4321] = bits
        checkpoint = save(tmp_path, {"w": stored.view(dtype)})
        for room in (torch.zeros(5000, dtype=dtype), torch.zeros(5000)):
            with pytest.raises(WeightsError, match="w holds NaN or infinity"):
                weights.load(checkpoint, {"w": room}, device=FakeDevice())


def test_finite_value_that_the_destination_rounds_to_infinity_is_accepted(tmp_path: Path) -> None:
    room = torch.zeros(2, dtype=torch.bfloat16)
    loaded(save(tmp_path, {"w": torch.full((2,), 3.4e38)}), {"w": room}, FakeDevice())
    assert room.isinf().all()


def test_cancelled_load_leaves_no_pinned_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {f"t{index}": values(1000) for index in range(40)}
    checkpoint, progress, device = save(tmp_path, tensors), Progress(), FakeDevice()
    add = progress.add

    def add_and_cancel(num_bytes: int) -> None:
        add(num_bytes)
        progress.cancel() if progress.done_bytes > 20_000 else None

    monkeypatch.setattr(progress, "add", add_and_cancel)
    with pytest.raises(LoadCancelled, match="of 80000 bytes"):
        weights.load(
            checkpoint, {name: torch.zeros_like(room) for name, room in tensors.items()}, progress, device=device
        )
    assert 20_000 < progress.done_bytes < 60_000
    assert device.num_pinned_bytes == 0


@pytest.mark.parametrize(("max_bytes", "pinned_bytes"), [(SLOT_BYTES, SLOT_BYTES), (0, 0)])
def test_shortage_of_pinned_memory_gives_one_warning_and_the_same_weights(
    max_bytes: int, pinned_bytes: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored, room = values(4000), torch.zeros(4000, dtype=torch.bfloat16)
    loaded(save(tmp_path, {"w": stored}), {"w": room}, FakeDevice(max_pinned_bytes=max_bytes))
    assert torch.equal(room, stored)
    (record,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert (record.pinned_bytes, record.wanted_bytes) == (pinned_bytes, 2 * SLOT_BYTES)  # type: ignore[attr-defined]


def test_fake_device_finds_a_slot_that_is_written_before_its_copy_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, room = values(40_000), torch.zeros(40_000, dtype=torch.bfloat16)
    checkpoint, num_waits, wait = save(tmp_path, {"w": stored}), 0, FakeEvent.wait

    def wait_seldom(event: FakeEvent) -> None:
        nonlocal num_waits
        num_waits += 1
        wait(event) if num_waits % 2 else None

    loaded(checkpoint, {"w": room}, FakeDevice())
    assert torch.equal(room, stored)
    monkeypatch.setattr(FakeEvent, "wait", wait_seldom)
    room.zero_()
    weights.load(checkpoint, {"w": room}, device=FakeDevice())
    assert not torch.equal(room, stored)
