"""Turns that depend on the previous turn: "And of Italy?", "Say that again.", thanks after an answer."""
# ruff: noqa: E501 - a table of wordings reads better with one entry per line

from collections.abc import Callable

from spark.generator.checks import make_check
from spark.generator.dialogue import Dialogue, Message, Source, assistant, user
from spark.generator.facts import RELATIONS, draw_fact, fill
from spark.generator.greetings import INTENTS
from spark.generator.lists import make_list
from spark.generator.sums import make_sum
from spark.generator.wording import dress

# the last wording of each list is held out of training; {x} the subject of the question
_OTHER = (
    "And {x}?", "What about {x}?", "And what about {x}?", "How about {x}?", "And for {x}?", "And of {x}?", "Now {x}.", "Now for {x}.", "And now {x}?", "The same for {x}.", "Same question for {x}.", "And how about {x}?", "Okay, and {x}?", "{x}?", "Thanks. And {x}?",
    "What is it for {x}?", "Do the same for {x}.", "Next: {x}.", "Then what about {x}?", "I also need {x}.", "Also {x}, please.", "And the same for {x}?", "Tell me for {x} too.", "Great. And what about {x}?", "Could you do the same for {x}?", "And the same question for {x}?",
)  # fmt: skip
_AGAIN = (
    "Say that again.", "Can you say that again?", "Repeat that.", "Please repeat that.", "What did you say?", "Can you repeat that?", "Again, please.", "Sorry, what did you say?", "Once more, please.", "Repeat your answer.", "Could you repeat your answer?", "Say it again.",
    "Tell me again.", "One more time, please.", "I did not hear that.", "I did not get that. Repeat it, please.", "What was your answer?", "What was that?", "Please say that once more.", "Pardon?", "Could you say that once more?", "Can you repeat the answer?", "What was the answer again?", "Please say it again.",
    "Could you repeat that once more?",
)  # fmt: skip
_ASKED = (
    "What did I ask?", "What was my question?", "Repeat my question.", "Do you remember my question?", "What did I just ask?", "Tell me my question.", "Say my question again.", "What did I ask you?", "Which question did I ask?", "What did I want to know?", "Can you repeat my question?", "Which question did I just ask you?",
)  # fmt: skip
_RELATIONS = [name for name in RELATIONS if name not in ("definition", "group", "color")]
_FIRST: tuple[Callable[[Source], Dialogue], ...] = (make_check, make_list, make_sum)


def make_followup(source: Source) -> Dialogue:
    """A first question with its answer, then one that leans on it."""
    draw = source.random()
    if draw < 0.55:
        return _ask_other(source)
    messages = _first(source)
    if draw < 0.80:
        return _finish(
            source, messages, dress(source, source.pick_phrasing(_AGAIN), may_lower=True), str(messages[-1]["content"])
        )
    if draw < 0.90:
        question = source.pick_phrasing(_ASKED)
        return _finish(source, messages, question, f"You asked: {messages[0]['content']}")
    answer, wordings = INTENTS[source.choice(("thanks", "scold", "praise"))]
    return _finish(source, messages, source.pick_phrasing(wordings), answer)


def _first(source: Source) -> list[Message]:
    """A question and its answer, in a wording that training may show."""
    wanted, source.wants_new_phrasing = source.wants_new_phrasing, False
    if source.random() < 0.5:
        question, answer = draw_fact(source)
        messages = [user(question), assistant(answer)]
    else:
        messages = source.choice(_FIRST)(source).messages
    source.wants_new_phrasing, source.used_new_phrasing = wanted, False
    return messages


def _ask_other(source: Source) -> Dialogue:
    """A question about the same relation of one or two other things."""
    facts, answer, wordings = RELATIONS["capital" if source.random() < 0.3 else source.choice(_RELATIONS)]
    subjects = source.sample(list(facts), 3 if source.random() < 0.25 else 2)
    question = fill(source.choice(wordings[:-1]), subjects[0], facts[subjects[0]])
    messages = [user(dress(source, question, may_lower=True)), assistant(fill(answer, subjects[0], facts[subjects[0]]))]
    for other in subjects[1:-1]:
        then = fill(source.choice(_OTHER[:-1]), other, facts[other])
        messages += [user(then), assistant(fill(answer, other, facts[other]))]
    last = source.pick_phrasing(_OTHER).format(x=subjects[-1])
    if source.random() < 0.2:
        last = last.lower().rstrip("?.")
    return _finish(source, messages, last, fill(answer, subjects[-1], facts[subjects[-1]]))


def _finish(source: Source, messages: list[Message], question: str, answer: str) -> Dialogue:
    return Dialogue("followup", [*messages, user(question), assistant(answer)], [], source.used_new_phrasing)
