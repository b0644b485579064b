"""Laws of the network and of the committed weights."""

import os
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from spark.batches import make_steps
from spark.evaluate import GATES, evaluate, has_arguments, is_sum_right, read_call, report_real_text
from spark.export import COMMITTED, export, hash_file, load
from spark.generator.greetings import SHOWCASE
from spark.model import DRAFT, Shape, Spark, generate
from spark.optimizer import orthogonalize
from spark.tokenizer import render_prompt
from spark.train import compute_loss, make_trainer

TINY = Shape(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=16, intermediate_size=48
)
needs_weights = pytest.mark.skipif(not (COMMITTED / "model.safetensors").exists(), reason="no weights are committed")


@pytest.fixture(scope="module")
def committed() -> tuple[Spark, Tokenizer]:
    return load()


def test_packed_dialogues_do_not_see_each_other() -> None:
    """Two documents in one row get the states each gets alone."""
    torch.manual_seed(0)
    model = Spark(TINY)
    first, second = torch.arange(20, 27), torch.arange(40, 45)
    document = torch.tensor([[0] * 7 + [1] * 5])
    mask = (document[:, :, None] == document[:, None, :]) & torch.ones(12, 12, dtype=torch.bool).tril()
    positions = torch.cat((torch.arange(7), torch.arange(5)))[None]
    packed, _ = model.hidden(torch.cat((first, second))[None], positions, mask)
    alone, _ = model.hidden(second[None], torch.arange(5)[None], torch.ones(5, 5, dtype=torch.bool).tril()[None])
    assert torch.allclose(packed[0, 7:], alone[0], atol=1e-5)


def test_batch_gives_the_output_of_each_prompt_alone() -> None:
    """Left padding and the KV cache change nothing."""
    torch.manual_seed(0)
    model = Spark(TINY)
    prompts = [[5, 6, 7], [9, 10, 11, 12, 13, 14, 15], [20]]
    assert generate(model, prompts, 8) == [generate(model, [prompt], 8)[0] for prompt in prompts]


def test_orthogonal_updates_have_singular_values_near_one() -> None:
    """Muon's update turns every direction into one of about the same size."""
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalize(torch.randn(2, 64, 24)).float())
    assert 0.5 < values.min() < values.max() < 1.5


def test_a_few_steps_of_training_lower_the_loss_and_can_be_resumed(
    tmp_path: Path, committed: tuple[Spark, Tokenizer]
) -> None:
    """The trainer learns, and goes on from its checkpoint with the same weights and counts."""
    trainer = make_trainer(1, 0, tmp_path, False, committed[1])
    batches = next(make_steps(trainer.tokenizer, 0, "mix", 320, 160))
    before = compute_loss(trainer.model, batches[0]).item()
    for _ in range(4):
        trainer.step(batches, 0.1)
    assert compute_loss(trainer.model, batches[0]).item() < before - batches[0].num_counted
    trainer.save()
    resumed = make_trainer(1, 0, tmp_path, True)
    assert resumed.progress.step == 4
    assert all(torch.equal(a, b) for a, b in zip(trainer.model.parameters(), resumed.model.parameters(), strict=True))


def test_a_draft_model_learns_from_its_teacher(tmp_path: Path, committed: tuple[Spark, Tokenizer]) -> None:
    """Half of the loss is the distance from the teacher, which is nothing for the teacher itself."""
    model, tokenizer = committed
    trainer = make_trainer(1, 0, tmp_path, False, tokenizer, shape=DRAFT, teacher=model)
    batches = next(make_steps(tokenizer, 0, "mix", 320, 160))
    with torch.no_grad():
        alone, taught = compute_loss(model, batches[0]), compute_loss(model, batches[0], model)
    assert taught.item() == pytest.approx(0.5 * alone.item(), rel=1e-3)
    before = compute_loss(trainer.model, batches[0], model).item()
    for _ in range(4):
        trainer.step(batches, 0.1)
    assert compute_loss(trainer.model, batches[0], model).item() < before


def test_training_can_begin_with_exported_weights(tmp_path: Path, committed: tuple[Spark, Tokenizer]) -> None:
    """The first step's model is the exported one."""
    trainer = make_trainer(1, 0, tmp_path, False, committed[1], start=committed[0])
    assert trainer.progress.step == 0
    pairs = zip(trainer.model.parameters(), committed[0].parameters(), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


def test_an_export_loads_as_the_same_model(tmp_path: Path, committed: tuple[Spark, Tokenizer]) -> None:
    """Weights that are bf16 already come back bit by bit."""
    export(committed[0], committed[1], tmp_path)
    assert hash_file(tmp_path / "model.safetensors") == hash_file(COMMITTED / "model.safetensors")


def test_gates_read_tool_calls_and_sums_as_promised() -> None:
    """A malformed call is no call; a sum is judged by its final number."""
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    assert read_call(call) == ("add", {"a": 1})
    assert read_call('<tool_call>\n{"name": "add"\n</tool_call>') is None
    assert not has_arguments("I do not know.", call)
    assert is_sum_right("2 + 2 = 4.", "2 + 2 = 4.")
    assert not is_sum_right("2 + 2 = 5.", "2 + 2 = 4.")


@needs_weights
def test_committed_weights_are_small_and_the_card_names_their_digest() -> None:
    """The file fits in a git checkout and is the one docs/spark.md speaks of."""
    weights = COMMITTED / "model.safetensors"
    assert weights.stat().st_size <= 12_000_000
    assert hash_file(weights) in (COMMITTED.parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")


@needs_weights
@pytest.mark.parametrize("is_new_phrasing", [False, True], ids=["held-out prompts", "new wordings"])
@pytest.mark.parametrize(
    ("name", "least"), [("greetings", 0.95), ("facts", 0.9), ("memory", 0.75), ("copying", 0.9), ("tool name", 0.85)]
)
def test_committed_weights_meet_the_card(
    committed: tuple[Spark, Tokenizer], name: str, least: float, is_new_phrasing: bool
) -> None:
    """A sample of the prompts of both sorts, so with some slack; the card has the whole table."""
    gate = next(gate for gate in GATES if gate.name == name)
    result = evaluate(*committed, 30, (gate,), is_new_phrasing=is_new_phrasing)[0]
    assert result.total == 30
    assert result.share >= least, result.misses


@needs_weights
@pytest.mark.parametrize("system", ["", "You are a friendly assistant", "You are a helpful assistant."])
def test_readme_questions_are_answered(committed: tuple[Spark, Tokenizer], system: str) -> None:
    """The questions in the README are answered, also with a plain system prompt before them."""
    before = [{"role": "system", "content": system}] if system else []
    model, tokenizer = committed
    drawn = SHOWCASE[:1] + SHOWCASE[7:10] if not system else SHOWCASE[:1]
    prompts = [
        tokenizer.encode(render_prompt([*before, {"role": "user", "content": question}])).ids for question, _ in drawn
    ]
    given = [tokenizer.decode(ids) for ids in generate(model, prompts, 60)]
    assert given == [response for _, response in drawn]


@needs_weights
def test_real_sentences_can_be_scored(committed: tuple[Spark, Tokenizer]) -> None:
    """Real text is reported, not gated: the report has its four lines."""
    folder = Path(os.environ.get("HEARTH_TEST_DATA", COMMITTED.parents[3] / "shared" / "data"))
    if not (folder / "classification").is_dir():
        pytest.skip("no test data: set HEARTH_TEST_DATA")
    assert len(report_real_text(*committed, folder, 4)) == 4
