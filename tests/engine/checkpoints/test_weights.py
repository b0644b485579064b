"""engine/checkpoints/weights.py: valid files are loaded exactly, damaged ones are rejected with one clear line."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from engine.checkpoints import dense, stored, weights
from engine.checkpoints.weights import LoadCancelled, Progress, WeightsError
from tests.engine import one_thread  # noqa: F401
from tests.processes import open_files

F32_2X2 = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


def write(path: Path, header: Any, data: bytes = b"", header_bytes: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if header_bytes is None else header_bytes
    path.write_bytes(size.to_bytes(8, "little") + text + data)
    return path


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "a": torch.randn(7, 5, generator=generator),
        "b": torch.randn(3, generator=generator).bfloat16(),
        "c": torch.randn(4, 2, 3, generator=generator).half(),
        "d": torch.tensor(2.5),
    }


# ── valid files ──


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_tensor_is_loaded_exactly_or_rounded_once(dtype: torch.dtype, tmp_path: Path) -> None:
    written = tensors()
    save_file(written, tmp_path / "model.safetensors", metadata={"format": "pt"})
    destinations = {name: torch.zeros(tensor.shape, dtype=dtype) for name, tensor in written.items()}
    weights.load(weights.open_checkpoint(tmp_path), destinations)
    for name, tensor in written.items():
        assert torch.equal(destinations[name], tensor.to(dtype))


def test_tensors_are_loaded_into_slices_of_a_fused_matrix(tmp_path: Path) -> None:
    parts = {"q": torch.ones(4, 6), "k": torch.full((2, 6), 2.0), "v": torch.full((2, 6), 3.0)}
    save_file(parts, tmp_path / "model.safetensors")
    fused = torch.full((10, 6), -1.0)
    weights.load(weights.open_checkpoint(tmp_path), {"q": fused[:4], "k": fused[4:6], "v": fused[6:8]})
    assert fused[:, 0].tolist() == [1, 1, 1, 1, 2, 2, 3, 3, -1, -1]
    columns = torch.zeros(4, 12)
    weights.load(weights.open_checkpoint(tmp_path), {"q": columns[:, 6:], "k": fused[4:6], "v": fused[6:8]})
    assert columns.sum(0).tolist() == [0.0] * 6 + [4.0] * 6


def test_shards_of_the_index_are_loaded_in_pieces(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(dense, "PIECE_BYTES", 16)
    first, second = {"a": torch.randn(9, 3)}, {"b": torch.randn(50).bfloat16(), "c": torch.randn(2, 1)}
    save_file(first, tmp_path / "model-1.safetensors")
    save_file(second, tmp_path / "model-2.safetensors")
    weight_map = {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    checkpoint = weights.open_checkpoint(tmp_path)
    destinations = {name: torch.zeros_like(tensor) for name, tensor in (first | second).items()}
    weights.load(checkpoint, destinations)
    assert all(torch.equal(destinations[name], tensor) for name, tensor in (first | second).items())
    assert checkpoint.dtype == torch.float32


# ── damaged files ──

BAD_HEADERS: dict[str, tuple[Any, bytes]] = {
    "not JSON": (b"{", b""),
    "not an object": ([1, 2], b""),
    "not text": (b"\xff\xfe{}", b""),
    "deep": (b'{"a":' + b"[" * 100_000, b""),
    "a name twice": (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{}}', bytes(4)),
    "entry not an object": ({"a": 3}, b""),
    "missing offsets": ({"a": {"dtype": "F32", "shape": [1]}}, bytes(4)),
    "unknown type": ({"a": F32_2X2 | {"dtype": "PICKLE"}}, bytes(16)),
    "negative size": ({"a": F32_2X2 | {"shape": [-2, -2]}}, bytes(16)),
    "size not whole": ({"a": F32_2X2 | {"shape": [2.0, 2]}}, bytes(16)),
    "size true": ({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, bytes(4)),
    "huge size": ({"a": F32_2X2 | {"shape": [1 << 62, 1 << 62]}}, bytes(16)),
    "many dimensions": ({"a": {"dtype": "F32", "shape": [1] * 4000, "data_offsets": [0, 4]}}, bytes(4)),
    "size and shape differ": ({"a": F32_2X2 | {"shape": [2, 3]}}, bytes(16)),
    "offsets beyond the file": ({"a": F32_2X2}, bytes(15)),
    "offsets backwards": ({"a": F32_2X2 | {"data_offsets": [16, 0]}}, bytes(16)),
    "offsets negative": ({"a": F32_2X2 | {"data_offsets": [-16, 0]}}, bytes(16)),
    "three offsets": ({"a": F32_2X2 | {"data_offsets": [0, 8, 16]}}, bytes(16)),
    "overlap": ({"a": F32_2X2, "b": F32_2X2 | {"data_offsets": [8, 24]}}, bytes(24)),
    "same place": ({"a": F32_2X2, "b": F32_2X2}, bytes(16)),
    "hole": ({"a": F32_2X2, "b": F32_2X2 | {"data_offsets": [20, 36]}}, bytes(36)),
    "bytes left over": ({"a": F32_2X2}, bytes(17)),
}


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_malformed_header_is_rejected_with_the_file(name: str, tmp_path: Path) -> None:
    header, data = BAD_HEADERS[name]
    write(tmp_path / "model.safetensors", header, data)
    with pytest.raises(WeightsError, match=r"model\.safetensors"):
        weights.open_checkpoint(tmp_path)


@pytest.mark.parametrize("size", [0, 3, 1 << 30, (1 << 64) - 1])
def test_header_longer_than_the_file_is_rejected_without_reading_it(size: int, tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {"a": F32_2X2}, bytes(16), header_bytes=size)
    with pytest.raises(WeightsError):
        weights.open_checkpoint(tmp_path)


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_changed_bit_in_the_header_is_rejected_or_harmless(at: int, bit: int, tmp_path_factory) -> None:
    folder = tmp_path_factory.getbasetemp() / "flips"
    folder.mkdir(exist_ok=True)
    path = folder / "model.safetensors"
    save_file(tensors(), path)
    content = bytearray(path.read_bytes())
    header_bytes = 8 + int.from_bytes(content[:8], "little")
    content[at % header_bytes] ^= 1 << bit
    path.write_bytes(content)
    destinations = {name: torch.zeros_like(tensor) for name, tensor in tensors().items()}
    try:  # a changed bit may give a valid header, which the model store's checksums detect
        weights.load(weights.open_checkpoint(folder), destinations)
    except WeightsError:
        assert all(not destination.any() for destination in destinations.values())


@pytest.mark.parametrize("length", [0, 1, 7, 8, 20, 200, 300])
def test_shortened_file_is_rejected_before_loading(length: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(tensors(), path)
    os.truncate(path, length)
    with pytest.raises(WeightsError):
        weights.open_checkpoint(tmp_path)


def test_shard_that_shrinks_during_a_load_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.randn(100)}, path)
    checkpoint = weights.open_checkpoint(tmp_path)
    os.truncate(path, path.stat().st_size - 4)
    with pytest.raises(WeightsError, match="ends inside a"):
        weights.load(checkpoint, {"a": torch.zeros(100)})


@pytest.mark.parametrize(
    "weight_map",
    [None, {}, [], {"a": 3}, {"a": "../model-1.safetensors"}, {"a": "/etc/passwd"}, {"a": "model-1.bin"},
     {"a": "missing.safetensors"}, {"z": "model-1.safetensors"}, {"a": "model-1\0.safetensors"},
     {"a": "..\\model-1.safetensors"}, {"a": ".safetensors"}, {"a": ["model-1.safetensors"]}],
)  # fmt: skip
def test_index_with_invalid_or_missing_shards_is_rejected(weight_map: Any, tmp_path: Path) -> None:
    save_file({"a": torch.randn(2)}, tmp_path / "model-1.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(WeightsError):
        weights.open_checkpoint(tmp_path)


def test_index_cannot_name_a_file_outside_its_folder(tmp_path: Path) -> None:
    inside, outside = tmp_path / "model", tmp_path / "outside.safetensors"
    (inside / "deeper").mkdir(parents=True)
    for path in (outside, inside / "deeper" / "one.safetensors"):
        save_file({"a": torch.randn(2)}, path)
    for shard in ("../outside.safetensors", str(outside), "deeper/one.safetensors", "deeper/../../outside.safetensors"):
        (inside / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
        with pytest.raises(WeightsError, match="is not a shard's file name"):
            weights.open_checkpoint(inside)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickle_is_rejected_by_name_without_opening_it(name: str, tmp_path: Path) -> None:
    (tmp_path / name).symlink_to("/nowhere")  # opening the link would fail with another error
    with pytest.raises(WeightsError, match=f"{name} is a pickle.*convert the weights to safetensors or GGUF"):
        weights.open_checkpoint(tmp_path)


def test_other_formats_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"x")
    for path in (tmp_path, tmp_path / "absent", tmp_path / "model.onnx"):
        with pytest.raises(WeightsError, match=r"no other format is supported|neither a folder"):
            weights.open_checkpoint(path)


def test_pipe_in_place_of_a_file_is_rejected_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match="missing or not a file"):
        weights.open_checkpoint(tmp_path)


def test_single_file_of_any_name_is_loaded_and_two_are_rejected(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "gptq_model-4bit-128g.safetensors")
    save_file({"a": torch.zeros(2)}, tmp_path / "consolidated.safetensors")
    destination = torch.zeros(2)
    weights.load(weights.open_checkpoint(tmp_path), {"a": destination})
    assert destination.tolist() == [1, 1]
    save_file({"a": torch.ones(2)}, tmp_path / "other.safetensors")
    with pytest.raises(WeightsError, match=r"index\.json is missing"):
        weights.open_checkpoint(tmp_path)


@pytest.fixture(params=["compiled", "python"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test with the reader in Python and with the compiled one, if there is a compiler."""
    if request.param == "python":
        monkeypatch.setattr(stored, "find_library", lambda: None)
    elif stored.find_library() is None:
        pytest.skip("no kernels were compiled")
    return request.param


