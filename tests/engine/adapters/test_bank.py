"""Which adapters a rank holds: those in use, and idle ones while they fit; and what happens to sequences whose adapter
cannot be had."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from engine.adapters.bank import AdapterBank
from engine.adapters.local_adapter import LocalAdapter
from engine.adapters.shelf import Shelf
from engine.kernels.cpu import CpuKernels
from engine.kernels.interface import Kernels
from engine.kernels.reference import ReferenceKernels
from engine.report import BAD_ADAPTER, OUT_OF_CAPACITY, RUNNING
from engine.runner import Runner
from tests.engine.adapters.made import Matrices, named, random_matrices, save_adapter
from tests.engine.checkpoints import runner_of, save_random
from tests.engine.driver import OTHER_NAMESPACE, Driver

PROMPT = list(range(3, 40))
# Tables of torch's operators, and one piece of memory for each adapter.
BY_KERNELS = pytest.mark.parametrize("kernels", [CpuKernels(), ReferenceKernels()], ids=["tables", "packed"])
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


def bank_for(runner: Runner, num_adapters: int, kernels: Kernels | None = None) -> AdapterBank:
    """With room for so many of rank 4 on queries and values, which are padded to 8."""
    sites = named(runner.adapters.sites, ["q_proj", "v_proj"])
    size_bytes = sum(8 * (num_in + num_out) * 4 for num_in, num_out in sites.values())
    bank = AdapterBank(runner._model, torch.float32, num_adapters * size_bytes, kernels)
    runner.adapters = bank
    return bank


def prepare(bank: AdapterBank, sequence_id: int, adapter: LocalAdapter) -> tuple[int, int]:
    """The handle and the code."""
    handle = bank.prepare(sequence_id, adapter)
    if handle:
        return handle, RUNNING
    while True:
        for ready_id, handle, code in bank.take_ready(5.0):
            assert ready_id == sequence_id
            return handle, code


def test_the_least_recently_used_idle_adapter_leaves_and_one_in_use_never_does(runner: Runner, tmp_path: Path):
    bank = bank_for(runner, 2)
    adapters = [save_adapter(tmp_path / str(seed), matrices_of(runner, seed)) for seed in range(4)]
    first, _ = prepare(bank, 1, adapters[0])
    prepare(bank, 2, adapters[1])
    assert prepare(bank, 3, adapters[2]) == (0, OUT_OF_CAPACITY)
    bank.forget(2)
    third, code = prepare(bank, 4, adapters[2])
    assert (code, bank.prepare(5, adapters[0])) == (RUNNING, first), "the one in use has stayed"
    for sequence_id in (1, 4, 5):
        bank.forget(sequence_id)
    prepare(bank, 6, adapters[3])
    assert bank.prepare(7, adapters[0]) == first, "0 was used after 2"
    assert bank.prepare(8, adapters[2]) == 0, "2 left"
    assert third not in bank._step.places
    assert bank.used_bytes == bank._budget_bytes


def test_memory_of_one_kind_serves_another_once_it_is_idle(runner: Runner, tmp_path: Path):
    bank = bank_for(runner, 2)
    for seed in range(2):
        prepare(bank, seed, save_adapter(tmp_path / str(seed), matrices_of(runner, seed)))
    small = save_adapter(tmp_path / "small", matrices_of(runner, 5, ("v_proj",)))
    assert prepare(bank, 3, small)[1] == OUT_OF_CAPACITY
    bank.forget(0)
    bank.forget(1)
    assert prepare(bank, 4, small)[1] == RUNNING
    assert sum(shelf.num_used for shelf in bank._shelves.values()) == len(bank._residents)
    assert bank.used_bytes == sum(shelf.num_used * shelf.slot_bytes for shelf in bank._shelves.values())


@BY_KERNELS
def test_a_slot_taken_again_holds_nothing_of_the_one_before(kernels: Kernels, runner: Runner, tmp_path: Path):
    bank = bank_for(runner, 1, kernels)
    prepare(bank, 1, save_adapter(tmp_path / "a", matrices_of(runner, 1, rank=8)))
    bank.forget(1)
    small = save_adapter(tmp_path / "b", matrices_of(runner, 2, rank=3))
    handle, _ = prepare(bank, 2, small)
    fresh = bank_for(runner, 1, kernels)
    fresh_handle, _ = prepare(fresh, 2, small)
    shelf, slot = bank._step.places[handle]
    seen = [numbers_of(*each._step.places[number]) for each, number in ((bank, handle), (fresh, fresh_handle))]
    assert all(torch.equal(one, two) for one, two in zip(*seen, strict=True))
    assert sum(int(each.count_nonzero()) for each in seen[0]) == 3 * shelf.slot_bytes // shelf.itemsize // 8
    shelf.give(slot)
    assert not any(each.count_nonzero() for each in numbers_of(shelf, slot))


def numbers_of(shelf: Shelf, slot: int) -> list[torch.Tensor]:
    """All that a shelf keeps of one adapter."""
    if shelf.packed:
        return [shelf._memory.slot(slot)]
    tables = [each for site in shelf.tables.values() for each in (site.inputs, *(run.table for run in site.runs))]
    return [table.slot(slot) for table in tables]


def test_an_adapter_that_fits_nowhere_is_refused(runner: Runner, tmp_path: Path):
    bank = bank_for(runner, 1)
    large = save_adapter(tmp_path / "large", matrices_of(runner, 0, rank=20))
    assert prepare(bank, 1, large) == (0, BAD_ADAPTER)
    assert not AdapterBank(runner._model, torch.float32, 0).sites


def save_bad(harm: str, folder: Path, matrices: Matrices) -> LocalAdapter:
    """An adapter that cannot be served, for one reason."""
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


def test_a_bad_adapter_ends_its_own_sequences_and_batch_mates_hear_nothing(base: Path, tmp_path: Path):
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
        assert not driver.runner.adapters._held
        assert not driver.runner.adapters.is_preparing
        return [driver.tokens[each] for each in good]

    assert run(bad) == run([])


def test_sequences_are_aborted_while_they_wait_and_others_go_on(base: Path, tmp_path: Path):
    runner = runner_of(base)
    adapter = save_adapter(tmp_path / "a", matrices_of(runner, 1))
    driver = Driver(runner)
    aborted, kept = (driver.add(PROMPT, adapter=adapter, **GREEDY) for _ in range(2))
    driver.abort(aborted)
    driver.run()
    assert (driver.finishes[aborted], driver.finishes[kept]) == ("aborted", "length")
    driver.abort(driver.add(PROMPT, adapter=adapter, **GREEDY))
    driver.run()
    assert not runner.adapters._held


def test_cached_prefixes_are_an_adapters_own(base: Path, tmp_path: Path):
    """Neither the base nor another adapter finds them, nor does another namespace; the same adapter does."""
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


def test_steps_go_on_while_an_adapter_is_read(base: Path, tmp_path: Path):
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
