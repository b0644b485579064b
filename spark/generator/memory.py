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
    """One to four told facts, in one message or over turns, then a question (or two) about them."""
    draw = source.random()
    if draw < 0.12:
        return _ask_about_people(source)
    count = source.choices((1, 2, 3, 4), (28, 35, 24, 13))[0]
    told = [_fill(source, topic) for topic in _sample_topics(source, count)]
    if draw < 0.17:
        return _ask_for_untold(source, told)
    asked = source.choice(told)
    if draw < 0.24:
        return _correct(source, told, asked)
    if draw < 0.52:
        text = " ".join(statement for *_, statement in told)
        if source.random() < 0.5:
            return _finish(source, [user(f"{text} {_question(source, asked)}"), _recall(asked, told)])
        return _ask(source, [user(text), assistant(_acknowledge(text))], asked, told)
    messages = _tell(source, told)
    if count > 1 and source.random() < 0.3:
        other = source.choice(told)
        if other is not asked:
            messages += [user(_question(source, other)), _recall(other, told)]
    return _ask(source, messages, asked, told)


def make_memory_drill(source: Source) -> Dialogue:
    """Several facts about the user and about others, then question after question: to learn which fact is meant."""
    topics = [_fill(source, topic) for topic in _sample_topics(source, source.randrange(0, 5))]
    others = draw_facts(source, source.choice(RELATIONS), source.randrange(2, 4)) if source.random() < 0.75 else []
    if len(topics) + len(others) < 2:
        topics += [_fill(source, topic) for topic in _sample_topics(source, 2)]
    told = [*(entry[3] for entry in topics), *(fact.text for fact in others)]
    source.shuffle(told)
    messages = [user(" ".join(told)), assistant(_acknowledge(" ".join(told)))]
    if source.random() < 0.4:
        messages = [part for text in told for part in (user(text), assistant(_acknowledge(text)))]
    for _ in range(source.randrange(3, 8)):
        messages += _ask_one(source, topics, others)
    return Dialogue("memory_drill", messages, [], source.used_new_phrasing)


def _ask_one(source: Source, topics: list[Filled], others: list[Fact]) -> list[Message]:
    """One question of a drill and its answer; one in eight asks for what nobody told."""
    draw = source.random()
    if draw < 0.04 and others:
        return [user(draw_absent(source, others, others)), assistant(UNKNOWN)]
    if draw < 0.12:
        topic = source.choice(TOPICS)
        while any(set(topic.questions) & set(other.questions) for other, *_ in topics):
            topic = source.choice(TOPICS)
        asked = _fill(source, topic)
        if asked[1] not in [fact.fields["p"] for fact in others]:
            return [user(_question(source, asked)), assistant(UNKNOWN)]
    if others and (not topics or source.random() < 0.6):
        fact = source.choice(others)
        statements = [*(entry[3] for entry in topics), *(other.text for other in others)]
        question, answer = fact.draw_turn(source, source.random() < 0.5, statements)
        return [user(question), answer]
    asked = source.choice(topics)
    return [user(_question(source, asked)), _recall(asked, topics, others)]


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


def _question(source: Source, asked: Filled) -> str:
    topic, key, value, _ = asked
    return source.pick_phrasing(topic.questions).format(v=value, k=key)


def _answer(asked: Filled) -> str:
    topic, key, value, _ = asked
    return fix_articles(topic.answer.format(v=value, k=key))


def _recall(asked: Filled, told: Sequence[Filled], others: Sequence[Fact] = ()) -> Message:
    """The answer, with its source among all statements."""
    statements = [*(entry[3] for entry in told), *(fact.text for fact in others)]
    return recall(_answer(asked), asked[2], asked[3], statements)


def _tell(source: Source, told: list[Filled]) -> list[Message]:
    """Each fact in a turn of its own, sometimes with other talk between."""
    messages: list[Message] = []
    for *_, statement in told:
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


def _ask(source: Source, messages: list[Message], asked: Filled, told: Sequence[Filled]) -> Dialogue:
    question = _question(source, asked)
    if source.random() < 0.3:
        question = dress(source, question, may_lower=not asked[1])
    return _finish(source, [*messages, user(question), _recall(asked, told)])


def _correct(source: Source, told: list[Filled], asked: Filled) -> Dialogue:
    """One fact is stated again with another value; the newer value is right."""
    newer = asked
    while newer[2] == asked[2]:
        newer = _fill(source, asked[0], asked[1])
    is_now = newer[3].startswith("My ") and source.random() < 0.6
    text = f"{newer[3][:-1]} now." if is_now else source.choice(_UPDATES) + newer[3]
    messages = [*_tell(source, told), user(text), assistant(ACKNOWLEDGE)]
    newest = (*newer[:3], text)
    return _ask(source, messages, newest, [*told, newest])


def _ask_for_untold(source: Source, told: list[Filled]) -> Dialogue:
    """The question is about a topic that was not stated, or about another thing than the stated one."""
    topic = source.choice(TOPICS)
    while any(set(topic.questions) & set(other.questions) for other, *_ in told):
        topic = source.choice(TOPICS)
    asked = _fill(source, topic)
    keyed = [entry for entry in told if entry[1] and entry[0].key != "dream"]
    if keyed and source.random() < 0.4:
        other = source.choice(keyed)
        asked = other
        while asked[1] == other[1]:
            asked = _fill(source, other[0])
    text = " ".join(entry[3] for entry in told)
    messages = [user(text), assistant(_acknowledge(text))]
    if source.random() < 0.5:
        messages = _tell(source, told)
    if source.random() < 0.15:
        messages = []
    return _finish(source, [*messages, user(_question(source, asked)), assistant(UNKNOWN)])


def _ask_about_people(source: Source) -> Dialogue:
    """Two or three persons or things with a value each; one is asked for by its name or by its value."""
    facts = draw_facts(source, source.choice(RELATIONS), source.choices((1, 2, 3), (2, 6, 3))[0])
    asked = source.choice(facts)
    text = " ".join(fact.text for fact in facts)
    if source.random() < 0.12 and not source.wants_new_phrasing:
        return _finish(
            source, [user(text), assistant(ACKNOWLEDGE), user(draw_absent(source, facts, facts)), assistant(UNKNOWN)]
        )
    question, answer = asked.draw_turn(source, source.random() < 0.5, [fact.text for fact in facts])
    if source.random() < 0.5:
        return _finish(source, [user(f"{text} {question}"), answer])
    messages = [user(text), assistant(ACKNOWLEDGE)]
    if source.random() < 0.4:
        messages = [part for fact in facts for part in (user(fact.text), assistant(ACKNOWLEDGE))]
    return _finish(source, [*messages, user(question), answer])


def _finish(source: Source, messages: list[Message]) -> Dialogue:
    return Dialogue("memory", messages, [], source.used_new_phrasing)
