"""Arenas: a model that sleeps and wakes gives equal tokens at the same addresses, and nothing of it is left meanwhile.

The device is `FakeMemory`: freed memory keeps its content, and an access to an unmapped address ends the process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from engine.config import EngineConfig
from engine.devices import snapshot as snapshot_module
from engine.devices.arena import Arena, ArenaError
from engine.devices.fake_memory import FakeMemory
from engine.devices.host_arena import HostArena
from engine.devices.reachable import find_tensors
from engine.devices.recorded import RecordedDevice, as_kernel
from engine.devices.virtual_arena import VirtualArena
from engine.devices.virtual_memory import NoDeviceMemory, Region
from engine.kernels import torch_attention
from engine.kernels.device import DeviceKernels
from engine.kernels.launch import Backend
from engine.report import SleepFailed
from engine.runner import Runner
from tests.engine import one_thread  # noqa: F401
from tests.engine.driver import OTHER_NAMESPACE, Driver
from tests.engine.made_checkpoints import save_random

SETTINGS: dict[str, Any] = {"dtype": "float32", "num_blocks": 40, "max_sequences": 8, "max_step_tokens": 64}
KIND = "llama 3 with scaled positions"
CAPACITY = 64 << 20
PROMPT = list(range(5, 45))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers.logging.disable_progress_bar()
    folder = tmp_path_factory.mktemp("model")
    save_random(KIND, folder)
    return folder


@pytest.fixture
def snapshot() -> Iterator[str]:
    fd = os.memfd_create("snapshot")
    yield f"/proc/self/fd/{fd}"
    os.close(fd)


@pytest.fixture(autouse=True)
def kernels_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = torch_attention.BACKEND
    launches = {name: as_kernel(getattr(backend, name)) for name in ("store", "chunks", "split", "decode")}
    monkeypatch.setattr(torch_attention, "BACKEND", Backend(**launches))


def new_driver(folder: Path, arena: Arena | None = None, device: RecordedDevice | None = None) -> Driver:
    config = EngineConfig(model_dir=folder, **SETTINGS)
    runner = Runner(config, DeviceKernels(), steps_device=device or RecordedDevice(), arena=arena)
    return Driver(runner, model_dir=folder, max_sequences=8, max_step_tokens=64)


def generate(driver: Driver) -> list[list[int]]:
    """Return the tokens of greedy and of sampled sequences."""
    parameters: list[dict[str, Any]] = [{"temperature": 0.0}, {"temperature": 0.9, "seed": 3}, {"temperature": 0.0}]
    ids = [
        driver.add([7 + number, *PROMPT], max_tokens=12, ignore_eos=True, **sampling)
        for number, sampling in enumerate(parameters)
    ]
    driver.run()
    return [driver.tokens[each] for each in ids]


def test_sleep_and_wake_give_equal_tokens_from_the_same_graphs(folder: Path, snapshot: str) -> None:
    device, memory = RecordedDevice(), FakeMemory(CAPACITY)
    driver = new_driver(folder, VirtualArena(memory), device)
    expected = generate(new_driver(folder))
    for _ in range(2):
        assert generate(driver) == expected
        driver.engine.blocks.forget_cached()  # the same buckets again: all of them are captured now
    steps, num_captures = driver.runner._steps.num_steps, device.num_captures
    addresses = [tensor.data_ptr() for tensor in find_tensors(driver.runner._model, torch.device("cpu"))]
    for _ in range(3):
        report = driver.engine.sleep(snapshot)
        assert report.host_bytes > driver.runner.weight_bytes
        assert memory.free_bytes() == CAPACITY, "a sleeping model has no device memory"
        assert driver.engine.wake().host_bytes == report.host_bytes
        num_eager = steps["eager"]
        assert generate(driver) == expected
        assert steps["eager"] == num_eager, "all steps replay graphs"
    assert device.num_captures == num_captures
    assert addresses == [tensor.data_ptr() for tensor in find_tensors(driver.runner._model, torch.device("cpu"))]


def test_no_kv_and_no_weights_are_left_on_the_device(folder: Path, snapshot: str) -> None:
    memory = FakeMemory(CAPACITY)
    driver = new_driver(folder, VirtualArena(memory))
    generate(driver)
    weight = next(each for each in find_tensors(driver.runner._model, torch.device("cpu")) if each.nbytes > 4096)
    secrets = [driver.runner._pool.data[block].numpy().tobytes() for block in range(3)], weight.numpy().tobytes()[:4096]
    assert secrets[1] in memory.content()
    assert any(any(each) for each in secrets[0])
    driver.engine.sleep(snapshot)
    assert not any(memory.content()), "freed memory keeps its content, so that another tenant could read it"


@pytest.mark.parametrize("namespace", [b"n" * 32, OTHER_NAMESPACE])
def test_prompts_from_before_a_sleep_are_computed_again(folder: Path, snapshot: str, namespace: bytes) -> None:
    driver = new_driver(folder, VirtualArena(FakeMemory(CAPACITY)))
    first = driver.add(PROMPT, max_tokens=4, temperature=0.0)
    driver.run()
    driver.engine.sleep(snapshot)
    driver.engine.wake()
    driver.runner.poison_kv()
    again = driver.add(PROMPT, max_tokens=4, temperature=0.0, namespace=namespace)
    driver.run()
    assert (driver.num_cached[again], driver.tokens[again]) == (0, driver.tokens[first])
    third = driver.add(PROMPT, max_tokens=4, temperature=0.0, namespace=namespace)
    driver.run()
    assert driver.num_cached[third] > 0, "the cache works again"


def test_a_wake_without_memory_leaves_the_model_asleep(folder: Path, snapshot: str) -> None:
    memory = FakeMemory(CAPACITY)
    driver = new_driver(folder, VirtualArena(memory))
    expected = generate(driver)
    driver.engine.sleep(snapshot)
    other = Region(memory, CAPACITY - (64 << 10))
    other.map(other.size)
    free_bytes = memory.free_bytes()
    with pytest.raises(SleepFailed, match=r"^\d+ bytes of device memory are needed, and 65536 are free$"):
        driver.engine.wake()
    assert memory.free_bytes() == free_bytes, "nothing stays mapped"
    refused = driver.add(PROMPT, max_tokens=2)
    driver.run()
    assert driver.finishes[refused] == "out_of_capacity"
    other.unmap()
    driver.engine.wake()
    assert generate(driver) == expected


def test_two_models_swap_on_one_device(folder: Path, snapshot: str) -> None:
    """The device has memory for one of them, and both share the snapshot of their equal weights."""
    probe = FakeMemory(CAPACITY)
    expected = generate(new_driver(folder, VirtualArena(probe)))
    memory = FakeMemory(CAPACITY - probe.free_bytes() + (64 << 10))
    one = new_driver(folder, VirtualArena(memory))
    size = one.engine.sleep(snapshot).host_bytes
    two = new_driver(folder, VirtualArena(memory))
    for _ in range(2):
        assert generate(two) == expected
        assert two.engine.sleep(snapshot).host_bytes == size
        one.engine.wake()
        assert generate(one) == expected
        one.engine.sleep(snapshot)
        two.engine.wake()
    assert os.stat(snapshot).st_size == size


def test_a_snapshot_with_other_weights_is_refused(folder: Path, snapshot: str) -> None:
    one, two = (new_driver(folder, VirtualArena(FakeMemory(CAPACITY))) for _ in range(2))
    expected = generate(two)
    one.engine.sleep(snapshot)
    weight = next(each for each in find_tensors(two.runner._model, torch.device("cpu")) if each.nbytes > 4096)
    original = weight.flatten()[0].clone()
    with torch.inference_mode():
        weight.view(-1)[0] += 1
    with pytest.raises(SleepFailed, match=r"^the snapshot has other weights$"):
        two.engine.sleep(snapshot)
    with torch.inference_mode():
        weight.view(-1)[0] = original
    assert generate(two) == expected, "it is still awake"


def test_changed_weights_are_noticed_when_a_model_wakes(folder: Path, snapshot: str) -> None:
    arena = VirtualArena(FakeMemory(CAPACITY))
    driver = new_driver(folder, arena)
    driver.engine.sleep(snapshot)
    with torch.inference_mode():
        arena._snapshot.weights[100] += 1
    with pytest.raises(RuntimeError, match="the weights differ"):
        driver.engine.wake()


def test_an_interrupted_snapshot_is_written_again(folder: Path, snapshot: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed while it writes leaves a file without identity."""
    memory = FakeMemory(CAPACITY)
    one, two = (new_driver(folder, VirtualArena(FakeMemory(CAPACITY))) for _ in range(2))
    expected = generate(two)

    def killed(_: FakeMemory) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(memory), "pin", lambda *_: killed(memory))
        with pytest.raises(KeyboardInterrupt):
            one.engine.sleep(snapshot)
    assert os.stat(snapshot).st_size
    two.engine.sleep(snapshot)
    two.engine.wake()
    assert generate(two) == expected


