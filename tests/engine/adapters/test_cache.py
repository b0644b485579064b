"""The adapter cache keeps adapters in use and idle ones while they fit; unusable adapters end only their sequences."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from engine.adapters import cache as cache_module
from engine.adapters import queue
from engine.adapters.cache import AdapterCache
from engine.adapters.local_adapter import LocalAdapter
from engine.adapters.slot_pool import AdapterShape, SlotPool
from engine.kernels.reference import Kernels
from engine.layers.linear import Linear
from engine.report import BAD_ADAPTER, OUT_OF_CAPACITY, RUNNING
from engine.runner import Runner
from tests.engine.adapters.made import Matrices, has_references, named, random_matrices, save_adapter
from tests.engine.driver import OTHER_NAMESPACE, Driver
from tests.engine.made_checkpoints import runner_of, save_random
from tests.engine.pusher import Pusher
from weight_files.adapter_files import read_adapter

PROMPT = list(range(3, 40))
TARGETS = ("q_proj", "v_proj")
GREEDY = {"max_tokens": 6, "temperature": 0.0}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder = tmp_path_factory.mktemp("base")
    save_random("wide heads", folder)
    return folder


@pytest.fixture
def runner(base: Path) -> Runner:
    return runner_of(base)


def matrices_of(runner: Runner, seed: int = 0, targets: tuple[str, ...] = TARGETS, rank: int = 4) -> Matrices:
    return random_matrices(named(runner.adapters.sites, targets), rank, seed)


def size_bytes(runner: Runner) -> int:
    """Return the bytes of an adapter of rank 4 (padded to 8) on queries and values."""
    return sum(8 * (num_in + num_out) * 4 for num_in, num_out in named(runner.adapters.sites, TARGETS).values())


def runner_for(base: Path, num_adapters: int) -> Runner:
    """Return a runner with memory for `num_adapters` of rank 4 on queries and values."""
    return runner_of(base, adapter_memory_bytes=num_adapters * size_bytes(runner_of(base)))


def take(cache: AdapterCache, adapter: LocalAdapter) -> tuple[int, int]:
    """Load and acquire an adapter; return its handle and the result code."""
    code = RUNNING
    if not cache.acquire(adapter.digest):
        code = cache.load(adapter).result(20).code  # held by the reading
    handle = cache.acquire(adapter.digest)
    if handle:
        cache.release(adapter.digest)
    return handle, code


def test_least_recently_used_idle_adapter_is_evicted_and_a_referenced_one_never(base: Path, tmp_path: Path):
    runner = runner_for(base, 2)
    cache = runner.adapters
    adapters = [save_adapter(tmp_path / str(seed), matrices_of(runner, seed)) for seed in range(4)]
    first, _ = take(cache, adapters[0])
    take(cache, adapters[1])
    assert take(cache, adapters[2]) == (0, OUT_OF_CAPACITY)
    assert cache.release(adapters[1].digest)
    _, code = take(cache, adapters[2])
    assert (code, cache.acquire(adapters[0].digest)) == (RUNNING, first), "the adapter in use stays"
    assert [cache.release(adapters[number].digest) for number in (0, 2, 0)] == [False, True, True]
    take(cache, adapters[3])
    assert cache.acquire(adapters[0].digest) == first, "0 was used after 2"
    assert cache.acquire(adapters[2].digest) == 0, "2 was evicted"
    assert cache.used_bytes == 2 * size_bytes(runner)


def test_memory_of_idle_adapters_is_reused_for_another_shape(base: Path, tmp_path: Path):
    runner = runner_for(base, 2)
    cache = runner.adapters
    pair = [save_adapter(tmp_path / str(seed), matrices_of(runner, seed)) for seed in range(2)]
    handles = [take(cache, each)[0] for each in pair]
    small = save_adapter(tmp_path / "small", matrices_of(runner, 5, ("v_proj",)))
    assert take(cache, small)[1] == OUT_OF_CAPACITY
    cache.release(pair[1].digest)
    large = save_adapter(tmp_path / "large", matrices_of(runner, 6, rank=16))
    assert take(cache, large)[1] == OUT_OF_CAPACITY
    assert cache.acquire(pair[1].digest) == handles[1], "no adapter is evicted if that does not make enough room"
    assert [cache.release(each.digest) for each in pair] == [True, True]
    assert take(cache, small)[1] == RUNNING
    assert cache.used_bytes < 2 * size_bytes(runner)


def test_load_without_placing_returns_the_needed_size(base: Path, tmp_path: Path):
    runner = runner_for(base, 2)
    cache = runner.adapters
    one, two = (save_adapter(tmp_path / str(seed), matrices_of(runner, seed)) for seed in range(2))
    large = save_adapter(tmp_path / "large", matrices_of(runner, 2, rank=16))
    results = [cache.load(each, may_place=False).result(20) for each in (one, large)]
    sizes = [each.size for each in results if each.size is not None]
    assert [each.code for each in results] == [OUT_OF_CAPACITY] * 2
    assert not cache.used_bytes
    assert [each.num_bytes for each in sizes] == [size_bytes(runner), 2 * size_bytes(runner)]
    take(cache, one)
    take(cache, two)
    cache.release(one.digest)
    assert [cache.has_room(sizes[:1]), cache.has_room(sizes[:1] * 2), cache.has_room(sizes[1:])] == [True, False, False]
    assert cache.evictions_for(sizes[:1]) == {one.digest}
    assert cache.evictions_for(sizes[1:]) == {one.digest, two.digest}


def test_reused_slot_contains_nothing_of_the_previous_adapter(base: Path, tmp_path: Path):
    reused, fresh = runner_for(base, 1), runner_for(base, 1)
    before = save_adapter(tmp_path / "a", matrices_of(fresh, 1, rank=8))
    small = save_adapter(tmp_path / "b", matrices_of(fresh, 2, rank=3))
    take(reused.adapters, before)
    reused.adapters.release(before.digest)
    assert torch.equal(*(logits_with(each, take(each.adapters, small)[0]) for each in (reused, fresh)))


def test_freed_slot_is_cleared(runner: Runner):
    sites = named(runner.adapters.sites, TARGETS)
    linears = [
        ("", Linear({name: num_out}, num_in, False, torch.float32, torch.device("cpu")))
        for name, (num_in, num_out) in sites.items()
    ]
    pool = SlotPool(AdapterShape(8, tuple(sorted(sites))), linears, torch.float32, 1 << 24, Kernels())
    slot = pool.take()
    pool.write(slot, random_matrices(sites, 8))
    assert pool.read(slot).any()
    pool.free(slot)
    assert not pool.read(slot).any()


def logits_with(runner: Runner, handle: int) -> torch.Tensor:
    """Return the logits after the prompt, computed with an adapter."""
    pusher = Pusher(runner)
    pusher.table.adapter[0], pusher.table.has_adapters = handle, True
    return pusher.push(PROMPT)


def test_adapter_larger_than_the_budget_is_rejected(base: Path, tmp_path: Path):
    runner = runner_for(base, 1)
    large = save_adapter(tmp_path / "large", matrices_of(runner, 0, rank=20))
    assert take(runner.adapters, large) == (0, BAD_ADAPTER)
    assert not runner_of(base, adapter_memory_bytes=0).adapters.sites


def save_bad(harm: str, folder: Path, matrices: Matrices) -> LocalAdapter:
    """Return an invalid adapter."""
    if harm == "shape":
        matrices = {module: (a[:, :-1], b) for module, (a, b) in matrices.items()}
    adapter = save_adapter(folder, matrices, **({"use_dora": True} if harm == "config" else {}))
    path = folder / "adapter_model.safetensors"
    if harm in ("nan", "infinity", "overflow"):
        weights = load_file(path)
        name = next(each for each in weights if "lora_B" in each)
        weights[name][0, 0] = {"nan": float("nan"), "infinity": float("-inf"), "overflow": 3e38}[harm]
        save_file(weights, path)
    elif harm == "truncated":
        path.write_bytes(path.read_bytes()[:-7])
    elif harm == "missing":
        path.unlink()
    return adapter


def test_bad_adapter_ends_only_its_own_sequences(base: Path, tmp_path: Path):
    runner = runner_of(base)
    fine = save_adapter(tmp_path / "fine", matrices_of(runner, 1))
    harms = ("nan", "infinity", "truncated", "missing", "shape", "config", "overflow")
    bad = [save_bad(harm, tmp_path / harm, matrices_of(runner, 2)) for harm in harms]

    def run(others: list[LocalAdapter]) -> list[list[int]]:
        driver = Driver(runner_of(base))
        good = [driver.add(PROMPT, adapter=fine, **GREEDY), driver.add(PROMPT[5:], **GREEDY)]
        ended = [driver.add(PROMPT, adapter=each, **GREEDY) for each in others for _ in range(2)]
        driver.run()
        assert {driver.finishes[each] for each in ended} <= {"bad_adapter"}
        assert not has_references(driver.runner.adapters)
        assert not driver.engine.status().num_waiting
        return [driver.tokens[each] for each in good]

    assert run(bad) == run([])


def test_sequences_waiting_for_an_adapter_can_be_aborted(base: Path, tmp_path: Path):
    runner = runner_of(base)
    adapter = save_adapter(tmp_path / "a", matrices_of(runner, 1))
    driver = Driver(runner)
    aborted, finished = (driver.add(PROMPT, adapter=adapter, **GREEDY) for _ in range(2))
    driver.abort(aborted)
    driver.run()
    assert (driver.finishes[aborted], driver.finishes[finished]) == ("aborted", "length")
    driver.abort(driver.add(PROMPT, adapter=adapter, **GREEDY))
    driver.run()
    assert not has_references(runner.adapters)


def test_long_queue_for_one_adapter_does_not_delay_another_tenant(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """With one slot and no waiting time, sequences queued for a slot yield their adapter."""
    monkeypatch.setattr(queue, "MAX_WAIT_S", 0.0)
    runner = runner_for(base, 1)
    one, other = (save_adapter(tmp_path / str(seed), matrices_of(runner, seed)) for seed in (1, 2))
    driver = Driver(runner, max_sequences=2)
    many = [driver.add(PROMPT[number:], adapter=one, **GREEDY) for number in range(10)]
    while not driver.tokens[many[1]]:
        driver.step()
    assert has_references(runner.adapters, size_bytes(runner))
    waiting = driver.add(PROMPT, adapter=other, tenant=2, **GREEDY)
    runner.adapters.load(other, may_place=False).result(20)  # adapters are read one after the other
    driver.run()
    assert {driver.finishes[each] for each in (*many, waiting)} == {"length"}
    assert list(driver.finishes).index(waiting) <= 4, "sequences that run end first"
    assert not has_references(runner.adapters, size_bytes(runner))
    monkeypatch.undo()
    alone = Driver(runner_of(base))
    again = [alone.add(PROMPT[number:], adapter=one, **GREEDY) for number in range(10)]
    alone.run()
    assert [driver.tokens[each] for each in many] == [alone.tokens[each] for each in again]


def test_prefix_cache_is_separate_for_each_adapter(base: Path, tmp_path: Path):
    """Cached blocks are found by the same adapter, but not by the base model, another adapter or another namespace."""
    runner = runner_of(base)
    one, two = (save_adapter(tmp_path / str(seed), matrices_of(runner, seed)) for seed in (1, 2))
    driver = Driver(runner)

    def cached(adapter: LocalAdapter | None, **fields: bytes) -> int:
        sequence_id = driver.add(PROMPT, adapter=adapter, **fields, **GREEDY)
        driver.run()
        return driver.num_cached[sequence_id]

    assert [cached(each) for each in (None, one, two)] == [0, 0, 0]
    assert [cached(each) for each in (None, one, two)] == [32, 32, 32]
    assert cached(one, namespace=OTHER_NAMESPACE) == 0


def test_steps_continue_while_an_adapter_is_read(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    runner = runner_of(base)
    adapter = save_adapter(tmp_path / "a", matrices_of(runner, 1))
    driver = Driver(runner)
    plain = driver.add(PROMPT, max_tokens=40, temperature=0.0)
    gate = threading.Event()
    monkeypatch.setattr(cache_module, "read_adapter", lambda *given: gate.wait(20) and read_adapter(*given))
    driver.step()
    waiting = driver.add(PROMPT, adapter=adapter, **GREEDY)
    for _ in range(10):
        driver.step()
    assert len(driver.tokens[plain]) >= 10
    assert not driver.tokens[waiting]
    gate.set()
    driver.run()
    assert driver.finishes[waiting] == "length"