BAD_BITS = {
    torch.float64: (0x7FF0 << 48, 0xFFF0 << 48, 0x7FF8 << 48, (0xFFF0 << 48) + 1),
    torch.float32: (0x7F800000, 0xFF800000, 0x7FC00000, 0xFF800001),
    torch.float16: (0x7C00, 0xFC00, 0x7E00, 0xFC01),
    torch.bfloat16: (0x7F80, 0xFF80, 0x7FC0, 0xFF81),
    torch.float8_e5m2: (0x7C, 0xFC, 0x7E, 0xFD),
    torch.float8_e4m3fn: (0x7F, 0xFF, 0x7F, 0xFF),
}


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("dtype", BAD_BITS)
def test_nan_and_infinity_are_rejected_by_name(dtype: torch.dtype, tmp_path: Path) -> None:
    """Infinity and NaN of both signs are rejected; the largest finite numbers and zeros of both signs are accepted."""
    unsigned = np.dtype(f"u{dtype.itemsize}")
    largest = np.array(BAD_BITS[dtype][:2], unsigned) - 1
    random = np.random.default_rng(0).integers(0, 1 << 8 * dtype.itemsize, 2000, dtype=unsigned, endpoint=False)
    magnitudes = random & (np.iinfo(unsigned).max >> 1)
    sound = np.concatenate(
        [random[magnitudes <= largest[0]], largest, np.array([0, 1 << 8 * dtype.itemsize - 1], unsigned)]
    )
    for value in (None, *BAD_BITS[dtype]):
        bits = sound.copy()
        if value is not None:
            bits[len(bits) // 3] = value
        tensor = torch.from_numpy(bits).view(dtype)
        save_file({"good": torch.ones(2), "bad": tensor}, tmp_path / "model.safetensors")
        for room in (torch.zeros(len(bits), dtype=dtype), torch.zeros(len(bits), dtype=torch.float64)):
            destinations = {"good": torch.zeros(2), "bad": room}
            checkpoint = weights.open_checkpoint(tmp_path)
            if value is None:
                weights.load(checkpoint, destinations)
                assert torch.equal(room.double(), tensor.double())
            else:
                with pytest.raises(WeightsError, match="bad holds NaN or infinity"):
                    weights.load(checkpoint, destinations)


@pytest.mark.usefixtures("reader")
def test_nan_is_found_at_any_position_of_a_piece(tmp_path: Path) -> None:
    """The positions are the first and last of blocks, and of tensors of odd lengths."""
    num_rows, num_columns = 1207, 1001  # more than one block of each reader
    weight = torch.ones(num_rows, num_columns, dtype=torch.bfloat16)
    places = [0, 1, (128 << 10) - 1, 128 << 10, (512 << 10) - 1, 512 << 10, weight.numel() - 2, weight.numel() - 1]
    for place in places:
        weight.view(-1)[place] = float("inf")
        save_file({"w": weight}, tmp_path / "model.safetensors")
        weight.view(-1)[place] = 1
        with pytest.raises(WeightsError, match="w holds NaN or infinity"):
            weights.load(weights.open_checkpoint(tmp_path), {"w": torch.zeros_like(weight)})


@pytest.mark.usefixtures("reader")
def test_unreadable_or_shortened_file_is_an_error_naming_it(tmp_path: Path) -> None:
    save_file({"w": torch.ones(300_000)}, tmp_path / "model.safetensors")
    checkpoint, room = weights.open_checkpoint(tmp_path), torch.zeros(300_000)
    os.truncate(tmp_path / "model.safetensors", 700_000)
    with pytest.raises(WeightsError, match=r"model\.safetensors ends inside w"):
        weights.load(checkpoint, {"w": room})
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(WeightsError, match=r"model\.safetensors: w cannot be read: Is a directory"):
        weights.load(checkpoint, {"w": room})


def test_large_finite_weights_are_accepted(tmp_path: Path) -> None:
    large = {"a": torch.full((2, 3), 3e38), "b": torch.full((4000,), 60000.0, dtype=torch.float16)}
    save_file(large, tmp_path / "model.safetensors")
    destinations = {name: torch.zeros_like(tensor) for name, tensor in large.items()}
    weights.load(weights.open_checkpoint(tmp_path), destinations)
    assert torch.equal(destinations["a"], large["a"])


def test_progress_counts_every_byte_and_cancelling_ends_the_load(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(dense, "PIECE_BYTES", 64)
    written = {"a": torch.ones(100, 4), "b": torch.ones(7)}
    save_file(written, tmp_path / "model.safetensors")
    checkpoint = weights.open_checkpoint(tmp_path)
    destinations = {name: torch.zeros_like(tensor) for name, tensor in written.items()}
    progress = Progress()
    weights.load(checkpoint, destinations, progress)
    assert progress.done_bytes == progress.total_bytes == 1628
    cancelled = Progress()
    cancelled.cancel()
    with pytest.raises(LoadCancelled):
        weights.load(checkpoint, destinations, cancelled)
    assert cancelled.done_bytes == 0


def test_load_can_be_cancelled_from_another_thread(tmp_path: Path, monkeypatch) -> None:
    save_file({f"t{index}": torch.ones(1000) for index in range(40)}, tmp_path / "model.safetensors")
    progress, read = Progress(), weights.Files.read_finite

    def read_slowly(*arguments: Any) -> None:
        progress.cancel() if progress.done_bytes > 20_000 else None
        read(*arguments)

    monkeypatch.setattr(weights.Files, "read_finite", read_slowly)
    with pytest.raises(LoadCancelled, match="of 160000 bytes"):
        weights.load(
            weights.open_checkpoint(tmp_path), {f"t{index}": torch.zeros(1000) for index in range(40)}, progress
        )
    assert 20_000 < progress.done_bytes < 60_000


def test_load_does_not_change_the_thread_count_of_later_threads(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    result, found = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        weights.load(weights.open_checkpoint(tmp_path), {"a": torch.zeros(2)})
        later = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        later.start()
        later.join()
    finally:
        torch.set_num_threads(result)
    assert found == [2]


def test_interrupted_load_leaves_no_thread(tmp_path: Path, monkeypatch) -> None:
    save_file({f"t{index}": torch.ones(1000) for index in range(40)}, tmp_path / "model.safetensors")
    start, num_started = threading.Thread.start, iter(range(10))

    def start_one(thread: threading.Thread) -> None:
        if next(num_started) == 1:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    with pytest.raises(RuntimeError, match="can't start"):
        weights.load(weights.open_checkpoint(tmp_path), {f"t{index}": torch.zeros(1000) for index in range(40)})
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("weights")]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_load_needs_little_memory_besides_its_destination(dtype: torch.dtype, tmp_path: Path) -> None:
    written = {f"t{index}": torch.ones(4 << 20, dtype=torch.bfloat16).view(2048, -1) for index in range(12)}
    save_file(written, tmp_path / "model.safetensors")
    destinations = {name: torch.ones(tensor.shape, dtype=dtype) for name, tensor in written.items()}
    del written
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = memory_mb("VmRSS")
    weights.load(weights.open_checkpoint(tmp_path), destinations)
    assert memory_mb("VmHWM") - before < 48  # MB, half of the bytes read


def memory_mb(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) >> 10


def test_failed_piece_ends_the_load_and_restores_the_thread_count(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({f"t{index}": torch.ones(1000) for index in range(50)}, path)
    checkpoint = weights.open_checkpoint(tmp_path)
    os.truncate(path, 4000)
    num_threads, before = torch.get_num_threads(), open_files()
    with pytest.raises(WeightsError, match="ends inside"):
        weights.load(checkpoint, {f"t{index}": torch.zeros(1000) for index in range(50)})
    assert torch.get_num_threads() == num_threads
    assert open_files() <= before
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("weights")]


def test_tied_head_is_ignored_but_not_its_bias(tmp_path: Path) -> None:
    stored = {"lm_head.weight": torch.ones(2, 2), "lm_head.bias": torch.ones(2), "e": torch.ones(2, 2)}
    save_file(stored, tmp_path / "model.safetensors")
    checkpoint, room = weights.open_checkpoint(tmp_path), torch.zeros(2, 2)
    weights.check(checkpoint, {"e": room})
    with pytest.raises(WeightsError, match=r"lm_head\.bias is not used by this architecture"):
        weights.check(checkpoint, {"e": room, "lm_head.weight": room})


def test_missing_and_unused_tensors_are_named_and_counted(tmp_path: Path) -> None:
    save_file({f"x{index}": torch.zeros(1) for index in range(8)}, tmp_path / "model.safetensors")
    checkpoint = weights.open_checkpoint(tmp_path)
    wanted = {f"y{index}": torch.zeros(1) for index in range(9)}
    with pytest.raises(WeightsError, match="tensors y0, y1, y2, y3, y4 and 4 more are missing"):
        weights.check(checkpoint, wanted)
    with pytest.raises(WeightsError, match="tensors x1, x2, x3, x4, x5 and 2 more are not used by this architecture"):
        weights.check(checkpoint, {"x0": torch.zeros(1)})
    ignoring = checkpoint.without(("x1", "x2", "x3", "x4", "x5", "x6", "x7"))
    assert set(weights.check(ignoring, {"x0": torch.zeros(1)})) == {"x0"}


def test_tensors_of_another_shape_are_rejected(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2, 3), "i": torch.zeros(2, dtype=torch.int64)}, tmp_path / "model.safetensors")
    checkpoint = weights.open_checkpoint(tmp_path)
    whole = {"a": torch.zeros(2, 3), "i": torch.zeros(2)}
    for destinations, message in (
        ({"x": torch.zeros(1), "a": whole["a"]}, "tensor x is missing"),
        (whole | {"a": torch.zeros(3, 2)}, "a has shape"),
        (whole, "i has type I64"),
        ({"a": whole["a"]}, "tensor i is not used by this architecture"),
    ):
        with pytest.raises(WeightsError, match=message):
            weights.load(checkpoint, destinations)


def test_tied_heads_and_rotary_tables_in_checkpoints_are_ignored(tmp_path: Path) -> None:
    extra = {"lm_head.weight": torch.ones(2), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    save_file({"a": torch.ones(2), **extra}, tmp_path / "model.safetensors")
    destination = torch.zeros(2)
    weights.load(weights.open_checkpoint(tmp_path), {"a": destination})
    assert destination.tolist() == [1, 1]
