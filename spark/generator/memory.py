"""Memory over turns: the user states facts about themselves or others and asks for one of them later.

Answers copy from the conversation; nothing here can be known beforehand. The last statement counts; a fact that was not
stated is unknown.
"""
# ruff: noqa: E501 - a table of words reads better with one entry per line

import re
from collections.abc import Sequence

from spark.generator.dialogue import Dialogue, Message, Source, assistant, recall, user
from spark.generator.facts import draw_fact
from spark.generator.greetings import make_greeting
from spark.generator.held_out import is_held_out
from spark.generator.memory_table import TOPICS, Topic
from spark.generator.relations import RELATIONS, Fact, draw_absent, draw_facts, fix_articles
from spark.generator.values import draw_value
from spark.generator.wording import dress

ACKNOWLEDGE = "Okay, I will remember that."
UNKNOWN = "You did not tell me that."
_UPDATES = ("Correction: ", "Sorry, I was wrong. ", "No, wait. ", "That was wrong. ", "It changed. ", "I made a mistake. ", "News: ", "Not any more. ")  # fmt: skip
_KEYS = {
    "kin": ("sister", "brother", "mother", "father", "friend", "son", "daughter", "teacher", "neighbor", "aunt", "uncle", "boss", "wife", "husband"),
    "plan": ("trip", "holiday", "flight", "journey", "cruise", "tour"),
    "many": ("cats", "dogs", "books", "chairs", "lamps", "plants", "hats", "bikes", "shoes", "cups", "pictures", "clocks"),
    "work": ("movie", "book", "song", "film", "game", "band", "team", "restaurant", "shop", "story"),
    "dream": ("dream",),
    "hobby": ("reading", "swimming", "painting", "dancing", "singing", "running", "cooking", "baking", "fishing", "chess", "football", "tennis", "gardening", "sailing", "skating", "climbing", "hiking", "photography"),
    "drink": ("tea", "coffee", "water", "milk", "juice", "lemonade", "cocoa", "apple juice", "green tea", "orange juice", "hot chocolate", "mint tea"),
}  # fmt: skip
Filled = tuple[Topic, str, str, str]
"""A topic, its key, its value, and the statement that tells it."""


def make_memory(source: Source) -> Dialogue:
    """One to four stated facts, in one message or over several turns, then one or two questions about them."""
    draw = source.random()
    if draw < 0.12:
        return _ask_about_people(source)
    count = source.choices((1, 2, 3, 4), (28, 35, 24, 13))[0]
    stated = [_fill(source, topic) for topic in _sample_topics(source, count)]
    if draw < 0.17:
        return _ask_for_untold(source, stated)
    target = source.choice(stated)
    if draw < 0.24:
        return _correct(source, stated, target)
    if draw < 0.52:
        text = " ".join(statement for *_, statement in stated)
        if source.random() < 0.5:
            return _finish(source, [user(f"{text} {_question(source, target)}"), _recall(target, stated)])
        return _ask(source, [user(text), assistant(_acknowledge(text))], target, stated)
    messages = _tell(source, stated)
    if count > 1 and source.random() < 0.3:
        other = source.choice(stated)
        if other is not target:
            messages += [user(_question(source, other)), _recall(other, stated)]
    return _ask(source, messages, target, stated)


def make_memory_drill(source: Source) -> Dialogue:
    """Several facts about the user and about others, then question after question: to learn which fact is meant."""
    topics = [_fill(source, topic) for topic in _sample_topics(source, source.randrange(0, 5))]
    others = draw_facts(source, source.choice(RELATIONS), source.randrange(2, 4)) if source.random() < 0.75 else []
    if len(topics) + len(others) < 2:
        topics += [_fill(source, topic) for topic in _sample_topics(source, 2)]
    stated = [*(entry[3] for entry in topics), *(fact.text for fact in others)]
    source.shuffle(stated)
    messages = [user(" ".join(stated)), assistant(_acknowledge(" ".join(stated)))]
    if source.random() < 0.4:
        messages = [part for text in stated for part in (user(text), assistant(_acknowledge(text)))]
    for _ in range(source.randrange(3, 8)):
        messages += _ask_one(source, topics, others)
    return Dialogue("memory_drill", messages, [], source.used_new_phrasing)


def _ask_one(source: Source, topics: list[Filled], others: list[Fact]) -> list[Message]:
    """One question of a drill and its answer. One in eight is about a fact that was not stated."""
    draw = source.random()
    if draw < 0.04 and others:
        return [user(draw_absent(source, others, others)), assistant(UNKNOWN)]
    if draw < 0.12:
        topic = source.choice(TOPICS)
        while any(set(topic.questions) & set(other.questions) for other, *_ in topics):
            topic = source.choice(TOPICS)
        target = _fill(source, topic)
        if target[1] not in [fact.fields["p"] for fact in others]:
            return [user(_question(source, target)), assistant(UNKNOWN)]
    if others and (not topics or source.random() < 0.6):
        fact = source.choice(others)
        statements = [*(entry[3] for entry in topics), *(other.text for other in others)]
        question, answer = fact.draw_turn(source, source.random() < 0.5, statements)
        return [user(question), answer]
    target = source.choice(topics)
    return [user(_question(source, target)), _recall(target, topics, others)]


