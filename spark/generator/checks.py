"""Yes-or-no questions about facts: "Is Paris the capital of Spain?"."""
# ruff: noqa: E501 - a table of wordings reads better with one entry per line

from spark.generator.dialogue import Dialogue, Source, ask
from spark.generator.facts import RELATIONS, fill
from spark.generator.wording import dress

# relation -> wordings with {x} the subject and {y}, {ay} the supposed value; the last wording is held out of training
_CHECKS: dict[str, tuple[str, ...]] = {
    "capital": (
        "Is {y} the capital of {x}?", "Is {y} the capital of {x}?", "Is the capital of {x} {y}?", "Is {y} the capital city of {x}?", "{y} is the capital of {x}, right?", "The capital of {x} is {y}, right?", "Is it true that {y} is the capital of {x}?", "Is {y} {x}'s capital?",
        "Is it true that the capital of {x} is {y}?", "True or false: {y} is the capital of {x}.", "{y} is the capital of {x}, is it not?", "I think {y} is the capital of {x}. Is that true?", "Am I right that {y} is the capital of {x}?", "Does {x} have the capital {y}?",
        "I think the capital of {x} is {y}. Is that right?", "Is it right that the capital of {x} is {y}?", "Am I right that the capital of {x} is {y}?",
    ),
    "opposite": (
        "Is {y} the opposite of {x}?", "Is the opposite of {x} {y}?", "{y} is the opposite of {x}, right?", "The opposite of {x} is {y}, right?", "Is it true that {y} is the opposite of {x}?", "Is it true that the opposite of {x} is {y}?", "Does {y} mean the opposite of {x}?", "True or false: {y} is the opposite of {x}.",
        "Am I right that {y} is the opposite of {x}?", "I think the opposite of {x} is {y}. Is that right?", "Is {y} the contrary of {x}?", "Is it right that {y} is the opposite of {x}?", "Am I right that the opposite of {x} is {y}?",
    ),
    "group": (
        "Is {x} {ay}?", "Is {a} {ay}?", "Is {a} {ay}?", "Is {a} a kind of {y}?", "{A} is {ay}, right?", "Is it true that {a} is {ay}?", "Would you call {a} {ay}?", "True or false: {a} is {ay}.", "Does {x} belong to the group {y}?", "I think {a} is {ay}. Is that right?", "Is the word {x} the name of {ay}?",
        "Is it right that {a} is {ay}?", "Am I right that {a} is {ay}?", "I think {a} is {ay}. Is that true?", "Is it true that {a} is a kind of {y}?",
    ),
    "color": (
        "Is {a} {y}?", "Is {a} usually {y}?", "Is the color of {a} {y}?", "{A} is {y}, right?", "Is it true that {a} is {y}?", "Does {a} have the color {y}?", "True or false: {a} is {y}.", "Am I right that {a} is {y}?", "I think {a} is {y}. Is that right?", "Is {y} the color of {a}?", "The color of {a} is {y}, right?",
        "Is it right that {a} is {y}?", "I think the color of {a} is {y}. Is that right?", "Is it true that the color of {a} is {y}?",
    ),
    "legs": (
        "Does {a} have {y} legs?", "Has {a} {y} legs?", "{A} has {y} legs, right?", "Is it true that {a} has {y} legs?", "True or false: {a} has {y} legs.", "Am I right that {a} has {y} legs?", "I think {a} has {y} legs. Is that right?", "Does the {x} have {y} legs?", "Is it right that {a} has {y} legs?",
        "Does {a} walk on {y} legs?", "I think {a} has {y} legs. Is that true?",
    ),
    "continent": (
        "Is {x} in {y}?", "Is {x} located in {y}?", "Does {x} lie in {y}?", "{x} is in {y}, right?", "Is it true that {x} is in {y}?", "True or false: {x} is in {y}.", "Am I right that {x} is in {y}?", "I think {x} is in {y}. Is that right?", "Is {x} a country in {y}?", "Does {x} belong to {y}?",
        "Is {x} part of {y}?", "Is it right that {x} is in {y}?", "{x} lies in {y}, right?", "Is it true that {x} lies in {y}?",
    ),
    "language": (
        "Do people in {x} speak {y}?", "Do they speak {y} in {x}?", "Is {y} spoken in {x}?", "Is {y} the language of {x}?", "{y} is spoken in {x}, right?", "Is it true that people in {x} speak {y}?", "People in {x} speak {y}, right?", "True or false: people in {x} speak {y}.", "Am I right that people in {x} speak {y}?",
        "I think people in {x} speak {y}. Is that right?", "Is it true that {y} is spoken in {x}?", "Do people speak {y} in {x}?", "Am I right that {y} is spoken in {x}?",
    ),
}  # fmt: skip
_TRUE: dict[str, str] = {"group": "{A} is {ay}.", "color": "{A} is usually {y}."}
_NAMES = list(_CHECKS)
_WEIGHTS = [min(60, len(RELATIONS[name][0])) for name in _NAMES]


def make_check(source: Source) -> Dialogue:
    """A fact, true or with another value of its relation; the answer always states the true one."""
    relation = source.choices(_NAMES, _WEIGHTS)[0]
    facts, answer, _ = RELATIONS[relation]
    subject = source.choice(list(facts))
    known = facts[subject]
    supposed = known
    if source.random() < 0.5:
        values = dict.fromkeys(facts.values())
        supposed = source.choice(
            [value for value in values if value != known and not _could_hold(facts, subject, value)]
        )
    question = fill(source.pick_phrasing(_CHECKS[relation]), subject, supposed)
    said = fill(_TRUE.get(relation, answer), subject, known)
    if subject[0].islower() or said.startswith(("The ", "People ")):
        said = said[0].lower() + said[1:]
    return ask(
        "check", source, dress(source, question, may_lower=True), f"{'Yes' if supposed == known else 'No'}, {said}"
    )


def _could_hold(facts: dict[str, str], subject: str, supposed: str) -> bool:
    """Return True if another value than the table's is true as well: a bird is an animal, new is not old."""
    return facts.get(supposed) == subject or supposed in ("animal", "color", "metal")
