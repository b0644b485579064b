"""Sentiment of a text: positive, negative or neutral.

An opinion has one to three clauses, judging ones and neutral ones. Where two clauses disagree, the one after "but"
decides. A question that names only two labels gets one of the two. Topics are in `topics.py`.
"""
# ruff: noqa: E501 - a table of wordings reads better with one entry per line

import re

from spark.generator.dialogue import Dialogue, Source, ask, sentence
from spark.generator.opinions import ADJECTIVES, FILLERS, NEUTRAL, NOUNS, SAYINGS, VERBS
from spark.generator.topics import make_topic, place_text
from spark.generator.wording import OPENINGS
from spark.words import CITIES, NAMES, PLACES, WEEKDAYS

__all__ = ["draw_opinion", "make_sentiment", "make_topic"]

_PEOPLE = (
    "son",
    "daughter",
    "mother",
    "father",
    "wife",
    "husband",
    "friend",
    "brother",
    "sister",
    "boss",
    "teacher",
    "doctor",
    "neighbor",
)
_STRENGTH = (
    "",
    "",
    "",
    "",
    "very ",
    "really ",
    "so ",
    "quite ",
    "absolutely ",
    "truly ",
    "simply ",
    "extremely ",
    "just ",
    "pretty ",
    "too ",
    "surprisingly ",
)
_JUDGED = (
    "the {s} was {r}{a}", "the {s} is {r}{a}", "what a {a} {s}", "this {s} is {r}{a}", "I found the {s} {r}{a}", "the {s} and the {z} were {r}{a}",
    "my {s} is {r}{a}", "it was a {a} {s}", "such a {a} {s}", "{p} said the {s} was {r}{a}", "we had a {a} {s} in {c}", "the {s} in {c} was {r}{a}",
    "everything was {r}{a}", "{a} {s}", "the {s} was {r}{a} and {b}", "a {r}{a}, {b} {s}", "on {d} the {s} was {r}{a}", "{a} and {b}",
    "I think this {s} is {r}{a}", "it's {r}{a}", "it is {r}{a}", "a {a} {s}", "{a}", "{a}, {b} {s}", "a {a} and {b} {s}", "the {s} is {a}, {b} and {r}{e}",
    "the {s} looks {a}", "the {s} seems {a} to me", "one of the most {a} {s}s I know", "I have never seen such a {a} {s}", "the most {a} {s} of the year",
    "{r}{a} {s}", "this is a {a} {s} with a {b} {z}", "the {z} is {a} and the {s} is {b}", "it has a {a} {s}", "as {a} as it is {b}", "{a} {s}, {b} {z}",
)  # fmt: skip
_DENIED = (
    "the {s} is not {a}", "the {s} was not {a}", "it is not {a}", "it's not {a}", "it isn't {a}", "the {s} isn't {a}", "this {s} was not {a} at all",
    "it was not very {a}", "not {a}", "there is nothing {a} about it", "the {s} is anything but {a}", "I did not find it {a}", "never {a}", "the {s} wasn't {a}",
    "not a {a} {s}", "this is not a {a} {s}", "the {s} is far from {a}", "it is neither {a} nor {b}",
)  # fmt: skip
_DENIABLE = {
    "positive": ("good", "great", "funny", "worth it", "helpful", "friendly", "fresh", "clean", "interesting", "nice", "impressive", "comfortable", "reliable", "useful", "clever", "convincing", "exciting", "entertaining", "original", "clear", "special", "believable", "well made"),
    "negative": ("bad", "boring", "terrible", "dull", "disappointing", "slow", "expensive", "dirty", "rude", "awful", "cheap", "weak", "stupid", "difficult", "annoying", "ugly", "broken", "noisy", "predictable"),
}  # fmt: skip
_TWO = (
    "Is this positive or negative: {t}", "Is this review positive or negative? {t}", "{t} Is this positive or negative?", "How does this sound, positive or negative: {t}",
    "Classify the sentiment of this sentence as positive or negative: {t}", "Positive or negative? {t}", "Positive or negative: {t}", "Is this sentence positive or negative: {t}",
    "Is this text positive or negative? {t}", "Tell me if this is positive or negative: {t}", "Is the following review positive or negative?\n{t}", "Say positive or negative: {t}",
    "Label this as positive or negative: {t}", "{t}\nPositive or negative?", "Does this sound positive or negative? {t}", "Is the opinion positive or negative: {t}",
    "Is this a positive or a negative review: {t}", "Classify as positive or negative: {t}", "Would you call this review positive or negative: {t}",
)  # fmt: skip
_OPEN = (
    "What is the sentiment of this sentence: {t}", "Classify the sentiment: {t}", "Sentiment: {t}", "Positive, negative or neutral? {t}", "Label the sentiment of this review: {t}",
    "What is the sentiment of this text? {t}", "Classify this review as positive, negative or neutral: {t}", "Tell me the sentiment: {t}", "{t} What is the sentiment?",
    "Rate the sentiment of: {t}", "Is the writer happy? Label the sentiment: {t}", "Is this positive, negative or neutral: {t}", "Sentiment of this review: {t}", "What is the sentiment here? {t}",
    "Classify the sentiment of this review:\n{t}", "{t}\nSentiment?", "Find the sentiment of this sentence: {t}", "Give me the sentiment of: {t}", "Label this text as positive, negative or neutral: {t}",
    "Which sentiment does this text have: {t}",
)  # fmt: skip