def test_without_host_memory_the_model_stays_awake(
    folder: Path, snapshot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = new_driver(folder, VirtualArena(FakeMemory(CAPACITY)))
    expected = generate(driver)
    monkeypatch.setattr(snapshot_module, "available_bytes", lambda: 1000)
    with pytest.raises(SleepFailed, match=r"^\d+ bytes of host memory are needed, and 1000 are available$"):
        driver.engine.sleep(snapshot)
    assert generate(driver) == expected
    assert os.stat(snapshot).st_size == 0


def test_memory_that_cannot_be_pinned_is_used_with_a_warning(
    folder: Path, snapshot: str, caplog: pytest.LogCaptureFixture
) -> None:
    memory = FakeMemory(CAPACITY, can_pin=False)
    driver = new_driver(folder, VirtualArena(memory))
    expected = generate(driver)
    driver.engine.sleep(snapshot)
    driver.engine.wake()
    assert generate(driver) == expected
    assert [each.message for each in caplog.records if "pinned" in each.message]


def test_a_model_that_does_not_fit_fails_with_sizes(folder: Path) -> None:
    with pytest.raises(MemoryError, match=r"^out of memory: \d+ bytes are needed, \d+ are free$"):
        new_driver(folder, VirtualArena(FakeMemory(128 << 10)))


def test_all_weights_are_in_the_arena(folder: Path) -> None:
    memory = FakeMemory(CAPACITY)
    arena = VirtualArena(memory)
    model = new_driver(folder, arena).runner._model
    first = arena._weights.view().data_ptr()
    tensors = find_tensors(model, torch.device("cpu"))
    assert sum(each.nbytes for each in tensors) > 100_000
    assert all(first <= each.data_ptr() < first + arena._weights.size for each in tensors)


def test_tensors_are_found_in_attributes_containers_and_closures() -> None:
    one, two, three, four = (torch.ones(size + 1) for size in range(4))

    class Holder:
        def __init__(self) -> None:
            self.values = {"a": [one], "b": (two, torch.ones(0))}
            self.call = lambda x, y=three: x + y + four

    found = find_tensors([Holder(), one], torch.device("cpu"))
    assert len(found) == 4
    assert {id(each) for each in found} == {id(each) for each in (one, two, three, four)}


def test_views_of_moved_memory_still_share_it() -> None:
    whole = torch.arange(40.0)
    part, transposed = whole[8:20], whole.view(5, 8).t()
    arena = VirtualArena(FakeMemory(1 << 20))
    with torch.inference_mode():
        arena.adopt([part, transposed, whole])
    whole[9] = 100
    assert (part[1], transposed[1, 1], part.shape, transposed.stride()) == (100, 100, (12,), (1, 8))


def test_a_region_is_unmapped_in_the_pieces_in_which_it_was_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.devices.virtual_memory.CHUNK_BYTES", 128 << 10)
    memory = FakeMemory(1 << 20)
    region = Region(memory, 300 << 10)
    assert (region.size, region.map(1), region.map(region.size)) == (320 << 10, 128 << 10, 320 << 10)
    region.view().fill_(7)
    assert memory.free_bytes() == (1 << 20) - (320 << 10)
    region.unmap()
    assert memory.free_bytes() == 1 << 20
    with pytest.raises(NoDeviceMemory):
        Region(memory, 2 << 20).map(2 << 20)


def test_on_a_cpu_the_kv_cache_goes_and_the_weights_stay(folder: Path) -> None:
    config = EngineConfig(model_dir=folder, sleeps=True, **SETTINGS)
    runner = Runner(config)
    driver = Driver(runner, model_dir=folder, max_sequences=8, max_step_tokens=64)
    expected = generate(driver)
    assert runner._pool.data.any()
    report = driver.engine.sleep("")
    assert (report.is_asleep, report.host_bytes) == (True, runner.weight_bytes)
    assert not runner._pool.data.any()
    driver.engine.wake()
    assert generate(driver) == expected


def test_a_cpu_without_memory_for_the_kv_cache_stays_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = HostArena(5)
    with arena.kv_memory():
        data = torch.empty(3, 1000, dtype=torch.bfloat16, device="cpu")
    assert (data.shape, data.dtype) == ((3, 1000), torch.bfloat16)
    monkeypatch.setattr("engine.devices.host_arena.available_bytes", lambda: 10)
    with pytest.raises(ArenaError, match=r"^the KV cache needs 6000 bytes, and 10 are available$"):
        arena.wake()
