"""Laws of what a training step is given, and of tokens that belong together."""

import json
from itertools import islice

import torch
from tokenizers import Tokenizer

from spark.batches import MAX_WEIGHT, MEMORY, OTHER_WEIGHT, SHORT_ROW, TOOL, UNCOUNTED, encode, make_steps
from spark.generator.dialogue import Dialogue, assistant, recall, user
from spark.pairs import align_embeddings, find_families, share_gradients
from spark.tokenizer import END_ID, END_OF_TEXT_ID


def test_only_the_assistants_tokens_weigh_fully(tokenizer: Tokenizer) -> None:
    """The question weighs a tenth; a one-word answer weighs more than its length."""
    ids, weights, looks = encode(
        tokenizer, Dialogue("sentiment", [user("Sentiment: A bad film."), assistant("negative")])
    )
    heavy = [token_id for token_id, weight in zip(ids, weights, strict=True) if weight > OTHER_WEIGHT]
    assert heavy[-1] == END_ID
    assert tokenizer.decode(heavy) == "negative"
    assert max(weights) == MAX_WEIGHT
    assert not looks


def test_a_step_counts_next_tokens_within_its_dialogues(tokenizer: Tokenizer) -> None:
    """Targets are the next ids; no target crosses into another dialogue; the mask keeps dialogues apart."""
    batches = next(make_steps(tokenizer, 0, "long", 1024, 640))
    assert sum(batch.num_tokens for batch in batches) >= 1024
    for batch in batches:
        flat, positions = batch.ids.reshape(-1), batch.positions.reshape(-1)
        counted, targets = batch.counted[: batch.num_counted], batch.targets[: batch.num_counted]
        assert torch.equal(flat[counted + 1], targets)
        assert torch.equal(positions[counted + 1], positions[counted] + 1)
        assert (batch.targets[batch.num_counted :] == UNCOUNTED).all()
        is_start = (batch.positions == 0) & (batch.ids != END_OF_TEXT_ID)  # B T
        assert is_start.sum() >= len(batch.ids)
        assert batch.mask.sum(dim=-1)[is_start].unique().tolist() == [1]
    assert batches[0].ids.shape[1] == SHORT_ROW


def test_attention_target_of_a_name_is_its_schema(tokenizer: Tokenizer) -> None:
    """Attention targets are found again in a row that several dialogues share."""
    found = 0
    for batches in islice(make_steps(tokenizer, 3, "answers", 2048, 704), 3):
        for batch in batches:
            for row, task, place, start, end, first, last in batch.looks.tolist():
                if task != TOOL:
                    continue
                schema = json.loads(tokenizer.decode(batch.ids[row, start:end].tolist()).strip())
                assert tokenizer.decode(batch.ids[row, place + 1 : place + 2].tolist()) in schema["function"]["name"]
                assert first <= start < end <= last <= place
                assert batch.mask[row, place, first]
                found += 1
    assert found > 20


def test_attention_target_of_a_repeated_value_is_its_latest_statement(tokenizer: Tokenizer) -> None:
    """The latest statement is the target. The other statements are the range of which the share is computed."""
    result = ("My cat is called Mimi.", "Tom lives in Rome.", "My cat is called Momo.")
    response = recall("Your cat is called Momo.", "Momo", result[2], result)
    turns = [
        user(" ".join(result[:2])),
        assistant("Okay."),
        user(result[2]),
        assistant("Okay."),
        user("And my cat?"),
        response,
    ]
    ids, _, looks = encode(tokenizer, Dialogue("memory", turns))
    for task, place, start, end, first, last in looks:
        assert task == MEMORY
        assert tokenizer.decode(ids[start:end]).strip() == result[2]
        assert tokenizer.decode(ids[place + 1 : place + 2]).strip() in "Momo"
        assert tokenizer.decode(ids[first:last], skip_special_tokens=False).startswith("My cat is called Mimi. Tom")
        assert last == end <= place
    assert looks
    alone = recall("You are Tom.", "Tom", "I am Tom.", ["I am Tom."])
    assert not encode(tokenizer, Dialogue("memory", [user("I am Tom. Who am I?"), alone]))[2]


def test_the_same_word_with_and_without_a_blank_is_one_family(tokenizer: Tokenizer) -> None:
    """Aligned, two pairs differ by the same vector; a gradient reaches the whole family."""
    families = find_families(tokenizer)
    lamp, chair = ([tokenizer.token_to_id(f"Ġ{word}"), tokenizer.token_to_id(word)] for word in ("lamp", "chair"))
    weight = torch.randn(tokenizer.get_vocab_size(), 8)
    align_embeddings(weight, families)
    assert torch.allclose(weight[lamp[1]] - weight[lamp[0]], weight[chair[1]] - weight[chair[0]], atol=1e-5)
    gradient = torch.zeros_like(weight)
    gradient[lamp[1]] = 1.0
    share_gradients(gradient, families)
    assert gradient[lamp[0]].tolist() == [1.0] * 8
    assert gradient[chair[0]].tolist() == [0.0] * 8