def _fill(source: Source, clause: str, domain: str, label: str) -> str:
    adjectives = ADJECTIVES.get(label, ("plain",))
    nouns = NOUNS[domain]
    filled = clause.replace("{s}s", "{m}").format(
        m=_pluralize(source.choice(nouns)),
        s=source.choice(nouns), z=source.choice(nouns), a=source.choice(adjectives), b=source.choice(adjectives), e=source.choice(adjectives),
        r=source.choice(_STRENGTH), p=source.choice(NAMES), c=source.choice(CITIES), d=source.choice(WEEKDAYS), l=source.choice(PLACES), k=source.choice(_PEOPLE),
    )  # fmt: skip
    return re.sub(r"\b([aA]) (?=[aeio]|un(?!i))", r"\1n ", filled)


def _pluralize(noun: str) -> str:
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "sh", "ch", "x")) else "s")


def _draw_clause(source: Source, domain: str, label: str) -> str:
    """One clause that judges, in one of four ways."""
    draw = source.random()
    if draw < 0.42:
        return _fill(source, source.choice(_JUDGED), domain, label)
    if draw < 0.54:
        other = _DENIABLE["negative" if label == "positive" else "positive"]
        clause = source.choice(_DENIED).replace("{a}", source.choice(other)).replace("{b}", source.choice(other))
        return _fill(source, clause, domain, label)
    if draw < 0.74:
        start = source.choice(("the {s} ", "the {s} ", "this {s} ", "it ", "my {s} ", ""))
        return _fill(source, start + source.choice(VERBS[label]), domain, label)
    return _fill(source, source.choice(SAYINGS[label]), domain, label)


def _draw_contrast(source: Source, domain: str, label: str) -> str:
    """A clause of the other label, then the one that decides."""
    other = _draw_clause(source, domain, "negative" if label == "positive" else "positive")
    own = _draw_clause(source, domain, label)
    link = source.choice((" but ", ", but ", ", but ", ". But ", ", however ", " - but "))
    return (
        f"{source.choice(('although ', 'even though ', 'while '))}{other}, {own}"
        if source.random() < 0.25
        else other + link + own
    )


def draw_opinion(source: Source, label: str) -> str:
    """A text with the sentiment `label`: two to some forty words, with or without marks and capitals."""
    domain = source.choice(list(NOUNS))
    if label == "neutral":
        parts = [_fill(source, source.choice(NEUTRAL), domain, label)]
        if source.random() < 0.3:
            parts.append(_fill(source, source.choice(FILLERS[domain]), domain, label))
        return _write(source, parts)
    draw = source.random()
    parts = [_draw_contrast(source, domain, label) if draw < 0.12 else _draw_clause(source, domain, label)]
    if draw > 0.75:
        parts.append(_draw_clause(source, domain, label))
    for _ in range(source.choice((0, 0, 0, 0, 1, 1, 1, 2))):
        parts.insert(source.choice((0, 0, len(parts))), _fill(source, source.choice(FILLERS[domain]), domain, label))
    return _write(source, parts)


def _write(source: Source, parts: list[str]) -> str:
    """Clauses as sentences, or strung together; as a careful, an excited or a hasty writer would."""
    draw = source.random()
    if len(parts) > 1 and draw < 0.4:
        return sentence(source.choice((", ", " and ", ", and ", "; ", ", so ")).join(parts)) + source.choice(
            (".", ".", "!", "")
        )
    if draw > 0.9:
        return source.choice((". ", " ", ", ")).join(parts).lower() + source.choice(("", "", ".", "!!", " ."))
    marks = [source.choice((".", ".", ".", "!", "!!", "...")) for _ in parts]
    text = " ".join(sentence(part) + mark for part, mark in zip(parts, marks, strict=True))
    return text.rstrip(".!") if source.random() < 0.08 else text


def make_sentiment(source: Source) -> Dialogue:
    """positive or negative; neutral only where the question leaves room for it."""
    is_open = source.random() < 0.55
    label = source.choices(("positive", "negative", "neutral"), (38, 38, 24) if is_open else (50, 50, 0))[0]
    text = draw_opinion(source, label)
    if source.random() < 0.15:
        text = f'"{text}"' if source.random() < 0.5 else f"'{text}'"
    question = place_text(source.pick_phrasing(_OPEN if is_open else _TWO), text)
    if source.random() < 0.08:
        question = source.choice(OPENINGS) + question
    return ask("sentiment", source, question, label)