def _sample_topics(source: Source, count: int) -> list[Topic]:
    """Topics no two of which share their first question."""
    found: list[Topic] = []
    while len(found) < count:
        topic = source.choice(TOPICS)
        if not any(set(topic.questions) & set(other.questions) for other in found):
            found.append(topic)
    return found


def _draw(source: Source, kind: str) -> str:
    kind = source.choice(kind.split())
    return source.choice(_KEYS[kind]) if kind in _KEYS else str(draw_value(source, kind))


def _fill(source: Source, topic: Topic, key: str = "") -> Filled:
    key = key or (_draw(source, topic.key) if topic.key else "")
    value = _draw(source, topic.value)
    statement = fix_articles(source.choice(topic.statements).format(v=value, k=key))
    return topic, key, value, statement


def _question(source: Source, target: Filled) -> str:
    topic, key, value, _ = target
    return source.pick_phrasing(topic.questions).format(v=value, k=key)


def _answer(target: Filled) -> str:
    topic, key, value, _ = target
    return fix_articles(topic.answer.format(v=value, k=key))


def _recall(target: Filled, stated: Sequence[Filled], others: Sequence[Fact] = ()) -> Message:
    """The answer, with its source among all statements."""
    statements = [*(entry[3] for entry in stated), *(fact.text for fact in others)]
    return recall(_answer(target), target[2], target[3], statements)


def _tell(source: Source, stated: list[Filled]) -> list[Message]:
    """Each fact in a turn of its own, sometimes with other talk between."""
    messages: list[Message] = []
    for *_, statement in stated:
        messages += [user(statement), assistant(_acknowledge(statement))]
        if source.random() < 0.15 and not source.wants_new_phrasing:
            messages += _other_talk(source)
    return messages


def _acknowledge(text: str) -> str:
    """Greet a user who only states a name with a greeting, as elsewhere."""
    greeting = re.fullmatch(r"(?:Hi, my name is|Hello, I am) ([^.]+)\.", text)
    return f"Hello, {greeting[1]}! How can I help you today?" if greeting else ACKNOWLEDGE


def _other_talk(source: Source) -> list[Message]:
    """A greeting or a fact whose prompt, alone, is not held out."""
    while True:
        question, answer = draw_fact(source)
        messages = [user(question), assistant(answer)] if source.random() > 0.4 else make_greeting(source).messages
        if not is_held_out(messages[:1]):
            return messages


def _ask(source: Source, messages: list[Message], target: Filled, stated: Sequence[Filled]) -> Dialogue:
    question = _question(source, target)
    if source.random() < 0.3:
        question = dress(source, question, may_lower=not target[1])
    return _finish(source, [*messages, user(question), _recall(target, stated)])


def _correct(source: Source, stated: list[Filled], target: Filled) -> Dialogue:
    """One fact is stated again with another value; the newer value is right."""
    newer = target
    while newer[2] == target[2]:
        newer = _fill(source, target[0], target[1])
    is_now = newer[3].startswith("My ") and source.random() < 0.6
    text = f"{newer[3][:-1]} now." if is_now else source.choice(_UPDATES) + newer[3]
    messages = [*_tell(source, stated), user(text), assistant(ACKNOWLEDGE)]
    newest = (*newer[:3], text)
    return _ask(source, messages, newest, [*stated, newest])


def _ask_for_untold(source: Source, stated: list[Filled]) -> Dialogue:
    """The question is about a topic that was not stated, or about another thing than the stated one."""
    topic = source.choice(TOPICS)
    while any(set(topic.questions) & set(other.questions) for other, *_ in stated):
        topic = source.choice(TOPICS)
    target = _fill(source, topic)
    keyed = [entry for entry in stated if entry[1] and entry[0].key != "dream"]
    if keyed and source.random() < 0.4:
        other = source.choice(keyed)
        target = other
        while target[1] == other[1]:
            target = _fill(source, other[0])
    text = " ".join(entry[3] for entry in stated)
    messages = [user(text), assistant(_acknowledge(text))]
    if source.random() < 0.5:
        messages = _tell(source, stated)
    if source.random() < 0.15:
        messages = []
    return _finish(source, [*messages, user(_question(source, target)), assistant(UNKNOWN)])


def _ask_about_people(source: Source) -> Dialogue:
    """Two or three persons or things with a value each; the question names one of them or its value."""
    facts = draw_facts(source, source.choice(RELATIONS), source.choices((1, 2, 3), (2, 6, 3))[0])
    target = source.choice(facts)
    text = " ".join(fact.text for fact in facts)
    if source.random() < 0.12 and not source.wants_new_phrasing:
        return _finish(
            source, [user(text), assistant(ACKNOWLEDGE), user(draw_absent(source, facts, facts)), assistant(UNKNOWN)]
        )
    question, answer = target.draw_turn(source, source.random() < 0.5, [fact.text for fact in facts])
    if source.random() < 0.5:
        return _finish(source, [user(f"{text} {question}"), answer])
    messages = [user(text), assistant(ACKNOWLEDGE)]
    if source.random() < 0.4:
        messages = [part for fact in facts for part in (user(fact.text), assistant(ACKNOWLEDGE))]
    return _finish(source, [*messages, user(question), answer])


def _finish(source: Source, messages: list[Message]) -> Dialogue:
    return Dialogue("memory", messages, [], source.used_new_phrasing)
