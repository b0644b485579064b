"""Laws of what Spark says in plain talk: greetings, facts, checks, lists, refusals, follow-ups, rules."""

import re
from collections.abc import Callable

import pytest

from spark.generator import fact_table as table
from spark.generator.checks import make_check
from spark.generator.dialogue import Dialogue, Source
from spark.generator.facts import RELATIONS, make_fact
from spark.generator.followups import make_followup
from spark.generator.greetings import INTENTS, SHOWCASE, make_greeting, make_intent
from spark.generator.lists import make_list
from spark.generator.obey import make_obedience
from spark.generator.refusals import ANSWER, make_refusal
from spark.generator.stories import make_story

Kind = Callable[[Source], Dialogue]
ONE_ANSWER: tuple[Kind, ...] = (make_greeting, make_intent, make_fact, make_fact, make_refusal, make_check, make_list)
ALL: tuple[Kind, ...] = (*ONE_ANSWER, make_followup, make_obedience, make_story)


def simplify(question: str) -> str:
    return re.sub(r"[ .?!:)]+$", "", question.lower())


def test_every_question_has_one_response() -> None:
    """Questions are compared without punctuation and capitals."""
    source = Source("talk")
    known = {simplify(question): response for question, response in SHOWCASE}
    for i in range(30_000):
        dialogue = ONE_ANSWER[i % len(ONE_ANSWER)](source)
        question = dialogue.messages[0]["content"]
        assert known.setdefault(simplify(question), dialogue.answer) == dialogue.answer, question


@pytest.mark.parametrize("kind", ALL)
def test_one_seed_gives_one_dialogue(kind: Kind) -> None:
    assert [kind(Source(i)) for i in range(40)] == [kind(Source(i)) for i in range(40)]


@pytest.mark.parametrize("kind", ALL)
def test_texts_are_whole_sentences(kind: Kind) -> None:
    """No slot stays unfilled; nothing has blanks around it or double blanks."""
    source = Source(3)
    for _ in range(400):
        for message in kind(source).messages:
            text = str(message["content"])
            assert text == text.strip() != ""
            assert "{" not in text
            assert "  " not in text


@pytest.mark.parametrize("name", [*INTENTS, *RELATIONS])
def test_the_held_out_wording_is_new_but_its_words_are_not(name: str) -> None:
    """The last wording occurs nowhere before it, and each of its words does."""
    wordings = INTENTS[name][1] if name in INTENTS else RELATIONS[name][2]
    assert len(set(wordings)) >= 15
    assert wordings[-1] not in wordings[:-1]
    seen = set(re.findall(r"[\w{}']+", " ".join(wordings[:-1]).lower()))
    assert set(re.findall(r"[\w{}']+", wordings[-1].lower())) <= seen


@pytest.mark.parametrize("kind", ALL)
def test_training_never_draws_a_held_out_wording(kind: Kind) -> None:
    """`is_new_phrasing` is said exactly where the last wording was asked for."""
    source = Source(5)
    assert not any(kind(source).is_new_phrasing for _ in range(200))
    source.wants_new_phrasing = True
    assert any(kind(source).is_new_phrasing for _ in range(5))


def test_checks_say_the_true_capital() -> None:
    """Yes exactly when the supposed city is the capital."""
    source = Source(1)
    seen = set()
    for _ in range(2000):
        dialogue = make_check(source)
        said = re.fullmatch(r"(Yes|No), the capital of (.+) is (.+)\.", dialogue.answer)
        if said is None:
            continue
        word, country, city = said.groups()
        assert table.CAPITALS[country] == city
        assert (city.lower() in dialogue.messages[0]["content"].lower()) or word == "No"
        seen.add(word)
    assert seen == {"Yes", "No"}


def test_a_near_miss_is_refused_and_never_a_known_capital() -> None:
    """No country of the table is asked for its capital and refused."""
    source = Source(2)
    drawn = [make_refusal(source) for _ in range(4000)]
    assert all(dialogue.answer == ANSWER for dialogue in drawn)
    countries = [simplify(d.messages[0]["content"]).rpartition("the capital of ")[2] for d in drawn]
    assert sum("the capital of" in simplify(d.messages[0]["content"]) for d in drawn) > 20
    assert not set(countries) & {country.lower() for country in table.CAPITALS}


def test_a_new_name_in_the_system_prompt_is_copied() -> None:
    """The name that is told is the name that is said."""
    source = Source(6)
    named = [d for d in (make_obedience(source) for _ in range(600)) if d.answer.startswith("I am ")]
    names = {d.answer[5:-1] for d in named if "START" not in d.answer}
    assert len(names) > 100
    for dialogue in named:
        if dialogue.answer.count(" ") == 2:
            assert dialogue.answer[5:-1] in dialogue.messages[0]["content"]
