"""Laws of the corpus generator."""

from itertools import islice

import pytest

from spark.generator.corpus import (
    KINDS,
    MIX,
    generate_evaluation,
    generate_training,
    has_held_out_part,
)
from spark.generator.dialogue import Dialogue
from spark.generator.held_out import is_held_out
from spark.generator.sums import work_difference, work_sum
from spark.tokenizer import render


def write(dialogue: Dialogue) -> str:
    return "".join(text for text, _ in render(dialogue.messages, dialogue.tools))


@pytest.mark.parametrize("phase", MIX)
def test_one_seed_gives_one_text_and_another_seed_another(phase: str) -> None:
    """The corpus can be made again from its seed."""
    first, again, other = ([write(d) for d in islice(generate_training(seed, phase), 200)] for seed in (3, 3, 4))
    assert first == again
    assert first != other


@pytest.mark.parametrize("phase", MIX)
def test_held_out_prompts_never_enter_training(phase: str) -> None:
    """No single question of the evaluation is a question of the training stream."""
    drawn = {
        dialogue.prompt[0]["content"]
        for kind in KINDS
        if kind != "showcase"
        for dialogue in generate_evaluation(kind, 30)
        if len(dialogue.prompt) == 1 and not dialogue.tools
    }
    trained = {
        message["content"]
        for dialogue in islice(generate_training(0, phase), 3000)
        for message in dialogue.messages
        if message["role"] == "user" and dialogue.kind not in ("memory", "obey", "showcase")
    }
    assert len(drawn) > 150
    assert not drawn & trained


def test_every_training_dialogue_is_free_of_held_out_turns() -> None:
    """The filter looks at every assistant turn, not only at the last."""
    for dialogue in islice(generate_training(0, "copying"), 2000):
        assert dialogue.kind == "showcase" or not has_held_out_part(dialogue)


def test_about_one_prompt_in_twenty_is_held_out() -> None:
    """The hash splits evenly."""
    share = sum(is_held_out([{"role": "user", "content": str(i)}]) for i in range(4000)) / 4000
    assert 0.035 < share < 0.065


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("showcase", "induction")])
def test_every_kind_keeps_a_wording_for_evaluation(kind: str) -> None:
    """Each kind has wordings that training never shows."""
    new = generate_evaluation(kind, 5, is_new_phrasing=True)
    assert len(new) == 5
    assert all(dialogue.is_new_phrasing for dialogue in new)


@pytest.mark.parametrize("kind", KINDS)
def test_dialogue_ends_with_a_response(kind: str) -> None:
    """The last message is the assistant's and says something."""
    for dialogue in generate_evaluation(kind, 20):
        assert dialogue.messages[-1]["role"] == "assistant"
        assert dialogue.answer.strip() == dialogue.answer != ""


def test_the_work_of_a_sum_is_written_out() -> None:
    """Carry and borrow are said; the answer is right for all operands below 100."""
    assert work_sum(47, 38) == "47 + 38: 7 + 8 = 15, carry 1; 4 + 3 + 1 = 8. Answer: 85."
    assert work_difference(52, 38) == "52 - 38: 2 - 8 borrow, 12 - 8 = 4; 5 - 1 = 4, 4 - 3 = 1. Answer: 14."
    for first in range(100):
        for second in range(100):
            assert work_sum(first, second).endswith(f" {first + second}.")
