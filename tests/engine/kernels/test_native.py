"""engine/kernels/native: equal to the reference operators. Skipped without a compiler."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.kernels.interface import (
    Activation,
    AttentionShape,
    AttentionWindow,
    KvPool,
    LowRank,
    LowRankShape,
    LowRankTokens,
)
from engine.kernels.native import build, library
from engine.kernels.native.operators import NativeKernels, check
from engine.kernels.reference import Kernels, ReferenceAttention
from tests.engine import one_thread  # noqa: F401
from tests.engine.kernels.test_cpu import NUM_LAYERS, SHAPES, Life, Step, pool_of, sinks_of

TOLERANCES = {torch.float32: {"atol": 1e-5, "rtol": 1e-5}, torch.bfloat16: {"atol": 0.03, "rtol": 0.03}}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCES)


@pytest.fixture(scope="module")
def native() -> NativeKernels:
    if build.find_compiler() is None:
        pytest.skip("no C++ compiler")
    return NativeKernels(library.load(build.build()))


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@DTYPES
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("draft_fraction", [0.0, 0.6])
def test_pool_attention_equals_its_reference_for_any_order_of_steps(
    name: str, draft_fraction: float, dtype: torch.dtype, native: NativeKernels
) -> None:
    shape, sinks, life = SHAPES[name], sinks_of(name), Life(7)
    pools = pool_of(shape, dtype), pool_of(shape, dtype)
    twins = ReferenceAttention(pools[0], shape, sinks), native.attention(pools[1], shape, sinks)
    generator = torch.Generator().manual_seed(0)
    for _ in range(25):
        step = life.draft_step() if life.rng.random() < draft_fraction else life.step()
        if not len(step.context_lens):
            continue
        for twin in twins:
            twin.begin(step)
        for layer in range(NUM_LAYERS):
            width = shape.query_width + shape.kv_width
            qkv = torch.randn(len(step.slot_mapping), width, generator=generator).to(dtype)
            expected, found = (twin.attend(layer, qkv.clone()) for twin in twins)
            torch.testing.assert_close(found, expected, **TOLERANCES[dtype])
    assert torch.equal(*(pool.data.nan_to_num(-7.0) for pool in pools))  # equal and complete contents


@DTYPES
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(6, 6, 48), (7, 1, 64), (4, 2, 100)])
def test_attention_of_common_head_sizes_equals_its_reference(
    num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, native: NativeKernels
) -> None:
    shape = AttentionShape(num_heads, num_kv_heads, head_dim)
    life, pools = Life(0), (pool_of(shape, dtype), pool_of(shape, dtype))
    life.lengths, life.tables = {0: 0, 1: 0}, {0: [], 1: []}
    twins = ReferenceAttention(pools[0], shape), native.attention(pools[1], shape)
    for index, chunks in enumerate(({0: 57, 1: 64}, {0: 1, 1: 1}, {0: 3, 1: 20})):
        step = life.step_of([0, 1], chunks)
        qkv = random(len(step.slot_mapping), shape.query_width + shape.kv_width, dtype=dtype, seed=index)
        for twin in twins:
            twin.begin(step)
        expected, found = (twin.attend(0, qkv.clone()) for twin in twins)
        torch.testing.assert_close(found, expected, **TOLERANCES[dtype])


def test_decode_of_a_row_is_bitwise_independent_of_other_rows(
    native: NativeKernels,
) -> None:
    shape = SHAPES["grouped"]
    rows = random(4, shape.query_width + shape.kv_width, dtype=torch.bfloat16)
    rows[2] = float("nan")
    found = []
    for batch in ([1], [0, 1, 2, 3]):
        life, attention = Life(0), native.attention(pool_of(shape, torch.bfloat16), shape)
        life.lengths, life.tables = dict.fromkeys(batch, 0), {row: [] for row in batch}
        for _ in range(6):
            attention.begin(life.step_of(batch, dict.fromkeys(batch, 1)))
            mixed = attention.attend(0, rows[batch].clone())
        found.append(mixed[batch.index(1)])
        assert mixed.isfinite().all(1).tolist() == [row != 2 for row in batch]
    assert torch.equal(*found)


@DTYPES
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("num_out", "num_in"), [(40, 24), (48, 2), (97, 66), (400, 300), (33, 7)])
def test_product_of_any_shape_equals_its_reference(
    num_out: int, num_in: int, has_bias: bool, dtype: torch.dtype, native: NativeKernels
) -> None:
    weight = random(num_out, num_in, dtype=dtype)
    bias = random(num_out, dtype=dtype, seed=1) if has_bias else None
    linear = native.linear(weight, bias)
    x = random(29, num_in, dtype=dtype, seed=2)
    whole, expected = linear(x), Kernels().linear(weight, bias)(x)
    tolerances = {"atol": 0.1, "rtol": 0.02} if dtype == torch.bfloat16 else {"atol": 1e-4, "rtol": 1e-4}
    torch.testing.assert_close(whole, expected, **tolerances)
    is_native = num_in % 2 == 0
    if is_native:
        for num_tokens in range(1, 14):  # rows do not depend on their number
            assert torch.equal(linear(x[:num_tokens]), whole[:num_tokens])
    # torch's product may add in another order
    torch.testing.assert_close(
        linear(x.t().contiguous().t()), whole, **{"atol": 0, "rtol": 0} if is_native else tolerances
    )


def test_strided_operands_are_multiplied_without_copies(native: NativeKernels) -> None:
    weight, x = random(64, 80, dtype=torch.bfloat16)[:50, 16:48], random(5, 64, dtype=torch.bfloat16)[:, 32:]
    found = native.linear(weight, None)(x)
    torch.testing.assert_close(found, Kernels().linear(weight, None)(x), atol=0.1, rtol=0.02)


@DTYPES
def test_norm_rotation_gate_and_addition_equal_their_references(dtype: torch.dtype, native: NativeKernels) -> None:
    twins, tolerance = (Kernels(), native), TOLERANCES[dtype]
    for num_tokens, width in ((1, 24), (5, 288), (3, 7)):
        x, weight = random(num_tokens, width), random(width, dtype=dtype, seed=1)
        for scale in (1.0, 1e-4, 1e4):
            expected, found = (twin.rms_norm(weight, 1e-5, dtype)(x * scale) for twin in twins)
            assert found.dtype == dtype
            torch.testing.assert_close(found, expected, **tolerance)
        gate_up = random(num_tokens, 2 * width, dtype=dtype, seed=2) * 8
        gate_up[0, :4] = torch.tensor([-200.0, 200.0, 0.0, -0.0])
        expected, found = (twin.activation(Activation())(gate_up.clone()) for twin in twins)
        torch.testing.assert_close(found, expected, **tolerance)
        streams = x.clone(), x.clone()
        for twin, stream in zip(twins, streams, strict=True):
            twin.add(0.3)(stream, gate_up[:, :width].contiguous())
            twin.add(1.0)(stream, gate_up[:, width:])
            twin.add(1.0)(stream, x)
        torch.testing.assert_close(streams[1], streams[0], atol=1e-5, rtol=1e-5)


@DTYPES
@pytest.mark.parametrize("half", [3, 24, 32])
def test_rotation_equals_its_reference_and_does_not_change_values(
    half: int, dtype: torch.dtype, native: NativeKernels
) -> None:
    qkv, angles = random(4, 5 * 2 * half, dtype=dtype), random(4, 1, 1, half, seed=1)
    table = torch.cat((angles.cos(), -angles.sin(), angles.sin()), 2).to(dtype)  # layout of `Rotary`
    rotated = qkv.clone(), qkv.clone()
    for twin, copy in zip((Kernels(), native), rotated, strict=True):
        twin.rotation(3)(copy, table.split((1, 2), 2))
    torch.testing.assert_close(rotated[1], rotated[0], **TOLERANCES[dtype])
    assert torch.equal(rotated[1][:, 6 * half :], qkv[:, 6 * half :])


@DTYPES
def test_nan_affects_only_its_row(dtype: torch.dtype, native: NativeKernels) -> None:
    for value in (float("nan"), float("inf"), float("-inf")):
        x = random(3, 96, dtype=dtype)
        x[1, 5] = value
        for operator in (
            native.rms_norm(torch.ones(96), 1e-6, dtype),
            native.activation(Activation()),
            native.linear(random(50, 96, dtype=dtype), None),
        ):
            found = operator(x.float() if operator.__name__ == "norm" else x)
            # silu(-inf) is 0, so the product is 0 or NaN.
            if not (operator.__name__ == "gate" and value == float("-inf")):
                assert not found[1].isfinite().all()
            assert found[[0, 2]].isfinite().all()


@pytest.mark.parametrize("window", [AttentionWindow(), AttentionWindow(size=21), AttentionWindow(chunk=18)])
def test_product_of_a_token_is_bitwise_independent_of_its_row(window: AttentionWindow, native: NativeKernels) -> None:
    shape = AttentionShape(6, 2, 64, windows=(window,))
    qkv, found = random(61, shape.query_width + shape.kv_width, dtype=torch.bfloat16), []
    for chunks in ([61], [40, *[1] * 21], [17, 30, 5, 9]):
        life, attention, mixed = Life(0), native.attention(pool_of(shape, torch.bfloat16), shape), []
        life.lengths, life.tables = {0: 0}, {0: []}
        for part, chunk in zip(qkv.split(chunks), chunks, strict=True):
            attention.begin(life.step_of([0], {0: chunk}))
            mixed.append(attention.attend(0, part.clone()))
        found.append(torch.cat(mixed))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@DTYPES
def test_long_context_attention_is_bitwise_independent_of_chunks_and_rows(
    dtype: torch.dtype, native: NativeKernels
) -> None:
    """A prompt of 1,000 tokens has bitwise equal results in one step, in chunks, and beside another prompt."""
    shape, num_tokens = AttentionShape(2, 1, 16), 1000
    qkv, found = random(num_tokens, shape.query_width + shape.kv_width, dtype=dtype), []
    other = random(num_tokens, shape.query_width + shape.kv_width, dtype=dtype, seed=1)
    pool = KvPool(torch.zeros(1, 2 * num_tokens + 32, shape.kv_width, dtype=dtype), 16)
    tables = np.arange(126, dtype=np.int32).reshape(2, 63)
    for chunks, has_other in (([1000], False), ([512, 488], True), ([*[100] * 8, *[1] * 3, 190, 7], True)):
        attention, mixed, until = native.attention(pool, shape), [], 0
        for part in qkv.split(chunks):
            until += len(part)
            rows = [(until, part), (900, other[200:900])] if has_other else [(until, part)]
            attention.begin(step_of_rows([(lens, len(tokens)) for lens, tokens in rows], tables))
            mixed.append(attention.attend(0, torch.cat([tokens for _, tokens in rows]))[: len(part)])
        found.append(torch.cat(mixed))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def step_of_rows(rows: list[tuple[int, int]], tables: np.ndarray) -> Step:
    """Return a step of rows with these context lengths and numbers of new tokens."""
    lens, counts = (np.array(column, dtype=np.int32) for column in zip(*rows, strict=True))
    positions = [np.arange(length - count, length) for length, count in rows]
    slots = np.concatenate([tables[row][of // 16] * 16 + of % 16 for row, of in enumerate(positions)])
    return Step(
        slot_mapping=torch.from_numpy(slots.astype(np.int64)),
        query_starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        context_lens=lens,
        block_tables=tables[: len(rows)],
        num_decode_rows=int(np.argmax(np.append(counts, 2) > 1)),
    )


def test_two_threads_compute_the_same_bits_as_one(native: NativeKernels) -> None:
    shape = AttentionShape(8, 2, 64)
    weight, x = random(2048, 512, dtype=torch.bfloat16), random(9, 512, dtype=torch.bfloat16)
    stream = random(1024, 512)
    found = []
    for num_threads in (1, 2):
        torch.set_num_threads(num_threads)
        life, attention = Life(0), native.attention(pool_of(shape, torch.bfloat16), shape)
        life.lengths, life.tables = dict.fromkeys(range(6), 0), {row: [] for row in range(6)}
        attention.begin(life.step_of(list(range(6)), dict.fromkeys(range(6), 50)))
        attention.attend(0, random(300, shape.query_width + shape.kv_width, dtype=torch.bfloat16))
        attention.begin(life.step_of(list(range(6)), dict.fromkeys(range(6), 1)))
        mixed = attention.attend(0, random(6, shape.query_width + shape.kv_width, dtype=torch.bfloat16))
        normalized = native.rms_norm(torch.ones(512), 1e-6, torch.bfloat16)(stream)
        found.append((mixed, native.linear(weight, None)(x), normalized))
    torch.set_num_threads(1)
    for one, two in zip(*found, strict=True):
        assert torch.equal(one, two)


def test_foreign_or_missing_library_is_not_loaded(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "some.so"
    with pytest.raises(OSError, match=r"some\.so"):
        check(path)
    path.write_bytes(b"\x7fELF, but no more")
    with pytest.raises(OSError, match=r"some\.so"):
        library.load(path)
    monkeypatch.setattr(library, "library_path", lambda _instructions: path)
    assert library.find_library.__wrapped__() is None


def test_library_name_depends_on_sources_and_flags(tmp_path: Path, monkeypatch) -> None:
    paths = {library.library_path(each) for each in library.INSTRUCTION_SETS}
    assert len(paths) == len(library.INSTRUCTION_SETS)
    best = library.usable_instruction_sets()[0]
    for kind in ("SOURCES", "HEADERS"):
        first, *others = getattr(library, kind)
        changed = tmp_path / first.name
        changed.write_text(first.read_text() + "// more\n")
        monkeypatch.setattr(library, kind, (changed, *others))
        paths.add(library.library_path(best))
    monkeypatch.setattr(library, "compiler_flags", lambda _instructions: ("-O0",))
    paths.add(library.library_path(best))
    assert len(paths) == len(library.INSTRUCTION_SETS) + 3


def test_best_built_library_for_the_processor_is_chosen(tmp_path: Path, monkeypatch) -> None:
    better = library.InstructionSet("better", frozenset({"a", "b"}), ("-mb",), "avx512")
    other = library.InstructionSet("other", frozenset({"c"}), ("-mc",))
    plain = library.InstructionSet("plain", frozenset(), ())
    monkeypatch.setattr(library, "INSTRUCTION_SETS", (better, other, plain))
    monkeypatch.setattr(library, "_cpu_features", lambda: frozenset("ab"))
    monkeypatch.setattr(library, "library_path", lambda instructions: tmp_path / instructions.name)
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    assert library.find_library_path() is None
    for name in ("other", "plain"):
        (tmp_path / name).touch()
    assert library.find_library_path() == tmp_path / "plain"
    (tmp_path / "better").touch()
    assert library.find_library_path() == tmp_path / "better"
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert library.find_library_path() == tmp_path / "plain"


def test_failed_build_is_reported_and_leaves_no_file(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "missing"))
    with pytest.raises(build.BuildError, match=r"no C\+\+ compiler"):
        build.build(tmp_path)
    compiler = tmp_path / "broken"
    compiler.write_text("#!/bin/sh\necho cannot read >&2\nexit 3\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(build.BuildError, match=r"status 3.*cannot read"):
        build.build(tmp_path)
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho nonsense > "$2"\n')
    with pytest.raises(build.BuildError, match="do not work"):
        build.build(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"broken"}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from engine.kernels.native import build, library; "
         "build.library_path = lambda *_: library.CACHE / 'never' / 'x.so'; sys.exit(build.main())"],
        capture_output=True, text=True, env={"CXX": "/nowhere", "PATH": "", "PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0
    [line] = done.stdout.splitlines()
    assert "through torch alone, at 60 to 90 % of the speed" in line
    assert "there is no C++ compiler" in line


LOW_RANKS = [
    LowRankShape(96, 16, ((3, 103), (103, 203), (610, 643))),
    LowRankShape(9, 8, ((0, 7),)),
    LowRankShape(64, 24, ((5, 261), (261, 517), (700, 740))),  # more hidden numbers than one pass processes
    LowRankShape(33, 64, ((1, 161), (900, 930))),
    LowRankShape(2, 8, ((0, 16),)),
]


def low_rank(kernels: Kernels, shape: LowRankShape, dtype: torch.dtype) -> tuple[LowRank, torch.Tensor]:
    """Return a kernel and the memory of five adapters with strided rows. The second adapter has smaller ranks."""
    kernel = kernels.low_rank(shape, dtype)
    memory = torch.zeros(5, kernel.size + 32, dtype=dtype)[:, 32:]
    for slot in range(5):
        for part, (first, last) in enumerate(shape.parts):
            rank = shape.rank - 3 * (slot == 1)
            a = random(rank, shape.num_in, dtype=dtype, seed=10 * part + slot)
            kernel.write(memory[slot], part, a, random(last - first, rank, dtype=dtype, seed=100 + 10 * part + slot))
    return kernel, memory


def low_rank_tokens(*of_slots: tuple[int, Sequence[int]]) -> LowRankTokens:
    slots = [slot for slot, rows in of_slots for _ in rows]
    rows = [row for _, rows in of_slots for row in rows]
    return LowRankTokens(torch.tensor(slots, dtype=torch.int32), torch.tensor(rows))


@DTYPES
@pytest.mark.parametrize("shape", LOW_RANKS)
def test_adapters_of_many_tokens_equal_the_reference(
    shape: LowRankShape, dtype: torch.dtype, native: NativeKernels
) -> None:
    tokens = low_rank_tokens((2, [5, 1]), (1, [0]), (4, [3, 7, 8, 9, 10, 6]))
    x, seen = random(11, shape.num_in + 3, dtype=dtype, seed=1)[:, 1 : shape.num_in + 1], []
    for kernels in (native, Kernels()):
        kernel, memory = low_rank(kernels, shape, dtype)
        y = random(11, 1200, dtype=dtype, seed=2)
        kernel.bind(memory, tokens)(x, y)
        seen.append(y)
    untouched = random(11, 1200, dtype=dtype, seed=2)
    changed = torch.zeros(11, 1200, dtype=torch.bool)
    for first, last in shape.parts:
        changed[tokens.rows, first:last] = True
    assert torch.equal(seen[0][~changed], untouched[~changed])
    assert (seen[0][changed] != untouched[changed]).float().mean() > 0.9
    size = (shape.num_in * shape.rank) ** 0.5  # magnitude of the largest sums
    tolerance = 1e-6 * size if dtype == torch.float32 else 0.01 * size
    torch.testing.assert_close(*seen, atol=tolerance, rtol=TOLERANCES[dtype]["rtol"])


@DTYPES
def test_adapter_result_is_bitwise_independent_of_tokens_and_threads(dtype: torch.dtype, native: NativeKernels) -> None:
    shape = LowRankShape(512, 32, ((0, 512), (600, 650)))
    kernel, memory = low_rank(native, shape, dtype)
    x, plain = random(24, 512, dtype=dtype, seed=1), random(24, 650, dtype=dtype, seed=2)

    def run(*of_slots: tuple[int, Sequence[int]]) -> torch.Tensor:
        y = plain.clone()
        kernel.bind(memory, low_rank_tokens(*of_slots))(x, y)
        return y

    alone = plain.clone()
    for row in range(20):
        alone[row] = run((row % 3, [row]))[row]
    mixed = [(slot, range(slot, 20, 3)) for slot in range(3)]
    assert torch.equal(run(*mixed), alone)
    torch.set_num_threads(2)
    by_two = run(*mixed)
    torch.set_num_threads(1)
    assert torch.equal(by_two, alone)
