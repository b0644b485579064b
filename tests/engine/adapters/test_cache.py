"""The adapter cache keeps adapters in use and idle ones while they fit; unusable adapters end only their sequences."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from engine.adapters import queue
from engine.adapters.cache import AdapterCache
from engine.adapters.local_adapter import LocalAdapter
from engine.report import BAD_ADAPTER, OUT_OF_CAPACITY, RUNNING
from engine.runner import Runner
from tests.engine.adapters.made import Matrices, named, random_matrices, save_adapter
from tests.engine.driver import OTHER_NAMESPACE, Driver
from tests.engine.made_checkpoints import runner_of, save_random

PROMPT = list(range(3, 40))
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


def matrices_of(
    runner: Runner, seed: int = 0, targets: tuple[str, ...] = ("q_proj", "v_proj"), rank: int = 4
) -> Matrices:
    return random_matrices(named(runner.adapters.sites, targets), rank, seed)


def cache_for(runner: Runner, num_adapters: int) -> AdapterCache:
    """Return a cache for `num_adapters` of rank 4 (padded to 8) on queries and values."""
    sites = named(runner.adapters.sites, ["q_proj", "v_proj"])
    size_bytes = sum(8 * (num_in + num_out) * 4 for num_in, num_out in sites.values())
    cache = AdapterCache(runner._model, torch.float32, num_adapters * size_bytes)
    runner.adapters = cache
    return cache


def take(cache: AdapterCache, adapter: LocalAdapter) -> tuple[int, int]:
    """Load and acquire an adapter; return its handle and the result code."""
    code = RUNNING
    if not cache.acquire(adapter.digest):
        code = cache.load(adapter).result(20).code  # held by the reading
    handle = cache.acquire(adapter.digest)
    if handle:
        cache.release(adapter.digest)
    return handle, code


def num_references(cache: AdapterCache) -> int:
    return sum(each.num_references for each in cache._cached.values())


def test_least_recently_used_idle_adapter_is_evicted_and_a_referenced_one_never(runner: Runner, tmp_path: Path):
    cache = cache_for(runner, 2)
    adapters = [save_adapter(tmp_path / str(seed), matrices_of(runner, seed)) for seed in range(4)]
    first, _ = take(cache, adapters[0])
    take(cache, adapters[1])
    assert take(cache, adapters[2]) == (0, OUT_OF_CAPACITY)
    assert cache.release(adapters[1].digest)
    third, code = take(cache, adapters[2])
    assert (code, cache.acquire(adapters[0].digest)) == (RUNNING, first), "the one in use has stayed"
    assert [cache.release(adapters[number].digest) for number in (0, 2, 0)] == [False, True, True]
    take(cache, adapters[3])
    assert cache.acquire(adapters[0].digest) == first, "0 was used after 2"
    assert cache.acquire(adapters[2].digest) == 0, "2 left"
    assert third not in cache._step.adapter_slots
    assert cache.used_bytes == cache._budget_bytes


def test_memory_of_idle_adapters_is_reused_for_another_shape(runner: Runner, tmp_path: Path):
    cache = cache_for(runner, 2)
    pair = [save_adapter(tmp_path / str(seed), matrices_of(runner, seed)) for seed in range(2)]
    handles = [take(cache, each)[0] for each in pair]
    small = save_adapter(tmp_path / "small", matrices_of(runner, 5, ("v_proj",)))
    assert take(cache, small)[1] == OUT_OF_CAPACITY
    cache.release(pair[1].digest)
    large = save_adapter(tmp_path / "large", matrices_of(runner, 6, rank=16))
    assert take(cache, large)[1] == OUT_OF_CAPACITY
    assert set(cache._step.adapter_slots) == set(handles), "nobody leaves for one that does not fit then either"
    cache.release(pair[0].digest)
    assert take(cache, small)[1] == RUNNING
    assert sum(pool.num_used for pool in cache._pools.values()) == len(cache._cached)
    assert cache.used_bytes == sum(pool.num_used * pool.slot_bytes for pool in cache._pools.values())


def test_load_without_placing_returns_the_needed_size(runner: Runner, tmp_path: Path):
    cache = cache_for(runner, 2)
    one, two = (save_adapter(tmp_path / str(seed), matrices_of(runner, seed)) for seed in range(2))
    large = save_adapter(tmp_path / "large", matrices_of(runner, 2, rank=16))
    looked = [cache.load(each, may_place=False).result(20) for each in (one, large)]
    sizes = [each.size for each in looked if each.size is not None]
    assert [each.code for each in looked] == [OUT_OF_CAPACITY] * 2
    assert not cache.used_bytes
    assert [each.num_bytes for each in sizes] == [cache._budget_bytes // 2, cache._budget_bytes]
    take(cache, one)
    take(cache, two)
    cache.release(one.digest)
    assert [cache.has_room(sizes[:1]), cache.has_room(sizes[:1] * 2), cache.has_room(sizes[1:])] == [True, False, False]
    assert cache.evictions_for(sizes[:1]) == {one.digest}
    assert cache.evictions_for(sizes[1:]) == {one.digest, two.digest}


def test_reused_slot_contains_nothing_of_the_previous_adapter(runner: Runner, tmp_path: Path):
    cache = cache_for(runner, 1)
    before = save_adapter(tmp_path / "a", matrices_of(runner, 1, rank=8))
    take(cache, before)
    cache.release(before.digest)
    small = save_adapter(tmp_path / "b", matrices_of(runner, 2, rank=3))
    handle, _ = take(cache, small)
    fresh = cache_for(runner, 1)
    fresh_handle, _ = take(fresh, small)
    pool, slot = cache._step.adapter_slots[handle]
    fresh_pool, fresh_slot = fresh._step.adapter_slots[fresh_handle]
    assert torch.equal(pool.read(slot), fresh_pool.read(fresh_slot))
    assert int(pool.read(slot).count_nonzero()) == 3 * pool.slot_bytes // torch.float32.itemsize // 8
    pool.free(slot)
    assert not pool.read(slot).count_nonzero()


def test_adapter_larger_than_the_budget_is_rejected(runner: Runner, tmp_path: Path):
    cache = cache_for(runner, 1)
    large = save_adapter(tmp_path / "large", matrices_of(runner, 0, rank=20))
    assert take(cache, large) == (0, BAD_ADAPTER)
    assert not AdapterCache(runner._model, torch.float32, 0).sites


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
        assert not num_references(driver.runner.adapters)
        assert not driver.engine.status().num_waiting
        return [driver.tokens[each] for each in good]

    assert run(bad) == run([])


def test_sequences_waiting_for_an_adapter_can_be_aborted(base: Path, tmp_path: Path):
    runner = runner_of(base)
    adapter = save_adapter(tmp_path / "a", matrices_of(runner, 1))
    driver = Driver(runner)
    aborted, kept = (driver.add(PROMPT, adapter=adapter, **GREEDY) for _ in range(2))
    driver.abort(aborted)
    driver.run()
    assert (driver.finishes[aborted], driver.finishes[kept]) == ("aborted", "length")
    driver.abort(driver.add(PROMPT, adapter=adapter, **GREEDY))
    driver.run()
    assert not num_references(runner.adapters)


def test_long_queue_for_one_adapter_does_not_delay_another_tenant(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """With one slot and no waiting time, sequences queued for a slot yield their adapter."""
    monkeypatch.setattr(queue, "MAX_WAIT_S", 0.0)
    runner = runner_of(base)
    cache_for(runner, 1)
    one, other = (save_adapter(tmp_path / str(seed), matrices_of(runner, seed)) for seed in (1, 2))
    driver = Driver(runner, max_sequences=2)
    many = [driver.add(PROMPT[number:], adapter=one, **GREEDY) for number in range(10)]
    while not driver.tokens[many[1]]:
        driver.step()
    assert num_references(runner.adapters) == len(many)
    asked = driver.add(PROMPT, adapter=other, tenant=2, **GREEDY)
    runner.adapters._reader.submit(int).result(20)  # after it was looked at
    driver.run()
    assert {driver.finishes[each] for each in (*many, asked)} == {"length"}
    assert list(driver.finishes).index(asked) <= 4, "those that had begun end before"
    assert not num_references(runner.adapters)
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


def test_steps_continue_while_an_adapter_is_read(base: Path, tmp_path: Path):
    runner = runner_of(base)
    adapter = save_adapter(tmp_path / "a", matrices_of(runner, 1))
    driver = Driver(runner)
    plain = driver.add(PROMPT, max_tokens=40, temperature=0.0)
    gate = threading.Event()
    release = runner.adapters._reader.submit(gate.wait, 20)
    driver.step()
    waiting = driver.add(PROMPT, adapter=adapter, **GREEDY)
    for _ in range(10):
        driver.step()
    assert len(driver.tokens[plain]) >= 10
    assert not driver.tokens[waiting]
    gate.set()
    release.result()
    driver.run()
    assert driver.finishes[waiting] == "length"
